"""Runs in the worker process: checks answers with libraries that model text can hang or crash."""

import ast
import importlib
import inspect
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import Any, BinaryIO

MEMORY_LIMIT_BYTES = 2 * 2**30
_BARE_PI, _PI = re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])"), r"\\pi "

_FORBIDDEN = (
    "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.kill", "os.remove", "os.rename", "os.rmdir",
    "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.putenv", "subprocess.", "socket.",
    "ctypes.", "shutil.", "pty.", "signal.pthread_kill", "webbrowser.", "urllib.", "ftplib.", "smtplib.",
)  # fmt: skip
_EVALUATORS = re.compile(r"\b(?:eval|exec|parse_expr|sympify|S)\(")
# Only these names, or no name, may precede an opening bracket.
_FUNCTIONS = {"sin", "cos", "tan", "exp", "log", "ln", "sqrt", "abs", "Abs", "asin", "acos", "atan", "sinh", "cosh"}
_CALL = re.compile(r"([A-Za-z_]\w*|[\])}])\s*\(")

Check = Callable[[dict[str, Any]], str]
"""Takes a request and returns the outcome."""


def main(kind: str) -> None:
    """Read requests from stdin, one JSON object a line, and write one reply a line to stdout, until stdin closes.

    The first reply is `{"ready": true}`, or `{"error": ...}` if the library for `kind` cannot be loaded.
    """
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # output of a library must not mix with the replies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes stdin
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the parent may have ignored it, which is inherited
    _limit_memory()
    try:
        check = _math_check() if kind == "math" else _gym_check()
    except Exception as error:  # noqa: BLE001  the parent reports any error by its name
        _reply(replies, {"error": f"the {kind} judge does not work here ({type(error).__name__}: {error})"})
        return
    sys.addaudithook(_refuse)
    _reply(replies, {"ready": True})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        # Kills the worker even inside a long C call, and even if the parent is gone.
        signal.alarm(ceil(request["seconds"]) + 1)
        try:
            outcome = check(request)
        except MemoryError:
            os._exit(1)
        signal.alarm(0)
        _reply(replies, {"verdict": outcome})


def _reply(replies: BinaryIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message).encode("ascii") + b"\n")
    replies.flush()


def _limit_memory() -> None:
    """Limit the address space, so that a huge power raises MemoryError instead of using up the machine's memory."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    except (ValueError, OSError):
        pass  # a lower limit is already set; the time limit still holds


def _math_check() -> Check:
    library: Any = importlib.import_module("math_verify")
    _read(library, "x")  # the first parse takes 0.1 s to build tables: do it before the worker is ready
    return lambda request: _compare(library, request["answer"], request["reference"])


def _gym_check() -> Check:
    library: Any = importlib.import_module("reasoning_gym")
    return lambda request: _grade(library, request)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook that refuses what no check needs: starting programs, sockets, writing or removing files.

    A second line of defense: answers that could do this are refused before (`is_harmless`).
    """
    writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if writes or event.startswith(_FORBIDDEN):
        raise PermissionError(f"a check may not {event}")


@lru_cache(maxsize=4)
def _dataset(library: Any, generator: str, seed: int, size: int) -> Any:
    return library.create_dataset(generator, size=size, seed=seed)


def _grade(library: Any, request: dict[str, Any]) -> str:
    """Generate the question again and return the outcome of its own scorer. Raises nothing but MemoryError."""
    try:
        dataset = _dataset(library, request["generator"], request["seed"], request["size"])
        if _evaluates(type(dataset)) and not is_harmless(request["answer"]):
            return "unparseable"
        entry = dataset[request["index"]]
        if entry["answer"] is not None and not isinstance(entry["answer"], str):
            entry = {
                **entry,
                "answer": str(entry["answer"]),
            }  # some generators give sympy objects that their own scorers cannot read
        points = dataset.score_answer(request["answer"], entry)
        return "correct" if points >= 1.0 else "wrong"
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  model text can raise anything in a scorer
        return "unparseable"


def _evaluates(dataset: type) -> bool:
    """Return whether the module of a generator evaluates text as code."""
    return _EVALUATORS.search(inspect.getsource(sys.modules[dataset.__module__])) is not None


def is_harmless(answer: str) -> bool:
    """Return whether an answer is safe to evaluate as Python: a literal, or a formula that calls only math functions.

    Without other calls, attributes, quotes and colons an expression can compute a value but has no side effects.
    """
    try:
        ast.literal_eval(answer.strip())
        return True
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        pass
    if "__" in answer or re.search(r"[\"'`:;@\\{}]|\.\s*[A-Za-z_]|\b(?:lambda|import|await|yield)\b", answer):
        return False
    return all(found in _FUNCTIONS for found in _CALL.findall(answer))


def _read(library: Any, text: str) -> list[Any]:
    """Parse one answer as LaTeX; return an empty list if it is not LaTeX.

    Only the LaTeX parser of math-verify is used: its other parser takes the first number of any text. The removal of
    units is off: its units include `t`, `h`, `c` and `ab`, so that `2x + 3t` would equal `2x + 3`.
    """
    line = " ".join(text.replace("\\$", "").replace("$", "").replace("**", "^").split())
    reader = library.LatexExtractionConfig()
    found = library.parse(
        f"${_BARE_PI.sub(_PI, line)}$",
        extraction_config=[replace(reader, normalization_config=replace(reader.normalization_config, units=False))],
        fallback_mode="no_fallback",
        parsing_timeout=None,
        raise_on_error=True,
    )
    return list(found)


def _compare(library: Any, answer: str, reference: str) -> str:
    """Return the outcome for one answer; an error while comparing means `wrong`. Raises nothing but MemoryError."""
    try:
        target = _read(library, answer)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  model text can raise anything in a parser
        target = []
    if not target:
        return "unparseable"
    try:
        gold = _read(library, reference)
        is_equal = library.verify(gold, target, allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=True)
        return "correct" if is_equal else "wrong"
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  as above
        return "wrong"
