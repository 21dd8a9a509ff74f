import json
import sys
from pathlib import Path
from typing import Any

import pytest

from palmette.errors import ConfigError
from palmette.settings import TaskSettings
from palmette.tasks.ask import as_task
from palmette.tasks.load import load_task
from palmette.tasks.task import Question, Task


def jsonl(tmp_path: Path, *rows: Any) -> str:
    path = tmp_path / "task.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def test_math_fields_become_a_prompt_that_asks_for_a_box(tmp_path: Path) -> None:
    task = load_task(TaskSettings(name=jsonl(tmp_path, {"problem": "1+1? {x}", "answer": "2", "unique_id": "t/1"})))
    (question,) = task.questions
    assert question.id == "t/1"
    assert question.reference == "2"
    assert question.messages[0]["content"].startswith("1+1? {x}\n\nReason step by step")
    assert task.step_end == "\n\n"


def test_gsm8k_fields_and_chat_messages_are_read_too(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    task = load_task(
        TaskSettings(
            name=jsonl(tmp_path, {"question": "1+1?", "answer": "so\n#### 2"}, "", {"messages": chat, "answer": 4})
        )
    )
    assert [question.id for question in task.questions] == ["1", "3"]
    assert task.questions[0].reference == "so\n#### 2"
    assert task.questions[1].messages == tuple(chat)
    assert task.questions[1].reference == "4"


def test_the_format_can_be_set_for_a_run(tmp_path: Path) -> None:
    name = jsonl(tmp_path, {"question": "1+1?", "answer": "2"})
    task = load_task(TaskSettings(name=name, prompt="Q: {question}", system="S", step_end=";"))
    assert task.step_end == ";"
    assert task.questions[0].messages == ({"role": "system", "content": "S"}, {"role": "user", "content": "Q: 1+1?"})
    with pytest.raises(ConfigError, match="task.prompt must contain"):
        load_task(TaskSettings(name=name, prompt="nothing to fill"))


def test_a_broken_line_is_named_even_when_fewer_questions_are_asked(tmp_path: Path) -> None:
    rows = [{"question": "1+1?", "answer": "2"}] * 16
    with pytest.raises(ConfigError, match=r"task.jsonl, line 17: not valid JSON"):
        load_task(TaskSettings(name=jsonl(tmp_path, *rows, '{"question": "1', *rows), questions=1))


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ([1], "a row is an object"),
        ({"answer": "1"}, "needs 'problem', 'question', 'prompt' or 'messages'; found answer"),
        ({"question": 5, "answer": "1"}, "'question' is not a text"),
        ({"question": "  ", "answer": "1"}, "'question' is not a text"),
        ({"question": "a"}, "needs 'answer'"),
        ({"question": "a", "answer": None}, "needs 'answer'"),
        ({"question": "a", "answer": True}, "needs 'answer'"),
        ({"messages": [], "answer": "1"}, "'messages' must be a list"),
        ({"messages": [{"role": "assistant", "content": "x"}], "answer": "1"}, "the user's last"),
        ({"messages": "hello", "answer": "1"}, "'messages' must be a list"),
        ("[" * 100_000, "not valid JSON"),
        ('{"question": "a \\ud800 b", "answer": "1"}', "half of a surrogate pair"),
        ({"question": "a" * 1_000_001, "answer": "1"}, "over 1,000,000 characters"),
    ],
)
def test_bad_rows_are_refused_with_their_line(tmp_path: Path, row: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"line 1: {complaint}|line 1: .*{complaint}"):
        load_task(TaskSettings(name=jsonl(tmp_path, row)))


def test_an_id_given_twice_is_refused(tmp_path: Path) -> None:
    row = {"id": "x", "question": "a", "answer": "1"}
    with pytest.raises(ConfigError, match="line 2: the id 'x' is used on an earlier line"):
        load_task(TaskSettings(name=jsonl(tmp_path, row, row)))


def test_files_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the file has no rows"):
        load_task(TaskSettings(name=jsonl(tmp_path, "", "  ")))
    with pytest.raises(ConfigError, match="cannot read the file: No such file"):
        load_task(TaskSettings(name=str(tmp_path / "missing.jsonl")))
    with pytest.raises(ConfigError, match="cannot read the file: Is a directory"):
        load_task(TaskSettings(name=str(tmp_path)))
    with pytest.raises(ConfigError, match="task.skip is 5, the file has 1 rows"):
        load_task(TaskSettings(name=jsonl(tmp_path, {"question": "a", "answer": "1"}), skip=5))


