"""The processes of one server: started in a group of their own, their output in a file, ended as a group."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from palmette.errors import ConfigError, RunError
from palmette.launch import keeper
from palmette.launch.command import ServerCommand
from palmette.units import one_line

_TAIL_BYTES = 2**16


class ServerProcess:
    """A server that this process has started. Nobody else's process is ever signaled.

    A watching process beside it ends the server should this process be killed; see `keeper`.
    """

    def __init__(self, command: ServerCommand, log: Path) -> None:
        """Start it. Raises ConfigError where its program is not found, RunError where the log cannot be written."""
        self.command = command
        self.log = log
        program = shutil.which(command.words[0])
        if program is None:
            raise ConfigError(_not_found(command))
        try:
            with log.open("ab") as output:
                self._begun = output.tell()
                output.write(f"$ {command}\n".encode())
                output.flush()
                kept = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid())]
                self._process = subprocess.Popen(
                    [*kept, os.path.abspath(program), *command.words[1:]],
                    env={**os.environ, **command.environment, "PYTHONUNBUFFERED": "1"},
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise RunError(f"cannot start {one_line(program, 200)}, output to {log}: {error.strerror}") from error

    @property
    def pid(self) -> int:
        """Its id, which is that of its group too."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code of the process that was started, negative for a signal; None while it runs.

        It is not reaped before `stop`: until then nobody else can get the id of its group.
        """
        if self._process.returncode is not None:
            return self._process.returncode
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def said(self) -> str:
        """Return the end of what it has written since its start, at most 64 KiB."""
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._begun, size - _TAIL_BYTES))
            return log.read().decode(errors="replace")

    def stop(self) -> None:
        """End every process of the group: ask, wait, then kill. Returns when all are gone. Safe to call twice."""
        if self._process.returncode is not None:
            return
        keeper.end_group(self.pid)
        self._process.wait()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Have Ctrl-C and SIGTERM wait for the end of the block: a process just started would be known to nobody."""
    if current_thread() is not main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, _: Any) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for one in arrived:
        signal.raise_signal(one)


def _not_found(command: ServerCommand) -> str:
    key = f"servers.{command.engine}_python"
    program = one_line(command.words[0], 200)
    if "-m" in command.words[:2] and command.words[0] != "python":
        return f"{key}: there is no program {program}"
    name = {"vllm": "vLLM", "sglang": "SGLang"}[command.engine]
    return f"{program} is not found on the PATH: install {name}, or set {key} to the Python that has it"
