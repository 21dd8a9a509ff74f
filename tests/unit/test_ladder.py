from itertools import islice

import pytest

from palmette.tasks import ladder


def test_a_solution_reduces_the_leftmost_legal_operation_on_each_line() -> None:
    problem = ladder.solve("(3+4)*2-5*(6-4)")
    assert problem.lines == ("3+4=7", "7*2=14", "6-4=2", "5*2=10", "14-10=4")
    assert problem.answer == 4


@pytest.mark.parametrize("grade", ladder.GRADES)
@pytest.mark.parametrize("split", ["train", "test"])
def test_problems_have_the_length_of_their_grade_and_true_answers(grade: int, split: ladder.Split) -> None:
    shape = ladder.GRADES[grade]
    for problem in islice(ladder.problems(grade, split, seed=3), 200):
        assert len(problem.lines) in shape.operations
        assert problem.answer == eval(problem.expression)
        assert all(int(line.split("=")[1]) in shape.values for line in problem.lines)
        assert ladder.split_of(problem.expression) == split
        state: tuple[ladder.Token, ...] | None = ladder.parse(problem.expression)
        for line in problem.lines:
            right, state = ladder.follow(state, line)
            assert right
        assert state == (problem.answer,)


def test_the_default_grade_takes_8_to_14_steps() -> None:
    assert ladder.DEFAULT_GRADE == 3
    lengths = {len(problem.lines) for problem in islice(ladder.problems(3, "test", 0), 500)}
    assert lengths == set(range(8, 15))


def test_problems_repeat_with_the_seed_and_differ_without() -> None:
    first, again, other = (list(islice(ladder.problems(3, "test", seed), 20)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_no_expression_is_in_both_splits() -> None:
    splits = [{p.expression for p in islice(ladder.problems(1, split, 0), 3000)} for split in ("train", "test")]
    assert splits[0] and splits[1]
    assert not splits[0] & splits[1]


STATE = ladder.parse("8-(3+4)-2*5")


@pytest.mark.parametrize("line", ["3+4=7", "2*5=10"])
def test_any_legal_operation_may_come_next(line: str) -> None:
    assert ladder.follow(STATE, line)[0]


@pytest.mark.parametrize(
    "line", ["8-3=5", "4-2=2", "3+4=7 ", "3+4", "", "3+4=7=7", "4+3=7", "٣+4=7", "9" * 5000 + "+1=2"]
)
def test_an_illegal_line_is_wrong_and_nothing_after_it_can_be_right(line: str) -> None:
    right, state = ladder.follow(STATE, line)
    assert (right, state) == (False, None)
    assert ladder.follow(state, "3+4=7") == (False, None)


def test_a_wrong_result_is_carried_on_so_that_later_lines_are_judged_by_it() -> None:
    right, state = ladder.follow(STATE, "3+4=9")
    assert not right
    assert ladder.follow(state, "8-9=-1") == (True, (-1, "-", 2, "*", 5))


def test_a_minus_is_taken_from_the_left_only() -> None:
    assert not ladder.follow(ladder.parse("9-2-1"), "2-1=1")[0]
    assert ladder.follow(ladder.parse("9+2-1"), "2-1=1")[0]
