from dataclasses import replace

import numpy as np
import pytest

from palmette.errors import ConfigError, RunError
from palmette.run.search import judge_of
from palmette.score import sandbox
from palmette.score.judge import Judge, Verdict, load_judge
from palmette.score.judges.gym import GymJudge, gym_points
from palmette.score.judges.math import MathJudge
from palmette.score.worker import NONCE_BYTES
from palmette.settings import Config, TaskSettings
from palmette.tasks.load import load_task
from palmette.tasks.task import Question, Task

PATIENT = 3600.0
GYM = GymJudge(PATIENT)


def outcome_of(judge: Judge, question: Question, answer: str | None) -> str | None:
    return judge.verdict(question, f"so\nAnswer: {answer}", answer).outcome


def test_math_answers_are_checked_against_the_final_answer_of_a_worked_reference() -> None:
    judge = MathJudge(PATIENT)
    question = Question("q", ({"role": "user", "content": "?"},), "9 + 9 = 18\n#### 18")
    assert judge.extract("3+4=7\n7*2=14") == "14"
    assert outcome_of(judge, question, "18.0") == "correct"
    assert outcome_of(judge, question, "9") == "wrong"
    assert outcome_of(judge, question, None) == "unparseable"
    assert judge.verdict(question, "so 18", "18") == Verdict("correct", 1.0)
    assert judge.verdict(question, "so 9", "9") == Verdict("wrong", 0.0)


def test_without_a_reference_there_is_no_verdict() -> None:
    question = Question("q", ({"role": "user", "content": "?"},))
    assert MathJudge(PATIENT).verdict(question, "so 18", "18") == Verdict(None, None)


ASKED = Question("q7", ({"role": "user", "content": "?"},), "a reference")


def test_a_reward_function_is_called_with_what_it_names_and_1_is_right() -> None:
    seen: list[tuple[str, str | None]] = []

    def reward(solution: str, reference: str | None) -> float:
        seen.append((solution, reference))
        return {"long": 1.5, "half": 0.5}[solution]

    judge = load_judge(reward, TaskSettings())
    assert judge.verdict(ASKED, "long", None) == Verdict("correct", 1.5)
    assert judge.verdict(ASKED, "half", None) == Verdict("wrong", 0.5)
    assert seen == [("long", "a reference"), ("half", "a reference")]
    assert not judge.by_answer  # it may look at more than the answer: every leaf is judged
    assert judge.extract("first\n\nthe last line \n") == "the last line"
    assert judge.extract("so it is \\boxed{7}") == "7"
    assert load_judge(lambda answer: answer == "7", TaskSettings()).verdict(ASKED, "", "7") == Verdict("correct", 1.0)
    assert load_judge(lambda question: None, TaskSettings()).verdict(ASKED, "", "7") == Verdict(None, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("much", r"'much' \(str\)"),
        ("0.5", r"'0.5' \(str\)"),
        (np.str_("0.5"), r".*'0.5'.* \(str_\)"),
        (float("nan"), r"nan \(float\)"),
        ([1, 2], r"\[1, 2\] \(list\)"),
        (10**400, r"10+\.\.\.0+ \(int\)"),
        pytest.param(10**5000, "a int", id="more digits than Python prints"),
    ],
)
def test_a_reward_that_is_no_finite_number_is_refused_with_the_question(given: object, said: str) -> None:
    with pytest.raises(RunError, match=f"on question q7 returned {said}, and a reward is a finite number"):
        load_judge(lambda solution: given, TaskSettings()).verdict(ASKED, "x", None)


def test_a_reward_function_that_fails_is_told_with_its_question_and_the_solution() -> None:
    def broken(solution: str) -> float:
        raise KeyError("no such\nthing")

    with pytest.raises(RunError, match=r"broken on question q7 failed: KeyError.*The solution: 'x = 3'"):
        load_judge(broken, TaskSettings()).verdict(ASKED, "x = 3", None)


def test_the_gym_judge_is_refused_for_questions_that_no_generator_made() -> None:
    config = Config(task=TaskSettings(judge="gym"))
    with pytest.raises(
        ConfigError, match="gym judges the questions of rg:NAME tasks, and question q7 is none: give math"
    ):
        judge_of(config, Task("own", (ASKED,), "\n", judge="math"))
    made = Question("made", ASKED.messages, key={"generator": "chain_sum", "seed": 0, "size": 1, "index": 0})
    assert isinstance(judge_of(config, Task("own", (made,), "\n", judge="math")), GymJudge)


def test_what_is_no_judge_is_refused() -> None:
    assert isinstance(load_judge("gym", TaskSettings(verify_seconds=2.0)), GymJudge)
    with pytest.raises(ConfigError, match="a int is no judge: give a function that returns a reward"):
        load_judge(3, TaskSettings())
    with pytest.raises(ConfigError, match="no judge is named 'maths'. Did you mean 'math'"):
        load_judge("maths", TaskSettings())


@pytest.mark.parametrize("name", ["chain_sum", "letter_jumble", "spell_backward"])
def test_a_generator_marks_its_own_answers(name: str) -> None:
    task = load_task(TaskSettings(name=f"rg:{name}", questions=3, seed=1))
    for question in task.questions:
        assert outcome_of(GYM, question, question.reference) == "correct"
        assert outcome_of(GYM, question, "not this") == "wrong"
        assert outcome_of(GYM, question, None) == "unparseable"


def test_a_gym_answer_is_all_that_follows_the_last_marker() -> None:
    assert GYM.extract("Answer: no\nbut then\nAnswer: **1 2\n3 4**\n") == "1 2\n3 4"
    assert GYM.extract("no marker 5") is None
    assert GYM.extract("Answer:  ") is None
    assert GYM.canonical(" 1  2\n3 ") == "1 2 3"


def test_a_scorer_that_never_ends_is_stopped_and_the_next_answer_is_judged() -> None:
    (question,) = load_task(TaskSettings(name="rg:countdown", questions=1, seed=1)).questions
    assert outcome_of(GymJudge(seconds=1), question, "9**9**9**9**9") == "timed_out"
    assert outcome_of(GYM, question, question.reference) == "correct"


def test_a_reference_that_is_no_text_is_judged_by_its_text() -> None:
    (question,) = load_task(TaskSettings(name="rg:polynomial_multiplication", questions=1, seed=1)).questions
    assert outcome_of(GYM, question, question.reference) == "correct"


def test_points_of_a_gym_scorer_may_be_a_part_of_the_full_ones() -> None:
    (question,) = load_task(TaskSettings(name="rg:chain_sum", questions=1, seed=1)).questions
    right = question.reference
    assert gym_points(question, f"so it is\nAnswer: {right}") == 1.0
    assert gym_points(question, f"Answer: {right} {'x' * (len(str(right)) - 1)}") == 0.5
    assert gym_points(question, "Answer: nothing") == 0.0
    assert gym_points(question, "no answer") == 0.0
    assert gym_points(replace(question, key={}), f"Answer: {right}") is None


def test_points_that_nobody_asked_for_are_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def points(self: object, count: int) -> bytes:
        return sent[-1][-NONCE_BYTES:] + bytes([228])

    sent: list[bytes] = []
    worker = sandbox.gym._started()
    monkeypatch.setattr(type(worker), "_write", lambda self, data: sent.append(data))
    monkeypatch.setattr(type(worker), "_read", points)
    assert worker.ask({"answer": "x"}, 5.0) == "unparseable"
    assert str(worker.ask({"answer": "x", "points": True}, 5.0)) == "points 100"
