"""Chooses which tokens a tick computes (decode and chunked prefill) and which KV segments they attend to."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from palmette.engine.attention import Segment
from palmette.engine.tree_cache import CacheNode


class Piece(NamedTuple):
    """Tokens `first` to `last - 1` of a node, to be computed in one tick; the tokens before `first` are computed."""

    node: CacheNode
    first: int
    last: int


def next_pieces(tips: Sequence[CacheNode], prefill_tokens: int) -> dict[CacheNode, Piece]:
    """Return what to compute next to get the model's output at the last token of each tip, ancestors first.

    A tip is always included if its last token is all that is missing on its path (decode); if nothing is missing, that
    token is computed again. All else is prefill: at most `prefill_tokens` of it now, the rest in later ticks.
    """
    pieces: dict[CacheNode, Piece] = {}
    for tip in tips:
        if tip in pieces:
            continue
        for node in reversed(_uncomputed(tip)):
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


def _uncomputed(tip: CacheNode) -> list[CacheNode]:
    """Return the nodes of the tip's path that have tokens to compute, from the tip upward; always with the tip."""
    uncomputed = [tip]
    node = tip.parent
    while node is not None:
        if node.computed < len(node.tokens):
            uncomputed.append(node)
        node = node.parent
    return uncomputed


def order_pieces(pieces: Sequence[Piece]) -> tuple[list[Piece], list[Segment]]:
    """Order the pieces depth first, so that the readers of any node are adjacent; return the segments that they read.

    A segment is the KV of a chain of nodes that all have the same readers.
    """
    piece_of = {piece.node: piece for piece in pieces}
    children: dict[CacheNode, list[CacheNode]] = {}
    roots: list[CacheNode] = []
    for node in piece_of:
        while (parent := node.parent) is not None:
            if parent in children:
                children[parent].append(node)
                break
            children[parent] = [node]
            if parent in piece_of:
                break
            node = parent
        else:
            roots.append(node)
    ordered: list[Piece] = []
    segments: list[Segment] = []
    queries = 0
    # An entry is a node with its depth, or the index of a segment: when that comes up, all its readers are numbered.
    stack: list[tuple[CacheNode | int, int]] = [(root, 0) for root in reversed(roots)]
    while stack:
        entry, depth = stack.pop()
        if isinstance(entry, int):
            slots, position, first, _, new_tokens, segment_depth = segments[entry]
            segments[entry] = Segment(slots, position, first, queries, new_tokens, segment_depth)
            continue
        node, chain_slots = entry, []
        while node not in piece_of and len(only := children[node]) == 1:
            chain_slots.append(node.slots[: node.computed])
            node = only[0]
        first, new_tokens = queries, 0
        slots = node.slots[: node.computed]
        if (piece := piece_of.get(node)) is not None:
            ordered.append(piece)
            slots = node.slots[: piece.last]
            new_tokens = piece.last - piece.first
            chain_slots.append(slots)
            # An only child whose tokens are all new, like a draft, is read with its parent: one segment less to merge.
            while len(only := children.get(node, [])) == 1 and (below := piece_of.get(only[0])) and not below.first:
                node = below.node
                ordered.append(below)
                chain_slots.append(node.slots[: below.last])
                new_tokens += below.last
            slots = np.concatenate(chain_slots) if len(chain_slots) > 1 else slots
            queries += new_tokens
        elif chain_slots:
            slots = np.concatenate([*chain_slots, slots])
        segments.append(Segment(slots, entry.start, first, queries, new_tokens, depth))
        if node in children:
            stack.append((len(segments) - 1, 0))
            stack.extend((child, depth + 1) for child in children[node])
    return ordered, segments
