"""`palmette up` and searches with real servers, as a user starts them."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from palmette.event_log import read_events
from palmette.events import WaveDone
from palmette.launch.ask import free_port
from palmette.launch.keeper import members

ROOT = Path(__file__).parents[2]
SEARCH = (
    *("--strategy", "ets", "--width", "16", "--questions", "4"),
    *("--set", "policy.temperature=0", "--set", "search.total_tokens=160", "--set", "memory.prompt_tokens=64"),
)
"""At temperature 0 the trees do not depend on who samples."""

_READY = re.compile(r"^(\w+): ready at (\S+) in .*?KV ([\d,]+) tokens? \(planned ([\d,]+)\)")


def engine_flags(engine: str, *roles: str) -> list[str]:
    """Return flags for servers of an engine, each on a free port; fail where the engine is not installed."""
    folder = ROOT / f".venv-{engine}"
    if not (folder / ".shims").exists():
        pytest.fail(f"{engine} is not installed: `make {folder.name}/.shims` says why", pytrace=False)
    told = [f"servers.{engine}_python={folder / 'bin' / 'python'}", "servers.start_seconds=3000"]
    told += [f"{role}.address=http://127.0.0.1:{free_port()}" for role in roles]
    return ["--backend", engine, *(word for setting in told for word in ("--set", setting))]


def command_of(*words: str) -> list[str]:
    return [sys.executable, "-m", "palmette", *words]


def searched(out: Path, *flags: str, search: Sequence[str] = SEARCH) -> Path:
    """Search as the command does; return the folder of the run."""
    done = subprocess.run(
        command_of("search", *search, *flags, "--out", str(out)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return out


def trees(run: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the steps of every question of a run: parent, tokens, whether it ended a solution."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for event in read_events(run):
        if isinstance(event, WaveDone):
            steps = [(node.parent, tuple(node.tokens), node.finished) for node in event.nodes]
            found.setdefault(event.question, []).extend(steps)
    return found


class Up:
    """`palmette up` that runs until `with` is left; `kv` and `planned_kv` have the tokens of each role."""

    def __init__(self, *flags: str) -> None:
        environment = {**os.environ, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1"}
        self._process = subprocess.Popen(command_of("up", *flags), stderr=subprocess.PIPE, text=True, env=environment)
        self._said: list[str] = []
        self.addresses: dict[str, str] = {}
        self.kv: dict[str, int] = {}
        self.planned_kv: dict[str, int] = {}
        self.groups: list[int] = []

    def __enter__(self) -> "Up":
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)
            if ready := _READY.match(line):
                self.addresses[ready[1]] = ready[2]
                self.kv[ready[1]], self.planned_kv[ready[1]] = (int(ready[place].replace(",", "")) for place in (3, 4))
            if "all servers are ready" in line:
                self.groups = groups_of(self._process.pid)
                return self
        raise AssertionError("".join(self._said))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate()
        assert self._process.returncode == 0
        assert not [member for group in self.groups for member in members(group)]

    def until(self, part: str) -> None:
        """Wait until `palmette up` says a line with this part; then its groups are looked up again."""
        assert self._process.stderr is not None
        while part not in (line := self._process.stderr.readline()):
            assert line, "".join(self._said)
            self._said.append(line)
        self.groups = groups_of(self._process.pid)


def groups_of(parent: int) -> list[int]:
    """Return the process groups of the servers that a process has started."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False)
    pids = [int(pid) for pid in listed.stdout.split()]
    return [pid for pid in pids if os.getpgid(pid) == pid]
