"""A few responses of an update for people to read, and the trees that they are leaves of."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from palmette.events import ShownSample, ShownStep, ShownTree
from palmette.train.credit.credit import CreditTree
from palmette.train.credit.tree_samples import credit_tree
from palmette.train.credit.values import child_means
from palmette.train.rollout.groups import Group
from palmette.train.samples import Sample
from palmette.tree import Tree

SHOWN_GROUPS = 2
SHOWN_RESPONSES = 4
SHOWN_BRANCHES = 60
_LONGEST_TEXT = 4000
_LONGEST_BRANCH = 500

StepAdvantages = Mapping[str, Sequence[float | None]]
"""By question: the advantage of each node of its tree, None where nothing is learned from it."""


def shown_samples(
    groups: Sequence[Group], samples: Sequence[Sample], steps: StepAdvantages | None = None
) -> tuple[ShownSample, ...]:
    """Return the first few responses of the first few groups, with the mean advantage of their tokens.

    `steps` are advantages by a way to credit steps, None where whole responses are credited.
    """
    shown: list[ShownSample] = []
    for group in groups[:SHOWN_GROUPS]:
        known = _response_advantages(group, samples, steps)
        prompt = group.result.question.messages[-1]["content"][:_LONGEST_TEXT]
        for place, response in enumerate(group.responses[:SHOWN_RESPONSES]):
            parts = {name: values[place] for name, values in group.parts.items()}
            shown.append(
                ShownSample(
                    response.question.id,
                    prompt,
                    response.text[:_LONGEST_TEXT],
                    group.rewards[place],
                    known.get(response.leaf),
                    response.is_cut,
                    parts,
                    {name: values[place] for name, values in group.columns.items()},
                )
            )
    return tuple(shown)


def shown_trees(
    groups: Sequence[Group], samples: Sequence[Sample], steps: StepAdvantages | None
) -> tuple[ShownTree, ...]:
    """Return the trees of the first few groups, their first branches with values and advantages.

    A value is the mean over a step's children of theirs, a leaf's its reward. Where paths are credited, the advantage
    of a step is the mean over the leaves below it. Branches that part at the prompt are no tree: nothing is returned
    for them.
    """
    trees: list[ShownTree] = []
    for group in groups[:SHOWN_GROUPS]:
        tree, name = group.result.tree, group.result.question.id
        if not any(len(tree.children(node.id)) > 1 for node in tree.nodes[1:]):
            continue
        if steps is None:
            by_leaf = _response_advantages(group, samples, None)
            trees.append(_shown_tree(group, [by_leaf.get(node.id) for node in tree.nodes]))
        else:
            trees.append(_shown_tree(group, steps.get(name, [None] * len(tree.nodes))))
    return tuple(trees)


def _shown_tree(group: Group, advantages: Sequence[float | None]) -> ShownTree:
    """Return the branches of a tree: each a step with those that follow it without an alternative."""
    tree = group.result.tree
    rewards = {response.leaf: reward for response, reward in zip(group.responses, group.rewards, strict=True)}
    rewarded = replace(credit_tree(tree), rewards=tuple(rewards.get(node.id) for node in tree.nodes))
    values, told = child_means(rewarded), _below(rewarded, advantages)
    children = [tree.children(node.id) for node in tree.nodes]
    branches: list[ShownStep] = []
    place_of = {0: 0}  # By the last step of a branch: its place among the branches, from 1 on.
    for node in tree.nodes[1:]:
        if node.parent and len(children[node.parent]) == 1:
            continue
        chain = [node]
        while len(children[chain[-1].id]) == 1:
            chain.append(children[chain[-1].id][0])
        branch = ShownStep(
            parent=place_of[node.parent or 0],
            text="".join(step.text for step in chain)[:_LONGEST_BRANCH],
            tokens=sum(len(step.tokens) for step in chain),
            state=chain[-1].state,
            value=values[node.id],
            advantage=told[node.id],
            reward=rewards.get(chain[-1].id),
        )
        branches.append(branch)
        place_of[chain[-1].id] = len(branches)
    shown = tuple(branches[:SHOWN_BRANCHES])
    return ShownTree(group.result.question.id, shown, len(branches) - len(shown))


def _below(tree: CreditTree, advantages: Sequence[float | None]) -> list[float | None]:
    """Return the advantages, for a step without one the mean over the leaves below it that have one."""
    sums, counts = [0.0] * len(advantages), [0] * len(advantages)
    for node in range(len(advantages) - 1, 0, -1):
        own = advantages[node]
        if node in tree.leaves and own is not None:
            sums[node], counts[node] = own, 1
        sums[tree.parent(node)] += sums[node]
        counts[tree.parent(node)] += counts[node]
    return [
        own if own is not None else sums[node] / counts[node] if counts[node] and node else None
        for node, own in enumerate(advantages)
    ]


def _response_advantages(
    group: Group, samples: Sequence[Sample], steps: StepAdvantages | None
) -> dict[int, float | None]:
    """Return the mean advantage of each response's tokens by its leaf, without responses that nothing is learned from.

    By a way to credit they are those of its steps, or of its last step where paths are credited. Else they are those of
    its sample, by its tokens: equal responses have equal rewards.
    """
    name, tree = group.result.question.id, group.result.tree
    if steps is not None:
        own = steps.get(name)
        return (
            {} if own is None else {response.leaf: _path_mean(tree, response.leaf, own) for response in group.responses}
        )
    by_tokens = {
        sample.response: sum(sample.advantages) / len(sample.advantages) for sample in samples if sample.group == name
    }
    return {response.leaf: by_tokens[response.tokens] for response in group.responses if response.tokens in by_tokens}


def _path_mean(tree: Tree, leaf: int, advantages: Sequence[float | None]) -> float | None:
    path = [(len(step.tokens), advantages[step.id]) for step in tree.steps(leaf)]
    learned = [(tokens, advantage) for tokens, advantage in path if advantage is not None and tokens]
    total = sum(tokens for tokens, _ in learned)
    return sum(tokens * advantage for tokens, advantage in learned) / total if total else None
