"""Decides what is computed in which pass: batches that share much, and passes depth first under a limit of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from palmette.errors import BudgetError
from palmette.train.packed.trie import Trie, prefix_order
from palmette.train.samples import Sample

PASS_TOKENS = 40
"""What a pass forward and backward costs whatever its length, as a number of tokens: it reads all weights and adds to
all gradients. SmolLM2-135M on one core: 0.6 s beside 0.015 s a token."""


@dataclass(frozen=True)
class Step:
    """A step of a depth-first update.

    `run`: compute slots `first` to `last - 1`, forward and backward; all slots below them are among them.
    `open`: compute them forward; their keys and values are read by all steps until they are closed.
    `close`: compute the last open slots backward, with the gradients that these steps have left.
    """

    kind: Literal["run", "open", "close"]
    first: int
    last: int


def check_longest(samples: Sequence[Sample], most_tokens: int) -> None:
    """Raise BudgetError if a sample alone has more tokens than that."""
    longest = max(sample.fed_tokens for sample in samples)
    if longest > most_tokens:
        raise BudgetError(
            f"a sample of {longest} tokens does not fit a micro-batch of {most_tokens}: "
            f"set micro_batch_tokens to {longest} or more"
        )


def packed_batches(samples: Sequence[Sample], most_tokens: int) -> list[list[Sample]]:
    """Order the samples by their prefixes and cut them into batches of at most `most_tokens` distinct tokens.

    A cut repeats the prefix that the samples on its sides share: among all ways to cut, one with the fewest tokens in
    all is chosen, where a batch costs `PASS_TOKENS` more. Raises BudgetError if a sample does not fit.
    """
    check_longest(samples, most_tokens)
    order, shared = prefix_order(samples)
    lengths = [samples[index].fed_tokens for index in order]
    count = len(order)
    # costs[i]: what the cuts before sample i cost at least, if a batch begins at i; begins[i]: where the one before it
    # begins. Without cuts the distinct tokens are the same whatever is chosen.
    costs, begins = [0] + [0] * count, [0] * (count + 1)
    for stop in range(1, count + 1):
        best: tuple[int, int] | None = None
        tokens = 0
        for start in range(stop - 1, -1, -1):
            # The first sample of a batch is computed whole, each later one from where it leaves the one before it.
            if tokens + lengths[start] <= most_tokens:
                cost = costs[start] + PASS_TOKENS + shared[start]
                best = min(best, (cost, start)) if best else (cost, start)
            tokens += lengths[start] - shared[start]
            if tokens > most_tokens:
                break
        assert best is not None
        costs[stop], begins[stop] = best
    batches: list[list[Sample]] = []
    stop = count
    while stop:
        batches.append([samples[index] for index in order[begins[stop] : stop]])
        stop = begins[stop]
    return batches[::-1]


def distinct_tokens(samples: Sequence[Sample]) -> int:
    """Return how many tokens a trie of the samples has."""
    order, shared = prefix_order(samples)
    return sum(samples[index].fed_tokens - common for index, common in zip(order, shared, strict=True))


def depth_first(trie: Trie, most_tokens: int) -> list[Step]:
    """Return the steps that compute every slot once and hold at most `most_tokens` slots at a time.

    Held are the open slots, which are always one path from the root, and those of the step that runs. Neighbors that
    have the same parent run together as far as they fit. No path may be longer than `most_tokens`.
    """
    below: dict[int | None, list[int]] = {}
    for number, node in enumerate(trie.nodes):
        below.setdefault(node.parent, []).append(number)
    steps: list[Step] = []
    pending: list[tuple[list[int], int] | Step] = [(below[None], 0)]
    while pending:
        current = pending.pop()
        if isinstance(current, Step):
            steps.append(current)
            continue
        siblings, held = current
        first, fitting = trie.nodes[siblings[0]].first, 0
        while fitting < len(siblings) and held + trie.nodes[siblings[fitting]].end - first <= most_tokens:
            fitting += 1
        rest = siblings[max(1, fitting) :]
        if rest:
            pending.append((rest, held))
        if fitting:
            steps.append(Step("run", first, trie.nodes[siblings[fitting - 1]].end))
            continue
        node = trie.nodes[siblings[0]]
        steps.append(Step("open", node.first, node.last))
        pending.append(Step("close", node.first, node.last))
        pending.append((below[siblings[0]], held + node.last - node.first))
    return steps
