// Helpers for drawing: shapes of marks and nodes, shortened text, resolution, colors.
function markPath(kind, x, y, r) {
  if (kind === "square") return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`;
  if (kind === "triangle") return `M${x} ${y - r * 1.2}L${x + r * 1.15} ${y + r * 0.9}H${x - r * 1.15}z`;
  if (kind === "diamond") return `M${x} ${y - r * 1.3}L${x + r * 1.3} ${y}L${x} ${y + r * 1.3}L${x - r * 1.3} ${y}z`;
  if (kind === "cross") { const t = r * 0.42, l = r * 1.2; return `M${x - t} ${y - l}h${2 * t}v${l - t}h${l - t}v${2 * t}h${t - l}v${l - t}h${-2 * t}v${t - l}h${t - l}v${-2 * t}h${l - t}z`; }
  return `M${x + r} ${y}A${r} ${r} 0 1 1 ${x - r} ${y}A${r} ${r} 0 1 1 ${x + r} ${y}z`;
}

// Adds the shape of a node to the current path of `pen`.
function trace(pen, kind, x, y, radius) {
  if (kind === CORRECT || kind === WRONG || kind === UNJUDGED) pen.rect(x - radius, y - radius, 2 * radius, 2 * radius);
  else if (kind === STOPPED) pen.rect(x - 1.25, y - radius - 1, 2.5, 2 * radius + 2);
  else {
    const size = kind === PRUNED ? radius * 0.75 : radius;
    pen.moveTo(x + size, y);
    pen.arc(x, y, size, 0, 2 * Math.PI);
  }
}

function shortened(text, most) {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length <= most ? line : `${line.slice(0, Math.max(1, most - 1))}…`;
}

// Sets the size of a canvas, in device pixels, so that it is sharp on every screen.
function sharpen(canvas, pen, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
}

// Returns the colors of the page's style sheet, which depend on the light or dark scheme.
function palette() {
  const style = getComputedStyle(document.documentElement), value = (name) => style.getPropertyValue(`--${name}`).trim();
  const colors = Object.fromEntries(["paper", "ink", "soft", "faint", "line", "leaf", "bad", "pick", "shared", "alone", "mono"].map((name) => [name, value(name)]));
  return { ...colors, clusters: Array.from({ length: 8 }, (_, place) => value(`c${place}`)) };
}
