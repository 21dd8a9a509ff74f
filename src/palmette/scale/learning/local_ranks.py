"""Ranks as processes of this machine, called through pipes; no cluster is needed."""

import multiprocessing
import signal
import time
from collections.abc import Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

from palmette.errors import PalmetteError
from palmette.scale.learning.rank import Place
from palmette.scale.learning.rank_process import serve
from palmette.scale.learning.ranks import OTHERS_SECONDS, RankLostError, first_failure, named

_END_SECONDS = 10.0
_PRELOADED = ("transformers.models.auto.modeling_auto", "transformers.modeling_utils", "transformers.generation.utils")
"""What every model of transformers imports: once for all ranks, not seconds of a processor for each."""


class LocalRanks:
    """Processes forked from one that has imported what a rank imports. They end when this process ends.

    Until they have loaded their model they may take `start_seconds` to answer, then `answer_seconds`. With `logs`, a
    folder, each rank writes what it prints to a file there.
    """

    def __init__(
        self,
        count: int,
        *,
        threads: int,
        device: str,
        start_seconds: float,
        answer_seconds: float,
        logs: Path | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([serve.__module__, *_PRELOADED])
        self.count = count
        self._start_seconds, self._answer_seconds = start_seconds, answer_seconds
        self._has_built = False
        self._calls: list[connection.Connection[Any, Any]] = []
        self._lives: list[connection.Connection[Any, Any]] = []
        self._processes: list[Any] = []
        for rank in range(count):
            calls, its_calls = context.Pipe()
            life, its_life = context.Pipe()
            place = Place(rank, count, threads, _device_of(rank, device), answer_seconds, is_local=True)
            log = None if logs is None else logs / f"rank-{rank}.log"
            process = context.Process(target=serve, args=(place, log, its_calls, its_life), name=f"rank-{rank}")
            process.start()
            its_calls.close()
            its_life.close()
            self._calls.append(calls)
            self._lives.append(life)
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        """The ids of the processes, in order."""
        return [process.pid for process in self._processes]

    def call(self, method: str, *arguments: Any, only: Sequence[int] | None = None) -> list[Any]:
        """See `Ranks.call`."""
        asked = list(range(self.count)) if only is None else list(only)
        for rank in asked:
            try:
                self._calls[rank].send((method, arguments))
            except OSError:
                raise self._ended(rank, method) from None
        seconds = self._answer_seconds if self._has_built else max(self._start_seconds, self._answer_seconds)
        returned = self._answers(method, asked, seconds)
        self._has_built |= method == "build"
        return returned

    def _answers(self, method: str, asked: Sequence[int], seconds: float) -> list[Any]:
        until = time.monotonic() + seconds
        returned: dict[int, Any] = {}
        failed: dict[int, PalmetteError] = {}
        while missing := {rank: self._calls[rank] for rank in asked if rank not in returned and rank not in failed}:
            ready = connection.wait(list(missing.values()), max(0.0, until - time.monotonic()))
            if not ready:
                raise first_failure(failed, missing, self.count, method, seconds)
            for rank, pipe in missing.items():
                if pipe not in ready:
                    continue
                try:
                    is_returned, value = pipe.recv()
                except (EOFError, OSError):
                    raise self._ended(rank, method) from None
                (returned if is_returned else failed)[rank] = value
            if failed:
                until = min(until, time.monotonic() + OTHERS_SECONDS)
        if failed:
            raise failed[min(failed)]
        return [returned[rank] for rank in asked]

    def _ended(self, rank: int, method: str) -> RankLostError:
        process = self._processes[rank]
        process.join(_END_SECONDS)
        code = process.exitcode
        how = "is gone" if code is None else _signaled(-code) if code < 0 else f"ended with code {code}"
        return RankLostError(f"{named([rank], self.count)} (process {process.pid}) {how} in '{method}'")

    def close(self) -> None:
        """End all ranks: those that do not end by themselves are killed. Safe to call twice."""
        for pipe in (*self._calls, *self._lives):
            pipe.close()
        for process in self._processes:
            process.join(_END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._processes = []


def _signaled(number: int) -> str:
    by_kernel = ", as the kernel does where memory runs out," if number == signal.SIGKILL else ""
    return f"was ended by signal {number}{by_kernel}"


def _device_of(rank: int, device: str) -> str:
    """Return the device of a rank: on GPUs a different one for each."""
    return f"cuda:{rank}" if device.startswith("cuda") else device
