"""Real servers on this machine, in environments of their own that `make servers` installs."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from palmette.launch.ask import free_port
from palmette.launch.process import members

ROOT = Path(__file__).parents[2]

SEARCH = (
    *("--strategy", "ets", "--width", "16", "--questions", "4"),
    *("--set", "policy.temperature=0", "--set", "search.total_tokens=160", "--set", "memory.prompt_tokens=64"),
)
"""Enough waves to end a server in the middle; at temperature 0 the tree does not depend on who samples."""


def python_of(engine: str) -> str:
    """Return the Python that has an engine; fail where it is not installed."""
    python = ROOT / f".venv-{engine}" / "bin" / "python"
    if not (ROOT / f".venv-{engine}" / ".shims").exists():
        pytest.fail(
            f"{engine} is not installed in .venv-{engine}: `make .venv-{engine}/.shims` says why", pytrace=False
        )
    return str(python)


def at(engine: str, role: str = "policy") -> list[str]:
    """Return flags for a server of this engine on a free port."""
    address = f"http://127.0.0.1:{free_port()}"
    return ["--set", f"servers.{engine}_python={python_of(engine)}", "--set", f"{role}.address={address}"]


def running(pids: Sequence[int]) -> list[int]:
    """Return what still runs of the groups that servers were started in."""
    return [member for pid in pids for member in members(pid)]


def children_of(parent: int) -> list[int]:
    """Return the processes that another one has started and that have not ended."""
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split()]
