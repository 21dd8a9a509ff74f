// Plots of accuracy against a cost: one mark for each row, the widths of a strategy joined by a line, and the curve of
// best-of-N behind them.
const MARKS = ["disc", "square", "triangle", "diamond", "cross"];

function showPlot(figure, cost, title) {
  const points = rows.filter((row) => row[row.vote] !== undefined && row[cost] > 0).map((row) => ({
    name: `${row.strategy} ${row.width}`, strategy: row.strategy, width: row.width, at: row[cost], accuracy: row[row.vote],
    low: row[`${row.vote}_low`], high: row[`${row.vote}_high`], row,
  }));
  const behind = curves.map((curve) => curve.filter((point) => point[cost] > 0).map((point) => ({ ...point, at: point[cost] })));
  const costs = [...points, ...behind.flat()].map((point) => point.at);
  const least = Math.min(...costs), greatest = Math.max(...costs), isLog = greatest > 8 * least;
  const wide = Math.max(300, figure.clientWidth), high = Math.round(Math.max(300, Math.min(400, wide * 0.66)));
  const box = { left: 40, right: wide - 14, top: 14, bottom: high - 46 };
  // The axis spans at least a fifth of the largest cost, so that costs that hardly differ are drawn close together.
  const margin = Math.max(0.08 * (greatest - least), 0.1 * greatest - (greatest - least) / 2);
  const from = isLog ? least / 1.15 : Math.max(0, least - margin), to = isLog ? greatest * 1.15 : greatest + margin;
  const along = isLog ? (value) => Math.log(value / from) / Math.log(to / from) : (value) => (value - from) / (to - from);
  const bottom = Math.floor(Math.min(1, ...points.map((point) => point.low), ...behind.flat().map((point) => point.accuracy)) * 10) / 10;
  const top = Math.max(bottom + 0.2, Math.ceil(Math.max(...points.map((point) => point.high), ...behind.flat().map((point) => point.accuracy)) * 10) / 10);
  const x = (value) => box.left + along(value) * (box.right - box.left);
  const y = (accuracy) => box.bottom - ((accuracy - bottom) / (top - bottom)) * (box.bottom - box.top);
  const svg = svgElement("svg", { viewBox: `0 0 ${wide} ${high}`, role: "group", "aria-label": title });
  for (const tick of ticks(bottom, top, false, 6)) {
    svg.append(svgElement("line", { class: "axis", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }));
    svg.append(svgElement("text", { class: "soft", x: box.left - 8, y: y(tick) + 4, "text-anchor": "end" }, tick.toFixed(2)));
  }
  for (const tick of ticks(from, to, isLog, wide < 420 ? 4 : 6)) {
    svg.append(svgElement("line", { class: "axis", x1: x(tick), x2: x(tick), y1: box.bottom, y2: box.bottom + 5 }));
    svg.append(svgElement("text", { class: "soft", x: x(tick), y: box.bottom + 19, "text-anchor": "middle" }, tick < 10 ? String(tick) : count(tick)));
  }
  svg.append(svgElement("text", { class: "soft", x: (box.left + box.right) / 2, y: high - 6, "text-anchor": "middle" }, `${title}${isLog ? ", logarithmic" : ""}`));

  for (const point of behind.flat()) point.px = x(point.at);
  spreadOut(points, x);
  const details = element("output", "Point at a mark, or move to it with the Tab key, to see its numbers.");
  const taken = [];  // Rectangles that labels should not cover, each with the penalty for covering it.
  for (const curve of behind) {
    svg.append(svgElement("path", { d: curve.map((point, place) => `${place ? "L" : "M"}${point.px} ${y(point.accuracy)}`).join(""), fill: "none", stroke: "var(--soft)", "stroke-width": 1.25, "stroke-dasharray": "4 4" }));
    for (const point of curve) {
      point.name = `best of ${point.branches}`;
      taken.push([point.px - 4, y(point.accuracy) - 4, point.px + 4, y(point.accuracy) + 4, 20]);
    }
  }
  const reserve = (line, price) => line.slice(1).forEach((to, place) => {
    const from = line[place], pieces = Math.ceil(Math.hypot(to.px - from.px, y(to.accuracy) - y(from.accuracy)) / 8);
    for (let piece = 1; piece < pieces; piece += 1) {
      const part = piece / pieces, at = from.px + part * (to.px - from.px), height = y(from.accuracy + part * (to.accuracy - from.accuracy));
      taken.push([at - 2, height - 2, at + 2, height + 2, price]);
    }
  });
  behind.forEach((curve) => reserve(curve, 2));
  const strategies = [...new Set(points.map((point) => point.strategy))];
  for (const strategy of strategies) {
    const line = points.filter((point) => point.strategy === strategy).sort((a, b) => a.width - b.width);
    const color = `var(--c${strategies.indexOf(strategy) % 8})`;
    svg.append(svgElement("path", { d: line.map((point, place) => `${place ? "L" : "M"}${point.px} ${y(point.accuracy)}`).join(""), fill: "none", stroke: color, "stroke-width": 1.5, opacity: 0.7 }));
    reserve(line, 3);
    for (const point of line) {
      point.color = color;
      point.mark = MARKS[strategies.indexOf(strategy) % MARKS.length];
      svg.append(svgElement("path", { d: `M${point.px} ${y(point.low)}V${y(point.high)}M${point.px - 3} ${y(point.low)}h6M${point.px - 3} ${y(point.high)}h6`, stroke: color, "stroke-width": 1.25, opacity: 0.55, fill: "none" }));
      taken.push([point.px - 7, y(point.accuracy) - 7, point.px + 7, y(point.accuracy) + 7, 100], [point.px - 2, y(point.high), point.px + 2, y(point.low), 4]);
    }
  }
  const ends = behind.flatMap((curve) => curve.map((point) => ({ ...point, color: "var(--soft)", mark: "disc", minor: true })));
  const marks = svg.appendChild(svgElement("g", {}));
  const named = new Set(points.filter((point) => point.strategy === "best_of_n").map((point) => point.width));
  for (const point of [...points, ...ends.filter((end) => !named.has(end.branches))]) {
    const place = labelPlace(point.minor ? String(point.branches) : point.name, point.px, y(point.accuracy), box, taken, point.minor);
    if (!place) continue;
    if (place.far) svg.insertBefore(svgElement("line", { class: "leader", x1: point.px, y1: y(point.accuracy), x2: place.x + place.wide / 2, y2: place.y - 4 }), marks);
    svg.append(svgElement("text", { class: "halo", style: `fill: ${point.color}`, x: place.x, y: place.y, "aria-hidden": "true" }, point.minor ? String(point.branches) : point.name));
  }
  for (const point of [...ends, ...points]) marks.append(pointMark(point, point.px, y(point.accuracy), cost, details));
  figure.replaceChildren(element("figcaption", title), svg, details);
}

