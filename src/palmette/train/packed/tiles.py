"""Which blocks of attention scores a pass over slots of a trie computes: those with a visible key, and few others."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from palmette.train.packed.trie import Node

BLOCK_SLOTS = 128
"""Slots of a block on the diagonal, whose scores are computed whole and masked. Half of them at least are wasted, but
products of smaller matrices are slower."""

KEY_SLOTS = 256
"""The most keys of a block off the diagonal."""


class Tile(NamedTuple):
    """The scores of queries `query_first` to `query_last - 1` with keys `key_first` to `key_last - 1`.

    Slots are counted from the first of the pass. With `above` set, the keys are slots of that open node, counted from
    its first. All keys are visible to all queries unless `masked`.
    """

    query_first: int
    query_last: int
    key_first: int
    key_last: int
    masked: bool = False
    above: int | None = None


def tiles_of(nodes: Sequence[Node], first: int, last: int, above: Sequence[int], most_scores: int) -> list[Tile]:
    """Return the tiles of a pass over slots `first` to `last - 1`, of about `most_scores` scores each at most.

    `nodes` are those that begin in the pass, in order; slots below them may lie behind its end. `above` are the numbers
    of slots of the open nodes, which every query of the pass sees.
    """
    count = last - first
    tiles = [tile for number, slots in enumerate(above) for tile in _whole(0, count, 0, slots, most_scores, number)]
    for start in range(0, count, BLOCK_SLOTS):
        stop = min(start + BLOCK_SLOTS, count)
        tiles.append(Tile(start, stop, start, stop, masked=True))
    for node in nodes:
        key, end = node.first - first, min(node.end, last) - first
        while key < node.last - first:
            # Up to the end of its diagonal block a key is among the masked scores.
            block_stop = min(key // BLOCK_SLOTS * BLOCK_SLOTS + BLOCK_SLOTS, count)
            key_stop = min(node.last - first, block_stop)
            if block_stop < end:
                tiles += _whole(block_stop, end, key, key_stop, most_scores)
            key = key_stop
    return tiles


def _whole(
    first: int, last: int, key_first: int, key_last: int, most_scores: int, above: int | None = None
) -> Iterator[Tile]:
    """Yield tiles of at most `most_scores` that cover all scores of these queries with these keys."""
    for key in range(key_first, key_last, KEY_SLOTS):
        key_stop = min(key + KEY_SLOTS, key_last)
        queries = max(1, most_scores // (key_stop - key))
        for query in range(first, last, queries):
            yield Tile(query, min(query + queries, last), key, key_stop, above=above)
