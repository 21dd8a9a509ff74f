"""Training asks all questions in shuffled passes, and its position is all that has to be remembered."""

import pytest

from palmette.tasks.task import Question
from palmette.train.rollout.order import QuestionOrder

pytestmark = pytest.mark.unit


def questions(count: int) -> list[Question]:
    return [Question(f"q{number}", ({"role": "user", "content": f"{number}"},)) for number in range(count)]


def test_every_pass_has_every_question_once_and_another_order() -> None:
    order = QuestionOrder(questions(10), seed=3)
    first, position = order.take(0, 10)
    second, _ = order.take(position, 10)
    assert position == 10
    assert sorted(question.id for question in first) == sorted(question.id for question in second)
    assert [question.id for question in first] != [question.id for question in second]


def test_what_comes_next_depends_on_seed_and_position_alone() -> None:
    asked, position = QuestionOrder(questions(10), seed=3).take(4, 3)
    later = QuestionOrder(questions(10), seed=3)
    later.take(25, 5)
    assert later.take(4, 3) == (asked, position)
    assert QuestionOrder(questions(10), seed=4).take(4, 3)[0] != asked


def test_questions_of_one_call_differ_where_a_pass_ends() -> None:
    order = QuestionOrder(questions(5), seed=0)
    for start in range(20):
        taken, after = order.take(start, 4)
        assert len({question.id for question in taken}) == 4
        assert after >= start + 4


def test_more_questions_than_there_are_cannot_be_taken() -> None:
    with pytest.raises(ValueError, match="6 different questions of 5"):
        QuestionOrder(questions(5), seed=0).take(0, 6)
