"""Runs in the worker process: has a child behind walls run each snippet, and passes on what the child returns.

Of CPU time a snippet for torch takes little: forking a process that has torch loaded 4 ms, its first operations 2. On a
busy machine a fork takes up to 50 ms, the first operations 20 to 30 and the end of a process 30 to 80, since each of
them waits for a core. So children wait for snippets with all that done, and nobody waits for their end.
"""

import contextlib
import gc
import json
import os
import resource
import select
import signal
import time
from collections import deque
from typing import Any

from palmette.agents.formulas.snippet import run_snippet
from palmette.score.walls import kernel, limits, seccomp
from palmette.score.worker import raise_walls, read_exactly

LENGTH_BYTES = 4
MOST_BYTES = 1 << 20
_PIPE = 0
_MORE_MEMORY_BYTES = 2**30
_WAITING = 3
"""Children that wait for snippets: one is asked while others get ready. Each holds 3 MiB of its own."""
_ENDING = 8
"""Children that may be ending at a time."""


def main(*, with_torch: bool) -> None:
    """Answer requests from stdin on stdout until stdin closes; the first reply lists the walls that stand."""
    replies = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import numpy  # noqa: F401 - loaded once, for all children

    torch: Any = None
    if with_torch:
        import torch

        torch.set_num_threads(1)
        _first_operations(torch)
    walls = raise_walls()
    gc.collect()
    gc.freeze()
    _send(replies, json.dumps({"walls": walls}).encode())
    children = _Children(torch)
    while children.fill() and (request := _receive(0)) is not None:
        _send(replies, children.ask({**json.loads(request), "torch": with_torch}))


def _first_operations(torch: Any) -> None:
    """Do what snippets do once: the first use of an operation takes long, and each child would have it anew."""
    one = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double()
    ratio = torch.exp(one - one.mean(1, keepdim=True)) / (one.std(1, keepdim=True) + 1e-4)
    chosen = one.log_softmax(-1).gather(-1, torch.tensor([[0], [1]])) - torch.logsumexp(one, -1, keepdim=True)
    torch.min(ratio, ratio.clamp(0.8, 1.2)).view(-1).repeat_interleave(2).flatten().tolist()
    torch.stack([chosen.squeeze(-1), chosen.squeeze(-1)]).detach().double().sum()


class _Child:
    """A fork of this process that waits for one snippet."""

    def __init__(self, torch: Any) -> None:
        heard, self._asked = os.pipe()
        self._replies, told = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _be_child(torch, heard, told)
        os.close(heard)
        os.close(told)

    def ask(self, request: dict[str, Any]) -> bytes:
        """Return what the child makes of a request: JSON of it, or of what is wrong."""
        until = time.monotonic() + request["seconds"]
        with contextlib.suppress(BrokenPipeError):  # Whoever has ended replies nothing.
            _send(self._asked, json.dumps(request).encode())
        said = _reply(self._replies, until)
        if said is None:
            return json.dumps({"error": f"it did not end within {request['seconds']:g} s"}).encode()
        return said or json.dumps({"error": "it ended the process, or used too much memory"}).encode()

    def end(self) -> int:
        """Kill it; return the id of the process, which is gone when somebody has waited for it."""
        os.close(self._asked)
        os.close(self._replies)
        os.kill(self._pid, signal.SIGKILL)
        return self._pid


class _Children:
    """Children that wait, and those that have replied. `torch` is the module where it is loaded."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._waiting: deque[_Child] = deque()
        self._done: list[_Child] = []
        self._ending: deque[int] = deque()

    def ask(self, request: dict[str, Any]) -> bytes:
        """Have the child that has waited longest run a snippet."""
        child = self._waiting.popleft()
        self._done.append(child)
        return child.ask(request)

    def fill(self) -> bool:
        """End those that have replied and fork others, unless a request is there and somebody who waits for it."""
        while self._ending and self._is_gone(self._ending[0]):
            self._ending.popleft()
        while not (self._waiting and _is_readable(0)):
            if self._done:
                self._ending.append(self._done.pop().end())
            elif len(self._waiting) < _WAITING:
                self._waiting.append(_Child(self._torch))
            else:
                break
        return True

    def _is_gone(self, pid: int) -> bool:
        """Tell whether a child that was killed has ended; wait for it where too many others have not."""
        return os.waitpid(pid, 0 if len(self._ending) > _ENDING else os.WNOHANG) != (0, 0)


def _be_child(torch: Any, heard: int, told: int) -> None:
    """Wait for a snippet, go behind the walls, run it, write what it returns, end. Does not return."""
    try:
        with contextlib.suppress(OSError):
            kernel.die_with_parent(signal.SIGKILL)
        os.dup2(heard, 2)  # Both are beyond 2: 0 to 2 are open.
        os.dup2(told, _PIPE)
        os.closerange(3, limits.OPEN_FILES)
        if torch is not None:
            _first_operations(torch)
        request = json.loads(_receive(2) or b"")
        os.closerange(_PIPE + 1, limits.OPEN_FILES)
        limits.limit_check(request["seconds"])
        with contextlib.suppress(OSError, ValueError):
            most = _held_bytes() + _MORE_MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        with contextlib.suppress(OSError):
            seccomp.enter(_PIPE)
        _send(_PIPE, json.dumps(_ran(request)).encode()[:MOST_BYTES])
        os._exit(0)
    finally:
        os._exit(1)


def _held_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _ran(request: dict[str, Any]) -> dict[str, Any]:
    """Try the snippet with tensors, where torch is loaded, then with arrays and with lists."""
    wrong = ""
    for kind in ("torch", "numpy", "list") if request["torch"] else ("list", "numpy"):
        try:
            trials = [run_snippet(request["code"], trial, request["aliases"], kind) for trial in request["trials"]]
        except BaseException as error:  # noqa: BLE001 - a snippet may raise anything
            wrong = wrong or f"{type(error).__name__}: {error}"[:400]
        else:
            return {"values": trials}
    return {"error": wrong}


def _is_readable(pipe: int) -> bool:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(0))


def _reply(pipe: int, until: float) -> bytes | None:
    """Return a message as `_send` writes it, empty if its writer has ended before; None where it takes too long.

    The end of the pipe is not waited for: it comes when the memory of the writer is torn down.
    """
    said = b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while len(said) < LENGTH_BYTES or len(said) < LENGTH_BYTES + int.from_bytes(said[:LENGTH_BYTES], "big"):
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            return None
        piece = os.read(pipe, 1 << 16)
        if not piece or len(said) > MOST_BYTES + LENGTH_BYTES:
            return b""
        said += piece
    return said[LENGTH_BYTES:]


def _send(pipe: int, message: bytes) -> None:
    data = len(message).to_bytes(LENGTH_BYTES, "big") + message
    while data:
        data = data[os.write(pipe, data) :]


def _receive(pipe: int) -> bytes | None:
    length = read_exactly(pipe, LENGTH_BYTES)
    return None if length is None else read_exactly(pipe, int.from_bytes(length, "big"))
