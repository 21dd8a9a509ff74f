"""Draws a search result as HTML and SVG for notebooks: no scripts, all model text escaped."""

from html import escape

from palmette.search.result import SearchResult
from palmette.tree import Node, Tree

_WIDTH, _HEIGHT, _MARGIN = 840, 420, 14
_LARGEST_COLUMN, _SMALLEST_COLUMN = 110.0, 18.0
_LARGEST_ROW, _SMALLEST_ROW = 15.0, 3.0
_MOST_NODES = 1500
_PRUNED, _STOPPED, _EDGE, _ELECTED = "#b8b8b8", "#7a7a7a", "#c9c9c9", "#c4560a"
_LEGEND = "dark: high score; square: finished; hollow: pruned; orange: path of the elected answer"
_STYLE = "background:#fff;color:#222;font:13px system-ui,sans-serif;padding:8px;border-radius:6px"


def result_html(result: SearchResult) -> str:
    """Return the elected answer, the cost of the search and its tree as one HTML element."""
    answer = "no answer" if result.answer is None else result.answer
    verdict = "" if result.outcome is None else f" ({result.outcome.replace('_', ' ')})"
    cost = (
        f"{result.strategy} at width {result.width}: {len(result.tree.nodes) - 1:,} steps, {result.tokens:,} tokens, "
        f"KV {result.mean_kv_tokens:,.0f} tokens mean, {result.peak_kv_tokens:,} peak"
    )
    html = (
        f'<div style="{_STYLE}"><div><b>{escape(answer[:200])}</b>{escape(verdict)}</div>'
        f'<div style="color:#666">{escape(cost)}</div><div style="color:#666">{_LEGEND}</div>'
        f"{tree_svg(result.tree, result.choices[result.vote].leaf)}</div>"
    )
    return html.encode("utf-8", "replace").decode()  # Half of a surrogate pair cannot be sent to a notebook.


def tree_svg(tree: Tree, elected: int | None = None) -> str:
    """Return the tree as SVG, root on the left; the path to node `elected` is highlighted.

    Finished leaves are squares, all other nodes circles. Fill shows the score, pruned nodes are hollow. Of a tree with
    more than 1,500 steps only the oldest 1,500 are drawn.
    """
    nodes = tree.nodes[: _MOST_NODES + 1]
    rows = _rows(nodes)
    path = set() if elected is None else {node.id for node in tree.path(elected)}
    deepest = max(node.depth for node in nodes)
    column = max(_SMALLEST_COLUMN, min(_LARGEST_COLUMN, _WIDTH / max(1, deepest)))
    width = 2 * _MARGIN + column * deepest
    row = max(_SMALLEST_ROW, min(_LARGEST_ROW, _HEIGHT / max(1.0, *rows.values())))
    radius = min(5.0, 1 + row / 3)
    height = 2 * _MARGIN + row * max(rows.values())
    place: dict[int, tuple[float, float]] = {
        node.id: (_MARGIN + column * node.depth, _MARGIN + row * rows[node.id]) for node in nodes
    }
    shown = sorted(nodes, key=lambda node: node.id in path)
    edges = "".join(_edge(place, node, node.id in path) for node in shown if node.parent is not None)
    marks = "".join(_mark(place[node.id], radius, node, node.id in path) for node in shown)
    return (
        f'<svg role="img" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" style="max-width:100%" '
        f'xmlns="http://www.w3.org/2000/svg"><title>Tree of {len(tree.nodes) - 1} steps</title>{edges}{marks}</svg>'
    )


def _rows(nodes: list[Node]) -> dict[int, float]:
    """Return the row of each node: leaves are numbered in depth-first order, a parent is midway in its children."""
    below: dict[int | None, list[int]] = {}
    for node in nodes:
        below.setdefault(node.parent, []).append(node.id)
    rows: dict[int, float] = {}
    walk, order, leaves = [0], [], 0
    while walk:
        current = walk.pop()
        order.append(current)
        walk += reversed(below.get(current, []))
    for current in order:
        if current not in below:
            rows[current] = leaves
            leaves += 1
    for current in reversed(order):
        if current in below:
            children = [rows[child] for child in below[current]]
            rows[current] = (children[0] + children[-1]) / 2
    return rows


def _edge(place: dict[int, tuple[float, float]], node: Node, is_elected: bool) -> str:
    assert node.parent is not None
    (x1, y1), (x2, y2) = place[node.parent], place[node.id]
    middle = (x1 + x2) / 2
    look = f'stroke="{_ELECTED}" stroke-width="2.5"' if is_elected else f'stroke="{_EDGE}"'
    curve = f"M{x1:.0f} {y1:.1f}C{middle:.0f} {y1:.1f} {middle:.0f} {y2:.1f} {x2:.0f} {y2:.1f}"
    return f'<path d="{curve}" fill="none" {look}/>'


def _mark(place: tuple[float, float], radius: float, node: Node, is_elected: bool) -> str:
    color = _PRUNED if node.state == "pruned" else _STOPPED if node.state == "stopped" else _color(node.score)
    fill = "#fff" if node.state == "pruned" else color
    ring = f' stroke="{_ELECTED}" stroke-width="2"' if is_elected else f' stroke="{color}" stroke-width="1.5"'
    score = "" if node.score is None else f"{node.score:.3f} "
    verdict = "" if node.outcome is None else f", {node.outcome.replace('_', ' ')}"
    tooltip = f"{score}({node.state}{verdict}) {node.text[:300]}" if node.parent is not None else "prompt"
    x, y = place
    look = f'fill="{fill}"{ring}><title>{escape(tooltip)}</title>'
    if node.state != "finished":
        return f'<circle cx="{x:.0f}" cy="{y:.1f}" r="{radius:.1f}" {look}</circle>'
    corner = f'x="{x - radius:.1f}" y="{y - radius:.1f}"'
    return f'<rect {corner} width="{2 * radius:.1f}" height="{2 * radius:.1f}" {look}</rect>'


def _color(score: float | None) -> str:
    """Return a color from light blue (score 0) to dark blue (score 1); gray-blue for a node without a score."""
    if score is None:
        return "#5f7f9f"
    low, high = (198, 219, 239), (8, 81, 156)
    red, green, blue = (round(a + (b - a) * score) for a, b in zip(low, high, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"
