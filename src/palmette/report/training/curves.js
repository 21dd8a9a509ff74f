// Curves of statistics, of all runs: small plots that share the horizontal axis and the selected update.
const percent = (value) => `${(100 * value).toFixed(1)}%`;
const FIGURES = [
  { title: "reward", lines: ["reward"], note: "mean of all responses" },
  { title: "test accuracy", tested: true, lines: [], text: percent, note: "solid: one response ± standard error; dashed: elected" },
  { title: "loss", lines: ["loss", "test_loss"], needs: "epoch", note: "nats; solid: rows of the update; dashed: rows held out, as last tested" },
  { title: "accuracy on steps", lines: ["test_accuracy"], text: percent, exact: true, note: "rows held out, as last tested" },
  { title: "AUC of steps", lines: ["test_auc"], exact: true, note: "rows held out; 0.5 is chance" },
  { title: "questions with signal", lines: ["signal_share"], text: percent, from: 0, note: "share whose responses have different rewards" },
  { title: "response length", lines: ["response_tokens"], from: 0, note: "tokens, mean of all responses" },
  { title: "cut at the limit", lines: ["cut_share"], text: percent, from: 0, note: "share of responses" },
  { title: "entropy", lines: ["entropy"], from: 0, note: "nats, mean of all tokens" },
  { title: "KL divergence", lines: ["kl"], note: "from the reference; 0 without one" },
  { title: "ratio before the clip", lines: ["ratio", "ratio_low", "ratio_high"], with: 1, note: "solid: mean; dashed: smallest and largest; 1 is exact" },
  { title: "learner / server", lines: ["server_ratio", "server_ratio_low", "server_ratio_high"], with: 1, note: "probability of tokens: solid: mean; dashed: smallest and largest" },
  { title: "clipped", lines: ["clipped_share"], text: percent, from: 0, note: "share of tokens" },
  { title: "gradient norm", lines: ["gradient_norm"], from: 0, note: "before clipping" },
  { title: "learning rate", lines: ["learning_rate"], from: 0, exact: true, note: "" },
  { title: "tokens per second", lines: ["tokens_per_second"], from: 0, note: "generated in the rollout, or of rows trained on" },
];
const DASHES = ["", "5 3", "2 3", "8 3 2 3"];
const SMOOTHED_FROM = 20;
const chosen = { run: 0, place: 0, against: "updates" };
let cursors = [];  // One function for each plot that shows the selected update in it.

const runColor = (place) => `var(--c${place % 8})`;
const runLabel = ({ method, config: { seed }, name }) => `${method}, seed ${seed} · ${name}`;

function shortNumber(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
  for (const [unit, sign] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) if (size >= unit) return `${Number((value / (sign === "k" ? 1e3 : unit)).toPrecision(4))}${sign}`;
  return String(Number(value.toPrecision(size > 0.9 && size < 1.1 ? 6 : 4)));
}

// Returns how the ticks of an axis are written: with as many digits as their distance needs.
function tickText(marks) {
  const step = marks.length > 1 ? marks[1] - marks[0] : 1, digits = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
  const most = Math.max(...marks.map(Math.abs));
  if (digits > 4 && most < 0.01) return (value) => (Math.abs(value) < step / 2 ? "0" : value.toExponential(Math.max(0, Math.floor(Math.log10(most)) + digits)));
  return (value) => (most >= 1e4 ? shortNumber(value) : value.toFixed(digits));
}

// Returns the ends of an axis that shows all values, never so near to each other that rounding decides.
function ends(values, spec) {
  const all = [...values, ...[spec.from, spec.with].filter((value) => value !== undefined)];
  let low = Infinity, high = -Infinity;
  for (const value of all) { low = Math.min(low, value); high = Math.max(high, value); }
  const least = Math.max(Math.abs(low), Math.abs(high)) * 1e-6 || 1, missing = Math.max(0, least - (high - low)) / 2;
  const margin = 0.06 * (high - low);
  return [spec.from === low ? low : low - missing - margin, high + missing + margin];
}

