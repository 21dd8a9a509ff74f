"""REBASE: the width shared in proportion to the softmax of the scores.

As published, except that the last leaf takes what is left: the published rounding can hand out width + 1.
"""

import math

from pydantic import Field

from palmette.strategy import Children, Frontier, Strategy, StrategySettings


class RebaseSettings(StrategySettings):
    """REBASE's one setting."""

    rebase_temperature: float = Field(0.2, ge=0.001, le=1000, description="softmax temperature of REBASE")


class Rebase(Strategy):
    """The width shared in proportion to the softmax of the scores."""

    Settings = RebaseSettings
    settings: RebaseSettings

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Share the width by rank and score; see `share`."""
        return share(frontier.ranked(), width, self.settings.rebase_temperature)


def share(ranked: list[tuple[int, float]], width: int, temperature: float) -> Children:
    """Go through the leaves best first: each takes the ceiling of its share of the width that is left.

    A leaf's share is its softmax weight over the weights from it onward. The children sum to `width`.
    """
    top = ranked[0][1]
    weights = [math.exp((score - top) / temperature) for _, score in ranked]
    # Sums from the back: subtracting weights one by one from their total leaves rounding noise instead of zero.
    onward = list(weights)
    for place in range(len(weights) - 2, -1, -1):
        onward[place] += onward[place + 1]
    children: Children = {}
    left = width
    for (leaf, _), weight, rest in zip(ranked, weights, onward, strict=True):
        count = min(left, math.ceil(left * weight / rest)) if rest > 0 else left
        if count:
            children[leaf] = count
        left -= count
    return children


plugin = Rebase
