import pytest

from palmette.config import TaskSettings
from palmette.score.judge import GymJudge, MathJudge
from palmette.tasks.load import load_task
from palmette.tasks.task import Question

GYM = GymJudge(seconds=20)


def test_math_answers_are_checked_against_the_final_answer_of_a_worked_reference() -> None:
    judge = MathJudge(seconds=5)
    question = Question("q", ({"role": "user", "content": "?"},), "9 + 9 = 18\n#### 18")
    assert judge.extract("3+4=7\n7*2=14") == "14"
    assert judge.outcome(question, "18.0").value == "correct"
    assert judge.outcome(question, "9").value == "wrong"
    assert judge.outcome(question, None).value == "unparseable"


@pytest.mark.parametrize("name", ["chain_sum", "letter_jumble", "spell_backward"])
def test_a_generator_marks_its_own_answers(name: str) -> None:
    task = load_task(TaskSettings(name=f"rg:{name}", questions=3, seed=1))
    for question in task.questions:
        assert GYM.outcome(question, question.reference).value == "correct"
        assert GYM.outcome(question, "not this").value == "wrong"
        assert GYM.outcome(question, None).value == "unparseable"


def test_a_gym_answer_is_all_that_follows_the_last_marker() -> None:
    assert GYM.extract("Answer: no\nbut then\nAnswer: **1 2\n3 4**\n") == "1 2\n3 4"
    assert GYM.extract("no marker 5") is None
    assert GYM.extract("Answer:  ") is None
    assert GYM.canonical(" 1  2\n3 ") == "1 2 3"


def test_a_scorer_that_never_ends_is_stopped_and_the_next_answer_is_judged() -> None:
    (question,) = load_task(TaskSettings(name="rg:countdown", questions=1, seed=1)).questions
    hostile = "9**9**9**9**9"
    assert GymJudge(seconds=1).outcome(question, hostile).value in ("timed_out", "wrong", "unparseable")
    assert GYM.outcome(question, question.reference).value == "correct"
