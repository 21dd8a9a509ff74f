"""The checker of word problems: right lines, wrong lines at exactly their place, and text that is neither."""

import random
from itertools import islice, pairwise
from typing import get_args

import pytest

from palmette.tasks.words.check import (
    MOST_LINES,
    State,
    check_line,
    check_solution,
    missing,
    start,
    steps_left,
)
from palmette.tasks.words.generate import GRADES, problems
from palmette.tasks.words.mistakes import MISTAKES, wrong_solutions
from palmette.tasks.words.problem import Problem, Quantity
from palmette.tasks.words.reading import read_line, read_problem
from palmette.tasks.words.solution import LEADING_BACK, Goal, Style, items_of, operands_of, random_order, solve, step_of
from palmette.tasks.words.structure import Split
from palmette.tasks.words.telling import all_lines
from palmette.tasks.words.tokens import LONGEST_LINE
from tests.hostile import bombs, texts

TOM = read_problem(
    "Mia has 5 more coins than Tom has pens. Tom has 7 pens. The farm keeps all eggs in boxes, 4 in each box. "
    "The boxes of the farm are half of the coins of Mia. Take the pens of Tom from the eggs of the farm to get the "
    "hats of Ann. Ann has 3 keys. What is the total of the hats of Ann and the coins of Mia?"
)
SOLUTION = """\
Tom has 7 pens, so Mia has 7+5=12 coins.
Now 12/2=6, so the farm has 6 boxes.
All boxes of the farm hold 6*4=24 eggs.
Ann has 24-7 hats, that is 17.
The total is 17+12=29.
Answer: 29"""


@pytest.mark.parametrize("grade", GRADES)
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("style", get_args(Style))
def test_every_reference_solution_is_right_in_every_line(grade: int, split: Split, style: Style) -> None:
    generator = random.Random(grade)
    for problem in islice(problems(grade, split, 5), 60):
        for _ in range(3):
            state = start(problem)
            lines = solve(problem, generator, style=style)
            goals = [(said := read_line(line)) is not None and said.kind == "goal" for line in lines]
            assert any(goals) <= (style in LEADING_BACK)
            left = len(lines) - sum(goals)
            assert left == steps_left(problem, state) == problem.steps + 1
            for line, is_goal in zip(lines, goals, strict=True):
                check, state = check_line(problem, state, line)
                assert (check.verdict, check.redundant, check.needed) == ("yes", False, True), (problem.text, line)
                left -= not is_goal
                assert steps_left(problem, state) == left
                assert len(missing(problem, state)) == max(0, left - 1 - (problem.ask.kind != "one"))


def test_goals_lead_from_what_is_asked_to_what_is_given_and_each_is_found_before_its_own_target() -> None:
    generator = random.Random(0)
    for problem in islice(problems(4, "train", 5), 100):
        known = {fact.target for fact in problem.facts if fact.kind == "given"}
        looked_for = list(reversed(problem.ask.quantities))
        for item in items_of(problem, generator, "goals"):
            while looked_for and looked_for[-1] in known:
                looked_for.pop()
            if isinstance(item, Goal):
                assert item.target == looked_for[-1] and item.operand in operands_of(problem, item.target)
                assert item.operand not in known
                looked_for.append(item.operand)
            elif item is not None:
                assert item == looked_for[-1]
                known.add(item)
        assert not looked_for or looked_for[-1] in known


@pytest.mark.parametrize(
    ("line", "verdict", "reason", "redundant"),
    [
        ("To find the boxes of the farm we need the coins of Mia.", "yes", "is needed for it", False),
        ("the eggs of the farm go by the boxes of the farm", "yes", "is needed for it", False),
        ("To find the coins of Mia we need the pens of Tom.", "yes", "is needed for it", True),
        ("To find the coins of Mia we need the keys of Ann.", "no", "another operand than in the facts", False),
        ("For the hats of Ann we need the coins of Mia.", "no", "another operand than in the facts", False),
        ("For the hats of Sam we need the coins of Mia.", "unclear", "an unknown quantity", False),
        ("For the hats of Ann we need the coins of Sam.", "unclear", "an unknown quantity", False),
        (
            "Ann has 3 keys: for the hats of Ann we need the pens of Tom.",
            "no",
            "speaks of another quantity than the fact it quotes",
            False,
        ),
        (
            "Mia has 6 more coins than Tom has pens: the coins of Mia go by the pens of Tom.",
            "no",
            "quotes what is not in the facts",
            False,
        ),
        (
            "Mia has 5 more coins than Tom has pens: the coins of Mia go by the pens of Tom.",
            "yes",
            "is needed for it",
            True,
        ),
    ],
)
def test_a_goal_is_right_if_what_is_looked_for_is_made_of_it(
    line: str, verdict: str, reason: str, redundant: bool
) -> None:
    check, after = check_line(TOM, start(TOM), line)
    assert (check.verdict, check.reason, check.redundant) == (verdict, reason, redundant)
    assert bool(after.goals) == (verdict == "yes") and after.known == start(TOM).known
    if verdict == "yes":
        assert check_line(TOM, after, line)[0].redundant


