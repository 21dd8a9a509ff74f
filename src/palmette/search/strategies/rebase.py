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
    weights = [_exact(math.exp((score - top) / temperature)) for _, score in ranked]
    rest = sum(weights)
    children: Children = {}
    left = width
    for (leaf, _), weight in zip(ranked, weights, strict=True):
        count = -(-left * weight // rest) if rest else 0
        if count:
            children[leaf] = count
        left -= count
        rest -= weight
    return children


def _exact(number: float) -> int:
    """Return a positive float in units of the smallest one, 2**-1074.

    In whole numbers tied leaves share exactly: in floats 9 x weight / (3 x weight) can be 3.0000000000000004, and its
    ceiling takes a child from another leaf.
    """
    numerator, denominator = number.as_integer_ratio()
    return numerator * (2**1074 // denominator)


plugin = Rebase
