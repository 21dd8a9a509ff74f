// Plots of how many rows each tick of a search had over time, and of what its time was spent on.
const ACTIVITY_COLORS = { policy: "var(--c0)", reward: "var(--c1)", embedder: "var(--c3)", strategy: "var(--c2)", other: "var(--faint)" };

// Returns the frame of a plot over time: an SVG with its axes, and the functions that place a moment and a value in it.
function timeFrame(name, until, most, valueText) {
  const wide = Math.max(300, byId("pace-plots").clientWidth / (innerWidth > 900 ? 2 : 1) - 16), high = 220;
  const box = { left: 48, right: wide - 8, top: 10, bottom: high - 40 };
  const x = (moment) => box.left + (moment / until) * (box.right - box.left), y = (value) => box.bottom - (value / most) * (box.bottom - box.top);
  const svg = svgElement("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": name });
  for (const tick of ticks(0, most, false, 5)) gridLine(svg, box, y(tick), valueText(tick));
  timeAxis(svg, x, box, until, wide);
  return { svg, x, y };
}

// Draws the mean rows of the ticks in each bin as a line of steps; bins without a tick have none.
function rowsFigure(entry, until) {
  const mean = entry.rows.map((rows, place) => (entry.ticks[place] ? rows / entry.ticks[place] : 0));
  const figure = element("figure"), name = "rows per tick", { svg, x, y } = timeFrame(name, until, Math.max(1, ...mean) * 1.06, (value) => String(Number(value.toPrecision(3))));
  const outline = mean.map((rows, place) => `L${x(place * entry.bin).toFixed(1)} ${y(rows).toFixed(1)}H${x((place + 1) * entry.bin).toFixed(1)}`).join("");
  svg.append(svgElement("path", { d: `M${x(0)} ${y(0)}${outline}V${y(0)}z`, fill: "var(--c0)", opacity: 0.16 }));
  svg.append(svgElement("path", { d: `M${x(0)} ${y(0)}${outline}`, fill: "none", stroke: "var(--c0)", "stroke-width": 1.5, "stroke-linejoin": "round" }));
  figure.append(element("figcaption", name), svg);
  return figure;
}

// Draws the share of each bin's time that each activity took, stacked.
function spentFigure(entry, until) {
  const figure = element("figure"), name = "share of the time", { svg, x, y } = timeFrame(name, until, 1, (value) => `${Math.round(value * 100)}%`);
  entry.ticks.forEach((_, place) => {
    const seconds = Object.values(entry.spent).map((list) => list[place]), sum = seconds.reduce((total, part) => total + part, 0);
    let below = 0;
    Object.keys(entry.spent).forEach((activity, number) => {
      if (!seconds[number]) return;
      const from = y(below / sum), to = y((below + seconds[number]) / sum);
      svg.append(svgElement("rect", { x: x(place * entry.bin), y: to, width: x(entry.bin) - x(0) + 0.3, height: from - to, fill: ACTIVITY_COLORS[activity], opacity: 0.75 }));
      below += seconds[number];
    });
  });
  figure.append(element("figcaption", name), svg);
  return figure;
}

function activityLegend(entry) {
  const legend = element("div", undefined, "legend");
  for (const [activity, seconds] of Object.entries(entry.spent)) {
    const sum = seconds.reduce((total, part) => total + part, 0), line = element("span");
    if (!sum) continue;
    const sign = svgElement("svg", { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" });
    sign.append(svgElement("rect", { width: 12, height: 12, rx: 3, fill: ACTIVITY_COLORS[activity], opacity: 0.75 }));
    line.append(sign, `${activity} ${secondsText(sum)}`);
    legend.append(line);
  }
  return legend;
}

function showOccupancy(place) {
  const entries = runs[place].occupancy.filter((entry) => entry.ticks.length);
  byId("pace").hidden = !entries.length;
  if (!entries.length) return;
  const blocks = entries.map((entry) => {
    const block = element("div"), pair = element("div", undefined, "pair"), until = entry.bin * entry.ticks.length;
    if (entry.ticks.some((ticked) => ticked)) pair.append(rowsFigure(entry, until));
    pair.append(spentFigure(entry, until));
    if (entry.worker) block.append(element("h3", `Worker ${entry.worker}`));
    block.append(pair, activityLegend(entry));
    return block;
  });
  byId("pace-plots").replaceChildren(...blocks);
  const total = (key) => entries.reduce((sum, entry) => sum + entry[key].reduce((part, number) => part + number, 0), 0);
  const ticked = total("ticks");
  byId("pace-note").textContent = `${runs.length > 1 ? `${runLabel(runs[place])}. ` : ""}`
    + `${ticked ? `${plural(ticked, "tick")} of the policy wrote ${plural(total("rows"), "token")}, ${(total("rows") / ticked).toFixed(1)} rows per tick. ` : ""}`
    + "A tick reads all weights once, however many rows it has: fuller ticks are cheaper. While the reward model, the embedder or the strategy works, the policy waits."
    + `${entries.length > 1 ? " One pair of plots for each process." : ""}`;
}
