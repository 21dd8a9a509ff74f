// What each update of the selected run spent its seconds on, the most memory that each phase held, and the notices.
function phaseColor(place) {
  return `var(--c${place % 8})`;
}

function drawPhases(run) {
  const figure = byId("phase-plot"), phases = run.phases.filter((phase) => phase.each), updates = run.updates.length;
  figure.hidden = !updates;
  if (!updates) return;
  const sums = run.updates.map((_, place) => phases.reduce((sum, phase) => sum + phase.each[place], 0)), most = Math.max(1e-3, ...sums) * 1.06;
  const wide = Math.max(300, byId("phases").clientWidth), high = 220, box = { left: 58, right: wide - 10, top: 8, bottom: high - 40 };
  const x = (place) => box.left + (place / updates) * (box.right - box.left), y = (value) => box.bottom - (value / most) * (box.bottom - box.top);
  const svg = svgElement("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": "seconds of each update by phase" });
  const marks = ticks(0, most, false, 4), write = tickText(marks);
  for (const mark of marks) gridLine(svg, box, y(mark), write(mark));
  const below = run.updates.map(() => 0), gap = (box.right - box.left) / updates > 6 ? 1 : 0;
  phases.forEach((phase, number) => {
    let path = "";
    phase.each.forEach((seconds, place) => {
      if (!seconds) return;
      path += `M${(x(place) + gap).toFixed(1)} ${y(below[place]).toFixed(1)}V${y(below[place] + seconds).toFixed(1)}H${(x(place + 1) - gap).toFixed(1)}V${y(below[place]).toFixed(1)}z`;
      below[place] += seconds;
    });
    svg.append(svgElement("path", { d: path, fill: phaseColor(number), opacity: 0.75 }));
  });
  const every = Math.max(1, Math.ceil(updates / (wide < 500 ? 5 : 12)));
  run.updates.forEach((update, place) => {
    if ((place + 1) % every === 0 || updates === 1) svg.append(svgElement("text", { class: "soft", x: x(place + 0.5), y: box.bottom + 18, "text-anchor": "middle" }, String(update)));
  });
  svg.append(svgElement("text", { class: "soft", x: (box.left + box.right) / 2, y: high - 4, "text-anchor": "middle" }, "update"));
  figure.replaceChildren(element("figcaption", "seconds of each update"), svg);
}

function showPhases() {
  const run = runs[chosen.run], timed = run.phases.filter((phase) => phase.each), whole = run.phases.reduce((sum, phase) => sum + (phase.total ?? 0), 0);
  byId("phases").hidden = !run.phases.length;
  drawPhases(run);
  const lines = run.phases.map((phase) => {
    const name = element("th"), place = timed.indexOf(phase);
    if (place >= 0) {
      const sign = svgElement("svg", { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true", class: "swatch" });
      sign.append(svgElement("rect", { width: 12, height: 12, rx: 3, fill: phaseColor(place), opacity: 0.75 }));
      name.append(sign);
    }
    name.append(phase.name);
    const each = phase.each ? (phase.total / Math.max(1, run.updates.length)).toFixed(2) : "";
    return [name, phase.total === null ? "" : secondsText(phase.total), each, phase.total === null || !whole ? "" : percent(phase.total / whole), phase.peak === null ? "" : bytesText(phase.peak)];
  });
  byId("phase-table").replaceChildren(tableOf(["phase", "in all", "seconds an update", "share", "peak"], lines));
  byId("phases-note").textContent = `${runs.length > 1 ? `${runLabel(run)}. ` : ""}A rollout includes judging; expand, score and embed are parts of it. The peak is the most that the process held in any run of the phase.`;
}

function showNotices() {
  const told = runs.flatMap((run) => run.notices.map((notice) => ({ ...notice, run })));
  byId("noticed").hidden = !told.length;
  byId("notices").replaceChildren(...told.map(({ run, text, first, last, times }) => {
    const item = element("li", text), when = first === last ? `update ${first}` : `${count(times)} times from update ${first} to ${last}`;
    item.append(element("small", `${when}${runs.length > 1 ? ` · ${runLabel(run)}` : ""}`));
    return item;
  }));
}
