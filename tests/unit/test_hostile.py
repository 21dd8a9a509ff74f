"""Hostile answers are not correct, touch nothing, and leave the next check as right as it was."""

import importlib
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from palmette.score import sandbox
from palmette.score.checks import formula
from palmette.score.judges.gym import GymJudge
from palmette.score.sandbox import Sandbox, WorkerDiedError, _Worker
from palmette.score.verify import Outcome, verify
from palmette.tasks.rg_process import fixed_hash_environment
from palmette.tasks.task import Question
from tests.hostile import CODES, bombs, texts

PATIENT = 3600.0
SHORT = 0.5
"""For what would never end: enough to take all memory that a check may have."""
EVALUATING = (
    "string_insertion", "spiral_matrix", "binary_matrix", "n_queens", "countdown", "puzzle24", "simple_integration",
    "intermediate_integration", "polynomial_multiplication", "number_sorting", "bitwise_arithmetic",
)  # fmt: skip
ALL_WALLS = {"no new privileges", "hidden memory", "namespaces", "no capabilities", "landlock", "seccomp"}


def test_there_are_hundreds_of_them(tmp_path: Path) -> None:
    assert len(set(texts(str(tmp_path)))) >= 190
    assert len(set(bombs())) >= 90
    assert len(set(CODES)) >= 150


# --- Answers in the hands of the judges ---