// Returns the mean of each value with its neighbors, a 25th of all; null where there is none.
function smoothed(values) {
  const reach = Math.max(1, Math.round(values.length / 50));
  return values.map((value, place) => {
    const near = values.slice(Math.max(0, place - reach), place + reach + 1).filter((other) => other !== null);
    return value === null ? null : near.reduce((sum, other) => sum + other, 0) / near.length;
  });
}

function linePath(across, values, x, y) {
  let path = "", isDrawing = false;
  values.forEach((value, place) => {
    if (value !== null) path += `${isDrawing ? "L" : "M"}${x(across[place]).toFixed(1)} ${y(value).toFixed(1)}`;
    isDrawing = value !== null;
  });
  return path;
}

const series = (run, name) => runs[run].numbers[name] ?? [];

function valuesOf(spec) {
  if (spec.tested) return runs.flatMap(({ tested }) => tested.flatMap(({ single, error, elected }) => [single - error, single + error, elected]));
  if (spec.needs && !runs.some((run) => run.numbers[spec.needs])) return [];
  return runs.flatMap((_, run) => spec.lines.flatMap((name) => series(run, name))).filter((value) => value !== null);
}

// Returns the value at the selected update as text: of a test, that of the last one up to it.
function valueText(spec) {
  const run = runs[chosen.run], text = spec.text ?? shortNumber;
  if (!spec.tested) {
    const value = series(chosen.run, spec.lines[0])[chosen.place];
    return value === null || value === undefined ? "–" : text(value);
  }
  const last = run.tested.filter(({ update }) => update <= (run.updates[chosen.place] ?? 0)).pop();
  return last ? `${text(last.single)} ± ${text(last.error)}` : "–";
}

