"""Checks solutions line by line: does a line follow from the facts and the lines before it; what is still missing."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from palmette.tasks.words.problem import SIGNS, Fact, Problem, Quantity, calculate, left_side
from palmette.tasks.words.reading import Line, Named, read_line
from palmette.tasks.words.tokens import LONGEST_LINE, Equation

Verdict = Literal["yes", "no", "unclear"]

MOST_LINES = 1000
"""Lines of a solution after which no more are checked."""


@dataclass(frozen=True)
class Check:
    """The verdict on one line, and why.

    `redundant`: it is right, but what it says was known before. `needed`: the answer depends on what it says.
    """

    verdict: Verdict
    reason: str
    redundant: bool = False
    needed: bool = False

    @property
    def advances(self) -> bool:
        """Whether it is right and says something new."""
        return self.verdict == "yes" and not self.redundant


@dataclass(frozen=True)
class State:
    """What is known after some lines: values of quantities, and whether what is asked was calculated and answered.

    `goals` are pairs of what is looked for and what it needs. Wrong lines add nothing. Lines that use their results are
    wrong too.
    """

    known: Mapping[Quantity, int]
    goals: frozenset[tuple[Quantity, Quantity]] = frozenset()
    asked: bool = False
    answered: bool = False


def start(problem: Problem) -> State:
    """Return the state before the first line: given quantities are known."""
    known = {fact.target: problem.values[fact.target] for fact in problem.facts if fact.kind == "given"}
    return State(known, asked=problem.ask.kind == "one" and problem.ask.quantities[0] in known)


def check_line(problem: Problem, state: State, line: str) -> tuple[Check, State]:
    """Check one line; return the verdict and the state after it.

    `yes`: the equation is right, it is the relation of the fact that defines its quantity, and its operands are known;
    or the line names an operand of a quantity as what is needed to find it; or it repeats what is known. `no`: one of
    these does not hold, or the line contradicts the facts. `unclear`: the line is not a sentence of a solution, speaks
    of an unknown quantity, or states a true value that no line before it has calculated.
    """
    said = read_line(line) if len(line) <= LONGEST_LINE else None
    if said is None:
        return Check("unclear", "not a sentence of a solution"), state
    if said.quoted is not None and not _is_told(said.quoted, problem):
        return Check("no", "quotes what is not in the facts"), state
    if said.quoted is not None and said.target != said.quoted.target:
        return Check("no", "speaks of another quantity than the fact it quotes"), state
    if said.kind == "value":
        return _check_value(problem, state, said)
    if said.kind == "goal":
        return _check_goal(problem, state, said)
    if said.kind == "answer":
        return _check_answer(problem, state, said)
    return _check_asked(problem, state, said)


def check_solution(problem: Problem, solution: str) -> list[Check]:
    """Return the check of every line that is not blank, of the first 1,000."""
    state = start(problem)
    found = []
    for line in [line for line in solution.split("\n") if line.strip()][:MOST_LINES]:
        check, state = check_line(problem, state, line)
        found.append(check)
    return found


def missing(problem: Problem, state: State) -> tuple[Quantity, ...]:
    """Return the quantities that have to be calculated before the answer, operands first."""
    return tuple(quantity for quantity in problem.needed if quantity not in state.known)


def steps_left(problem: Problem, state: State) -> int:
    """Return how many lines the shortest rest of the solution has, the answer's included: 0 after the answer."""
    if state.answered:
        return 0
    return len(missing(problem, state)) + (problem.ask.kind != "one" and not state.asked) + 1


def _is_told(quoted: Fact, problem: Problem) -> bool:
    """Tell whether a fact is one of the problem's; the parts of a sum may come in another order."""
    swapped = replace(quoted, operands=quoted.operands[::-1]) if quoted.kind == "sum" else quoted
    return quoted in problem.facts or swapped in problem.facts


