"""Guesses what rows will write next from what was written before, and how many guesses are worth computing."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from palmette.engine.limits import DRAFTED_TICK_TOKENS

ORDERS = (4, 3, 2, 1)
"""Lengths of the contexts that are looked up, longest first."""

_SURE = 3
"""Votes from which on one more makes no other kind of guess."""

_CHANCES = {
    1: (0.12, 0.10, 0.30, 0.40),
    2: (0.12, 0.28, 0.50, 0.62),
    3: (0.12, 0.32, 0.60, 0.72),
    4: (0.12, 0.45, 0.75, 0.88),
}
"""Chance of a guess by the length of its context and its votes (0 to `_SURE`), before any of its kind was checked.
Rounded from how often guesses came true in 64 answers of SmolLM2-135M to 4 questions of rg:chain_sum, temperature 1."""

_PRIOR_CHECKS = 8
"""How many checked guesses the chance from `_CHANCES` counts as."""

_WORTH = 0.7
"""What an accepted token counts beside one of a tick without drafts: less, because a lane that is ahead of the others
shortens only those later ticks that wait for it. Replaying the texts of `_CHANCES` told no difference of more than
0.02 times the speed between 0.5 and 1."""

_MOST_CONTEXTS = 2**13
"""Contexts that an index remembers: about 1 MiB. When it is full, the older half is forgotten."""

_COSTS = {1: 1.0, 2: 1.05, 3: 1.37, 4: 1.41, 5: 2.0, 16: 2.29, 17: 3.2, 32: 3.34, 64: 5.27}
"""What a tick of so many tokens costs, in ticks of one token.

Measured with SmolLM2-135M in float32 on two idle cores, each token in a lane of its own below a prompt of 100 tokens,
milliseconds, the fastest of 3 turns: 30.7, 32.1, 42.1, 43.4, 61.5 (8 tokens 63.3, 12 tokens 68.3), 70.2, 98 (a little
less than 24 tokens, 100), 102.5, 161.7. The steps are those of `products`: few rows are multiplied in another way, and
more are filled up to 16 or 32.
"""

_STEPS = tuple(_COSTS)


Kind = tuple[int, int]
"""The length of the context by which a token was guessed, and the votes for it, up to `_SURE`."""


class Guess(NamedTuple):
    """A token that may come next, and the kind of guess it is."""

    token: int
    kind: Kind


class Index:
    """What followed each short context in the texts of one question. Holds at most `_MOST_CONTEXTS` contexts.

    Of each context one next token is kept with its votes: the same token again adds one, another token takes one away
    and takes the place of a token without votes (the majority vote of Boyer and Moore).
    """

    def __init__(self) -> None:
        self._next: dict[int, tuple[int, int]] = {}
        self._ends: set[int] = set()

    def feed(self, context: Sequence[int], tokens: Sequence[int]) -> None:
        """Learn that `tokens` followed `context`, of which only the last few tokens are used."""
        text = [*context[-ORDERS[0] :], *tokens]
        for place in range(len(text) - len(tokens), len(text)):
            for key, _ in _contexts(text[max(0, place - ORDERS[0]) : place]):
                self._vote(key, text[place])

    def end(self, token: int) -> None:
        """Learn that a step has ended with this token: nothing is proposed after it."""
        self._ends.add(token)

    def propose(self, context: Sequence[int], count: int) -> list[Guess]:
        """Return up to `count` tokens that may follow `context`, each guessed by the longest context that is known."""
        text = list(context[-ORDERS[0] :])
        guesses: list[Guess] = []
        while len(guesses) < count:
            guess = self._guess(text)
            if guess is None:
                break
            guesses.append(guess)
            if guess.token in self._ends:
                break
            text = [*text[-ORDERS[0] + 1 :], guess.token]
        return guesses

    def _guess(self, text: Sequence[int]) -> Guess | None:
        for key, order in _contexts(text):
            if key in self._next:
                token, votes = self._next[key]
                return Guess(token, (order, min(votes, _SURE)))
        return None

    def _vote(self, key: int, token: int) -> None:
        kept, votes = self._next.get(key, (token, 0))
        if kept == token:
            self._next[key] = token, votes + 1
        elif votes > 0:
            self._next[key] = kept, votes - 1
        else:
            self._next[key] = token, 1
        if len(self._next) > _MOST_CONTEXTS:
            for old in list(self._next)[: _MOST_CONTEXTS // 2]:
                del self._next[old]


def _contexts(text: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the key and the length of each context that `text` ends with, longest first."""
    for order in ORDERS:
        if order <= len(text):
            # Of integers, so the same in every process. Two contexts with one key cost a wrong guess at most.
            yield hash((order, *text[len(text) - order :])), order


class Acceptance:
    """How often guesses came true, by kind. Counts only, so that a run repeats exactly."""

    def __init__(self) -> None:
        self._counts: dict[Kind, tuple[int, int]] = {}
        self.checked = 0
        self.accepted = 0

    def count(self, kind: Kind, *, accepted: bool) -> None:
        """Record whether a guess whose preceding tokens were right was right itself."""
        right, total = self._counts.get(kind, (0, 0))
        self._counts[kind] = right + accepted, total + 1
        self.checked += 1
        self.accepted += accepted

    def chance(self, kind: Kind) -> float:
        """Return the chance of a guess of this kind, by the counts so far and by `_CHANCES`."""
        right, total = self._counts.get(kind, (0, 0))
        order, votes = kind
        return (right + _CHANCES[order][votes] * _PRIOR_CHECKS) / (total + _PRIOR_CHECKS)


def tick_cost(tokens: int) -> float:
    """Return what a tick of so many tokens costs, in ticks of one token; linear between the measured sizes."""
    index = min(max(bisect_right(_STEPS, tokens), 1), len(_STEPS) - 1)
    low, high = _STEPS[index - 1], _STEPS[index]
    return _COSTS[low] + (_COSTS[high] - _COSTS[low]) * (tokens - low) / (high - low)


def worthwhile(chances: Sequence[Sequence[float]], tokens: int) -> list[int]:
    """Return how many of its guesses to compute for each lane in a tick of `tokens` tokens without any.

    `chances` has the chance of each guess of each lane, given that those before it are right. The numbers give the most
    expected tokens for the cost of the tick, among ticks of up to `DRAFTED_TICK_TOKENS` tokens.
    """
    ordered: list[tuple[float, int, int]] = []
    for lane, own in enumerate(chances):
        together = 1.0
        for place, chance in enumerate(own):
            together *= chance
            ordered.append((-together, place, lane))
    ordered.sort()
    expected, best, taken = float(len(chances)), len(chances) / tick_cost(tokens), 0
    for count, (negative, _, _) in enumerate(ordered[: max(0, DRAFTED_TICK_TOKENS - tokens)], 1):
        expected -= negative * _WORTH
        rate = expected / tick_cost(tokens + count)
        if rate > best:
            best, taken = rate, count
    counts = [0] * len(chances)
    for _, _, lane in ordered[:taken]:
        counts[lane] += 1
    return counts