function drawCurve(figure, spec) {
  const values = valuesOf(spec), wide = Math.max(280, figure.clientWidth), high = 190;
  const box = { left: 58, right: wide - 10, top: 8, bottom: high - 30 };
  const across = runs.map((run) => run[chosen.against]);
  const [from, to] = spec.tested ? [0, Math.max(1, ...runs.flatMap((run) => run.tested.map((test) => test[testKey()])), ...across.map((list) => list[list.length - 1] ?? 0))] : acrossEnds(across);
  const [low, top] = ends(values, spec);
  const x = (value) => box.left + ((value - from) / (to - from)) * (box.right - box.left), y = (value) => box.bottom - ((value - low) / (top - low)) * (box.bottom - box.top);
  const svg = svgElement("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `${spec.title} against ${byId("against").selectedOptions[0].text}` });
  const marks = ticks(low, top, false, 4), write = spec.text ? (value) => `${Number((100 * value).toPrecision(4))}%` : tickText(marks);
  for (const mark of marks) gridLine(svg, box, y(mark), write(mark));
  drawAcross(svg, x, box, from, to, wide);
  runs.forEach((_, run) => (spec.tested ? drawTests(svg, run, x, y) : spec.lines.forEach((name, place) => drawLine(svg, run, series(run, name), place, spec.exact, x, y))));
  const cursor = svg.appendChild(svgElement("line", { y1: box.top, y2: box.bottom, stroke: "var(--pick)", "stroke-width": 1.25 }));
  const caption = element("figcaption"), value = element("b");
  caption.append(element("span", spec.title), value);
  cursors.push(() => {
    const at = x(across[chosen.run][chosen.place] ?? from);
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    value.textContent = valueText(spec);
  });
  svg.addEventListener("click", (event) => {
    const bounds = svg.getBoundingClientRect(), at = from + (((event.clientX - bounds.left) * wide / bounds.width - box.left) / (box.right - box.left)) * (to - from);
    selectUpdate(nearestPlace(across[chosen.run], at));
  });
  figure.replaceChildren(caption, element("p", spec.note, "note"), svg);
}

const testKey = () => (chosen.against === "updates" ? "update" : chosen.against);

function acrossEnds(across) {
  const firsts = across.map((list) => list[0] ?? 0), lasts = across.map((list) => list[list.length - 1] ?? 1);
  const from = chosen.against === "updates" ? Math.min(...firsts) : 0, to = Math.max(...lasts);
  return to > from ? [from, to] : [from - 1, from + 1];
}

function drawAcross(svg, x, box, from, to, wide) {
  const marks = ticks(from, to, false, wide < 340 ? 4 : 5).filter((mark) => chosen.against !== "updates" || Math.abs(mark - Math.round(mark)) < 1e-9);
  for (const mark of marks) {
    svg.append(svgElement("line", { class: "axis", x1: x(mark), x2: x(mark), y1: box.bottom, y2: box.bottom + 4 }));
    svg.append(svgElement("text", { class: "soft", x: x(mark), y: box.bottom + 18, "text-anchor": "middle" }, shortNumber(mark)));
  }
}

function drawLine(svg, run, values, place, isExact, x, y) {
  const path = (drawn, width, opacity) => svg.append(svgElement("path", { d: linePath(runs[run][chosen.against], drawn, x, y), fill: "none", stroke: runColor(run), "stroke-width": width, "stroke-dasharray": place ? "3 3" : DASHES[Math.floor(run / 8) % 4], "stroke-linejoin": "round", opacity }));
  if (values.length === 1 && values[0] !== null) svg.append(svgElement("circle", { cx: x(runs[run][chosen.against][0]), cy: y(values[0]), r: 3, fill: runColor(run) }));
  if (place || isExact || values.length < SMOOTHED_FROM) return path(values, place ? 1 : 1.75, place ? 0.8 : 1);
  path(values, 1, 0.3);
  return path(smoothed(values), 2, 1);
}

function drawTests(svg, run, x, y) {
  const { tested } = runs[run], color = runColor(run), across = tested.map((test) => test[testKey()]);
  const line = (values, dashes) => svg.append(svgElement("path", { d: linePath(across, values, x, y), fill: "none", stroke: color, "stroke-width": 1.75, "stroke-dasharray": dashes }));
  if (tested.some(({ single, elected }) => single !== elected)) line(tested.map(({ elected }) => elected), "3 3");
  line(tested.map(({ single }) => single), "");
  tested.forEach(({ single, error }, place) => {
    const at = x(across[place]);
    svg.append(svgElement("path", { d: `M${at} ${y(single - error)}V${y(single + error)}M${at - 3} ${y(single - error)}h6M${at - 3} ${y(single + error)}h6`, stroke: color, "stroke-width": 1.25, opacity: 0.6, fill: "none" }));
    svg.append(svgElement("circle", { cx: at, cy: y(single), r: 3.5, fill: color, stroke: "var(--paper)" }));
  });
}

function nearestPlace(across, at) {
  return across.reduce((best, value, place) => (Math.abs(value - at) < Math.abs(across[best] - at) ? place : best), 0);
}

function drawFigures(holder, specs) {
  const figures = specs.map(() => element("figure"));
  holder.replaceChildren(...figures);
  figures.forEach((figure, place) => drawCurve(figure, specs[place]));
}

function showCurves() {
  cursors = [];
  const shown = FIGURES.filter((spec) => valuesOf(spec).length), drawn = new Set(shown.flatMap((spec) => spec.lines));
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.numbers)))].filter((name) => !drawn.has(name));
  const others = names.map((name) => ({ title: name.replaceAll("_", " "), lines: [name], note: "" })).filter((spec) => valuesOf(spec).length);
  drawFigures(byId("curves"), shown);
  byId("more").hidden = !others.length;
  if (byId("more").open) drawFigures(byId("others"), others);
  const isSmooth = runs.some((run) => run.updates.length >= SMOOTHED_FROM);
  byId("curves-note").textContent = `Numbers are those of the selected update${runs.length > 1 ? " of the selected run" : ""}; a click on a plot selects one.${isSmooth ? " Strong lines are means over neighboring updates." : ""}`;
  for (const show of cursors) show();
}
