"""The worker process that judges answers, with the libraries that model text can hang or crash."""

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
# Only these names, or none, may stand before an opening bracket.
_FUNCTIONS = {"sin", "cos", "tan", "exp", "log", "ln", "sqrt", "abs", "Abs", "asin", "acos", "atan", "sinh", "cosh"}
_CALL = re.compile(r"([A-Za-z_]\w*|[\])}])\s*\(")

Judge = Callable[[dict[str, Any]], str]


def main(kind: str) -> None:
    """Serve checks from stdin until it closes."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints must not mix with the replies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes stdin
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # an ignored signal would be inherited
    _limit_memory()
    try:
        judge = _math_judge() if kind == "math" else _gym_judge()
    except Exception as error:  # noqa: BLE001  whatever it is, the parent has to name it
        _reply(replies, {"error": f"the {kind} judge does not work here ({type(error).__name__}: {error})"})
        return
    sys.addaudithook(_refuse)
    _reply(replies, {"ready": True})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        # Ends the worker even inside one long C call and even when the parent is gone and nobody reads the reply.
        signal.alarm(ceil(request["seconds"]) + 1)
        try:
            verdict = judge(request)
        except MemoryError:
            os._exit(1)
        signal.alarm(0)
        _reply(replies, {"verdict": verdict})


def _reply(replies: BinaryIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message).encode("ascii") + b"\n")
    replies.flush()


def _limit_memory() -> None:
    """Cap the address space, so that a huge power raises MemoryError here instead of filling the machine."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    except (ValueError, OSError):
        pass  # a lower limit is already set; the time bound still holds


def _math_judge() -> Judge:
    library: Any = importlib.import_module("math_verify")
    _read(library, "x")  # the first parse builds tables: 0.1 s that belong to the start
    return lambda request: _compare(library, request["answer"], request["reference"])


def _gym_judge() -> Judge:
    library: Any = importlib.import_module("reasoning_gym")
    return lambda request: _mark(library, request)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Stop what no judge needs: programs, sockets, files written or removed. The second line of defense."""
    writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if writes or event.startswith(_FORBIDDEN):
        raise PermissionError(f"a judge may not {event}")


@lru_cache(maxsize=4)
def _dataset(library: Any, generator: str, seed: int, size: int) -> Any:
    return library.create_dataset(generator, size=size, seed=seed)


def _mark(library: Any, request: dict[str, Any]) -> str:
    """Make the question again and let its generator mark the answer; raise MemoryError only."""
    try:
        dataset = _dataset(library, request["generator"], request["seed"], request["size"])
        if _evaluates(type(dataset)) and not is_harmless(request["answer"]):
            return "unparseable"
        entry = dataset[request["index"]]
        if entry["answer"] is not None and not isinstance(entry["answer"], str):
            entry = {
                **entry,
                "answer": str(entry["answer"]),
            }  # some hold sympy objects, which their scorers cannot read
        mark = dataset.score_answer(request["answer"], entry)
        return "correct" if mark >= 1.0 else "wrong"
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  scorers meet text that their authors never saw
        return "unparseable"


def _evaluates(dataset: type) -> bool:
    """Tell whether a generator's module reads answers as code."""
    return _EVALUATORS.search(inspect.getsource(sys.modules[dataset.__module__])) is not None


def is_harmless(answer: str) -> bool:
    """Tell whether a scorer may evaluate an answer as Python: a literal, or mathematics without any other call.

    Without calls, attributes, quotes or a colon an expression can name things and compute, but do nothing.
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
    """Parse one answer as LaTeX; empty when it is none.

    Only the LaTeX reader is used: the library's other one takes the first number it finds in a text it cannot read. Its
    units are off: they include `t`, `h`, `c` and `ab`, so that `2x + 3t` would equal `2x + 3`.
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
    """Return the verdict on one pair; raise MemoryError only. An error while comparing means `wrong`."""
    try:
        target = _read(library, answer)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  model text gets every error out of a parser
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
