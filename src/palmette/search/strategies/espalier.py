"""Espalier: of the branches that have found the same one is kept, with the shares of all; the rest is ETS.

Where a problem has several parts, branches work them out in different orders and words and come to the same point, in
chess a transposition. REBASE and ETS keep them all and grow each of them. Here the leaves whose paths have found the
same are one leaf:
- its weight is the sum of theirs, so that what many branches agree on gets more children, as in a vote;
- its path is that of the best of them, and the KV cache of the others is freed.

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


class EspalierSettings(RebaseSettings):
    """Settings of espalier, with the one of REBASE."""

    lambda_held: float = Field(1.0, ge=0, le=1000, description="weight of the KV tokens that a branch holds")


class Espalier(Strategy):
    """Keeps one of the branches that have found the same, with their shares added, if it is worth its KV cache."""

    Settings = EspalierSettings
    settings: EspalierSettings

    @property
    def uses(self) -> frozenset[Use]:
        """Scores and the room of a budget."""
        return frozenset({"scores", "room"})

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Join what has found the same, then select and share as ETS does: by tokens, without clusters."""
        temperature = self.settings.rebase_temperature
        settings = EtsSettings(
            rebase_temperature=temperature, lambda_kv=self.settings.lambda_held, lambda_diversity=0.0, kv_cost="tokens"
        )
        ets = Ets(settings, width=self.width, first_step_tokens=self.first_step_tokens)
        return ets.allocate(joined(frontier, temperature), width, room)


plugin = Espalier


def joined(frontier: Frontier, temperature: float) -> Frontier:
    """Return the frontier with the best of the leaves that have found the same for all of them.

    Its score is the one with which REBASE gives it the children of all together: softmax weights add up.
    """
    alike: dict[frozenset[Finding], list[tuple[int, float]]] = {}
    names = rare_tokens(frontier.tree)
    for leaf, score in frontier.ranked():
        alike.setdefault(findings(frontier.tree, leaf, names), []).append((leaf, score))
    kept = {leaves[0][0]: _together([score for _, score in leaves], temperature) for leaves in alike.values()}
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
