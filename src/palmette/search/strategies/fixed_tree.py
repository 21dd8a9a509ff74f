"""Fixed tree: every step at a depth gets as many children as that depth has branches; prunes nothing, needs no scores.

The tree of SPO and other methods that train on trees (`branches: [6, 6, 6]` is SPO's 6-6-6). Below the last depth given
every branch goes on alone to its end.
"""

import math

from pydantic import Field, field_validator

from palmette.errors import ConfigError
from palmette.strategy import Children, Frontier, Strategy, StrategySettings, Use


class FixedTreeSettings(StrategySettings):
    """Settings of fixed trees."""

    branches: tuple[int, ...] = Field(
        (4, 2, 2), min_length=1, max_length=1000,
        description="children of the prompt, of each first step, and so on; the default fills the default width of 16; "
        "SPO publishes 6, 6, 6, which needs a width of 216",
    )  # fmt: skip

    @field_validator("branches")
    @classmethod
    def _at_least_one(cls, branches: tuple[int, ...]) -> tuple[int, ...]:
        if min(branches) < 1:
            raise ValueError("give 1 or more branches for each depth")
        return branches


class FixedTree(Strategy):
    """Gives every step of a depth the same number of children; prunes nothing, needs no scores.

    Raises ConfigError if the width of the run is less than the leaves that the branches can make: something would have
    to be pruned.
    """

    Settings = FixedTreeSettings
    settings: FixedTreeSettings

    def __init__(
        self, settings: FixedTreeSettings | None = None, *, width: int = 16, first_step_tokens: int = 32
    ) -> None:
        super().__init__(settings, width=width, first_step_tokens=first_step_tokens)
        branches = self.settings.branches
        needed = math.prod(branches)
        if needed > width:
            shape = "-".join(map(str, branches))
            raise ConfigError(
                f"a fixed tree with branches {shape} has {needed} leaves, the width is {width}: set search.width to "
                f"{needed}, or search.branches to fewer"
            )

    @property
    def uses(self) -> frozenset[Use]:
        """Nothing: if there are scores, they only weigh the votes at the end."""
        return frozenset()

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Give every leaf the children of its depth, one below the last depth given.

        They fit the width: a branch that ends early has one leaf where it could have had several.
        """
        branches, nodes = self.settings.branches, frontier.tree.nodes
        depths = {leaf: nodes[leaf].depth for leaf in frontier.leaves}
        return {leaf: branches[depth] if depth < len(branches) else 1 for leaf, depth in depths.items()}


plugin = FixedTree
