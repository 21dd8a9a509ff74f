"""Flat: every path is a response of its own, with the advantage that the algorithm gives it."""

from collections.abc import Sequence

from palmette.errors import ConfigError
from palmette.train.algorithms.algorithm import Outcome
from palmette.train.credit.credit import Advantages, Credit, CreditTree


class Flat(Credit):
    """Every path is a response of its own, with the advantage that the algorithm gives it."""

    unit = "path"

    def advantages(self, trees: Sequence[CreditTree]) -> list[Advantages]:
        """Return the algorithm's advantages, the leaves of a tree being a group. Raises ConfigError without one."""
        if self.algorithm is None:
            raise ConfigError("credit flat takes its advantages from an algorithm: none was given")
        groups = [[_outcome(tree, leaf) for leaf in tree.leaves] for tree in trees]
        full = [group for group in groups if group]
        numbers = iter(self.algorithm.advantages(full) if full else [])
        found: list[Advantages] = []
        for tree, group in zip(trees, groups, strict=True):
            advantages: Advantages = [None] * len(tree.parents)
            if group:
                for leaf, number in zip(tree.leaves, next(numbers), strict=True):
                    advantages[leaf] = number
            found.append(advantages)
        return found


def _outcome(tree: CreditTree, leaf: int) -> Outcome:
    reward = tree.rewards[leaf]
    assert reward is not None
    return Outcome(reward, tree.path_tokens(leaf))


plugin = Flat