function pointMark(point, x, y, cost, details) {
  const vote = point.minor ? "" : ` (${point.row.vote} vote)`;
  const text = `${point.name}: accuracy ${share(point.accuracy)}${vote}, 95% interval ${point.low.toFixed(2)} – ${point.high.toFixed(2)}, ${count(point.at)} ${cost === "mean_kv_tokens" ? "mean KV tokens" : "generated tokens"} per question`;
  const group = svgElement("g", { class: "point", tabindex: 0, role: "img", "aria-label": text });
  group.append(svgElement("circle", { class: "ring", cx: x, cy: y, r: 10, fill: "transparent", stroke: "none" }));
  group.append(svgElement("path", point.minor
    ? { d: markPath("disc", x, y, 2.5), fill: "var(--paper)", stroke: point.color, "stroke-width": 1.25 }
    : { d: markPath(point.mark, x, y, 5), fill: point.color, stroke: "var(--paper)", "stroke-width": 1 }));
  for (const event of ["pointerenter", "focus"]) group.addEventListener(event, () => { details.textContent = text; });
  return group;
}

// Moves marks of nearly the same cost side by side, so that their intervals do not overlap.
function spreadOut(points, x) {
  const sorted = [...points].sort((a, b) => a.at - b.at);
  for (let from = 0, to = 0; from < sorted.length; from = to) {
    while (to < sorted.length && x(sorted[to].at) - x(sorted[from].at) < 5) to += 1;
    sorted.slice(from, to).forEach((point, place) => { point.px = x(point.at) + (place - (to - from - 1) / 2) * 11; });
  }
}

// Returns the place around a mark with the least penalty and reserves it; null for a minor label without a free place.
function labelPlace(text, x, y, box, taken, minor) {
  const wide = text.length * 6.6 + 2, tall = 14;
  let best = null;
  for (const reach of minor ? [7] : [10, 20, 34, 50, 70]) {
    for (let turn = 0; turn < 12; turn += 1) {
      const angle = (turn * Math.PI) / 6 - Math.PI / 6, cos = Math.cos(angle), sin = Math.sin(angle);
      const left = x + cos * reach + (cos < -0.1 ? -wide : cos > 0.1 ? 0 : -wide / 2), top = y + sin * reach - tall / 2 + sin * 4;
      if (left < box.left || left + wide > box.right + 12 || top < 0 || top + tall > box.bottom) continue;
      const price = taken.reduce((sum, [l, t, r, b, cost]) => sum + (left < r && left + wide > l && top < b && top + tall > t ? cost : 0), reach * 0.3 + turn * 0.1);
      if (!best || price < best.price) best = { x: left, y: top + 11, price, wide, far: reach > 20, rect: [left, top, left + wide, top + tall, 200] };
    }
  }
  if (best && minor && best.price > 15) return null;
  if (best) taken.push(best.rect);
  return best;
}

function showPlots() {
  const marks = rows.length + curves.reduce((sum, curve) => sum + curve.length, 0);
  byId("plots").hidden = marks < 2;
  if (marks < 2) return;
  const votes = [...new Set(rows.map((row) => row.vote))];
  byId("plots-note").textContent = `Accuracy of the ${votes.join(" or ")} vote with its 95% interval; up and to the left is better. Marks of nearly equal cost are drawn side by side. `
    + (curves.length ? "The dashed line is best-of-N for every smaller N, computed from the first N branches of the widest best_of_n run." : "There is no best_of_n run, so there is no best-of-N line to compare with.");
  showPlot(byId("plot-kv"), "mean_kv_tokens", "mean KV tokens per question");
  showPlot(byId("plot-tokens"), "generated_tokens", "generated tokens per question");
}
