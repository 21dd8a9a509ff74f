"""Rows of files to train on, their order and split, measures of step scores, and labels made by rollouts."""

import json
import random
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.backends.backend import Expansion
from palmette.backends.scripted import ScriptedBackend
from palmette.config import load_config
from palmette.errors import ConfigError
from palmette.run.row_checks import check_rows_config, row_config
from palmette.search.growth import Growth, Limits, Observer
from palmette.search.loop import search
from palmette.search.strategies.shepherd import Shepherd, ShepherdSettings, first_solution
from palmette.tasks.task import Question
from palmette.train.supervised.labels import labels_of
from palmette.train.supervised.measures import auc, step_measures
from palmette.train.supervised.order import held_out, updates_of
from palmette.train.supervised.rows import read_conversations, read_labeled_steps

USER = {"role": "user", "content": "1+1"}
ANSWER = {"role": "assistant", "content": "2"}


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_prompts_and_completions_are_texts_or_messages(tmp_path: Path) -> None:
    again = {"role": "assistant", "content": "3"}
    path = written(
        tmp_path,
        {"prompt": "1+1", "completion": "2"},
        {"prompt": [USER], "completion": [ANSWER]},
        {"messages": [USER, ANSWER, USER, again]},
        {"prompt": [USER, ANSWER, USER], "completion": [again], "source": "mine"},
    )
    found = list(read_conversations(path))
    assert [row.messages for row in found[:2]] == [(USER, ANSWER)] * 2
    assert [row.learned for row in found] == [(1,), (1,), (1, 3), (3,)]
    assert found[0].key == found[1].key == found[2].key != found[3].key


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"text": "1+1=2"}, "line 1: needs 'prompt' and 'completion', or 'messages'; found text"),
        ({"prompt": "1+1"}, "line 1: needs 'prompt' and 'completion', or 'messages'; found prompt"),
        ({"prompt": "1+1", "completion": ""}, "line 1: 'completion' is empty"),
        ({"prompt": " ", "completion": "2"}, "line 1: 'prompt' is empty"),
        ({"prompt": [USER], "completion": [USER]}, "there is no message of the role assistant to learn"),
        ({"messages": [ANSWER]}, "the first message is an answer"),
        ({"messages": [USER, {"role": "assistant", "content": " "}]}, "an answer is empty"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "'messages' must be a list of role (system, user, assis"),
        ({"prompt": 3, "completion": "x"}, "'prompt' must be a text, or a list of role"),
        ({"prompt": "\ud800", "completion": "x"}, "half of a surrogate pair"),
    ],
)
def test_a_row_that_cannot_be_learned_is_told_with_its_line(tmp_path: Path, row: Any, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        list(read_conversations(written(tmp_path, row)))
    assert told in str(raised.value)


def test_steps_have_labels_that_are_true_false_or_shares(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"prompt": "1+1", "completions": ["a", "b", "c"], "labels": [True, False, 0.25]},
        {"prompt": [USER], "completions": ["a"], "labels": [1], "finished": False},
    )
    first, second = read_labeled_steps(path)
    assert (first.steps, first.labels, first.finished) == (("a", "b", "c"), (1.0, 0.0, 0.25), True)
    assert (second.prompt, second.labels, second.finished) == ((USER,), (1.0,), False)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"labels": [True]}, "line 1: 2 steps in 'completions', and 'labels' has 1: give one each"),
        ({"labels": None}, "2 steps in 'completions', and 'labels' has no list: give one each"),
        ({"labels": [True, 1.5]}, "the label 1.5 is not true, false or a number from 0 to 1"),
        ({"labels": [True, 10**400]}, "is not true, false or a number from 0 to 1"),
        ({"labels": [True, "yes"]}, "the label 'yes' is not true, false or a number"),
        ({"completions": "a\nb"}, "'completions' is not a list of texts"),
        ({"completions": []}, "'completions' is not a list of texts"),
        ({"completions": ["a", " "]}, "step 2 is empty"),
        ({"prompt": ""}, "'prompt' is empty"),
        ({"finished": "no"}, "'finished' is not true or false"),
    ],
)
def test_steps_that_cannot_be_learned_are_told_with_their_line(
    tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    row = {"prompt": "1+1", "completions": ["a", "b"], "labels": [True, False], **changed}
    with pytest.raises(ConfigError) as raised:
        list(read_labeled_steps(written(tmp_path, row)))
    assert told in str(raised.value)
    with pytest.raises(ConfigError, match="line 1: lacks 'completions', 'labels'"):
        list(read_labeled_steps(written(tmp_path, {"prompt": "1+1"})))


@given(
    st.lists(st.tuples(st.integers(1, 60), st.binary(max_size=1)), min_size=1, max_size=50),
    st.integers(1, 200),
    st.integers(1, 3),
    st.integers(0, 9),
)
def test_every_row_is_in_one_update_of_each_epoch_and_none_is_much_too_large(
    rows: list[tuple[int, bytes]], batch_tokens: int, epochs: int, seed: int
) -> None:
    tokens, keys = [count for count, _ in rows], [key for _, key in rows]
    updates = updates_of(tokens, keys, batch_tokens=batch_tokens, epochs=epochs, seed=seed)
    assert sorted(row for rows in updates for row in rows) == sorted(list(range(len(tokens))) * epochs)
    assert all(updates)
    assert max(sum(tokens[row] for row in rows) for rows in updates) <= batch_tokens + max(tokens)
    more = updates_of(tokens, keys, batch_tokens=batch_tokens, epochs=epochs + 1, seed=seed)
    assert more[: len(updates)] == updates
    first = [keys[row] for rows in updates for row in rows][: len(tokens)]
    assert len(list(groupby(first))) == len(set(keys)), "rows of one prompt are not together"


def test_updates_are_of_one_size_and_epochs_of_another_order() -> None:
    # 10 rows of 10 tokens at 30 a batch: four updates, of 2 or 3 rows each, none with a single row left over.
    keys = [bytes([row]) for row in range(10)]
    updates = updates_of([10] * 10, keys, batch_tokens=30, epochs=2, seed=0)
    assert sorted(map(len, updates[:4])) == sorted(map(len, updates[4:])) == [2, 2, 3, 3]
    assert updates[:4] != updates[4:]
    assert updates_of([10] * 10, keys, batch_tokens=30, epochs=2, seed=1) != updates
    alike = updates_of([10] * 10, [b""] * 10, batch_tokens=30, epochs=2, seed=0)
    assert alike == updates, "rows of the same prompt are shuffled too"


def test_rows_of_one_prompt_are_on_the_same_side_of_the_split_whatever_their_order() -> None:
    keys = [bytes([place // 3]) for place in range(30)]
    training, tested = held_out(keys, 0.2)
    assert len(tested) == 6 and sorted(training + tested) == list(range(30))
    assert not {keys[place] for place in training} & {keys[place] for place in tested}
    shuffled = random.Random(0).sample(keys, len(keys))
    assert {shuffled[place] for place in held_out(shuffled, 0.2)[1]} == {keys[place] for place in tested}
    assert held_out(keys, 0.0) == (list(range(30)), [])
    assert held_out([b"a", b"a"], 0.5) == ([0, 1], [])
    assert len(held_out([b"a", b"b"], 0.01)[1]) == 1


def test_measures_of_steps_are_those_worked_out_by_hand() -> None:
    # Logits 0, 2 and -1 with labels 1, 1 and 0: ln 2 = 0.693147, ln(1 + e^-2) = 0.126928, ln(1 + e^-1) = 0.313262.
    found = step_measures([0.0, 2.0, -1.0], [1.0, 1.0, 0.0])
    assert found["loss"] == pytest.approx((0.693147 + 0.126928 + 0.313262) / 3, abs=1e-6)
    assert [found["accuracy"], found["right_share"], found["auc"]] == pytest.approx([1.0, 2 / 3, 1.0])
    # A soft label: 0.25 x ln(1 + e^-2) + 0.75 x ln(1 + e^2) = 0.25 x 0.126928 + 0.75 x 2.126928.
    assert step_measures([2.0], [0.25])["loss"] == pytest.approx(1.626928, abs=1e-6)
    assert "auc" not in step_measures([2.0], [0.25])
    assert auc([0.9, 0.8, 0.3, 0.1], [True, False, True, False]) == 0.75
    assert auc([0.5, 0.5], [True, False]) == 0.5
    assert auc([0.5], [True]) is None


def grown(script: Any, *, width: int, completions: int, depth: int = 5) -> Growth:
    limits = Limits(width=width, depth=depth, step_tokens=20, total_tokens=100, questions_in_flight=1)
    strategy = Shepherd(ShepherdSettings(completions=completions), width=width)
    question = Question("q", ({"role": "user", "content": "Q:"},), "7")
    (growth,) = search(
        [question], ScriptedBackend(script), None, strategy, limits, seed=0, aggregate="prod", observer=Observer()
    )
    return growth


def numbered(expansion: Expansion, prefix: str) -> str:
    """Write `ID\\n`, the third step ends the solution."""
    return f"{expansion.node}{'$' if prefix.count(chr(10)) == 2 else chr(10)}"


def test_a_shepherds_tree_is_one_solution_and_completions_from_each_step() -> None:
    tree = grown(numbered, width=5, completions=2).tree
    # 1; then 2 (it goes on), 3 and 4 (from step 1); then 5 and its siblings 6, 7 (from step 2), 8 and 9 end 3 and 4.
    assert [(node.id, node.parent) for node in tree.nodes[1:]] == [
        (1, 0), (2, 1), (3, 1), (4, 1), (5, 2), (6, 2), (7, 2), (8, 3), (9, 4),
    ]  # fmt: skip
    assert [node.id for node in first_solution(tree)] == [1, 2, 5]


def test_labels_are_what_the_completions_from_a_step_come_to() -> None:
    tree = grown(numbered, width=5, completions=2).tree
    for leaf, outcome in {5: "wrong", 6: "wrong", 7: "wrong", 8: "correct", 9: "wrong"}.items():
        tree.nodes[leaf].outcome = outcome
    hard, soft = labels_of(tree, "hard", "\n"), labels_of(tree, "soft", "\n")
    assert hard is not None and soft is not None
    assert (hard.steps, hard.finished) == (("1", "2", "5"), True)
    assert (hard.labels, soft.labels) == ((1.0, 0.0, 0.0), (0.5, 0.0, 0.0))
    tree.nodes[5].outcome = "correct"  # The solution itself, which is no completion of the step before it.
    again = labels_of(tree, "hard", "\n")
    assert again is not None and again.labels == (1.0, 0.0, 1.0)


def test_a_tree_without_verdicts_has_no_labels() -> None:
    assert labels_of(grown(numbered, width=5, completions=2).tree, "hard", "\n") is None


def test_labels_end_where_the_width_left_no_completions() -> None:
    tree = grown(numbered, width=3, completions=2).tree
    for leaf in tree.leaves():
        tree.nodes[leaf].outcome = "correct"
    found = labels_of(tree, "hard", "\n")
    assert found is not None
    assert (found.steps, found.labels, found.finished) == (("1",), (1.0,), False)


def test_a_solution_that_a_limit_ended_is_not_finished() -> None:
    tree = grown(lambda expansion, prefix: f"{expansion.node}\n", width=9, completions=2, depth=2).tree
    for leaf in tree.leaves():
        tree.nodes[leaf].outcome = "unparseable"
    found = labels_of(tree, "hard", "\n")
    assert found is not None and (found.labels, found.finished) == ((0.0, 0.0), False)


def test_the_config_of_labels_by_rollouts_is_wide_enough_and_stays_as_it_is() -> None:
    told = {"prm.questions": 5, "search.completions": 3, "search.depth": 4}
    config = row_config(load_config(None, told), "prm")
    assert (config.search.strategy, config.search.width, config.train.learning_rate) == ("shepherd", 13, 1e-5)
    assert row_config(config, "prm") == config
    own = load_config(None, {**told, "search.strategy": "shepherd", "search.width": 6, "train.learning_rate": 0.1})
    assert (row_config(own, "prm").search.width, row_config(own, "prm").train.learning_rate) == (6, 0.1)
    assert row_config(load_config(), "sft").train.learning_rate == 2e-5


@pytest.mark.parametrize(
    ("table", "told", "said"),
    [
        ("sft", {}, "sft.data is not set"),
        ("prm", {}, "neither prm.data nor prm.questions is set"),
        ("prm", {"prm.data": "x.jsonl", "prm.questions": 3}, "prm.data and prm.questions are both set"),
        ("sft", {"sft.data": "x.jsonl", "policy.quantize": "int8"}, "quantized weights cannot be trained"),
        ("sft", {"sft.data": "x.jsonl", "policy.adapter": "a"}, "train.method is full. Set it to lora to train the"),
        *[
            (
                "sft",
                {"sft.data": "x.jsonl", "train.optimizer": "muon", key: value},
                f"is muon, and {key} is {value}: set",
            )
            for key, value in [
                ("train.method", "lora"),
                ("policy.dtype", "bfloat16"),
                ("train.optimizer_dtype", "bfloat16"),
                ("train.host_optimizer", True),
            ]
        ],
    ],
)
def test_what_cannot_be_trained_on_rows_is_told_first(table: Any, told: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_rows_config(row_config(load_config(None, told), table), table)
