"""Word problems: their graphs, values, splits, texts and vocabulary."""

import random
import re
from collections import Counter
from itertools import islice
from typing import get_args

import pytest

import palmette
from palmette.errors import ConfigError
from palmette.tasks.words import wordings
from palmette.tasks.words.forms import Forms, slots_of
from palmette.tasks.words.generate import DEFAULT_GRADE, GRADES, VALUES, problems
from palmette.tasks.words.problem import Ask, Fact, Problem, Quantity
from palmette.tasks.words.reading import LONGEST_TEXT, Named, read_line, read_problem
from palmette.tasks.words.solution import Style, random_order, solve, step_of
from palmette.tasks.words.structure import Split, hash_graph, split_of, structure_of
from palmette.tasks.words.telling import all_lines
from palmette.tasks.words.vocabulary import PIECE, vocabulary

BOTH: tuple[Split, Split] = ("train", "test")


def brute_force(problem: Problem, quantity: Quantity) -> float:
    """Evaluate a quantity by walking down its definitions, with operations of its own."""
    (fact,) = [fact for fact in problem.facts if fact.target == quantity]
    values = [brute_force(problem, operand) for operand in fact.operands]
    number = fact.number if fact.number is not None else 0
    match fact.kind:
        case "given":
            return number
        case "more":
            return values[0] + number
        case "fewer":
            return values[0] - number
        case "times" | "rate":
            return values[0] * number
        case "half":
            return values[0] / 2
        case "share":
            return values[0] / number
        case "sum":
            return values[0] + values[1]
        case "difference":
            return values[0] - values[1]


@pytest.mark.parametrize("grade", GRADES)
@pytest.mark.parametrize("split", BOTH)
def test_problems_have_the_length_of_their_grade_and_true_answers(grade: int, split: Split) -> None:
    shape = GRADES[grade]
    for problem in islice(problems(grade, split, seed=3), 100):
        assert problem.steps in shape.steps
        assert all(value in VALUES for value in problem.values.values())
        assert {name: brute_force(problem, name) for name in problem.values} == problem.values
        asked = [brute_force(problem, name) for name in problem.ask.quantities]
        assert problem.answer == (asked[0] - asked[1] if problem.ask.kind == "gap" else sum(asked))
        assert split_of(structure_of(problem)) == split
        assert len(problem.values) - len(problem.needed) in shape.extra
        assert set(problem.ask.quantities) <= set(problem.needed)


def test_the_default_grade_takes_10_to_16_steps_and_every_kind_of_fact_and_question_comes() -> None:
    found = list(islice(problems(DEFAULT_GRADE, "train", 0), 300))
    assert {problem.steps for problem in found} == set(range(10, 17))
    assert {fact.kind for problem in found for fact in problem.facts} == set(wordings.FACTS)
    assert {(problem.ask.kind, len(problem.ask.quantities)) for problem in found} == set(wordings.ASKS)


@pytest.mark.parametrize("grade", GRADES)
def test_a_text_reads_as_the_problem_that_it_was_told_from(grade: int) -> None:
    for problem in islice(problems(grade, "train", 1), 150):
        assert read_problem(problem.text) == problem
        shouted = problem.text.upper().replace(" ", "  ") + '\nEnd with the line "Answer:".'
        assert read_problem(shouted).facts == problem.facts


