"""Espalier: of the branches that have found the same a few are kept, with the shares of all; the rest is ETS.

Where a problem has several parts, branches work them out in different orders and words and come to the same point, in
chess a transposition. REBASE and ETS keep them all and grow each of them. Here the leaves whose paths have found the
same are one leaf:
- its weight is the sum of theirs, so that what many branches agree on gets more children, as in a vote;
- its path is that of the best of them, and the KV cache of the others is freed. In wide searches several of the best
  share the weight: what a policy writes next goes by the words before it, and one wording may lead it astray.

What a step has found are its numbers, in any order and however often, and which of them comes last. A step without
numbers has found what it speaks of: the words that it takes from the question and that are rare there, in their order,
so that a step told in other words is the same one; without such words its own. A path has found what its steps have, in
any order. This is made for steps that calculate: two steps that name the same numbers and mean different things are
taken for the same.
"""

import math
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from pydantic import Field

from palmette.search.strategies.ets import Ets, EtsSettings
from palmette.search.strategies.rebase import RebaseSettings
from palmette.strategy import Children, Frontier, Strategy, Use
from palmette.tree import Node, Tree

Finding = tuple[str | int, ...]
"""What one step has found: its numbers and the last of them, or tokens of the question, or its words."""

_RARE = 1 / 32
"""The largest share of a prompt's tokens that one has which tells what a step speaks of: `of` and `the` have more."""

_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_PLACE = re.compile(r"\A\s*(?:\*\*)?(?:step\s*)?\d+\s*[.):](?=\s|\*)", re.IGNORECASE)
"""The number of a step at its beginning: `2.`, `Step 3:`."""

NARROW = 16
"""Up to this width the weight of memory is 1 and one of the leaves that have found the same goes on.

Above it a branch that is alone with what it has found has a share of about 1 / width, while its part of the memory
falls more slowly, because what many have found is held once. So at a weight of 1 a wide search prunes just those that a
narrow one would not have had: at width 64 it lost 9 points of REBASE's vote on long problems, at 0.25 4, and none with
two wordings of what many have found.
"""


class EspalierSettings(RebaseSettings):
    """Settings of espalier, with the one of REBASE. Where one is None the width of the run decides (`NARROW`)."""

    lambda_held: float | None = Field(
        None, ge=0, le=1000, description="weight of the KV tokens that a branch holds; null: 16 / width, at most 1"
    )
    kept_alike: int | None = Field(
        None, ge=1, le=1000, description="how many of the leaves that have found the same go on; null: sqrt(width) / 4"
    )


class Espalier(Strategy):
    """Keeps a few of the branches that have found the same, with the shares of all, if they are worth their KV."""

    Settings = EspalierSettings
    settings: EspalierSettings

    @property
    def uses(self) -> frozenset[Use]:
        """Scores and the room of a budget."""
        return frozenset({"scores", "room"})

    @property
    def weight(self) -> float:
        """The weight of memory: the setting, or by the width of the run."""
        weight = self.settings.lambda_held
        return min(1.0, NARROW / self.width) if weight is None else weight

    @property
    def most_alike(self) -> int:
        """How many leaves that have found the same go on: the setting, or by the width of the run."""
        return self.settings.kept_alike or max(1, math.isqrt(self.width // NARROW))

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Join what has found the same, then select and share as ETS does: by tokens, without clusters."""
        temperature = self.settings.rebase_temperature
        settings = EtsSettings(
            rebase_temperature=temperature, lambda_kv=self.weight, lambda_diversity=0.0, kv_cost="tokens"
        )
        ets = Ets(settings, width=self.width, first_step_tokens=self.first_step_tokens)
        return ets.allocate(joined(frontier, temperature, self.most_alike), width, room)


plugin = Espalier


def joined(frontier: Frontier, temperature: float, most: int = 1) -> Frontier:
    """Return the frontier with the best of the leaves that have found the same, at most so many, for all of them.

    Their scores are those with which REBASE gives them the children of all together: softmax weights add up, and are
    shared equally. Of leaves with the same tokens one is kept: what follows on any of them is drawn alike.
    """
    tree, names = frontier.tree, rare_tokens(frontier.tree)
    alike: dict[frozenset[Finding], list[tuple[int, float]]] = {}
    for leaf, score in frontier.ranked():
        alike.setdefault(findings(tree, leaf, names), []).append((leaf, score))
    kept: dict[int, float] = {}
    for found in alike.values():
        at_place: dict[int, int] = {}
        for leaf, _ in found:
            at_place.setdefault(tree.place(leaf), leaf)
        best = list(at_place.values())[:most]
        score = _together([score for _, score in found], temperature) - temperature * math.log(len(best))
        kept |= dict.fromkeys(best, score)
    leaves = tuple(sorted(kept))
    return replace(frontier, leaves=leaves, scores=tuple(kept[leaf] for leaf in leaves))


def rare_tokens(tree: Tree) -> frozenset[int]:
    """Return the tokens of a tree's prompt that are rare in it."""
    counts = Counter(tree.prompt_tokens)
    most = max(1, _RARE * len(tree.prompt_tokens))
    return frozenset(token for token, count in counts.items() if count <= most)


def findings(tree: Tree, leaf: int, names: Collection[int] = ()) -> frozenset[Finding]:
    """Return what the steps on the path to a leaf have found; `names` are the tokens that tell what a step is about."""
    return frozenset(finding(step, names) for step in tree.steps(leaf))


def finding(step: Node, names: Collection[int] = ()) -> Finding:
    """Return what a step has found: its numbers, each once, and the last one; without numbers its names, or words."""
    numbers = [number.replace(",", "") for number in _NUMBER.findall(_PLACE.sub("", step.text, count=1))]
    if numbers:
        return (*sorted(set(numbers)), numbers[-1])
    return tuple(token for token in step.tokens if token in names) or ("", *step.text.casefold().split())


def _together(scores: list[float], temperature: float) -> float:
    """Return the score whose softmax weight is the sum of the weights of these, the best of which comes first.

    It is rounded down a little: of six children, two equal leaves beside a third would get ceil(6 x 2.0000000000000004
    / 3) = 5.
    """
    best = scores[0]
    if len(scores) == 1:
        return best
    total = math.fsum(math.exp((score - best) / temperature) for score in scores)
    return best + temperature * (math.log(total) - 1e-12)
