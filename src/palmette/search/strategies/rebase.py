"""REBASE: gives each leaf children in proportion to the softmax of the scores.

As published (Wu et al., 2024), except that the children always sum to the width: the published rounding can give out
width + 1.
"""

import math

from pydantic import Field

from palmette.strategy import Children, Frontier, Strategy, StrategySettings


class RebaseSettings(StrategySettings):
    """Settings of REBASE."""

    rebase_temperature: float = Field(0.2, ge=0.001, le=1000, description="softmax temperature of REBASE")


class Rebase(Strategy):
    """Gives each leaf children in proportion to the softmax of the scores."""

    Settings = RebaseSettings
    settings: RebaseSettings

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Share the width by `share`."""
        return share(frontier.ranked(), width, self.settings.rebase_temperature)


def share(ranked: list[tuple[int, float]], width: int, temperature: float) -> Children:
    """Return the children of each leaf; they sum to `width`. `ranked` holds leaves with scores, best first.

    Goes through the leaves from best to worst. Each gets ceil(children left x its softmax weight / sum of the weights
    of itself and all leaves after it).
    """
    top = ranked[0][1]
    weights = [math.exp((score - top) / temperature) for _, score in ranked]
    # Sum from the back: subtracting weights one by one from their total would leave rounding errors instead of zero.
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
