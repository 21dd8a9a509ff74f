"""What of an update is shown to people: trees with values and advantages of their steps."""

import pytest

from palmette.search.result import Choice, SearchResult
from palmette.tasks.task import Question
from palmette.train.algorithms.grpo import Grpo
from palmette.train.credit.spo import Spo
from palmette.train.credit.tree_grpo import TreeGrpo
from palmette.train.rollout import shown
from palmette.train.rollout.credits import GivesCredit, ResponseCredit, StepCredit
from palmette.train.rollout.groups import Group
from palmette.train.rollout.responses import Response
from palmette.tree import Tree

pytestmark = pytest.mark.unit


def grown(*, equal: bool = False) -> Tree:
    """Two first steps, the first with two children of which one is pruned; with `equal` the first two are the same."""
    tree = Tree((1, 2))
    first = tree.add(0, (3,), "a", (-0.1,), finished=False)
    second = tree.add(0, (3,) if equal else (4,), "a" if equal else "b", (-0.2,), finished=False)
    for parent, token, text, state in (
        (first, 5, "c", "finished"), (first, 6, "d", "pruned"),
        (second, 7, "e", "finished"), (second, 8, "f", "stopped"),
    ):  # fmt: skip
        tree.add(parent.id, (token,), text, (-0.5,), finished=state == "finished").state = state  # type: ignore[assignment]
    first.state = second.state = "kept"
    return tree


def group_of(tree: Tree, rewards: dict[int, float]) -> Group:
    question = Question("q", ({"role": "user", "content": "1+1"},), "2")
    result = SearchResult(
        question, "fixed_tree", 4, "majority", {"majority": Choice(None, None, None)}, (), tree, 6, 0.0, 0, 0, 2, False
    )
    responses = tuple(
        Response(
            question, leaf, tree.solution(leaf), tree.path_tokens(leaf)[2:], (-0.1, -0.5), None, False, reward, None
        )
        for leaf, reward in rewards.items()
    )
    return Group(result, responses, tuple(rewards.values()), {"judge": tuple(rewards.values())})


def trees_of(group: Group, credit: GivesCredit) -> list[tuple[float | None, float | None, float | None]]:
    samples = credit.credited([group], credit.bare([group]))
    (tree,) = shown.shown_trees([group], samples, credit.of_steps([group]))
    return [(step.value, step.advantage, step.reward) for step in tree.steps]


def test_steps_have_their_values_and_the_advantages_that_they_are_learned_with() -> None:
    credit = StepCredit(Spo(), Grpo(), limit_tokens=10)
    # Values: 1, (0 + 1) / 2, and 0.75 at the prompt. The pruned step has none.
    assert trees_of(group_of(grown(), {3: 1.0, 5: 0.0, 6: 1.0}), credit) == [
        (1.0, 0.25, None), (0.5, -0.25, None), (1.0, 0.25, 1.0), (None, None, None), (0.0, -0.5, 0.0), (1.0, 0.5, 1.0),
    ]  # fmt: skip


def test_equal_siblings_keep_their_own_values_and_advantages() -> None:
    credit, group = StepCredit(Spo(), Grpo(), limit_tokens=10), group_of(grown(equal=True), {3: 1.0, 5: 0.0, 6: 0.0})
    first, second = trees_of(group, credit)[:2]
    assert (first, second) == ((1.0, 0.5, None), (0.0, -0.5, None))
    samples = shown.shown_samples([group], credit.bare([group]), credit.of_steps([group]))
    assert [sample.advantage for sample in samples] == [0.5, -0.25, -0.25]  # Its sibling is pruned; (-0.5 + 0) / 2


def test_steps_without_an_alternative_are_one_branch() -> None:
    tree = Tree((1, 2))
    first = tree.add(0, (3,), "a", (-0.1,), finished=False)
    second = tree.add(first.id, (4, 5), "b", (-0.1, -0.1), finished=False)
    for token in (6, 7):
        last = tree.add(second.id, (token,), "c", (-0.1,), finished=False)
        tree.add(last.id, (8,), "d", (-0.1,), finished=True).state = "finished"
    (found,) = shown.shown_trees([group_of(tree, {4: 1.0, 6: 0.0})], [], None)
    assert [(one.parent, one.text, one.tokens, one.value, one.reward) for one in found.steps] == [
        (0, "ab", 3, 0.5, None), (1, "cd", 2, 1.0, 1.0), (1, "cd", 2, 0.0, 0.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "credit", [StepCredit(TreeGrpo(), Grpo(), limit_tokens=10), ResponseCredit(Grpo(), limit_tokens=10)]
)
def test_where_paths_are_credited_a_step_has_the_mean_of_the_leaves_below_it(credit: GivesCredit) -> None:
    steps = trees_of(group_of(grown(), {3: 1.0, 5: 0.0, 6: 1.0}), credit)
    advantages = [advantage for _, advantage, _ in steps]
    assert advantages[0] == advantages[2] is not None and advantages[3] is None
    assert advantages[4] is not None and advantages[5] is not None
    assert advantages[1] == pytest.approx((advantages[4] + advantages[5]) / 2)


def test_branches_that_part_at_the_prompt_are_no_tree_and_large_trees_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = Tree((1, 2))
    for token in (3, 4):
        flat.add(0, (token,), "x", (-0.1,), finished=True).state = "finished"
    assert shown.shown_trees([group_of(flat, {1: 1.0, 2: 0.0})], [], None) == ()
    monkeypatch.setattr(shown, "SHOWN_BRANCHES", 4)
    (tree,) = shown.shown_trees([group_of(grown(), {3: 1.0, 5: 0.0, 6: 1.0})], [], None)
    assert (len(tree.steps), tree.left_out, tree.steps[0].advantage) == (4, 2, None)
