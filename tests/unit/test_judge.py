import subprocess
import sys
from pathlib import Path

import pytest

from palmette.config import TaskSettings
from palmette.score.judge import GymJudge, MathJudge
from palmette.score.worker import is_harmless
from palmette.tasks.load import load_task
from palmette.tasks.task import Question

PATIENT = 3600.0
GYM = GymJudge(PATIENT)


def test_math_answers_are_checked_against_the_final_answer_of_a_worked_reference() -> None:
    judge = MathJudge(PATIENT)
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
    assert GymJudge(seconds=1).outcome(question, "9**9**9**9**9").value == "timed_out"
    assert GYM.outcome(question, question.reference).value == "correct"


HOSTILE = [
    "__import__('os').system('touch {place}')",
    "open('{place}', 'w')",
    "(open)('{place}', 'w')",
    "[open][0]('{place}', 'w')",
    "exec('import os')",
    "(lambda: 1)()",
    "print.__class__",
]


@pytest.mark.parametrize("name", ["n_queens", "countdown", "binary_matrix", "simple_integration"])
def test_scorers_that_evaluate_answers_are_given_none_that_could_act(name: str, tmp_path: Path) -> None:
    (question,) = load_task(TaskSettings(name=f"rg:{name}", questions=1, seed=1)).questions
    place = tmp_path / "acted"
    for text in HOSTILE:
        assert GYM.outcome(question, text.replace("{place}", str(place))).value == "unparseable"
    assert not place.exists()


@pytest.mark.parametrize(
    ("answer", "harmless"),
    [
        ("3*(4+5)-2", True),
        ("sin(x)**2 + C", True),
        ("[[0, 1], [1, 0]]", True),
        ("['a', 'b']", True),
        ("_ Q _\n Q _ _", True),
        ("open('x')", False),
        ("open (x)", False),
        ("(open)(x)", False),
        ("[open][0](x)", False),
        ("x.real", False),
        ("x . real", False),
        ("__name__", False),
        ("(y:=1)", False),
        ("f'{x}'", False),
        ("{**x}", False),
    ],
)
def test_harmless_is_mathematics_or_a_literal(answer: str, harmless: bool) -> None:
    assert is_harmless(answer) == harmless


def test_what_slips_through_still_cannot_touch_the_machine(tmp_path: Path) -> None:
    place = tmp_path / "acted"
    code = f"""
import os, subprocess, sys
from palmette.score.worker import _refuse
sys.addaudithook(_refuse)
for act in (lambda: os.system("touch {place}"), lambda: subprocess.run(["touch", "{place}"]),
            lambda: open("{place}", "w"), lambda: os.mkdir("{place}")):
    try:
        act()
    except PermissionError:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["refused"] * 4
    assert not place.exists()


def test_a_reference_that_is_no_text_is_judged_by_its_text() -> None:
    (question,) = load_task(TaskSettings(name="rg:polynomial_multiplication", questions=1, seed=1)).questions
    assert GYM.outcome(question, question.reference).value == "correct"
