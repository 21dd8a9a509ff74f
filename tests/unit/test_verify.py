"""Answers are judged by what they are worth, whatever the text throws at the judge."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from palmette.errors import ConfigError
from palmette.score import sandbox
from palmette.score.verify import Outcome, canonical, extract_answer, extract_reference, grade, verify

pytestmark = pytest.mark.unit
PATIENT = 3600.0
"""Seconds for checks that end: no machine is so slow that it needs them."""


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test when a check reaches the worker."""

    def refuse(question: dict[str, str], seconds: float) -> None:
        raise AssertionError(f"{question} reached the worker")

    monkeypatch.setattr(sandbox.math, "check", refuse)


def run_python(code: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """Run code in a fresh interpreter that sees the same import path."""
    head = f"import sys; sys.path[:] = {sys.path!r}\n"
    return subprocess.run([sys.executable, "-c", head + code], input=stdin, capture_output=True)


# --- Plain numbers and words, decided without the worker ---


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("18", "18"),
        ("1,000", "1000"),
        ("1 000", "1000"),
        ("10080", r"10,\!080"),
        (r"10\,080", "10{,}080"),
        ("$1000.00", "1000"),
        (r"\$32,\!348", "32348"),
        ("18 dollars", "18"),
        (r"18\text{ dollars}", "18"),
        ("18 eggs per day.", "18"),
        ("5cm", "5"),
        ("864 square inches", r"864 \mbox{ inches}^2"),
        ("90", r"90^\circ"),
        ("90 degrees", r"90^{\circ}"),
        ("\u22125", "-5"),
        ("50%", "50"),
        (r"50\%", "0.5"),
        (r"\frac{3}{4}", "0.75"),
        ("3/4", r"\dfrac34"),
        ("1 1/2", "1.5"),
        (r"137 \frac{1}{2}", "137.5"),
        (r"-\frac{35}{9}", "-35/9"),
        ("0.333333", r"\frac13"),
        ("0.3333333333333335", "1/3"),
        ("6.72e-5", ".0000672"),
        ("5 million", "5,000,000"),
        ("**18**", "18"),
        ("Evelyn", r"\text{Evelyn}"),
        ("evelyn.", r"\text{Evelyn}"),
        ("C", r"\text{(C)}"),
        (r"4343_{6}", "4343_6"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
    ],
)
def test_plain_answers_that_are_equal_are_correct_without_a_worker(
    no_worker: None, answer: str, reference: str
) -> None:
    assert verify(answer, reference) is Outcome.CORRECT


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("17", "18"),
        ("-5", "5"),
        ("0.33", "1/3"),
        ("0.000067", ".0000672"),  # equal once rounded to six places
        ("1234566.999999", "1234568"),
        ("1.000", "1000"),
        ("0.5", "50"),
        ("5 million", "5"),
        ("1.8 billion", "2"),
        ("52_8", "52_9"),
        ("52_8", "52"),
        ("seat", r"\text{east}"),
        ("(A)", r"\text{(B)}"),
        ("7" * 1999, "7"),
    ],
)
def test_plain_answers_that_differ_are_wrong_without_a_worker(no_worker: None, answer: str, reference: str) -> None:
    assert verify(answer, reference) is Outcome.WRONG


@pytest.mark.parametrize("answer", [None, "", "  \n", "$", "{" * 100_000, "7" * 5_000_000])
def test_no_answer_or_an_endless_one_is_unparseable_without_a_worker(no_worker: None, answer: str | None) -> None:
    assert verify(answer, "18") is Outcome.UNPARSEABLE


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused_with_one_that_works(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"for example 5\.0"):
        verify("18", "18", seconds=seconds)


def test_an_outcome_prints_as_its_word() -> None:
    assert [f"{outcome}" for outcome in Outcome] == ["correct", "wrong", "unparseable", "timed_out"]
    assert Outcome("timed_out") is Outcome.TIMED_OUT


# --- Algebra, decided by math-verify in the worker ---


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("-q + p", "p - q"),
        ("x^2 + 2x + 1", "(x+1)^2"),
        ("x**3 + 3*x - 6", "x^3+3x-6"),
        (r"\sqrt{20}", r"2 \sqrt{5}"),
        ("sqrt(51)", r"\sqrt{51}"),
        ("2 pi", r"2\pi"),
        ("9 + 9", "18"),
        ("5", "x=5"),
        ("-2, 1", "1,-2"),
        (r"1+\sqrt{19}, 1-\sqrt{19}", r"1 \pm \sqrt{19}"),
        (r"[-2,7]", r"x \in [-2,7]"),
        (r"12\pi \text{ cm}^2", r"12\pi"),
        (r"12\pi square inches", r"12\pi"),
        ("(0.5, 2)", r"\left( \frac{1}{2}, 2 \right)"),
    ],
)
def test_expressions_that_are_equal_are_correct(answer: str, reference: str) -> None:
    assert verify(answer, reference, seconds=PATIENT) is Outcome.CORRECT


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("2 pi", "2"),
        ("2ab", "2"),
        ("2x + 3t", "2x + 3"),
        ("5!", "5"),
        ("5, 6", "5"),
        ("3 and a half", "3"),
        ("5 squared", "5"),
        ("(1,2)", "(2,1)"),
        ("(3,4)", "(3,4]"),
        ("x=5", "6"),
        ("p + q", "p - q"),
        (r"\frac{1}{0}", "0"),
    ],
)
def test_expressions_that_differ_are_wrong(answer: str, reference: str) -> None:
    assert verify(answer, reference, seconds=PATIENT) is Outcome.WRONG