def test_problems_repeat_with_the_seed_and_differ_without() -> None:
    first, again, other = (list(islice(problems(4, "test", seed), 10)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("grade", GRADES)
def test_no_structure_is_in_both_splits(grade: int) -> None:
    train = {structure_of(problem) for problem in islice(problems(grade, "train", 0), 1000)}
    test = {structure_of(problem) for problem in islice(problems(grade, "test", 0), 150)}
    assert not train & test
    assert len(train) > 80 and len(test) > 5


def renamed(problem: Problem, generator: random.Random) -> Problem:
    """Return the same structure with other names, numbers and order of facts, and a fact that is not needed."""
    names = {name: Quantity(f"h{number}", f"t{number}") for number, name in enumerate(problem.values)}
    facts = [
        Fact(
            fact.kind,
            names[fact.target],
            tuple(names[operand] for operand in fact.operands),
            720_720 if fact.kind == "given" else fact.number,
        )
        for fact in problem.facts
    ]
    facts.append(Fact("given", Quantity("nobody", "nothing"), (), 1))
    generator.shuffle(facts)
    return Problem(tuple(facts), Ask(problem.ask.kind, tuple(map(names.__getitem__, problem.ask.quantities))), "")


def test_a_structure_does_not_depend_on_names_numbers_order_or_unneeded_facts() -> None:
    generator = random.Random(0)
    compared = 0
    for problem in islice(problems(4, "train", 2), 200):
        try:
            other = renamed(problem, generator)
        except ValueError:  # With these numbers a difference is below 0.
            continue
        assert structure_of(other) == structure_of(problem)
        compared += 1
    assert compared > 20


def test_a_structure_depends_on_relations_sharing_and_what_is_asked() -> None:
    chain = [("given", ()), ("more", (0,)), ("times", (1,))]
    shared = [("given", ()), ("more", (0,)), ("sum", (0, 1))]
    apart = [("given", ()), ("given", ()), ("more", (0,)), ("sum", (1, 2))]
    taken = [("given", ()), ("more", (0,)), ("difference", (0, 1))]
    turned = [("given", ()), ("more", (0,)), ("difference", (1, 0))]
    found = [hash_graph(nodes, "one", [len(nodes) - 1]) for nodes in (chain, shared, apart, taken, turned)]
    found += [hash_graph(chain, "total", [1, 2]), hash_graph(chain, "gap", [1, 2]), hash_graph(chain, "gap", [2, 1])]
    assert len(set(found)) == len(found)
    swapped = [("given", ()), ("more", (0,)), ("sum", (1, 0))]
    assert hash_graph(swapped, "one", [2]) == found[1]


def test_every_word_is_in_the_vocabulary_and_every_piece_of_it_is_used() -> None:
    known = vocabulary()
    assert len(known) <= 200
    generator = random.Random(0)
    used: Counter[str] = Counter()
    for grade in GRADES:
        for question in palmette.load_task("words", questions=150, grade=grade, split="train").questions:
            text = question.messages[0]["content"]
            used.update(PIECE.findall(text))
            problem = read_problem(text)
            for style in get_args(Style):
                used.update(PIECE.findall("\n".join(solve(problem, generator, style=style))))
            for quantity in random_order(problem, generator):
                used.update(PIECE.findall("\n".join(all_lines(step_of(problem, quantity, problem.values)))))
    assert used.keys() == set(known)


def test_lines_of_solutions_name_every_operand_with_its_value() -> None:
    generator = random.Random(0)
    told = [line for problem in islice(problems(3, "train", 0), 40) for line in solve(problem, generator)]
    read = [said for line in told if (said := read_line(line)) is not None]
    assert len(read) == len(told)
    steps = [said for said in read if said.kind == "value"]
    assert len(steps) > 200
    for said in steps:
        named = [operand for operand in said.named if operand != Named(None, None, None)]
        assert named and all(None not in (operand.holder, operand.thing, operand.value) for operand in named)


def test_there_are_enough_wordings_and_all_have_the_slots_of_their_kind() -> None:
    assert all(len(forms) == len(set(forms)) >= 5 for forms in (*wordings.FACTS.values(), *wordings.ASKS.values()))
    assert all(len(forms) == len(set(forms)) >= 7 for forms in wordings.STEPS.values())
    for kind, forms in wordings.STEPS.items():
        for form in forms:
            slots = set(slots_of(form))
            assert ("e" in slots) != ({"l", "c"} <= slots)
            assert ({"X", "x"} <= slots) == (kind not in ("total", "gap"))


def test_two_forms_that_read_the_same_but_tell_different_things_are_refused() -> None:
    with pytest.raises(ValueError, match="read the same"):
        Forms([("{X} has {n} {x}.", "a"), ("{X} has {n}, {x}", "b")])


def test_the_answer_is_no_number_of_the_text_and_no_constant_is_often_right() -> None:
    answers: Counter[int] = Counter()
    for problem in islice(problems(4, "train", 0), 400):
        assert str(problem.answer) not in re.findall(r"\d+", problem.text)
        answers[problem.answer] += 1
    assert answers.most_common(1)[0][1] <= 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "asks no question"),
        ("What is 2+2?", "asks no question"),
        ("Mia has 3 coins. How many coins does Tom have?", "what is asked is not defined"),
        ("Mia has 3 coins. Mia has 4 coins. How many coins does Mia have?", "defined twice"),
        ("Mia has 3 more coins than Tom. Tom has 3 more coins than Mia. How many coins does Mia have?", "by itself"),
        ("Mia has 3 more coins than Mia has coins. How many coins does Mia have?", "by itself"),
        ("Mia has 3 coins. Tom has half as many coins as Mia. How many coins does Tom have?", "no whole number"),
        ("Mia has 3 coins. Split 0 ways, the coins of Mia are the pens of Mia. How many pens does Mia have?", "no wh"),
        ("Mia has 3 coins. Buy milk. How many coins does Mia have?", "'Buy milk' is no fact"),
        ("Mia has 3 coins. " * 300 + "How many coins does Mia have?", "over 200 facts"),
        ("x" * (LONGEST_TEXT + 1), "over 50,000 characters"),
        ("Mia has 9999999999 coins. How many coins does Mia have?", "no fact"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_problem_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_problem(text)


def test_orders_are_topological_and_many() -> None:
    generator = random.Random(0)
    (problem,) = islice(problems(4, "train", 0), 1)
    orders = {tuple(random_order(problem, generator)) for _ in range(50)}
    assert len(orders) > 10
    for order in orders:
        for place, quantity in enumerate(order):
            operands = problem.by_target[quantity].operands if quantity else problem.ask.quantities
            assert not set(operands) & set(order[place:])


def test_the_task_is_loaded_as_others_are() -> None:
    task = palmette.load_task("words", questions=20)
    assert task.step_end == "\n"
    assert [question.id for question in task.questions[:2]] == ["test-4-0-0", "test-4-0-1"]
    assert palmette.load_task("words", questions=5, skip=15).questions == task.questions[15:]
    for question in task.questions:
        problem = read_problem(question.messages[0]["content"])
        assert question.reference == str(problem.answer)
        assert palmette.grade("\n".join(solve(problem, random.Random(0))), question.reference).value == "correct"
    with pytest.raises(ConfigError, match="words has grades 1 to 4"):
        palmette.load_task("words", grade=9)
    (bare,) = palmette.load_task("words", questions=1, prompt="{question}").questions
    assert bare.messages[0]["content"].endswith("?")
