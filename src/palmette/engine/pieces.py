"""What one tick computes of a forest, in which order, and what its queries read."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from palmette.engine.attention import Segment
from palmette.engine.tree_cache import CacheNode


class Piece(NamedTuple):
    """Tokens of a node to compute, from `first` to before `last`; all before them are computed already."""

    node: CacheNode
    first: int
    last: int


def next_pieces(tips: Sequence[CacheNode], prefill_tokens: int) -> dict[CacheNode, Piece]:
    """Return what to compute so that the last token of the tips comes out, ancestors first.

    A tip with one token to go is always in; what more is needed is cut to `prefill_tokens`, for a later tick to go on.
    """
    pieces: dict[CacheNode, Piece] = {}
    for tip in tips:
        if tip in pieces:
            continue
        for node in reversed(_missing(tip)):
            length = len(node.tokens)
            if node not in pieces:
                first = min(node.computed, length - 1)
                last = length if node is tip and first == length - 1 else min(length, first + prefill_tokens)
                if first == last:
                    break
                if node is not tip or last - first > 1:
                    prefill_tokens -= last - first
                pieces[node] = Piece(node, first, last)
            if pieces[node].last < length:
                break
    return pieces


def _missing(tip: CacheNode) -> list[CacheNode]:
    """Return the nodes on the tip's path that have tokens to compute, upward; the tip is always among them."""
    missing = [tip]
    node = tip.parent
    while node is not None:
        if node.computed < len(node.tokens):
            missing.append(node)
        node = node.parent
    return missing


def order_pieces(pieces: Sequence[Piece]) -> tuple[list[Piece], list[Segment]]:
    """Order the pieces so that the readers of any node stand side by side; return the segments that they read.

    A segment is a run of nodes with the same readers.
    """
    own = {piece.node: piece for piece in pieces}
    below: dict[CacheNode, list[CacheNode]] = {}
    roots: list[CacheNode] = []
    for node in own:
        while (above := node.parent) is not None:
            if above in below:
                below[above].append(node)
                break
            below[above] = [node]
            if above in own:
                break
            node = above
        else:
            roots.append(node)
    ordered: list[Piece] = []
    segments: list[Segment] = []
    queries = 0
    # Each entry is a node with its depth, or a place in `segments` whose readers are complete when it comes up again.
    stack: list[tuple[CacheNode | int, int]] = [(root, 0) for root in reversed(roots)]
    while stack:
        top, depth = stack.pop()
        if isinstance(top, int):
            slots, position, first, _, count, at = segments[top]
            segments[top] = Segment(slots, position, first, queries, count, at)
            continue
        node, above_slots = top, []
        while node not in own and len(kids := below[node]) == 1:
            above_slots.append(node.slots[: node.computed])
            node = kids[0]
        first, count = queries, 0
        slots = node.slots[: node.computed]
        if (piece := own.get(node)) is not None:
            ordered.append(piece)
            slots = node.slots[: piece.last]
            count = piece.last - piece.first
            queries += count
        if above_slots:
            slots = np.concatenate([*above_slots, slots])
        segments.append(Segment(slots, top.start, first, queries, count, depth))
        if node in below:
            stack.append((len(segments) - 1, 0))
            stack.extend((kid, depth + 1) for kid in below[node])
    return ordered, segments
