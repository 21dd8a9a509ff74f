"""TreeRL: what a step adds over the prompt and over its parent, by the mean over leaves, damped by their number.

Hou et al. 2025 (2506.11902). The paper is followed, R(s) = (V(s) - V(root) + V(s) - V(parent)) / sqrt(leaves of s); its
published code differs. A chain of steps without an alternative is one segment.
"""

import math
from collections.abc import Sequence

from palmette.train.credit.credit import Advantages, Credit, CreditTree
from palmette.train.credit.values import leaf_counts, leaf_means


class Treerl(Credit):
    """What a step adds over the prompt and over its parent, by the mean over leaves, damped by their number."""

    def advantages(self, trees: Sequence[CreditTree]) -> list[Advantages]:
        """Return R(s) for each step, that of its segment's first step."""
        return [_of_tree(tree) for tree in trees]


def _of_tree(tree: CreditTree) -> Advantages:
    values, counts = leaf_means(tree), leaf_counts(tree)
    found: Advantages = [None] * len(values)
    for node in range(1, len(values)):
        head = tree.heads[node]
        own, root, above = values[head], values[0], values[tree.parent(head)]
        if tree.alive[node] and own is not None and root is not None and above is not None:
            found[node] = (2 * own - root - above) / math.sqrt(counts[head])
    return found


plugin = Treerl
