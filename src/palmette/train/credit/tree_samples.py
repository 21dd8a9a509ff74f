"""Trees of a search as credit trees, and credited trees as training samples."""

import math
from collections.abc import Hashable, Sequence

from palmette.errors import PalmetteError
from palmette.train.credit.credit import Advantages, Credit, CreditTree
from palmette.train.samples import Sample
from palmette.tree import Node, Tree


def credit_tree(tree: Tree) -> CreditTree:
    """Return a judged tree as a credit tree: the rewards are those of its leaves that were finished or stopped.

    A pruned leaf has no outcome, even if somebody judged it: its solution is not complete.
    """
    leaves = set(tree.leaves())
    rewards = tuple(
        node.reward if node.id in leaves and node.state != "pruned" and node.id else None for node in tree.nodes
    )
    tokens = (0, *(len(node.tokens) for node in tree.nodes[1:]))
    return CreditTree(tuple(node.parent for node in tree.nodes), rewards, tokens)


def tree_samples(tree: Tree, advantages: Advantages, credit: Credit, *, group: Hashable) -> list[Sample]:
    """Return the samples of a credited tree: one for each step with an advantage, or one for each path.

    The log-probabilities of the steps are the samples' old ones, at the temperature of the tree. Steps without tokens
    make no sample, nor do those whose every token is masked by `most_probability`, nor those with advantage 0 if
    `drops_zeros`.
    """
    if tree.temperature <= 0:
        raise PalmetteError("a tree that was grown greedily has no samples: set policy.temperature above 0")
    samples = []
    for node, advantage in zip(tree.nodes, advantages, strict=True):
        if advantage is None or (advantage == 0 and credit.drops_zeros):
            continue
        steps = tree.steps(node.id) if credit.unit == "path" else [node]
        sample = _sample(tree, steps, advantage, credit.most_probability, group)
        if sample is not None:
            samples.append(sample)
    return samples


def _sample(
    tree: Tree, steps: Sequence[Node], advantage: float, most_probability: float | None, group: Hashable
) -> Sample | None:
    response = tuple(token for step in steps for token in step.tokens)
    logprobs = tuple(number for step in steps for number in step.logprobs)
    mask = None
    if most_probability is not None:
        mask = tuple(math.exp(logprob) < most_probability for logprob in logprobs)
    if not response or (mask is not None and not any(mask)):
        return None
    parent = steps[0].parent
    assert parent is not None
    return Sample(
        prompt=tree.path_tokens(parent),
        response=response,
        advantages=(advantage,) * len(response),
        group=group,
        old_logprobs=logprobs,
        temperature=tree.temperature,
        mask=mask,
    )
