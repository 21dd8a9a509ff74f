"""Tree-GRPO: a path's z-score among all paths of the prompt plus its z-score among the paths of its own tree.

Ji et al. 2025 (2509.21240) grow several trees for a prompt. Here they are the subtrees below the prompt: paths of one
tree share their first step.
"""

from collections.abc import Sequence

from pydantic import Field

from palmette.train.algorithms.statistics import standardized
from palmette.train.credit.credit import Advantages, Credit, CreditSettings, CreditTree


class TreeGrpoSettings(CreditSettings):
    """Settings of Tree-GRPO."""

    tree_grpo_epsilon: float = Field(1e-6, gt=0, le=1, description="added to standard deviations; verl's GRPO: 1e-6")


class TreeGrpo(Credit):
    """A path's z-score among all paths of the prompt plus its z-score among the paths of its own tree."""

    Settings = TreeGrpoSettings
    settings: TreeGrpoSettings
    unit = "path"

    def advantages(self, trees: Sequence[CreditTree]) -> list[Advantages]:
        """Return the sum of both z-scores for each leaf; a group of one, or of equal rewards, gives 0."""
        return [self._of_tree(tree) for tree in trees]

    def _of_tree(self, tree: CreditTree) -> Advantages:
        found: Advantages = [None] * len(tree.parents)
        subtrees: dict[int, list[int]] = {}
        for leaf in tree.leaves:
            subtrees.setdefault(tree.path(leaf)[1] if leaf else 0, []).append(leaf)
        scores = self._scores(tree, tree.leaves)
        for leaves in subtrees.values():
            for leaf, score in self._scores(tree, leaves).items():
                found[leaf] = scores[leaf] + score
        return found

    def _scores(self, tree: CreditTree, leaves: Sequence[int]) -> dict[int, float]:
        rewards = [reward for reward in (tree.rewards[leaf] for leaf in leaves) if reward is not None]
        if not rewards:
            return {}
        return dict(zip(leaves, standardized(rewards, self.settings.tree_grpo_epsilon), strict=True))


plugin = TreeGrpo
