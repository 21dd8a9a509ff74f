"""A check that does what no check of palmette does: it runs the answer as code, for tests of the walls around it."""

import os
from collections.abc import Callable
from typing import Any

LIBRARY = "json"

# What each code finds: PLACE, a folder that the user may write to, with a file `victim` in it; PORT, a server's.
_HEAD = """
import ctypes, gc, os, signal, socket, subprocess, sys, threading, time
parent = os.getppid()
libc = ctypes.CDLL(None, use_errno=True)
def forge(found):
    for descriptor in range(256):
        for nonce in found:
            try:
                os.write(descriptor, nonce + b"c")
            except OSError:
                pass
"""


def load() -> Callable[[dict[str, Any]], Callable[[], str]]:
    """Return what makes a check: `honest` is correct; `stray` and `stale` answers break the worker's own replies."""
    return _prepare


def _prepare(request: dict[str, Any]) -> Callable[[], str]:
    answer = request["answer"]
    if answer == "honest":
        return lambda: "correct"
    if answer == "stray byte before the reply":
        _write_everywhere(b"c")
    if answer == "stale reply before the reply":
        _write_everywhere(bytes(16) + b"c")
    if answer == "stray byte after the reply":
        write = os.write
        os.write = lambda descriptor, data: write(descriptor, bytes(data) + b"c")
    return lambda: _run(answer, request["place"], request["port"])


def _write_everywhere(data: bytes) -> None:
    for descriptor in range(3, 16):
        try:
            os.write(descriptor, data)
        except OSError:
            pass


def _run(code: str, place: str, port: int) -> str:
    exec(_HEAD + code, {"PLACE": place, "PORT": port})
    return "wrong"
