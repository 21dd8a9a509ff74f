"""Servers that palmette starts: in order, checked, started again once, stopped with all that belongs to them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from palmette.errors import BackendError, BudgetError, ConfigError, PalmetteError
from palmette.launch import ask, fleet
from palmette.launch.command import ServerCommand
from palmette.launch.faults import start_fault
from palmette.launch.fleet import Fleet
from palmette.launch.keeper import members
from palmette.launch.process import ServerProcess
from tests.command import palmette
from tests.dialects import Manner, serving
from tests.programs import fake_program

Commands = Callable[..., ServerCommand]


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_LOOK_SECONDS", 0.02)


@pytest.fixture
def command(tmp_path: Path) -> Commands:
    """Makes the command of a fake server on a free port; keywords tell it how to behave."""
    program = str(fake_program(tmp_path))

    def make(role: str = "policy", engine: str = "vllm", port: int | None = None, **behavior: Any) -> ServerCommand:
        port = ask.free_port() if port is None else port
        served = ["serve", "/models/asked"] if engine == "vllm" else ["--model-path", "/models/asked"]
        return ServerCommand(
            role, engine, "/models/asked", f"http://127.0.0.1:{port}", {"FAKE_SERVER": json.dumps(behavior)},
            (program, "-m", "engine", *served, "--port", str(port)), "cpu", 1280, 1024, 2**20,
        )  # fmt: skip

    return make


class Told(SimpleQueue[Any]):
    """What a fleet says: its lines, and errors of servers that have ended for good."""

    def until(self, part: str) -> str:
        """Return the next thing said that has this part."""
        while part not in (line := str(self.get())):
            pass
        return line


def fleet_of(tmp_path: Path, *commands: ServerCommand, told: Told | None = None, **changed: Any) -> Fleet:
    heard = told or Told()
    given: dict[str, Any] = {"start_seconds": 60.0, "restarts": 1, **changed}
    return Fleet(commands, tmp_path / "logs", tell=heard.put, on_fault=heard.put, **given)


def test_servers_start_one_after_the_other_and_every_process_is_gone_at_the_end(
    tmp_path: Path, command: Commands
) -> None:
    told = Told()
    reward, policy = command("reward", "sglang", child=True), command("policy", "vllm", child=True)
    with fleet_of(tmp_path, reward, policy, told=told) as started:
        groups = [process.pid for process in started.processes]
        assert all(len(members(group)) >= 2 for group in groups) and os.getpgid(0) not in groups
        assert [measured.kv_tokens for measured in started.measured] == [35_412, 1280]
        said = [told.get() for _ in range(4)]
    assert [line.split(",")[0].split(" in ")[0] for line in said] == [
        f"reward: starting sglang with asked; output in {tmp_path / 'logs' / 'reward.log'}".split(" in ")[0],
        f"reward: ready at {reward.address}",
        f"policy: starting vllm with asked; output in {tmp_path / 'logs' / 'policy.log'}".split(" in ")[0],
        f"policy: ready at {policy.address}",
    ]
    assert "KV 35,412 tokens (planned 1,280)" in said[1] and "not the KV that was planned" in said[1]
    assert "KV 1,280 tokens (planned 1,280)" in said[3] and "not the KV" not in said[3]
    assert not [member for group in groups for member in members(group)]
    assert "loading" in (tmp_path / "logs" / "policy.log").read_text()
    assert not ask.is_port_taken(policy) and not ask.is_port_taken(reward)


LOW = "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.3. Raise "


@pytest.mark.parametrize(
    ("said", "code", "error", "told"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", 1, BudgetError, "ran out of memory on cpu"),
        ("Free memory on device (3.1/23.7 GiB) on startup is less than desired GPU memory utilization (0.9, 21.3 GiB).",
         1, BudgetError, "ran out of memory on cpu"),
        ("loading", -9, BudgetError, "was ended by the system, as happens for lack of memory on cpu"),
        (LOW + "--mem-fraction-static above 0.612 (minimum viable = 0.6111).", 1, BudgetError,
         "too little memory for its weights and KV on cpu, it needs more than 0.612"),
        ("No available memory for the cache blocks.", 1, BudgetError, "too little memory for its weights and KV"),
        ("ModuleNotFoundError: No module named 'vllm'", 1, BackendError, "has no module vllm: set servers.vllm_python"),
        ("[Errno 98] while attempting to bind: address already in use", 1, BackendError, "port 30000 was taken"),
        ("first\n\nsecond\nthird\nKeyError: 'x'", 7, BackendError,
         "ended with exit code 7 while it started: second | third | KeyError: 'x'"),
        ("\x1b[2J", -11, BackendError, "ended with signal SIGSEGV while it started:  [2J"),
        ("", 0, BackendError, "ended with exit code 0 while it started: it wrote nothing"),
    ],
)  # fmt: skip
def test_why_a_server_did_not_start_is_told_in_one_line(
    command: Commands, said: str, code: int, error: type[PalmetteError], told: str
) -> None:
    fault = start_fault(command(port=30000), f"$ vllm serve\n{said}", code, Path("runs/x/policy.log"))
    assert type(fault) is error and told in str(fault) and str(fault).isprintable()
    assert "output is in runs/x/policy.log" in str(fault) or "was taken" in told


def test_where_one_server_does_not_start_the_others_are_stopped(tmp_path: Path, command: Commands) -> None:
    started = fleet_of(tmp_path, command("reward"), command("policy", fails="KeyError: 'x'", code=7))
    with pytest.raises(BackendError, match="exit code 7 while it started: loading .* KeyError: 'x'"), started:
        pass
    assert not any(members(process.pid) for process in started.processes) and len(started.processes) == 2


def test_a_server_that_is_never_ready_is_given_up_after_its_time(tmp_path: Path, command: Commands) -> None:
    started = fleet_of(tmp_path, command(waits=True), start_seconds=0.1)
    with pytest.raises(BackendError, match=r"was not ready after 0\.1 s \(servers\.start_seconds\)"), started:
        pass
    assert not members(started.processes[0].pid)


def test_a_program_that_is_not_there_is_told_with_the_setting_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for words, engine, told in (
        (("vllm", "serve", "m"), "vllm", "vllm is not found on the PATH: install vLLM, or set servers.vllm_python"),
        (("python", "-m", "sglang.launch_server"), "sglang", "python is not found on the PATH: install SGLang"),
        (("/nowhere/python", "-m", "vllm"), "vllm", "servers.vllm_python: there is no program /nowhere/python"),
    ):
        made = ServerCommand("policy", engine, "m", "http://127.0.0.1:1", {}, words, "cpu", 1, 1, 1)
        with pytest.raises(ConfigError, match=told):
            ServerProcess(made, tmp_path / "log")


def test_an_address_that_is_taken_is_refused_unless_the_asked_model_is_served_there(
    tmp_path: Path, command: Commands
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = command(port=other.getsockname()[1])
        other.close()
    with serving(Manner("vllm", model="/elsewhere/other"), Manner("vllm", model="/elsewhere/Asked")) as [wrong, right]:
        ports = [int(server.address.rpartition(":")[2]) for server in (wrong, right)]
        with pytest.raises(ConfigError, match=r"serves /elsewhere/other, not /models/asked: end that server, or set "
                           r"policy\.address to a free one, such as http://127\.0\.0\.1:\d+"), \
                fleet_of(tmp_path, command(port=ports[0])):  # fmt: skip
            pass
        with pytest.raises(ConfigError, match="is taken by a program that does not answer as sglang does"), \
                fleet_of(tmp_path, command(engine="sglang", port=ports[0])):  # fmt: skip
            pass
        with fleet_of(tmp_path, command(port=ports[1])) as found:
            assert not found.processes
        assert ask.is_port_taken(command(port=ports[1]))  # It is not ours to stop.
    with fleet_of(tmp_path, taken) as started:
        assert len(started.processes) == 1  # The port is free again.


def test_a_server_that_serves_another_model_than_it_was_told_is_refused(tmp_path: Path, command: Commands) -> None:
    with (
        pytest.raises(BackendError, match="was started with /models/asked and serves other"),
        fleet_of(tmp_path, command(model="other")),
    ):
        pass


def test_a_server_that_dies_is_started_again_once_and_nothing_of_it_is_left(tmp_path: Path, command: Commands) -> None:
    told = Told()
    with fleet_of(tmp_path, command(child=True), told=told) as started:
        first = started.processes[0].pid
        os.kill(first, signal.SIGKILL)
        assert "the policy server ended with signal SIGKILL; it is started again" in told.until("ended")
        told.until("ready again")
        second = started.processes[0].pid
        assert second != first and not members(first) and ask.is_port_taken(started.processes[0].command)
        os.kill(second, signal.SIGKILL)
        fault = told.until("servers.restarts")
        assert "ended with signal SIGKILL, and servers.restarts allows no other start" in fault
    assert not members(second)


def test_a_server_that_does_not_come_back_is_told_with_its_reason(tmp_path: Path, command: Commands) -> None:
    told = Told()
    asked = command()
    with fleet_of(tmp_path, asked, told=told) as started:
        asked.environment["FAKE_SERVER"] = json.dumps({"fails": "CUDA out of memory"})  # type: ignore[index]
        os.kill(started.processes[0].pid, signal.SIGKILL)
        told.until("ran out of memory")


class Command:
    """`palmette up` with a fake server that has a child; `group` is the server's when it is ready."""

    def __init__(self, folder: Path) -> None:
        told = [
            f"servers.vllm_python={fake_program(folder)}",
            f"policy.address=http://127.0.0.1:{ask.free_port()}",
            "reward.model=null",
        ]
        settings = [word for setting in told for word in ("--set", setting)]
        words = [sys.executable, "-m", "palmette", "up", "--backend", "vllm", *settings, "--out", str(folder / "run")]
        self.process = subprocess.Popen(
            words, stderr=subprocess.PIPE, text=True, env={**os.environ, "FAKE_SERVER": '{"child": true}'},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # Tests in the background inherit none.
        )  # fmt: skip
        assert self.process.stderr is not None
        self.said = [next(self.process.stderr)]
        while "all servers are ready" not in self.said[-1]:
            self.said.append(next(self.process.stderr))
        pid = str(self.process.pid)
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", pid], capture_output=True, text=True)
        self.group = next(pid for pid in map(int, listed.stdout.split()) if os.getpgid(pid) == pid)
        assert len(members(self.group)) == 2

    def end(self, number: int) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        self.said += self.process.communicate()[1].splitlines()
        return self.process.returncode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_keeps_servers_up_until_it_is_ended_and_leaves_nothing_behind(number: int, tmp_path: Path) -> None:
    command = Command(tmp_path)
    assert command.end(number) == 0
    assert "stopping the servers that were started here" in command.said[-1] and not members(command.group)
    assert "serve" in (tmp_path / "run" / "servers" / "policy.log").read_text(encoding="utf-8")


def test_servers_end_with_all_their_processes_where_palmette_is_killed(tmp_path: Path) -> None:
    command = Command(tmp_path)
    assert command.end(signal.SIGKILL) == -signal.SIGKILL
    while members(command.group):
        time.sleep(0.05)


def test_a_dry_run_prints_the_commands_and_starts_nothing(tmp_path: Path) -> None:
    done = palmette(
        "up", "--dry-run", "--backend", "sglang", "--policy", "peiyi9979/mistral-7b-sft", "--strategy", "ets",
        "--reward", "peiyi9979/math-shepherd-mistral-7b-prm", "--devices", "2x24GiB", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("1. reward on cuda:1: CUDA_VISIBLE_DEVICES=1 python -m sglang.launch_server")
    assert second.startswith("2. policy on cuda:0: CUDA_VISIBLE_DEVICES=0 python -m sglang.launch_server")
    assert "--mem-fraction-static 0.85" in first and not list(tmp_path.iterdir())
    refused = palmette("up", "--backend", "sglang", "--devices", "1x24GiB", cwd=tmp_path)
    assert refused.returncode == 2 and "memory.devices is 1x24GiB, and this machine has no GPU" in refused.stderr
