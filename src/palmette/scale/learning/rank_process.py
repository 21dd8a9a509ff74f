"""What runs in the process of a local rank: waits for calls, answers them, ends with the process that started it."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from palmette.errors import BudgetError, PalmetteError
from palmette.memory.oom import is_out_of_memory
from palmette.scale.learning.rank import Place, Rank
from palmette.scale.learning.ranks import RankLostError
from palmette.units import describe_error


def serve(
    place: Place, log: Path | None, calls: "Connection[Any, Any]", life: "Connection[Any, Any]"
) -> None:  # pragma: no cover - in a process of its own
    """Answer calls until the driver closes its end, or is gone. What is printed goes to the log.

    A rank that waits for others inside a call does not read the next one. That the driver is gone is seen by a thread
    that waits at a second pipe, which is never written to.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's: it ends its ranks.
    if log is not None:
        for number in (1, 2):  # Gloo prints on stdout, which belongs to the result of the command.
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
        print(f"process {os.getpid()} is rank {place.rank} of {place.ranks}", flush=True)
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    rank = Rank(place)
    while True:
        try:
            method, arguments = calls.recv()
        except EOFError:
            return
        calls.send(answered(rank, place, method, arguments))


def answered(rank: Rank, place: Place, method: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """Call a method; return whether it returned, with what it returned or the error that it raised."""
    try:
        return True, getattr(rank, method)(*arguments)
    except PalmetteError as error:
        return False, error
    except Exception as error:  # noqa: BLE001 - the driver tells it, or what it followed from
        told = f"rank {place.rank} of {place.ranks}, asked for '{method}': {describe_error(error)}"
        if is_out_of_memory(error):
            return False, BudgetError(f"{told}. Lower train.micro_batch_tokens, or raise scale.ranks")
        return False, RankLostError(told)


def _end_with(life: "Connection[Any, Any]") -> None:
    try:
        life.recv_bytes()
    except (EOFError, OSError):
        os._exit(0)
