"""TreePO: a path's reward against the means of all groups of paths that begin like it, whitened over the update.

Li et al. 2025 (2508.17445). Groups are nested: all paths of the prompt, then those that share the first step, and so
on. Groups with the same paths count once; a group of one, below the prompt, is left out.
"""

from collections.abc import Sequence

from palmette.train.algorithms.statistics import whitened
from palmette.train.credit.credit import Advantages, Credit, CreditTree
from palmette.train.credit.values import leaf_counts, leaf_means


class Treepo(Credit):
    """A path's reward against the means of all groups of paths that begin like it, whitened over the update."""

    unit = "path"

    def advantages(self, trees: Sequence[CreditTree]) -> list[Advantages]:
        """Return for each leaf the mean over its groups of r - group mean, whitened over the tokens of all paths."""
        places = [(number, leaf) for number, tree in enumerate(trees) for leaf in tree.leaves]
        found: list[Advantages] = [[None] * len(tree.parents) for tree in trees]
        if not places:
            return found
        raw = {number: _against_groups(tree) for number, tree in enumerate(trees)}
        # At least 1 token: an empty path takes part in no mean, and a prompt that is its own leaf has no step.
        counts = [max(1, trees[number].path_tokens(leaf)) for number, leaf in places]
        for (number, leaf), value in zip(
            places, whitened([raw[number][leaf] for number, leaf in places], counts), strict=True
        ):
            found[number][leaf] = value
        return found


def _against_groups(tree: CreditTree) -> dict[int, float]:
    """Return for each leaf the mean of r - group mean over its nested groups."""
    means, counts = leaf_means(tree), leaf_counts(tree)
    found = {}
    for leaf in tree.leaves:
        reward = tree.rewards[leaf]
        differences: list[float] = []
        members = None
        for node in tree.path(leaf):
            mean = means[node]
            assert reward is not None and mean is not None
            if counts[node] != members and (counts[node] > 1 or node == 0):
                differences.append(reward - mean)
            members = counts[node]
        found[leaf] = sum(differences) / len(differences)
    return found


plugin = Treepo
