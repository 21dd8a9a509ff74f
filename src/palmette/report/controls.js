// The legend, slider and KV bars around the tree, and the event handlers of the explorer.
function showLegend() {
  const { tree } = explorer, hasClusters = tree.cluster.some((label) => label >= 0);
  const sign = (kind, color, hollow) => {
    const svg = svgElement("svg", { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" });
    const shape = kind === "bar" ? "M5 1h2.5v10h-2.5z" : markPath(kind, 6, 6, kind === "disc" && hollow ? 3 : 4);
    svg.append(svgElement("path", { d: shape, fill: hollow ? "none" : color, stroke: color, "stroke-width": hollow ? 1.5 : 0 }));
    return svg;
  };
  const entries = [["continues", sign("disc", "var(--leaf)")], ["pruned", sign("disc", "var(--soft)", true)]];
  if (explorer.question.judged !== false) entries.push(["finished, correct", sign("square", "var(--leaf)")], ["finished, wrong", sign("square", "var(--bad)", true)]);
  if (tree.end.includes(UNJUDGED)) entries.push([explorer.question.judged === false ? "finished" : "finished, not judged", sign("square", "var(--ink)")]);
  if (explorer.question.stopped.length) entries.push(["stopped at a limit", sign("bar", "var(--soft)")]);
  if (hasClusters) entries.push(["clusters A, B, C … (new in each wave)", sign("disc", "var(--c0)")]);
  byId("legend").replaceChildren(...entries.map(([name, svg]) => {
    const entry = element("span");
    entry.append(svg, name);
    return entry;
  }));
}

// Places the slider so that the middle of its thumb is above the column of the wave.
function placeSlider() {
  const slider = byId("wave"), thumb = 18;
  slider.style.marginLeft = `${view.left - thumb / 2}px`;
  slider.style.width = `${view.columnWidth * Math.max(1, explorer.question.waves.length) + thumb}px`;
}

function drawKv() {
  const canvas = byId("kv"), pen = canvas.getContext("2d"), { waves } = explorer.question, high = 104, floor = high - 20, colors = view.colors;
  if (canvas.style.width !== `${view.width}px`) sharpen(canvas, pen, view.width, high);
  pen.clearRect(0, 0, view.width, high);
  // What nothing shared would take is often many times more: its outline is left open at the top.
  const most = Math.max(1, Math.min(2 * Math.max(...waves.map((wave) => wave.kv)), Math.max(...waves.map((wave) => wave.separate))));
  const scale = (floor - 18) / most;
  const wide = Math.max(2, Math.min(26, view.columnWidth * 0.62)), every = Math.ceil(24 / view.columnWidth);
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = colors.soft;
  pen.fillText("KV tokens", 0, 11);
  pen.fillStyle = colors.line;
  pen.fillRect(0, floor, view.width, 1);
  waves.forEach((wave, place) => {
    const x = view.left + (place + 1) * view.columnWidth, isShown = place + 1 === explorer.wave;
    pen.globalAlpha = isShown ? 1 : 0.5;
    pen.fillStyle = colors.alone;
    pen.fillRect(x - wide / 2, floor - wave.kv * scale, wide, wave.kv * scale);
    pen.fillStyle = colors.shared;
    pen.fillRect(x - wide / 2, floor - wave.shared * scale, wide, wave.shared * scale);
    pen.strokeStyle = colors.soft;
    const left = x - wide / 2 - 0.5, top = floor - Math.min(most, wave.separate) * scale - 0.5;
    pen.beginPath();
    pen.moveTo(left, top);
    pen.lineTo(left, floor - 0.5);
    pen.lineTo(left + wide + 1, floor - 0.5);
    pen.lineTo(left + wide + 1, top);
    if (wave.separate <= most) pen.closePath();
    pen.stroke();
    pen.globalAlpha = 1;
    pen.fillStyle = isShown ? colors.ink : colors.soft;
    pen.textAlign = "center";
    const near = Math.abs(place + 1 - explorer.wave) < every;
    if (isShown || (!near && (place + 1) % every === 0)) pen.fillText(String(place + 1), x, high - 5);
    pen.textAlign = "left";
  });
}

const KEYS = {
  ArrowLeft: () => pick(Math.max(0, explorer.tree.parent[view.picked])),
  ArrowRight: () => {
    const child = explorer.tree.first[view.picked];
    if (child >= 0 && explorer.tree.column[child] <= explorer.wave) pick(child);
  },
  ArrowUp: () => pick(neighbor(explorer.tree, view.picked, -1)),
  ArrowDown: () => pick(neighbor(explorer.tree, view.picked, 1)),
  PageUp: () => goToWave(explorer.wave - 1),
  PageDown: () => goToWave(explorer.wave + 1),
  Home: () => pick(0),
  End: () => { view.wanted = elected() ?? 0; goToWave(explorer.question.waves.length); pick(view.wanted); },
  "+": () => view.zoomBy(1.6),
  "=": () => view.zoomBy(1.6),
  "-": () => view.zoomBy(1 / 1.6),
  0: () => view.zoomBy(0),
};

byId("view").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});
byId("wave").addEventListener("input", (event) => goToWave(Number(event.target.value)));
byId("in").addEventListener("click", () => view.zoomBy(1.6));
byId("out").addEventListener("click", () => view.zoomBy(1 / 1.6));
byId("fit").addEventListener("click", () => view.zoomBy(0));
byId("kv").addEventListener("click", (event) => goToWave(Math.round((event.offsetX - view.left) / view.columnWidth)));