GENERATE = """
import json, sys
from palmette.tasks.rg_process import generate
print(json.dumps([generate(name, 1, 1) for name in sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    """A question of every generator whose scorer evaluates answers or parses them with sympy."""
    command = [sys.executable, "-c", GENERATE, *EVALUATING]
    environment = {**fixed_hash_environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    made = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    return [
        Question(name, (), found["questions"][0][1], {"generator": name, "seed": 1, "size": 1, "index": 0})
        for name, found in zip(EVALUATING, made, strict=True)
    ]


def right(question: Question) -> bool:
    return GymJudge(PATIENT).verdict(question, "", question.reference).outcome == "correct"


def test_scorers_that_evaluate_answers_run_none(questions: list[Question], tmp_path: Path) -> None:
    for place, text in enumerate(texts(str(tmp_path / "acted"))):
        question = questions[place % len(questions)]
        assert GymJudge(PATIENT).verdict(question, "", text).outcome in ("wrong", "unparseable"), text
    assert list(tmp_path.iterdir()) == []
    assert all(right(question) for question in questions)


def test_the_mathematical_judge_runs_none(tmp_path: Path) -> None:
    for text in texts(str(tmp_path / "acted")):
        assert verify(text, "x + y", seconds=PATIENT) is not Outcome.CORRECT, text
    assert list(tmp_path.iterdir()) == []
    assert verify("y + x", "x + y", seconds=PATIENT) is Outcome.CORRECT


def test_answers_that_explode_are_not_correct_and_the_next_check_is(questions: list[Question]) -> None:
    for place, text in enumerate(bombs()):
        question = questions[place % len(questions)]
        assert GymJudge(SHORT).verdict(question, "", text).outcome != "correct", text
        assert verify(text, "a_1 + a_2", seconds=SHORT) is not Outcome.CORRECT, text
        if place % 10 == 0:
            assert right(question)
            assert verify("y + x", "x + y", seconds=PATIENT) is Outcome.CORRECT
    assert all(right(question) for question in questions)


def test_a_bomb_takes_its_child_along_and_not_the_worker() -> None:
    assert verify("x", "y", seconds=PATIENT) is Outcome.WRONG
    before = sandbox.math.worker_pid
    assert verify("10^{10^{10}}", "5", seconds=1.0) is Outcome.TIMED_OUT
    assert sandbox.math.worker_pid == before


# --- The parsers in the place of eval ---


def test_only_literals_and_arithmetic_have_a_value(tmp_path: Path) -> None:
    for text in texts(str(tmp_path / "acted")):
        for read in (formula.literal, formula.expression):
            with pytest.raises(SyntaxError):
                read(text)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "[[0, 1], [1, 0]]",
        "('a', 'b')",
        "{1: 'x', 2: None}",
        "{1, 2}",
        "-3 + 4*(2 - 1)/8 // 1",
        "2**10 % 7",
        "True",
        "1j",
    ],
)
def test_a_literal_has_the_value_that_eval_gives_it(text: str) -> None:
    assert formula.literal(text) == eval(text)


@pytest.mark.parametrize(
    "text", ["'%9d' % 1", "[1] * 9", "'a' + 'b'", "{1} | {2}", "x", "{**{}}", "[*[1]]", "1 if 1 else 2"]
)
def test_arithmetic_is_for_numbers(text: str) -> None:
    with pytest.raises(SyntaxError):
        formula.literal(text)


@pytest.mark.parametrize(
    "text",
    ["3*(4+5)-2", "x**2 + 2*x + C", "sin(x)**2/3 + cos(2*x)", "exp(-x)*log(x)", "2.5*x", "sqrt(2) + pi - E", "-x + +3",
     "Rational(1, 3)*x", "1/3", "abs(x)", "7 % 4", "0.1000", "1e-3", "a*b**c"],
)  # fmt: skip
def test_a_formula_is_what_sympy_reads_in_it(text: str) -> None:
    expected = importlib.import_module("sympy.parsing.sympy_parser").parse_expr(text)
    assert formula.expression(text) == expected
    assert str(formula.expression(text)) == str(expected)


# --- Code behind the walls, as if an answer were run after all ---


@pytest.fixture
def box() -> Iterator[Sandbox]:
    """A sandbox whose check runs its answer as code; skipped on kernels that lack a wall."""
    made = Sandbox("tests.hostile_check", "")
    missing = sorted(ALL_WALLS - set(made.walls))
    if missing or platform.machine() != "x86_64":
        made.close()
        pytest.skip(f"this kernel has no {', '.join(missing)}")
    yield made
    made.close()


def processes() -> int:
    """Return how many processes are workers of `tests.hostile_check` or came from one."""
    found = 0
    for entry in Path("/proc").iterdir():
        try:
            found += entry.name.isdigit() and b"\0tests.hostile_check\0" in (entry / "cmdline").read_bytes()
        except OSError:
            continue  # ended just now
    return found


def test_code_that_runs_behind_the_walls_changes_nothing(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("unhurt")
    before = (tmp_path / "victim").stat()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        request = {"place": str(tmp_path), "port": server.getsockname()[1]}
        worker = box.walls and box.worker_pid
        running = processes()
        for code in CODES:
            assert box.check({**request, "answer": code}, SHORT) != "correct", code
            assert box.check({"answer": "honest"}, PATIENT) == "correct", code
            assert processes() == running, code
            assert [path.name for path in tmp_path.iterdir()] == ["victim"], code
            after = (tmp_path / "victim").stat()
            assert (after.st_mode, after.st_mtime, after.st_uid) == (before.st_mode, before.st_mtime, before.st_uid), (
                code
            )
        assert (tmp_path / "victim").read_text() == "unhurt"
        assert box.worker_pid == worker  # none of them reached it
        assert not Path("/dev/shm/palmette-hostile").exists()
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    "answer", ["stray byte before the reply", "stale reply before the reply", "stray byte after the reply"]
)
def test_a_byte_that_nobody_asked_for_ends_the_worker(answer: str) -> None:
    box = Sandbox("tests.hostile_check", "")
    try:
        assert box.check({"answer": "honest"}, PATIENT) == "correct"
        before = box.worker_pid
        assert box.check({"answer": answer, "place": "", "port": 0}, PATIENT) == "timed_out"
        assert box.check({"answer": "honest"}, PATIENT) == "correct"
        assert box.worker_pid != before
    finally:
        box.close()


def test_a_child_ends_with_its_worker() -> None:
    """A worker that is killed in the middle of a check leaves no child behind."""
    before = processes()
    worker = _Worker("tests.hostile_check", "")
    request = {"answer": "time.sleep(10**6)", "place": "", "port": 0, "seconds": PATIENT}
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(worker.ask, request, PATIENT)
            while processes() < before + 2:
                os.sched_yield()
            worker.process.kill()
            with pytest.raises(WorkerDiedError):
                asked.result()
    finally:
        worker.close()
    while processes() > before:
        os.sched_yield()


def test_a_worker_whose_caller_is_gone_ends_in_the_middle_of_a_check() -> None:
    """A caller that is killed closes its end of the pipe and stops nothing."""
    before = processes()
    worker = _Worker("tests.hostile_check", "")
    request = {"answer": "time.sleep(10**6)", "place": "", "port": 0, "seconds": 10**6}
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(worker.ask, request, 10**6)
            while processes() < before + 2:
                os.sched_yield()
            assert worker.process.stdin is not None
            worker.process.stdin.close()
            worker.process.wait(PATIENT)
            assert asked.result() == "timed_out"  # This caller still listens; a killed one would not.
    finally:
        worker.close()
    while processes() > before:
        os.sched_yield()
