"""Credit on trees: hand-worked numbers, and brute force over leaves and nested groups."""

import math
import random
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from palmette import registry
from palmette.errors import ConfigError, PalmetteError
from palmette.train.algorithms.dr_grpo import DrGrpo
from palmette.train.algorithms.ppo import Ppo
from palmette.train.credit.credit import CreditTree, make_credit
from palmette.train.credit.flat import Flat
from palmette.train.credit.spo import Spo, SpoSettings
from palmette.train.credit.tree_grpo import TreeGrpo
from palmette.train.credit.tree_samples import credit_tree, tree_samples
from palmette.train.credit.treepo import Treepo
from palmette.train.credit.treerl import Treerl
from palmette.train.credit.values import child_means, leaf_counts, leaf_means
from palmette.tree import Tree

# The prompt has the steps 1 and 2. Below 1 are the leaves 3, 4, 5 with rewards 1, 1, 0; below 2 the leaf 6 with 0.
#         0
#       1    2
#     3 4 5  6
UNEVEN = CreditTree((None, 0, 0, 1, 1, 1, 2), (None, None, None, 1.0, 1.0, 0.0, 0.0), (0, 1, 1, 1, 1, 1, 1))


@st.composite
def trees(draw: st.DrawFn) -> CreditTree:
    """Random trees of up to 14 nodes whose leaves have rewards 0 to 3, or none."""
    count = draw(st.integers(2, 14))
    parents = [None, *(draw(st.integers(0, node - 1)) for node in range(1, count))]
    leaves = set(range(count)) - set(parents)
    rewards = [draw(st.none() | st.integers(0, 3).map(float)) if node in leaves else None for node in range(count)]
    return CreditTree(tuple(parents), tuple(rewards), (0, *(draw(st.integers(1, 3)) for _ in range(1, count))))


def below(tree: CreditTree, node: int) -> list[int]:
    """Return the leaves with an outcome whose path goes through this node."""
    return [leaf for leaf in tree.leaves if node in tree.path(leaf)]


def reward(tree: CreditTree, leaf: int) -> float:
    found = tree.rewards[leaf]
    assert found is not None
    return found


def test_values_by_children_and_by_leaves_differ_where_widths_do() -> None:
    # Children: V(1) = 2/3, V(2) = 0, V(0) = 1/3. Leaves: V(0) = 2/4.
    assert child_means(UNEVEN) == pytest.approx([1 / 3, 2 / 3, 0, 1, 1, 0, 0])
    assert leaf_means(UNEVEN) == pytest.approx([1 / 2, 2 / 3, 0, 1, 1, 0, 0])
    assert leaf_counts(UNEVEN) == [4, 3, 1, 1, 1, 1, 1]


@given(trees())
def test_values_equal_brute_force(tree: CreditTree) -> None:
    def by_children(node: int) -> float | None:
        if tree.rewards[node] is not None:
            return tree.rewards[node]
        children = [by_children(child) for child, parent in enumerate(tree.parents) if parent == node]
        known = [value for value in children if value is not None]
        return mean(known) if known else None

    for node in range(len(tree.parents)):
        leaves = below(tree, node)
        expected = by_children(node)
        assert leaf_counts(tree)[node] == len(leaves)
        assert tree.alive[node] == bool(leaves)
        assert leaf_means(tree)[node] == (
            pytest.approx(mean(reward(tree, leaf) for leaf in leaves)) if leaves else None
        )
        assert child_means(tree)[node] == (None if expected is None else pytest.approx(expected))


def test_spo_compares_a_step_with_its_parent() -> None:
    # 2/3 - 1/3, 0 - 1/3; below 1: 1 - 2/3, 1 - 2/3, 0 - 2/3; 6 is the only child of 2 and has its advantage.
    (found,) = Spo().advantages([UNEVEN])
    assert found[0] is None
    assert found[1:] == pytest.approx([1 / 3, -1 / 3, 1 / 3, 1 / 3, -2 / 3, -1 / 3])


def test_spo_can_divide_by_the_spread_of_siblings() -> None:
    # 2/3 and 0: standard deviation sqrt(2 x (1/3)^2) = sqrt(2)/3. 1, 1, 0: sqrt((1/9 + 1/9 + 4/9) / 2) = sqrt(1/3).
    (found,) = Spo(SpoSettings(spo_scale="siblings")).advantages([UNEVEN])
    spread, deep = math.sqrt(2) / 3, math.sqrt(1 / 3)
    expected = [1 / 3 / spread, -1 / 3 / spread, 1 / 3 / deep, 1 / 3 / deep, -2 / 3 / deep, -1 / 3 / spread]
    assert found[1:] == pytest.approx(expected, rel=1e-5)


@given(trees())
def test_spo_cancels_among_siblings_and_masks_what_has_no_outcome(tree: CreditTree) -> None:
    (found,) = Spo().advantages([tree])
    assert [value is not None for value in found[1:]] == list(tree.alive[1:])
    for node, children in enumerate(tree.children):
        if len(children) > 1 or node == 0:
            assert math.isclose(sum(found[child] or 0.0 for child in children), 0, abs_tol=1e-9)