def test_every_wording_of_every_step_is_right_and_stays_so_in_other_case_and_spacing() -> None:
    generator = random.Random(0)
    seen = 0
    for problem in islice(problems(3, "train", 6), 100):
        state = start(problem)
        for quantity in random_order(problem, generator):
            after = state
            for line in all_lines(step_of(problem, quantity, problem.values)):
                spelled = line.upper().replace("=", " = ").replace("*", " × ").replace("-", " − ").rstrip(".") + " !"
                for told in (line, spelled, f"  {line.lower()}  "):
                    check, after = check_line(problem, state, told)
                    assert check.verdict == "yes", (problem.text, told, check)
                    seen += 1
            state = after
    assert seen > 10_000


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("Mia has (7 + 5) = 12 coins!", "yes"),
        ("Mia has 7!+5=12 coins.", "unclear"),
        ("Mia has 7+.5=12 coins.", "unclear"),
        ("Mia has 7.+5=12 coins.", "unclear"),
        ("Mia has 7+5:=12 coins.", "unclear"),
        ("Mia has 7+5=12.0 coins.", "unclear"),
        ("Mia has 7+5=12.", "unclear"),
        ("Tom has .7 pens.", "unclear"),
        ("Tom has 7. pens", "yes"),
    ],
)
def test_punctuation_does_not_matter_but_for_that_inside_an_equation_and_of_fractions(line: str, verdict: str) -> None:
    assert check_line(TOM, start(TOM), line)[0].verdict == verdict


def test_a_quoted_sum_may_name_its_parts_in_another_order_and_a_quoted_difference_may_not() -> None:
    problem = read_problem(
        "Tom has 7 pens. Mia has 2 coins. Add the pens of Tom to the coins of Mia to get the hats of Ann. Take the "
        "coins of Mia from the pens of Tom to get the keys of Sam. How many hats does Ann have?"
    )
    added = "Add the coins of Mia to the pens of Tom to get the hats of Ann: Ann has 7+2=9 hats."
    taken = "Take the pens of Tom from the coins of Mia to get the keys of Sam: Sam has 7-2=5 keys."
    verdicts = [check_line(problem, start(problem), line)[0].verdict for line in (added, taken)]
    assert verdicts == ["yes", "no"]


@pytest.mark.parametrize("grade", GRADES)
@pytest.mark.parametrize("style", get_args(Style))
def test_every_mistake_is_found_at_exactly_its_line(grade: int, style: Style) -> None:
    generator = random.Random(grade)
    found = set()
    for problem in islice(problems(grade, "train", 7), 150):
        for wrong in wrong_solutions(problem, generator, style):
            verdicts = [check.verdict for check in check_solution(problem, "\n".join(wrong.lines))]
            assert verdicts[: wrong.place] == ["yes"] * wrong.place, (problem.text, wrong)
            assert verdicts[wrong.place] == "no", (problem.text, wrong)
            assert (verdicts[-1] == "yes") == (wrong.mistake == "goal")  # It is in nobody's way.
            found.add(wrong.mistake)
    assert found == set(MISTAKES) - (set() if style in LEADING_BACK else {"goal"})


def test_quoting_lines_begin_with_the_fact_they_use_and_mostly_go_on_from_the_line_before() -> None:
    generator = random.Random(0)
    following, possible = 0, 0
    for problem in islice(problems(3, "train", 9), 200):
        told = {sentence.strip() for sentence in problem.text.split(".")}
        last: Quantity | None = None
        for line in solve(problem, generator, style="quoting")[:-1]:
            said = read_line(line)
            assert said is not None
            if said.target is None:
                continue
            assert line.partition(":")[0] in told and said.quoted == problem.by_target[said.target]
            following += last in operands_of(problem, said.target)
            possible += 1
            last = said.target
    plain = [random_order(problem, generator) for problem in islice(problems(3, "train", 9), 200)]
    by_chance = sum(
        one in operands_of(problem, other)
        for problem, order in zip(problems(3, "train", 9), plain, strict=False)
        for one, other in pairwise(order)
        if other is not None
    )
    assert 1.15 * by_chance < following < possible