@pytest.mark.parametrize("answer", [r"\sqrt{ 5", "{{{5", ")(", "5\x00", "\ud800", "5\ud800"])
def test_text_that_is_no_math_is_unparseable_even_with_the_right_number_in_it(answer: str) -> None:
    assert verify(answer, "5", seconds=PATIENT) is Outcome.UNPARSEABLE


# --- Hostile answers ---


@pytest.mark.parametrize(
    "answer",
    [
        "9**9**9**9",
        "10^{10^{10}}",
        "(10^9)!",
        "(" * 900 + "1" + ")" * 900,
        r"\frac{1}{" * 150 + "1" + "}" * 150,
        "{" * 1900,
        "\\" * 1999,
        r"\sum_{k=1}^{10^9} \frac{1}{k^2}",
        "__import__('os').system('true')",
        "2^" * 600 + "2",
        "\x00" * 1000,
    ],
)
def test_a_hostile_answer_gets_an_outcome_that_is_not_correct(answer: str) -> None:
    assert verify(answer, "x + y", seconds=1.0) in set(Outcome) - {Outcome.CORRECT}


def test_a_check_that_cannot_end_times_out_after_which_a_normal_one_works() -> None:
    assert verify("10^{10^{10}}", "5", seconds=1.0) is Outcome.TIMED_OUT
    assert verify("-q + p", "p - q", seconds=PATIENT) is Outcome.CORRECT


def test_a_hostile_reference_is_bounded_too() -> None:
    assert verify("5", "10^{10^{10}}", seconds=1.0) is Outcome.TIMED_OUT
    assert verify("5", "5" * 3000) is Outcome.WRONG


@pytest.mark.parametrize("piece", ["{", "}", r"\boxed{", r"\boxed ", "\\", "#", "A:\n", "answer is ", " ", "\n"])
def test_a_very_long_text_without_an_answer_is_read_to_its_end(piece: str) -> None:
    text = piece * (300_000 // len(piece))
    assert extract_answer(text) is None
    assert extract_reference(text) == text.strip()
    assert canonical(text) == text


@pytest.mark.parametrize(("piece", "answer"), [("1,", "1," * 149_999 + "1"), ("-1", "1"), ("1/", "1/1")])
def test_a_very_long_row_of_numbers_ends_in_the_last_one(piece: str, answer: str) -> None:
    text = piece * 150_000
    assert extract_answer(text) == answer
    assert extract_reference(text) == canonical(text) == text


# --- The worker ---


def test_threads_that_call_at_once_each_get_their_own_outcome() -> None:
    pairs = [(f"x + {i}", f"{i % 3 + i // 3 * 3} + x" if i % 2 else f"{i + 1} + x") for i in range(12)]
    expected = [Outcome.CORRECT if i % 2 else Outcome.WRONG for i in range(12)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda pair: verify(*pair, seconds=PATIENT), pairs)) == expected


def test_a_worker_killed_from_outside_is_replaced_without_losing_the_check() -> None:
    verify("x", "y", seconds=PATIENT)
    killed = sandbox.math.worker_pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    assert verify("-q + p", "p - q", seconds=PATIENT) is Outcome.CORRECT
    assert sandbox.math.worker_pid not in (None, killed)


def test_one_worker_serves_many_checks() -> None:
    verify("x", "y", seconds=PATIENT)
    first = sandbox.math.worker_pid
    verify("x", "z", seconds=PATIENT)
    assert sandbox.math.worker_pid == first


def test_a_closed_sandbox_has_no_worker_until_the_next_check() -> None:
    box = sandbox.Sandbox("palmette.score.checks.math", "math-verify")
    assert box.worker_pid is None
    assert box.check_math("x+1", "1+x", PATIENT) == "correct"
    box.close()
    box.close()
    assert box.worker_pid is None