def test_independent_responses_have_the_reward_minus_the_mean_at_every_step() -> None:
    # Three chains of two steps from the prompt: what Dr. GRPO gives.
    chains = CreditTree((None, 0, 0, 0, 1, 2, 3), (None, None, None, None, 1.0, 0.0, 0.0), (0, 1, 1, 1, 1, 1, 1))
    (found,) = Spo().advantages([chains])
    assert found[1:] == pytest.approx([2 / 3, -1 / 3, -1 / 3] * 2)


def test_a_pruned_branch_is_as_if_it_had_not_been_drawn() -> None:
    # Step 2 of UNEVEN got a second child, 7, which was pruned, and so was 8 below the prompt.
    pruned = CreditTree((*UNEVEN.parents, 2, 0), (*UNEVEN.rewards, None, None), (*UNEVEN.tokens, 1, 1))
    for kind in (Spo, Treerl, Treepo, TreeGrpo):
        (found,), (expected,) = kind().advantages([pruned]), kind().advantages([UNEVEN])
        assert found == [*expected, None, None]


def test_a_tree_without_outcome_teaches_nothing() -> None:
    empty = CreditTree((None, 0, 0), (None, None, None), (0, 1, 1))
    for name in registry.built_ins("credit"):
        credit = make_credit(registry.find("credit", name), {}, algorithm=DrGrpo())
        assert credit.advantages([empty, UNEVEN])[0] == [None, None, None]
        assert credit.advantages([empty]) == [[None, None, None]]
        assert credit.advantages([]) == []


def test_treerl_follows_the_paper() -> None:
    # V by leaves: root 1/2, 1: 2/3 of 3 leaves, 2: 0 of 1. R(1) = (1/6 + 1/6) / sqrt(3); R(2) = -1/2 - 1/2.
    # R(3) = (1 - 1/2) + (1 - 2/3) = 5/6; R(5) = -1/2 - 2/3 = -7/6; 6 continues 2.
    (found,) = Treerl().advantages([UNEVEN])
    assert found[1:] == pytest.approx([1 / 3 / math.sqrt(3), -1, 5 / 6, 5 / 6, -7 / 6, -1])


def test_treepo_averages_over_nested_groups_and_whitens() -> None:
    # Leaf 3: prompt 1 - 1/2, step 1: 1 - 2/3; mean 5/12. Leaf 5: -1/2, -2/3; mean -7/12. Leaf 6: -1/2, its own group is
    # one. So 5/12, 5/12, -7/12, -1/2, two tokens each: mean -1/16.
    (found,) = Treepo().advantages([UNEVEN])
    raw = [5 / 12, 5 / 12, -7 / 12, -1 / 2]
    middle = -1 / 16
    scale = math.sqrt(2 * sum((value - middle) ** 2 for value in raw) / 7)
    assert found[:3] == [None, None, None]
    assert found[3:] == pytest.approx([(value - middle) / scale for value in raw], rel=1e-6)


@given(st.lists(trees(), min_size=1, max_size=3))
def test_treepo_equals_brute_force(forest: list[CreditTree]) -> None:
    raw: list[float] = []
    counts: list[int] = []
    for tree in forest:
        for leaf in tree.leaves:
            groups = {tuple(below(tree, node)) for node in tree.path(leaf)}
            kept = [group for group in groups if len(group) > 1] or [(leaf,)]
            if len(tree.leaves) == 1:
                kept = [(leaf,)]
            raw.append(mean(reward(tree, leaf) - mean(reward(tree, other) for other in group) for group in kept))
            counts.append(sum(tree.tokens[step] for step in tree.path(leaf)))
    tokens = [value for value, count in zip(raw, counts, strict=True) for _ in range(count)]
    found = [value for values in Treepo().advantages(forest) for value in values if value is not None]
    if len(set(raw)) > 1:
        scale = math.sqrt(stdev(tokens) ** 2 + 1e-8)
        assert found == pytest.approx([(value - mean(tokens)) / scale for value in raw], rel=1e-6, abs=1e-6)
    else:
        assert found == [0.0] * len(raw)


def test_tree_grpo_adds_the_score_in_the_prompt_and_in_the_tree() -> None:
    # Prompt: 1, 1, 0, 0: mean 1/2, standard deviation sqrt(1/3). Tree below 1: 1, 1, 0: mean 2/3, sqrt(1/3). Tree below
    # 2: one path, 0.
    (found,) = TreeGrpo().advantages([UNEVEN])
    wide = deep = math.sqrt(1 / 3)
    expected = [0.5 / wide + 1 / 3 / deep] * 2 + [-0.5 / wide - 2 / 3 / deep, -0.5 / wide]
    assert found[3:] == pytest.approx(expected, rel=1e-5)


def test_flat_gives_every_path_what_the_algorithm_gives_it() -> None:
    (found,) = Flat(algorithm=DrGrpo()).advantages([UNEVEN])
    assert found == [None, None, None, 0.5, 0.5, -0.5, -0.5]
    with pytest.raises(ConfigError, match="none was given"):
        Flat().advantages([UNEVEN])
    with pytest.raises(ConfigError, match="an advantage of its own"):
        Flat(algorithm=Ppo()).advantages([UNEVEN])