def test_after_a_mistake_the_lines_that_do_not_depend_on_it_are_right_and_the_others_wrong() -> None:
    generator = random.Random(0)
    for problem in islice(problems(4, "train", 8), 50):
        for wrong in wrong_solutions(problem, generator):
            if wrong.mistake == "skipped":
                continue
            tainted: set[Quantity | None] = set()
            checks = check_solution(problem, "\n".join(wrong.lines))
            for place, line in enumerate(wrong.lines[:-1]):
                said = read_line(line)
                assert said is not None
                depends = bool(tainted & set(operands_of(problem, said.target)))
                if place == wrong.place or depends:
                    tainted.add(said.target)
                assert (checks[place].verdict == "yes") == (place != wrong.place and not depends)


def states(problem: Problem, solution: str) -> list[State]:
    """Return the state before each line, and after the last."""
    found = [start(problem)]
    for line in solution.splitlines():
        check, state = check_line(problem, found[-1], line)
        assert check.verdict == "yes", (line, check)
        found.append(state)
    return found


def test_what_is_missing_and_how_many_lines_are_left() -> None:
    known = states(TOM, SOLUTION)
    assert [steps_left(TOM, state) for state in known] == [6, 5, 4, 3, 2, 1, 0]
    assert missing(TOM, known[2]) == (Quantity("the farm", "eggs"), Quantity("Ann", "hats"))
    assert missing(TOM, known[4]) == ()


@pytest.mark.parametrize(
    ("after", "line", "verdict", "reason"),
    [
        (0, "Mia has 7+5=12 coins.", "yes", "follows"),
        (0, "mia has 5 + 7 = 12 coins", "yes", "follows"),
        (0, "Mia has 7+5=13 coins.", "no", "wrong arithmetic"),
        (0, "Mia has 7+4=11 coins.", "no", "another operand"),
        (0, "Mia has 3+5=8 coins.", "no", "another operand"),
        (0, "Ann has 7 keys, so Mia has 7+5=12 coins.", "no", "another operand"),
        (0, "Tom has 7 keys, so Mia has 7+5=12 coins.", "no", "another operand"),
        (0, "Tom has 8 pens, so Mia has 7+5=12 coins.", "no", "another operand"),
        (0, "Mia has 7-5=2 coins.", "no", "another relation"),
        (0, "With fewer than Tom, Mia has 7+5=12 coins.", "no", "another relation"),
        (0, "Mia has 6+6=12 coins.", "no", "another operand"),
        (0, "Mia has 6*2=12 coins.", "no", "another relation"),
        (0, "Now 7+5=12, so Mia has 13 coins.", "no", "two results"),
        (0, "Mia has 12 coins.", "unclear", "not calculated"),
        (0, "Mia has 13 coins.", "no", "contradicts"),
        (0, "Tom has 7 pens.", "yes", "known"),
        (0, "Tom has 8 pens.", "no", "contradicts"),
        (0, "Tom has 3+4=7 pens.", "no", "another relation"),
        (0, "The farm has 12/2=6 boxes.", "no", "not known yet"),
        (0, "Zoe has 7+5=12 coins.", "unclear", "not a sentence"),
        (0, "Ben has 7+5=12 coins.", "unclear", "unknown quantity"),
        (0, "Mia has 7+5=12 pens.", "unclear", "unknown quantity"),
        (0, "Answer: 29", "unclear", "not calculated"),
        (0, "Answer: 30", "no", "another answer"),
        (0, "", "unclear", "not a sentence"),
        (0, "Mia has 007+5=1,2 coins.", "unclear", "not a sentence"),
        (0, "Mia has 5 more coins than Tom has pens: Tom has 7 pens, so Mia has 7+5=12 coins.", "yes", "follows"),
        (0, "Add 5 to the pens of Tom to get the coins of Mia: Mia has 7+5=12 coins.", "yes", "follows"),
        (0, "Mia has 5 more coins than Tom has pens: Mia has 7+5=13 coins.", "no", "wrong arithmetic"),
        (0, "Mia has 4 more coins than Tom has pens: Mia has 7+5=12 coins.", "no", "not in the facts"),
        (0, "Mia has 5 fewer coins than Tom has pens: Mia has 7+5=12 coins.", "no", "not in the facts"),
        (0, "Tom has 7 pens: Mia has 7+5=12 coins.", "no", "another quantity"),
        (0, "Tom has 7 pens: Tom has 7 pens.", "yes", "known"),
        (0, "Mia has 5 more coins than Tom has pens: The total is 17+12=29.", "no", "another quantity"),
        (0, "Mia has 5 more coins than Tom has pens: Answer: 29", "unclear", "not a sentence"),
        (0, "Tom has 7 pens: Tom has 7 pens: Mia has 7+5=12 coins.", "unclear", "not a sentence"),
        (0, "Mia has 5 more coins than Tom has pens:", "unclear", "not a sentence"),
        (1, "Mia has 7+5=12 coins.", "yes", "follows"),
        (1, "Mia has 12 coins.", "yes", "known"),
        (1, "The farm has 2/12=6 boxes.", "no", "wrong arithmetic"),
        (1, "Half of the coins of Mia is 12/2=6 boxes for the farm.", "yes", "follows"),
        (1, "One share of the coins of Mia is 12/2=6 boxes for the farm.", "no", "another relation"),
        (3, "Without the pens of Tom we get 24-7=17 hats for Ann.", "yes", "follows"),
        (3, "Without the eggs of the farm we get 24-7=17 hats for Ann.", "no", "another operand"),
        (3, "From Tom and farm we find 24-7=17 hats for Ann.", "yes", "follows"),
        (3, "From Tom and Mia we find 24-7=17 hats for Ann.", "no", "another operand"),
        (3, "The total is 17+12=29.", "no", "not known yet"),
        (4, "The total is 12+17=29.", "yes", "follows"),
        (4, "The difference is 17-12=5.", "no", "another relation"),
        (4, "Together that is 17+7=24.", "no", "another operand"),
        (4, "Answer: 29", "unclear", "not calculated"),
        (5, "The answer is 29", "yes", "follows"),
        (5, "ANSWER = 29.", "yes", "follows"),
        (5, "Answer: 0,029", "yes", "follows"),
    ],
)  # fmt: skip
def test_verdicts_worked_by_hand(after: int, line: str, verdict: str, reason: str) -> None:
    check, _ = check_line(TOM, states(TOM, SOLUTION)[after], line)
    assert (check.verdict, reason in check.reason) == (verdict, True), check