def test_the_worker_ends_with_its_stdin_having_loaded_no_torch() -> None:
    request = json.dumps({"answer": "q", "reference": "q", "seconds": PATIENT}).encode()
    nonce = bytes(range(16))
    code = "from palmette.score.worker import main\nmain('palmette.score.checks.math')\n"
    done = run_python(
        code + "sys.exit(7 if 'torch' in sys.modules else 0)", len(request).to_bytes(4, "big") + request + nonce
    )
    length = int.from_bytes(done.stdout[:4], "big")
    assert "no new privileges" in json.loads(done.stdout[4 : 4 + length])["walls"]
    assert done.stdout[4 + length :] == nonce + b"c"
    assert done.returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_uses_a_worker_of_its_own() -> None:
    code = f"""
import os
from palmette.score import sandbox
from palmette.score.verify import verify
ok = verify("x+1", "1+x", seconds={PATIENT}) == "correct"
before = sandbox.math.worker_pid
child = os.fork()
if child == 0:
    fine = verify("y+1", "1+y", seconds={PATIENT}) == "correct" and sandbox.math.worker_pid != before
    os._exit(0 if fine else 1)
ok = ok and os.waitpid(child, 0)[1] == 0 and verify("z+1", "1+z", seconds={PATIENT}) == "correct"
sys.exit(0 if ok and sandbox.math.worker_pid == before else 1)
"""
    assert run_python(code).returncode == 0


def test_a_process_with_more_than_1024_descriptors_can_check_answers() -> None:
    code = f"""
import os, resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)] if most > 1200 else []
from palmette.score.verify import verify
sys.exit(0 if verify("x+1", "1+x", seconds={PATIENT}) == "correct" else 1)
"""
    assert run_python(code).returncode == 0


def test_importing_verify_loads_no_heavy_library_until_a_check_needs_one() -> None:
    code = "import palmette.score.verify as v; v.verify('18', '18')\n"
    code += "sys.exit(1 if {'torch', 'sympy', 'math_verify'} & set(sys.modules) else 0)"
    assert run_python(code).returncode == 0


# --- Extraction ---


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"So $x = \boxed{\frac{3}{4}}$.", r"\frac{3}{4}"),
        (r"\boxed{1}, no: \boxed{2}", "2"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{7} then \boxed{8", "7"),
        (r"\boxed{\{1, 2\}} #### 9", r"\{1, 2\}"),
        (r"\\boxed {3}", "3"),
        ("2 * 9 = 18\n#### 18", "18"),
        ("#### 18\nThe answer is 5", "18"),
        ("Half of it.\nA: 1,875", "1,875"),
        ("A: 3\nWait.\nAnswer: 4 apples.", "4 apples"),
        ("**Answer:** 12", "12"),
        ("Answer:\n\n42\n", "42"),
        ("Hence the answer is: $\\frac12$. Done.", "$\\frac12$"),
        ("First 10-3, then 7 more, so 12.5, I think", "12.5"),
        ("it went down to -4", "-4"),
        ("10-3", "3"),
        ("that is 1,200.", "1,200"),
        ("no idea", None),
        ("", None),
        (r"\boxed{}", None),
    ],
)
def test_the_final_answer_is_found(solution: str, answer: str | None) -> None:
    assert extract_answer(solution) == answer


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("9 * 2 = $<<9*2=18>>18.\n#### 18", "18"),
        ("Work.\nA: 1,450,000\n", "1,450,000"),
        (r"\text{Evelyn}", r"\text{Evelyn}"),
        ("18", "18"),
        ("A: is a letter\n3 is a number", "A: is a letter\n3 is a number"),
    ],
)
def test_a_worked_reference_gives_its_last_line(reference: str, answer: str) -> None:
    assert extract_reference(reference) == answer


def test_grade_reads_both_sides(no_worker: None) -> None:
    assert grade("16 - 7 = 9, 9 * 2 = 18\nA: $18.00", "Work.\n#### 18") is Outcome.CORRECT
    assert grade(r"\boxed{19}", "Work.\nA: 18") is Outcome.WRONG
    assert grade("I give up", "18") is Outcome.UNPARSEABLE


# --- Votes ---


@pytest.mark.parametrize(
    ("same", "form"),
    [
        (["1,000", "1000", "$1000.00", "1000.0", r"\$1{,}000", "1000 dollars."], "1000"),
        (["0.5", ".50", "1/2", r"\frac12", r"\dfrac{1}{2}", "$2/4$"], "1/2"),
        ([r"\text{Evelyn}", "Evelyn", " Evelyn. "], "Evelyn"),
        ([r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})", r"$(3, \dfrac{\pi}{2})$"], r"(3,\frac{\pi}{2})"),
        (["p - q", "p-q", " p -q."], "p-q"),
    ],
)
def test_votes_for_one_answer_share_a_form(same: list[str], form: str) -> None:
    assert {canonical(answer) for answer in same} == {form}


def test_votes_for_different_answers_keep_different_forms() -> None:
    answers = ["1", "-1", "10", "1/3", "0.3333", "x", "2x", "2 x y", "(1,2)", "1,2", "1_000", "", "\x00", "\ud800"]
    assert len({canonical(answer) for answer in answers}) == len(answers)
