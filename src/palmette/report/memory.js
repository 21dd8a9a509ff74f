// Plots of the memory that a run's processes held over time: phases shaded, planned bytes as lines, a mark for every
// out-of-memory retry.
function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0, size = bytes;
  while (Math.abs(size) >= 1024 && place < units.length - 1) { size /= 1024; place += 1; }
  return `${place ? size.toFixed(1) : size} ${units[place]}`;
}

const secondsText = (value) => (value < 120 ? `${Number(value.toPrecision(3))} s` : `${(value / 60).toFixed(1)} min`);

function retryText(retry) {
  const units = (number) => plural(number, retry.unit);
  const next = retry.spared ? "caches were freed and all sizes are tried again" : retry.limit === null ? "nothing smaller was left to try: the work failed" : `retried with at most ${count(retry.limit)}`;
  return `${secondsText(retry.moment)}: ${retry.guard} of ${units(retry.tried)} ran out of memory, ${next}; ${bytesText(retry.free)} free afterwards. ${retry.reason}`;
}

// Returns spans of consecutive samples in the same phase. A span starts midway between its first sample and the one before,
// and ends midway between its last sample and the one after.
function phaseSpans({ moments, places }) {
  const found = [];
  moments.forEach((moment, place) => {
    const from = place ? (moments[place - 1] + moment) / 2 : moment, last = found[found.length - 1];
    const to = place + 1 < moments.length ? (moment + moments[place + 1]) / 2 : moment;
    if (last && last.phase === places[place]) last.to = to;
    else found.push({ phase: places[place], from, to });
  });
  return found;
}

function memoryFigure(entry, name) {
  const figure = element("figure"), wide = Math.max(300, byId("memory-plots").clientWidth), high = wide < 500 ? 240 : 280;
  const box = { left: 62, right: wide - 12, top: 12, bottom: high - 40 };
  const until = Math.max(1e-3, ...entry.moments, ...entry.retries.map((retry) => retry.moment));
  const peak = Math.max(1, ...entry.held, ...entry.phases.map((phase) => phase.peak)), planned = entry.phases.map((phase) => phase.planned ?? 0);
  const most = Math.max(peak, ...planned, entry.limit && entry.limit < 1.5 * peak ? entry.limit : 0) * 1.06;
  const x = (moment) => box.left + (moment / until) * (box.right - box.left), y = (bytes) => box.bottom - (bytes / most) * (box.bottom - box.top);
  const svg = svgElement("svg", { viewBox: `0 0 ${wide} ${high}`, role: "group", "aria-label": name });
  for (const { phase, from, to } of phaseSpans(entry)) {
    if (phase === null) continue;
    svg.append(svgElement("rect", { x: x(from), y: box.top, width: Math.max(0.4, x(to) - x(from)), height: box.bottom - box.top, fill: `var(--c${phase % 8})`, opacity: 0.16 }));
  }
  const unit = 1024 ** Math.min(3, Math.floor(Math.log2(most) / 10));
  for (const tick of ticks(0, most / unit, false, 5)) gridLine(svg, box, y(tick * unit), tick ? bytesText(tick * unit).replace(".0 ", " ") : "0");
  timeAxis(svg, x, box, until, wide);
  svg.append(svgElement("path", { d: entry.moments.map((moment, place) => `${place ? "L" : "M"}${x(moment).toFixed(1)} ${y(entry.held[place]).toFixed(1)}`).join(""), fill: "none", stroke: "var(--ink)", "stroke-width": 1.5, "stroke-linejoin": "round" }));
  const level = (bytes, from, to, color) => svg.append(svgElement("line", { x1: from, x2: to, y1: y(bytes), y2: y(bytes), stroke: color, "stroke-width": 1.5, "stroke-dasharray": "6 4" }));
  const label = (bytes, at, anchor, color, text) => svg.append(svgElement("text", { class: "halo", style: `fill: ${color}`, x: at, y: y(bytes) - 5, "text-anchor": anchor }, text));
  if (entry.limit && entry.limit <= most) {
    level(entry.limit, box.left, box.right, "var(--bad)");
    label(entry.limit, box.right - 4, "end", "var(--bad)", `limit ${bytesText(entry.limit)}`);
  }
  entry.phases.forEach((phase, place) => {
    if (phase.planned === null) return;
    const inside = phaseSpans(entry).filter((span) => span.phase === place), color = `var(--c${place % 8})`;
    const spans = inside.length ? inside : [{ from: 0, to: until }];  // All samples of an outer phase belong to the phases inside it.
    for (const { from, to } of spans) level(phase.planned, x(from), Math.max(x(to), x(from) + 2), color);
    const widest = spans.reduce((best, span) => (span.to - span.from > best.to - best.from ? span : best)), text = `planned ${phase.name} ${bytesText(phase.planned)}`;
    if (x(widest.to) - x(widest.from) > text.length * 6.6) label(phase.planned, x(widest.from) + 4, "start", color, text);  // Else only the table shows it.
  });
  const details = element("output", entry.retries.length ? "Point at a triangle, or move to it with the Tab key, to see what ran out of memory." : "");
  for (const retry of entry.retries) {
    const text = retryText(retry), at = x(retry.moment), top = y(Math.min(retry.held, most)) - 10;
    const mark = svgElement("g", { class: "point", tabindex: 0, role: "img", "aria-label": text });
    mark.append(svgElement("circle", { class: "ring", cx: at, cy: top, r: 10, fill: "transparent", stroke: "none" }));
    mark.append(svgElement("path", { d: `M${at} ${top + 6}L${at + 5.5} ${top - 4}H${at - 5.5}z`, fill: "var(--bad)", stroke: "var(--paper)", "stroke-width": 1 }));
    for (const event of ["pointerenter", "focus"]) mark.addEventListener(event, () => { details.textContent = text; });
    svg.append(mark);
  }
  figure.append(element("figcaption", name), svg, details);
  return figure;
}

function phaseTable(entry) {
  const lines = entry.phases.map((phase, place) => {
    const name = element("th"), sign = svgElement("svg", { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true", class: "swatch" });
    sign.append(svgElement("rect", { width: 12, height: 12, rx: 3, fill: `var(--c${place % 8})`, opacity: 0.45 }));
    name.append(sign, phase.name);
    return [name, count(phase.times), phase.seconds.toFixed(1), bytesText(phase.peak), phase.planned === null ? "" : bytesText(phase.planned)];
  });
  return tableOf(["phase", "times", "seconds", "peak", "planned"], lines);
}

function showMemory(place) {
  const { memory } = runs[place];
  byId("memory").hidden = !memory.length;
  if (!memory.length) return;
  const figures = memory.map((entry, number) => {
    const name = `${entry.device === "cpu" ? "resident memory (host)" : `reserved on ${entry.device}`}${entry.worker ? `, worker ${entry.worker}` : memory.length > 1 ? `, process ${number + 1}` : ""}`;
    const block = element("div"), table = element("div", undefined, "scroll");
    block.append(memoryFigure(entry, name), table);
    table.append(phaseTable(entry));
    return block;
  });
  byId("memory-plots").replaceChildren(...figures);
  const retries = memory.reduce((sum, entry) => sum + entry.retries.length + entry.retries_left_out, 0);
  byId("memory-note").textContent = `${runs.length > 1 ? `${runLabel(runs[place])}. ` : ""}`
    + `${retries ? `${plural(retries, "out-of-memory retry", "out-of-memory retries")} (triangles): the work ran again in smaller pieces, with the same answers. ` : "Nothing ran out of memory. "}`
    + "A phase inside another one has its own color; the peak of the outer phase includes it.";
}
