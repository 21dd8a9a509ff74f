"""Runs in the worker process: forks a child behind walls for every answer and passes on what the child finds.

The worker itself handles no answer. A request comes with a nonce after it, which stays in the pipe until the child is
gone: whatever an answer makes a child do, the child cannot know what a reply to the caller has to begin with. A child
has one descriptor, a pipe of its own that is read only while its check lasts.
"""

import contextlib
import gc
import importlib
import importlib.resources
import io
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from palmette.score.walls import kernel, landlock, limits, seccomp

OUTCOMES = {b"c": "correct", b"w": "wrong", b"u": "unparseable", b"t": "timed_out"}
OUTCOMES |= {bytes([128 + points]): f"points {points}" for points in range(101)}
"""What a check tells by one byte; points, for a request that asks for them, are hundredths of the full ones."""

_BYTES = {outcome: byte for byte, outcome in OUTCOMES.items()}
LENGTH_BYTES, NONCE_BYTES = 4, 16
"""A request is its length, its JSON and a nonce; a reply is the nonce and one byte of `OUTCOMES`."""

_LIBRARY_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_VERDICT_PIPE = 0

Check = Callable[[], str]
"""Handles one answer and returns the outcome. Runs in a child of its own."""


def main(module: str) -> None:
    """Answer requests from stdin on stdout until stdin closes, with the checks of `module`.

    `module.load()` returns a function from a request to its `Check`; that function must not evaluate the answer. The
    first reply has a length and JSON: `walls`, the names of those that stand, or `error` if the library cannot be
    loaded.
    """
    replies = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 1)
    sys.stdout = sys.stderr = io.StringIO()  # what a library prints must not mix with the replies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes stdin
    limits.limit_worker()
    try:
        checks = importlib.import_module(module)
        prepare = checks.load()
        walls = raise_walls()
        importlib.resources.files(checks.LIBRARY).joinpath("__init__.py").read_bytes()  # still readable?
    except Exception as error:  # noqa: BLE001  the parent reports any error by its name
        name = module.rpartition(".")[2]
        return _hello(replies, {"error": f"the {name} judge does not work here ({type(error).__name__}: {error})"})
    gc.collect()
    gc.freeze()  # else the first collection in a child would copy every page
    _hello(replies, {"walls": walls})
    while (request := _receive(0)) is not None:
        outcome = _outcome(prepare, request)
        nonce = read_exactly(0, NONCE_BYTES)  # only now: no child was alive while it was in memory
        if nonce is None:
            return None
        os.write(replies, nonce + _BYTES[outcome])
    return None


def raise_walls() -> list[str]:
    """Give up what no check needs; return the names of the walls that this kernel has."""
    readable = [*filter(None, sys.path), sys.prefix, sys.base_prefix, *_LIBRARY_FOLDERS]
    walls = {
        "no new privileges": kernel.gain_no_privileges,
        "hidden memory": kernel.hide_memory,
        "namespaces": kernel.leave_network,
        "no capabilities": kernel.drop_capabilities,
        "landlock": lambda: landlock.enter(readable),
        "seccomp": _try_seccomp,
    }
    standing = []
    for name, build in walls.items():
        with contextlib.suppress(OSError):
            build()
            standing.append(name)
    return standing


def _try_seccomp() -> None:
    """Raise OSError if a child cannot enter the filter; the worker itself has to go on forking."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            seccomp.enter(_VERDICT_PIPE)
            os._exit(0)
        os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise OSError("no seccomp")


def _outcome(prepare: Callable[[dict[str, Any]], Check], request: dict[str, Any]) -> str:
    """Return the outcome of a request. A child that was killed, not by its time limit, gets a second try."""
    until = time.monotonic() + request["seconds"]
    try:
        check = prepare(request)
    except Exception:  # noqa: BLE001  a question that can no longer be generated
        return "unparseable"
    for _ in range(2):
        left = until - time.monotonic()
        outcome = _in_child(check, left) if left > 0 else "timed_out"
        if outcome is not None:
            return outcome
    return "timed_out"


def _in_child(check: Check, seconds: float) -> str | None:
    """Return the outcome of a check in a fork of this process, None if the fork died before it told one.

    It has to write one byte, close the pipe by ending, and end without an error: anything else is `unparseable`.
    """
    verdict, told = os.pipe()
    worker = os.getpid()
    child = os.fork()
    if child == 0:
        _be_child(check, told, worker, seconds)
    os.close(told)
    try:
        said = _until_end(verdict, time.monotonic() + seconds)
    finally:
        os.close(verdict)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if said is None:
        return "timed_out"
    if not said and os.WIFSIGNALED(status):
        return None
    return OUTCOMES.get(said, "unparseable") if status == 0 else "unparseable"


def _be_child(check: Check, told: int, worker: int, seconds: float) -> None:
    """Go behind the walls, run the check, write its outcome, end. Does not return."""
    try:
        os.dup2(told, _VERDICT_PIPE)
        os.closerange(_VERDICT_PIPE + 1, limits.OPEN_FILES)
        limits.limit_check(seconds)
        with contextlib.suppress(OSError):  # told in the first reply
            kernel.die_with_parent(signal.SIGKILL)
            seccomp.enter(_VERDICT_PIPE)
        if os.getppid() == worker:
            try:
                outcome = check()
            except MemoryError:
                outcome = "timed_out"
            os.write(_VERDICT_PIPE, _BYTES[outcome])
            os._exit(0)
    finally:
        os._exit(1)


def _until_end(pipe: int, until: float) -> bytes | None:
    """Return what comes out of a pipe until it ends, or the first two bytes.

    None if it does not end in time, or if the caller is gone: nobody would stop a check that goes on.
    """
    said = b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.register(0, 0)  # Tells only that the other end was closed; what lies in it is the nonce.
    while len(said) < 2:
        ready = dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))
        if not ready or 0 in ready:
            return None
        piece = os.read(pipe, 2)
        if not piece:
            break
        said += piece
    return said


def _hello(replies: int, message: dict[str, Any]) -> None:
    text = json.dumps(message).encode("ascii")
    os.write(replies, len(text).to_bytes(LENGTH_BYTES, "big") + text)


def _receive(pipe: int) -> dict[str, Any] | None:
    """Return the next request, None at the end. Takes not one byte of the nonce that follows it."""
    length = read_exactly(pipe, LENGTH_BYTES)
    text = None if length is None else read_exactly(pipe, int.from_bytes(length, "big"))
    return None if text is None else json.loads(text)


def read_exactly(pipe: int, count: int) -> bytes | None:
    """Return exactly `count` bytes, None if the pipe ends before."""
    parts = b""
    while len(parts) < count:
        piece = os.read(pipe, count - len(parts))
        if not piece:
            return None
        parts += piece
    return parts
