"""SPO-tree: the advantage of a step is its value minus its parent's, a value being the mean over children.

Guo et al. 2025 (2505.23564). A chain of steps without an alternative is one segment, as in the paper, where the last
segment reaches to the end of the response: its later steps have the advantage of its first.
"""

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from palmette.train.credit.credit import Advantages, Credit, CreditSettings, CreditTree
from palmette.train.credit.values import child_means


class SpoSettings(CreditSettings):
    """Settings of SPO-tree."""

    spo_scale: Literal["none", "siblings"] = Field(
        "none", description="siblings: divide by the standard deviation of the values of a step and its siblings, the "
        "code's variant grpo; paper: none",
    )  # fmt: skip
    spo_drop_zeros: bool = Field(True, description="leave out steps with advantage 0; SPO's code: true")
    spo_probability: float | None = Field(
        None, gt=0, le=1, description="mask tokens that the policy gave at least this probability; null: none; SPO: 0.9"
    )


_SCALE_EPSILON = 1e-6
"""Added to a standard deviation: far below that of any two rewards that differ."""


class Spo(Credit):
    """The advantage of a step is its value minus its parent's, a value being the mean over children."""

    Settings = SpoSettings
    settings: SpoSettings

    @property
    def drops_zeros(self) -> bool:
        """As set."""
        return self.settings.spo_drop_zeros

    @property
    def most_probability(self) -> float | None:
        """As set."""
        return self.settings.spo_probability

    def advantages(self, trees: Sequence[CreditTree]) -> list[Advantages]:
        """Return V(step) - V(parent) for each step, that of its segment's first step."""
        return [self._of_tree(tree) for tree in trees]

    def _of_tree(self, tree: CreditTree) -> Advantages:
        values = child_means(tree)
        found: Advantages = [None] * len(values)
        for node in range(1, len(values)):
            head = tree.heads[node]
            if not tree.alive[node]:
                continue
            if head != node:
                found[node] = found[head]
                continue
            siblings = [_known(values[child]) for child in tree.children[tree.parent(node)]]
            mean = sum(siblings) / len(siblings)
            scale = 1.0
            if self.settings.spo_scale == "siblings" and len(siblings) > 1:
                squares = sum((value - mean) ** 2 for value in siblings)
                scale = math.sqrt(squares / (len(siblings) - 1)) + _SCALE_EPSILON
            found[node] = 0.0 if min(siblings) == max(siblings) else (_known(values[node]) - mean) / scale
        return found


def _known(value: float | None) -> float:
    assert value is not None
    return value


plugin = Spo
