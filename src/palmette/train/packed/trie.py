"""The tokens of many samples as a trie: every distinct prefix is one slot, slots are numbered depth first.

The slots below a slot follow it directly, so that a slot k is visible to a slot q exactly if `k <= q < end of k`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from palmette.train.samples import Sample


@dataclass(frozen=True)
class Node:
    """Slots `first` to `last - 1`, which follow one another without a branch; those below go on to `end - 1`.

    `depth` is the position of its first token in a sample. `parent` is an index into the trie's nodes.
    """

    first: int
    last: int
    end: int
    depth: int
    parent: int | None


@dataclass(frozen=True)
class Trie:
    """The tokens that samples feed to a model, each distinct prefix once.

    `order` are the indices of the samples, those that begin alike side by side; everything else that has an entry for
    each sample is in this order. `paths` are the slots of each sample's fed tokens. `predictions` are the distinct
    pairs of a slot and a counted response token that its output predicts, by slot; `predicted` are the indices of each
    sample's counted tokens among them, `at` those of each slot's first one, with their number at the end.
    """

    order: tuple[int, ...]
    tokens: tuple[int, ...]
    depths: tuple[int, ...]
    nodes: tuple[Node, ...]
    paths: tuple[tuple[int, ...], ...]
    predictions: tuple[tuple[int, int], ...]
    predicted: tuple[tuple[int, ...], ...]
    at: tuple[int, ...]


def fed(sample: Sample) -> tuple[int, ...]:
    """Return the tokens that the model computes: all but the last, whose output predicts no token."""
    return sample.prompt + sample.response[:-1]


def prefix_order(samples: Sequence[Sample]) -> tuple[list[int], list[int]]:
    """Return the indices of the samples, those that begin alike side by side, and what each shares with the one before.

    The second is a number of tokens, 0 for the first sample. No other sample before it shares more.
    """
    rows = [fed(sample) for sample in samples]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    shared = [0] + [_shared_tokens(rows[one], rows[other]) for one, other in pairwise(order)]
    return order, shared


def _shared_tokens(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the length of the longest common prefix, found by halving: comparing slices is faster than tokens."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def build_trie(samples: Sequence[Sample]) -> Trie:
    """Return the trie of one sample or more."""
    order, shared = prefix_order(samples)
    tokens: list[int] = []
    depths: list[int] = []
    paths: list[tuple[int, ...]] = []
    starts: set[int] = set()
    for index, common in zip(order, shared, strict=True):
        row = fed(samples[index])
        first = len(tokens)
        tokens += row[common:]
        depths += range(common, len(row))
        before = paths[-1] if paths else ()
        paths.append(before[:common] + tuple(range(first, len(tokens))))
        if common < len(row):
            starts.add(first)
            if common < len(before):  # Here the sample before leaves: what follows there is a node of its own.
                starts.add(before[common])
    pairs = [_pairs(samples[index], path) for index, path in zip(order, paths, strict=True)]
    predictions = sorted({pair for row in pairs for pair in row})
    place = {pair: number for number, pair in enumerate(predictions)}
    return Trie(
        order=tuple(order),
        tokens=tuple(tokens),
        depths=tuple(depths),
        nodes=_nodes(sorted(starts), depths),
        paths=tuple(paths),
        predictions=tuple(predictions),
        predicted=tuple(tuple(place[pair] for pair in row) for row in pairs),
        at=_firsts([slot for slot, _ in predictions], len(tokens)),
    )


def _pairs(sample: Sample, path: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return each response token that counts with the slot whose output predicts it, the one before the token."""
    return sample.counted(list(zip(path[len(sample.prompt) - 1 :], sample.response, strict=True)))


def _firsts(slots: Sequence[int], count: int) -> tuple[int, ...]:
    """Return for each of `count` slots, and for their end, how many of the ascending `slots` come before it."""
    firsts, place = [], 0
    for slot in range(count + 1):
        while place < len(slots) and slots[place] < slot:
            place += 1
        firsts.append(place)
    return tuple(firsts)


def _nodes(starts: Sequence[int], depths: Sequence[int]) -> tuple[Node, ...]:
    """Return the nodes that begin at these slots. A node ends where the next one that is no deeper begins."""
    lasts = [*starts[1:], len(depths)]
    parents: list[int | None] = []
    ends = [len(depths)] * len(starts)
    open_nodes: list[int] = []
    for number, first in enumerate(starts):
        while open_nodes and depths[starts[open_nodes[-1]]] >= depths[first]:
            ends[open_nodes.pop()] = first
        parents.append(open_nodes[-1] if open_nodes else None)
        open_nodes.append(number)
    return tuple(
        Node(first, last, end, depths[first], parent)
        for first, last, end, parent in zip(starts, lasts, ends, parents, strict=True)
    )
