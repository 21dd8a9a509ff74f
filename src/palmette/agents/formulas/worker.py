"""Runs in the worker process: forks a child behind walls for every snippet and passes on what the child returns."""

import contextlib
import gc
import json
import os
import resource
import select
import signal
import time
from typing import Any

from palmette.agents.formulas.snippet import run_snippet
from palmette.score.walls import kernel, limits, seccomp
from palmette.score.worker import raise_walls, read_exactly

LENGTH_BYTES = 4
MOST_BYTES = 1 << 20
_PIPE = 0
_MORE_MEMORY_BYTES = 2**30


def main(*, with_torch: bool) -> None:
    """Answer requests from stdin on stdout until stdin closes; the first reply lists the walls that stand."""
    replies = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import numpy  # noqa: F401 - loaded once, for all children

    if with_torch:
        import torch

        torch.set_num_threads(1)
        _first_operations(torch)
    walls = raise_walls()
    gc.collect()
    gc.freeze()
    _send(replies, json.dumps({"walls": walls}).encode())
    while (request := _receive(0)) is not None:
        _send(replies, _in_child({**json.loads(request), "torch": with_torch}))


def _first_operations(torch: Any) -> None:
    """Do what snippets do once: the first use of an operation takes long, and each child would have it anew."""
    one = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double()
    ratio = torch.exp(one - one.mean(1, keepdim=True)) / (one.std(1, keepdim=True) + 1e-4)
    chosen = one.log_softmax(-1).gather(-1, torch.tensor([[0], [1]])) - torch.logsumexp(one, -1, keepdim=True)
    torch.min(ratio, ratio.clamp(0.8, 1.2)).view(-1).repeat_interleave(2).flatten().tolist()
    torch.stack([chosen.squeeze(-1), chosen.squeeze(-1)]).detach().double().sum()


def _in_child(request: dict[str, Any]) -> bytes:
    """Return what a fork of this process makes of a request: JSON of it, or of what is wrong."""
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        _be_child(request, told)
    os.close(told)
    until = time.monotonic() + request["seconds"]
    try:
        said = _until_end(heard, until)
    finally:
        os.close(heard)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if said is None:
        return json.dumps({"error": f"it did not end within {request['seconds']:g} s"}).encode()
    return said or json.dumps({"error": "it ended the process, or used too much memory"}).encode()


def _be_child(request: dict[str, Any], told: int) -> None:
    """Go behind the walls, run the snippet, write what it returns, end. Does not return."""
    try:
        os.dup2(told, _PIPE)
        os.closerange(_PIPE + 1, limits.OPEN_FILES)
        limits.limit_check(request["seconds"])
        with contextlib.suppress(OSError, ValueError):
            most = _held_bytes() + _MORE_MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        with contextlib.suppress(OSError):
            kernel.die_with_parent(signal.SIGKILL)
            seccomp.enter(_PIPE)
        answer = json.dumps(_ran(request)).encode()[:MOST_BYTES]
        while answer:
            answer = answer[os.write(_PIPE, answer) :]
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


def _until_end(pipe: int, until: float) -> bytes | None:
    said = b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while len(said) < MOST_BYTES:
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            return None
        piece = os.read(pipe, 1 << 16)
        if not piece:
            break
        said += piece
    return said


def _send(pipe: int, message: bytes) -> None:
    data = len(message).to_bytes(LENGTH_BYTES, "big") + message
    while data:
        data = data[os.write(pipe, data) :]


def _receive(pipe: int) -> bytes | None:
    length = read_exactly(pipe, LENGTH_BYTES)
    return None if length is None else read_exactly(pipe, int.from_bytes(length, "big"))
