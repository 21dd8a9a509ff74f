"""Draws the curves of simulated runs as SVG: speed by workers, and what workers do with their time."""

import math
from collections.abc import Callable, Sequence
from html import escape

from palmette.simulate.scaling import Point

_LEFT, _TOP, _WIDTH, _HEIGHT, _RIGHT, _BOTTOM = 64, 16, 700, 260, 130, 46
_BLUE, _ORANGE, _GREEN, _SOFT, _GRID = "#0a6cae", "#c4560a", "#0b8a66", "#5f6862", "#e2e0d8"
_LEAST_GAP = 15.0


def plots(points: Sequence[Point], bent: Point) -> str:
    """Return both plots with their headings."""
    first = points[0].outcome
    speed = [point.efficiency * point.outcome.workers / first.workers for point in points]
    ideal = [point.outcome.workers / first.workers for point in points]
    high = max(ideal[-1], 2.0)
    top = _plot(
        points,
        bent,
        [("each worker alone", _SOFT, ideal, True), ("simulated", _BLUE, speed, False)],
        lambda value: math.log(max(value, 0.5)) / math.log(high),
        [(tick, f"{tick:,.0f}x") for tick in _powers(high)],
        "how many times as fast as the smallest",
    )
    shares = [
        ("utilisation", _GREEN, [point.outcome.utilisation for point in points], False),
        ("efficiency", _BLUE, [point.efficiency for point in points], False),
        ("stragglers", _ORANGE, [point.outcome.tail_share for point in points], False),
    ]
    marks = [(tick, f"{tick:.0%}") for tick in (0.0, 0.25, 0.5, 0.75, 1.0)]
    bottom = _plot(points, bent, shares, lambda value: min(1.0, value), marks, "shares of time by workers")
    return f"<h2>Speed</h2>{top}<h2>What workers do with their time</h2>{bottom}"


def _plot(
    points: Sequence[Point],
    bent: Point,
    lines: Sequence[tuple[str, str, Sequence[float], bool]],
    height: Callable[[float], float],
    ticks: Sequence[tuple[float, str]],
    label: str,
) -> str:
    """Return one plot over the logarithm of the workers; `height` maps a value to 0 to 1."""
    counts = [point.outcome.workers for point in points]
    low, span = math.log(counts[0]), max(math.log(counts[-1] / counts[0]), 1e-9)

    def x(count: float) -> float:
        return _LEFT + _WIDTH * (math.log(count) - low) / span

    def y(value: float) -> float:
        return _TOP + _HEIGHT * (1 - height(value))

    parts = []
    for value, text in ticks:
        parts.append(f'<path d="M{_LEFT} {y(value):.1f}H{_LEFT + _WIDTH}" stroke="{_GRID}"/>')
        parts.append(f'<text class="soft" x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{text}</text>')
    shown = _apart(counts, x)
    for count in shown:
        parts.append(
            f'<text class="soft" x="{x(count):.1f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{count:,}</text>'
        )
    parts.append(f'<text class="soft" x="{_LEFT + _WIDTH}" y="{_TOP + _HEIGHT + 38}" text-anchor="end">workers</text>')
    at = x(bent.outcome.workers)
    parts.append(
        f'<path d="M{at:.1f} {_TOP}V{_TOP + _HEIGHT}" stroke="{_SOFT}" stroke-dasharray="3 4"/>'
        f'<text class="soft" x="{at - 6:.1f}" y="{_TOP + _HEIGHT - 8}" text-anchor="end">bends here</text>'
    )
    for _, color, values, is_dashed in lines:
        path = " ".join(f"{x(count):.1f},{y(value):.1f}" for count, value in zip(counts, values, strict=True))
        dash = ' stroke-dasharray="5 5"' if is_dashed else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        if not is_dashed:
            parts += [
                f'<circle cx="{x(count):.1f}" cy="{y(value):.1f}" r="3" fill="{color}"><title>{count:,}: {value:.3g}'
                f"</title></circle>"
                for count, value in zip(counts, values, strict=True)
            ]
    ends = sorted((y(values[-1]), name, color) for name, color, values, _ in lines)
    last = -math.inf
    for place, name, color in ends:
        last = max(place, last + _LEAST_GAP)
        parts.append(f'<text x="{_LEFT + _WIDTH + 10}" y="{last + 4:.1f}" style="fill:{color}">{escape(name)}</text>')
    box = f"0 0 {_LEFT + _WIDTH + _RIGHT} {_TOP + _HEIGHT + _BOTTOM}"
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _apart(counts: Sequence[int], x: Callable[[float], float]) -> list[int]:
    """Return the counts whose labels do not touch, the last among them."""
    shown = [counts[-1]]
    for count in reversed(counts[:-1]):
        if x(shown[-1]) - x(count) >= 38:
            shown.append(count)
    return shown


def _powers(high: float) -> list[float]:
    """Return powers of ten up to `high`, or of two where these are few."""
    base = 10 if high >= 100 else 2
    return [float(base**power) for power in range(int(math.log(high, base) + 1e-9) + 1)]
