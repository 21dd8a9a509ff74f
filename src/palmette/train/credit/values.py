"""Two estimates of what a step is worth: the mean over its children's values, and the mean over the leaves below it."""

from palmette.train.credit.credit import CreditTree


def child_means(tree: CreditTree) -> list[float | None]:
    """Return each node's value bottom-up: a leaf's is its reward, any other's the mean of its children's values.

    Children are drawn from the policy, so each counts once, whatever a search grew below it. None for nodes without
    outcome; children without one are left out.
    """
    values: list[float | None] = list(tree.rewards)
    for node in range(len(values) - 1, -1, -1):
        below = [value for value in (values[child] for child in tree.children[node]) if value is not None]
        if below:
            values[node] = sum(below) / len(below)
    return values


def leaf_counts(tree: CreditTree) -> list[int]:
    """Return the number of leaves with an outcome at or below each node."""
    counts = [int(reward is not None) for reward in tree.rewards]
    for node in range(len(counts) - 1, 0, -1):
        counts[tree.parent(node)] += counts[node]
    return counts


def leaf_means(tree: CreditTree) -> list[float | None]:
    """Return the mean reward of the leaves at or below each node, None where there are none.

    A child counts as often as it has leaves: where a reward model sets the widths, as often as it was liked.
    """
    sums = [reward or 0.0 for reward in tree.rewards]
    for node in range(len(sums) - 1, 0, -1):
        sums[tree.parent(node)] += sums[node]
    return [total / count if count else None for total, count in zip(sums, leaf_counts(tree), strict=True)]