def test_bad_trees_and_settings_are_refused() -> None:
    with pytest.raises(PalmetteError, match="node 1 of a tree cannot have the parent 1"):
        CreditTree((None, 1), (None, 1.0), (0, 1))
    with pytest.raises(PalmetteError, match="node 1 has a reward and children"):
        CreditTree((None, 0, 1), (None, 1.0, 1.0), (0, 1, 1))
    with pytest.raises(PalmetteError, match="a token count for each"):
        CreditTree((None, 0), (None, 1.0), (0,))
    with pytest.raises(ValidationError, match="spo_scael"):
        make_credit(Spo, {"spo_scael": "none"})
    with pytest.raises(ConfigError, match="credit sum is no subclass"):
        make_credit(sum, {})


def grown() -> Tree:
    """Two first steps; below the first a right and a wrong answer, the second was pruned."""
    tree = Tree((7, 8), temperature=0.7)
    tree.add(0, (1, 2), "", (-0.01, -2.0), finished=False).state = "kept"
    tree.add(0, (3,), "", (-1.0,), finished=False).state = "pruned"
    for token, won in ((4, 1.0), (5, 0.0)):
        leaf = tree.add(1, (token,), "", (-0.05,), finished=True)
        leaf.state, leaf.reward = "finished", won
    return tree


def test_steps_become_samples_with_the_path_as_prompt() -> None:
    tree, credit = grown(), Spo(SpoSettings(spo_drop_zeros=False))
    credited = credit_tree(tree)
    assert credited == CreditTree((None, 0, 0, 1, 1), (None, None, None, 1.0, 0.0), (0, 2, 1, 1, 1))
    samples = tree_samples(tree, credit.advantages([credited])[0], credit, group="q")
    assert [(sample.prompt, sample.response, sample.advantages) for sample in samples] == [
        ((7, 8), (1, 2), (0.0, 0.0)),
        ((7, 8, 1, 2), (4,), (0.5,)),
        ((7, 8, 1, 2), (5,), (-0.5,)),
    ]
    assert samples[0].old_logprobs == (-0.01, -2.0)
    assert {(sample.temperature, sample.group, sample.mask) for sample in samples} == {(0.7, "q", None)}


def test_steps_that_teach_nothing_are_left_out() -> None:
    # Advantage 0 for the first step. The answers have probability exp(-0.05) = 0.95; of the first step's tokens the
    # first has 0.99, the second 0.14.
    tree = grown()
    dropping, masking = Spo(), Spo(SpoSettings(spo_drop_zeros=False, spo_probability=0.9))
    credited = [credit_tree(tree)]
    kept = tree_samples(tree, dropping.advantages(credited)[0], dropping, group=0)
    assert [sample.response for sample in kept] == [(4,), (5,)]
    (only,) = tree_samples(tree, masking.advantages(credited)[0], masking, group=0)
    assert (only.response, only.mask) == ((1, 2), (False, True))


def test_paths_become_samples_with_the_prompt_alone() -> None:
    tree, credit = grown(), Flat(algorithm=DrGrpo())
    samples = tree_samples(tree, credit.advantages([credit_tree(tree)])[0], credit, group=0)
    assert [(sample.prompt, sample.response, sample.advantages) for sample in samples] == [
        ((7, 8), (1, 2, 4), (0.5,) * 3),
        ((7, 8), (1, 2, 5), (-0.5,) * 3),
    ]
    assert samples[0].old_logprobs == (-0.01, -2.0, -0.05)


def test_the_mean_over_children_is_unbiased_where_widths_follow_a_score_and_the_mean_over_leaves_is_not() -> None:
    # A fair coin decides each of two first steps; a step that shows heads gets 3 of 4 children, tails 1. The leaf is
    # right with probability 0.8 below heads, 0.2 below tails: the prompt's true value is 0.5.
    generator = random.Random(5)
    errors: dict[str, list[float]] = {"children": [], "leaves": []}
    for _ in range(4_000):
        heads = [generator.random() < 0.5 for _ in range(2)]
        widths = [2, 2] if heads[0] == heads[1] else [3 if head else 1 for head in heads]
        owners = [place for place, width in enumerate(widths) for _ in range(width)]
        rewards = [float(generator.random() < (0.8 if heads[owner] else 0.2)) for owner in owners]
        tree = CreditTree((None, 0, 0, *(owner + 1 for owner in owners)), (None, None, None, *rewards), (0,) + (1,) * 6)
        for name, values in (("children", child_means(tree)), ("leaves", leaf_means(tree))):
            errors[name].append((values[0] or 0.0) - 0.5)
    # By hand: by leaves the mean is 1/4 x 0.8 + 1/4 x 0.2 + 1/2 x (3 x 0.8 + 0.2) / 4 = 0.575.
    assert mean(errors["children"]) == pytest.approx(0.0, abs=4 * stdev(errors["children"]) / math.sqrt(4_000))
    assert mean(errors["leaves"]) == pytest.approx(0.075, abs=4 * stdev(errors["leaves"]) / math.sqrt(4_000))