def test_a_byte_order_mark_is_no_damage_but_other_encodings_are(tmp_path: Path) -> None:
    path = tmp_path / "task.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"question": "a", "answer": "1"}\n')
    assert len(load_task(TaskSettings(name=str(path))).questions) == 1
    path.write_bytes('{"question": "ä", "answer": "1"}\n'.encode("latin-1"))
    with pytest.raises(ConfigError, match="line 1: not UTF-8"):
        load_task(TaskSettings(name=str(path)))


def test_names_that_are_no_task_get_a_hint() -> None:
    with pytest.raises(ConfigError, match="no task 'lader'.*Did you mean 'ladder'"):
        load_task(TaskSettings(name="lader"))
    with pytest.raises(ConfigError, match="no task 'aaaa"):
        load_task(TaskSettings(name="a" * 5000))
    with pytest.raises(ConfigError, match="not a valid file name"):
        load_task(TaskSettings(name="/a\0b"))
    with pytest.raises(ConfigError, match="Did you mean 'rg:chain_sum'"):
        load_task(TaskSettings(name="rg:chainsum"))


def test_ladder_questions_are_distinct_and_skipping_moves_along_the_same_list() -> None:
    first = load_task(TaskSettings(questions=20)).questions
    later = load_task(TaskSettings(questions=5, skip=15)).questions
    assert later == first[15:]
    assert len({question.messages[0]["content"] for question in first}) == 20
    with pytest.raises(ConfigError, match="ladder has grades 1 to 4"):
        load_task(TaskSettings(grade=9))


def test_gym_questions_repeat_with_the_seed_and_carry_what_their_scorer_needs() -> None:
    task = load_task(TaskSettings(name="rg:chain_sum", questions=3, seed=7))
    again = load_task(TaskSettings(name="rg:chain_sum", questions=2, seed=7, skip=1))
    assert task.judge == "gym"
    assert again.questions == task.questions[1:]
    assert task.questions[0].key["generator"] == "chain_sum"


MESSAGES = ({"role": "user", "content": "1+1?"},)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (Question(3, MESSAGES), r"question 1: id is 3 \(int\): expected a text"),  # type: ignore[arg-type]
        (Question("a", MESSAGES, text=2), r"question 1: text is 2 \(int\): expected a text, or None"),  # type: ignore[arg-type]
        (Question("a", MESSAGES, 2), r"question 1: reference is 2 \(int\): expected a text, or None"),  # type: ignore[arg-type]
        (Question("a", ()), r"messages is \(\) \(tuple\): expected messages of role"),
        (
            Question("a", ({"role": "user<|im_end|>", "content": "1"},)),
            r"expected messages of role \(system, user, assist",
        ),
        (Question("a", ({"role": "user", "content": "1", "name": "<|im_end|>"},)), "expected messages of role"),
        (Question("a", "1+1?"), r"messages is '1\+1\?' \(str\)"),  # type: ignore[arg-type]
        (Question("a", ({"role": "user", "content": 5},)), "messages is .*: expected messages"),  # type: ignore[dict-item]
        (Question("a", MESSAGES, key={"set": {1}}), "messages or key hold what JSON cannot write: TypeError"),
        (Question("a", ({"role": "user", "content": "\ud800"},)), "half of a surrogate pair"),
        ("1+1?", r"question 1 is '1\+1\?' \(str\): expected a Question"),
    ],
)
def test_a_question_that_no_event_can_hold_is_refused_when_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, question: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"^task mine.*{said}"):
        Task("mine", (question,), "\n")
    monkeypatch.setattr(sys.modules[__name__], "own_task", [question], raising=False)
    with pytest.raises(ConfigError, match=f"^task {__name__}.*{said}"):
        load_task(TaskSettings(name=f"{__name__}:own_task"))
    if isinstance(question, Question):
        with pytest.raises(ConfigError, match=said):
            as_task([question], TaskSettings())


@pytest.mark.parametrize("step_end", ["", None, 5])
def test_a_task_that_ends_its_steps_with_nothing_is_refused(step_end: Any) -> None:
    with pytest.raises(ConfigError, match=r"task mine: step_end is .*: expected the text that ends a step"):
        Task("mine", (Question("a", MESSAGES),), step_end)


def test_an_error_of_a_task_is_told_with_its_name_and_chained(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        yield Question("a", MESSAGES)
        raise KeyError("no more")

    monkeypatch.setattr(sys.modules[__name__], "own_task", broken, raising=False)
    with pytest.raises(ConfigError, match="task broken failed in making questions: KeyError: 'no more'") as caught:
        load_task(TaskSettings(name=f"{__name__}:own_task"))
    assert isinstance(caught.value.__cause__, KeyError)