def _check_value(problem: Problem, state: State, said: Line) -> tuple[Check, State]:
    target = said.target
    assert target is not None and said.result is not None
    fact = problem.by_target.get(target)
    if fact is None:
        return Check("unclear", "an unknown quantity"), state
    needed = target in problem.needed
    is_known = target in state.known
    if said.equation is None:
        if said.result != problem.values[target]:
            return Check("no", "contradicts the facts", needed=needed), state
        if not is_known:
            return Check("unclear", "not calculated", needed=needed), state
        return Check("yes", "known", redundant=True, needed=needed), state
    wrong = _wrong_equation(said.equation, said.result)
    if wrong is None and SIGNS.get(fact.kind) != said.equation.sign:
        wrong = "another relation than in the facts"
    if wrong is None and said.claims not in (None, fact.kind):
        wrong = "another relation than in the facts"
    if wrong is None and any(operand not in state.known for operand in fact.operands):
        wrong = "an operand is not known yet"
    if wrong is None and not _same_left(said.equation, left_side(fact, state.known)):
        wrong = "another operand than in the facts"
    if wrong is None and not _are_named(said, fact.operands, state):
        wrong = "another operand than in the facts"
    if wrong is not None:
        return Check("no", wrong, needed=needed), state
    check = Check("yes", "follows", redundant=is_known, needed=needed)
    asked = state.asked or (problem.ask.kind == "one" and target == problem.ask.quantities[0])
    return check, replace(state, known={**state.known, target: said.result}, asked=asked)


def _check_goal(problem: Problem, state: State, said: Line) -> tuple[Check, State]:
    """Check the line which says that one quantity is needed to find another."""
    target, named = said.target, said.named[0]
    assert target is not None and named.holder is not None and named.thing is not None
    fact, operand = problem.by_target.get(target), Quantity(named.holder, named.thing)
    if fact is None or operand not in problem.by_target:
        return Check("unclear", "an unknown quantity"), state
    needed = target in problem.needed
    if operand not in fact.operands:
        return Check("no", "another operand than in the facts", needed=needed), state
    goal = (target, operand)
    redundant = goal in state.goals or operand in state.known
    return Check("yes", "is needed for it", redundant, needed), replace(state, goals=state.goals | {goal})


def _check_asked(problem: Problem, state: State, said: Line) -> tuple[Check, State]:
    """Check the line that adds or subtracts the quantities which are asked for."""
    assert said.equation is not None and said.result is not None
    ask = problem.ask
    if ask.kind == "one":
        return Check("unclear", "not asked for"), state
    wrong = _wrong_equation(said.equation, said.result)
    if wrong is None and (said.kind != ask.kind or said.equation.sign != SIGNS[ask.kind]):
        wrong = "another relation than asked for"
    if wrong is None and any(quantity not in state.known for quantity in ask.quantities):
        wrong = "an operand is not known yet"
    if wrong is None and not _same_left(said.equation, tuple(state.known[quantity] for quantity in ask.quantities)):
        wrong = "another operand than asked for"
    if wrong is not None:
        return Check("no", wrong, needed=True), state
    return Check("yes", "follows", redundant=state.asked, needed=True), replace(state, asked=True)


def _check_answer(problem: Problem, state: State, said: Line) -> tuple[Check, State]:
    if said.result != problem.answer:
        return Check("no", "another answer", needed=True), state
    if not state.asked:
        return Check("unclear", "not calculated", needed=True), state
    return Check("yes", "follows", redundant=state.answered, needed=True), replace(state, answered=True)


def _wrong_equation(equation: Equation, result: int) -> str | None:
    if equation.result not in (None, result):
        return "two results"
    return None if calculate(equation.sign, equation.left) == result else "wrong arithmetic"


def _same_left(equation: Equation, numbers: tuple[int, ...]) -> bool:
    """Tell whether an equation calculates with these numbers; in another order only where it does not matter."""
    if equation.sign in ("+", "*"):
        return sorted(equation.left) == sorted(numbers)
    return equation.left == numbers


def _are_named(said: Line, operands: tuple[Quantity, ...], state: State) -> bool:
    """Tell whether the operands that a line names are those of the fact.

    In wordings for several relations they may come in any order.
    """
    in_order = all(_is_named(named, operand, state) for named, operand in zip(said.named, operands, strict=False))
    if said.claims == "difference" or len(operands) == 1:
        return in_order and all(named == Named(None, None, None) for named in said.named[len(operands) :])
    first, second = said.named
    swapped = _is_named(first, operands[1], state) and _is_named(second, operands[0], state)
    return in_order or swapped


def _is_named(named: Named, operand: Quantity, state: State) -> bool:
    return (
        named.holder in (None, operand.holder)
        and named.thing in (None, operand.thing)
        and named.value in (None, state.known[operand])
    )
