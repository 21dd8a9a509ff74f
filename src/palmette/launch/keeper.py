"""Becomes a server, after leaving a process behind that ends the server's group should palmette be killed.

Run as a file, with nothing but the standard library: `python keeper.py PALMETTE_PID PROGRAM WORDS...`, in a
session of its own.
"""

import os
import signal
import sys
import time
from pathlib import Path

GRACE_SECONDS = 15.0
"""How long a server may take to end by itself; SGLang takes 6 s, vLLM 1 s."""

_LOOK_SECONDS = 0.05
_PARENT_LOOK_SECONDS = 0.5


def members(group: int) -> list[int]:
    """Return the processes of a group that have not ended; of those that have, only the id is left."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            state, _, its_group = _stat(int(entry.name)) or ("X", 0, 0)
            if its_group == group and state not in "ZX":
                found.append(int(entry.name))
    return found


def end_group(group: int) -> None:
    """End every process of a group: ask, wait, then kill. Returns when all are gone."""
    _signal(group, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while members(group) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    _signal(group, signal.SIGKILL)
    while members(group):
        time.sleep(_LOOK_SECONDS)


def watch(server: int, parent: int) -> None:
    """Wait until a server is not its parent's child any more, then end what is left of its group.

    A parent that lives has ended the group before it reaps the server; one that was killed has not.
    """
    while (stat := _stat(server)) is not None and stat[1] == parent:
        time.sleep(_PARENT_LOOK_SECONDS)
    if members(server):
        end_group(server)


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Return the state, the parent and the group of a process, None where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), int(fields[2])


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def _leave_watch_behind(server: int, parent: int) -> None:
    """Start the process that watches. It is no child of the server, which may count its children."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    os.setsid()  # Not in the group that it may have to end, and out of reach of Ctrl-C.
    if os.fork() == 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        watch(server, parent)
    os._exit(0)


def main(parent: int, words: list[str]) -> None:
    """Become the program that the words name."""
    _leave_watch_behind(os.getpid(), parent)
    try:
        os.execv(words[0], words)  # noqa: S606  # The words are the command of a server, as palmette up shows it.
    except OSError as error:
        print(f"cannot start {words[0]}: {error.strerror}", file=sys.stderr)
        os._exit(126)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
