// Axes of plots: round numbers, grid lines, seconds.
// Returns round numbers (1, 2 or 5 times a power of ten) between two ends, for a linear or a logarithmic axis.
function ticks(low, high, isLog, most) {
  const round = [];
  if (isLog) {
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      for (const digit of [1, 2, 5]) if (digit * 10 ** power >= low && digit * 10 ** power <= high) round.push(digit * 10 ** power);
    }
    return round.length > most ? round.filter((_, place) => place % 2 === 0) : round;
  }
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((digit) => digit * power >= rough);
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) round.push(value);
  return round;
}

// Draws a horizontal line across a plot, with its value on the left.
function gridLine(svg, box, at, text) {
  svg.append(svgElement("line", { class: "axis", x1: box.left, x2: box.right, y1: at, y2: at }));
  svg.append(svgElement("text", { class: "soft", x: box.left - 8, y: at + 4, "text-anchor": "end" }, text));
}

// Draws the axis of a plot over time, `wide` in all, below its box, from 0 to `until` seconds; above five minutes it counts minutes.
function timeAxis(svg, x, box, until, wide) {
  const isLong = until > 300;
  for (const tick of ticks(0, isLong ? until / 60 : until, false, wide < 500 ? 4 : 8)) {
    const at = x(isLong ? tick * 60 : tick);
    svg.append(svgElement("line", { class: "axis", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 5 }));
    svg.append(svgElement("text", { class: "soft", x: at, y: box.bottom + 18, "text-anchor": "middle" }, String(Number(tick.toPrecision(3)))));
  }
  svg.append(svgElement("text", { class: "soft", x: (box.left + box.right) / 2, y: box.bottom + 36, "text-anchor": "middle" }, isLong ? "minutes" : "seconds"));
}
