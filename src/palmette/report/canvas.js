// Marks, texts and colors for a canvas.
function trace(pen, kind, x, y, radius) {
  if (kind === RIGHT || kind === WRONG || kind === UNJUDGED) pen.rect(x - radius, y - radius, 2 * radius, 2 * radius);
  else if (kind === STOPPED) pen.rect(x - 1.25, y - radius - 1, 2.5, 2 * radius + 2);
  else {
    const size = kind === DROPPED ? radius * 0.75 : radius;
    pen.moveTo(x + size, y);
    pen.arc(x, y, size, 0, 2 * Math.PI);
  }
}

function shortened(text, most) {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length <= most ? line : `${line.slice(0, Math.max(1, most - 1))}…`;
}

function sharpen(canvas, pen, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
}

function palette() {
  const style = getComputedStyle(document.documentElement), value = (name) => style.getPropertyValue(`--${name}`).trim();
  const colors = Object.fromEntries(["paper", "ink", "soft", "faint", "line", "leaf", "bad", "pick", "shared", "alone", "mono"].map((name) => [name, value(name)]));
  return { ...colors, clusters: Array.from({ length: 8 }, (_, place) => value(`c${place}`)) };
}
