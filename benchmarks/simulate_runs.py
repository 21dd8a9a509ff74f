"""Real runs for `simulate_check`: processes that search together, round after round, and commands by Ray."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palmette.simulate.work import Recorded, read_run

Part = list[Recorded]
"""What each of several workers recorded."""

_CLOCKED = "import time\nif {cpu}:\n    time.monotonic = time.process_time\n"
_WORKER = """
import json, sys
import palmette
with palmette.Searcher(settings=json.loads(sys.argv[1])) as searcher:
    searcher.search(palmette.load_task("ladder", questions=2, skip=5000))
    print("ready", flush=True)
    for line in sys.stdin:
        out, skip, count = json.loads(line)
        searcher.search(palmette.load_task("ladder", questions=count, skip=skip), out=out)
        print("done", flush=True)
"""
_COMMAND = "import sys\nfrom palmette.__main__ import main\nmain()\n"


class Group:
    """So many processes of one thread each, which have loaded their models and wait for questions.

    With `cpu` they count CPU seconds in place of those of the wall, and search one after the other.
    """

    def __init__(self, settings: Mapping[str, Any], workers: int, *, cpu: bool) -> None:
        self.workers = workers
        self._cpu = cpu
        self._processes = [start(_WORKER, [json.dumps(settings)], cpu=cpu) for _ in range(workers)]
        for process in self._processes:
            _hear(process, "ready")

    def search(self, folder: Path, skip: int, count: int) -> Part:
        """Search so many questions, an equal part of them in each process; return what each recorded."""
        shares = [count // self.workers + (place < count % self.workers) for place in range(self.workers)]
        told = [
            json.dumps([str(folder / f"part{place}"), skip + sum(shares[:place]), share])
            for place, share in enumerate(shares)
        ]
        pairs = list(zip(self._processes, told, strict=True))
        for group in [[pair] for pair in pairs] if self._cpu else [pairs]:
            for process, line in group:
                assert process.stdin is not None
                process.stdin.write(f"{line}\n")
                process.stdin.flush()
            for process, _ in group:
                _hear(process, "done")
        return [read_run(folder / f"part{place}") for place in range(self.workers)]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            finish(process)


@contextmanager
def groups(settings: Mapping[str, Any], sizes: Mapping[str, int], *, cpu: bool) -> Iterator[dict[str, Group]]:
    """Have groups of processes by name; end them afterwards."""
    started: dict[str, Group] = {}
    try:
        for name, workers in sizes.items():
            started[name] = Group(settings, workers, cpu=cpu)
        yield started
    finally:
        for group in started.values():
            group.close()


def command(arguments: list[str], *, cpu: bool) -> None:
    """Run one palmette command to its end."""
    finish(start(_COMMAND, arguments, cpu=cpu))


def start(script: str, arguments: list[str], *, cpu: bool) -> "subprocess.Popen[str]":
    """Start a Python script with one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.Popen(
        [sys.executable, "-c", _CLOCKED.format(cpu=cpu) + script, *arguments], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env=environment, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def finish(process: "subprocess.Popen[str]") -> None:
    """Wait until a process has ended. Raises AssertionError if it failed."""
    process.communicate()
    assert process.returncode == 0, "a run has failed"


def _hear(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    while (line := process.stdout.readline()) != f"{word}\n":
        assert line, "a worker has ended too early"