def test_lines_that_repeat_are_redundant_and_lines_about_other_things_not_needed() -> None:
    state = states(TOM, SOLUTION)[1]
    assert check_line(TOM, state, "So Mia has 7+5=12 coins.")[0].redundant
    known, _ = check_line(TOM, state, "Ann has 3 keys.")
    assert (known.verdict, known.redundant, known.needed) == ("yes", True, False)


def test_no_total_is_asked_for_where_one_quantity_is() -> None:
    one = read_problem("Tom has 7 pens. Mia has 5 more coins than Tom has pens. How many coins does Mia have?")
    assert [check.verdict for check in check_solution(one, "The total is 7+5=12.\nAnswer: 12")] == ["unclear"] * 2
    given = read_problem("Tom has 7 pens. How many pens does Tom have?")
    assert [check.verdict for check in check_solution(given, "Answer: 7")] == ["yes"]


def test_hostile_text_is_never_right_and_never_breaks_the_checker() -> None:
    generator = random.Random(0)
    state = start(TOM)
    long = [mark * 100_000 for mark in ("9", "1,", "(", "has ", "1+", "7+5=", "the ", "\n", "é", "\ud800", "\0")]
    strange = [
        "٣+٤=٧",
        "Mia has ٧+5=12 coins.",
        "Mia has 7+5=12 coins. Answer: 29",
        "-7",
        "7+",
        "=",
        "Answer:",
        "Answer: -29",
    ]
    strange += ["Mia has 7/0=0 coins.", "Mia has 0/0=0 coins.", "İ", "Mia has 7+5=12=12 coins.", "Answer: 9999999999"]
    pieces = [*SOLUTION.split(), *"+-*/=,.?!()0", "999999999", "the", "\u2028"]
    soup = [" ".join(generator.choices(pieces, k=generator.randrange(1, 30))) for _ in range(3000)]
    for text in (*texts("/tmp"), *bombs(), *long, *strange):
        for line in text.split("\n")[:50]:
            assert check_line(TOM, state, line)[0].verdict != "yes", line[:100]
        check_solution(TOM, text)
    for text in soup:
        check, _ = check_line(TOM, state, text)
        assert check.verdict in ("yes", "no", "unclear")
    assert len(check_solution(TOM, "Answer: 1\n" * (MOST_LINES + 5))) == MOST_LINES
    assert read_line("Answer: 29" + " " * LONGEST_LINE) is None
