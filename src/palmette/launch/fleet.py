"""Servers started one after the other, watched while they are used, and stopped, whatever happens."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

from palmette.errors import BackendError, ConfigError, PalmetteError
from palmette.launch import ask
from palmette.launch.command import ServerCommand
from palmette.launch.faults import describe_code, last_lines, start_fault
from palmette.launch.measure import Measured, compare, free_bytes
from palmette.launch.process import ServerProcess, undisturbed
from palmette.units import format_seconds, one_line

_LOOK_SECONDS = 0.5

Tell = Callable[[str], None]
"""Takes a line for the user."""

Waiting = Callable[[ServerCommand, float, float], None]
"""Told again and again, while a server starts, for how many seconds it has been waited for and how many it has."""


class Fleet:
    """The servers of a run. Use it in a `with` block: entering starts them in order, leaving stops those started.

    A server that serves the asked model already is used and left alone. One that ends later is started again, each
    `restarts` times; when that does not help, `on_fault` is called with the error, in another thread.
    """

    def __init__(
        self,
        commands: Sequence[ServerCommand],
        logs: Path,
        *,
        start_seconds: float,
        restarts: int,
        tell: Tell,
        waiting: Waiting = lambda command, seconds, most: None,
        on_fault: Callable[[PalmetteError], None] = lambda error: None,
    ) -> None:
        self._commands = commands
        self._logs = logs
        self._start_seconds = start_seconds
        self._restarts_left = dict.fromkeys((command.role for command in commands), restarts)
        self._tell = tell
        self._waiting = waiting
        self._on_fault = on_fault
        self._processes: list[ServerProcess] = []
        self._stopping = Event()
        self._watch = Thread(target=self._watch_processes, name="palmette watch", daemon=True)
        self.measured: list[Measured] = []
        """What was found after each start."""

    @property
    def processes(self) -> tuple[ServerProcess, ...]:
        """The servers that were started here."""
        return tuple(self._processes)

    def __enter__(self) -> "Fleet":
        """Start all servers. Raises ConfigError, BudgetError or BackendError, with none left running, if one fails."""
        self._logs.mkdir(parents=True, exist_ok=True)
        try:
            for command in self._commands:
                self._start(command)
        except BaseException:
            self.stop()
            raise
        if self._processes:
            self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the servers that were started here, the last one first. Safe to call twice."""
        self._stopping.set()
        if self._watch.is_alive():
            self._watch.join()
        for process in reversed(self._processes):
            process.stop()

    def _start(self, command: ServerCommand) -> None:
        if ask.is_port_taken(command):
            _check_found(command)
            self._tell(f"{command.role}: {command.address} serves {_short(command)} already; it is left as it is")
            return
        before = free_bytes(command.device)
        begun = time.monotonic()
        with undisturbed():
            process = ServerProcess(command, self._logs / f"{command.role}.log")
            self._processes.append(process)
        self._tell(f"{command.role}: starting {command.engine} with {_short(command)}; output in {process.log}")
        self._wait_until_well(process)
        _check_model(command)
        measured = compare(command, before, free_bytes(command.device), ask.kv_tokens(command))
        self.measured.append(measured)
        self._tell(
            f"{command.role}: ready at {command.address} in {format_seconds(time.monotonic() - begun)}, {measured}"
        )

    def _wait_until_well(self, process: ServerProcess) -> None:
        """Return when a server says that it is ready. Raises the reason where it ends, or is not ready in time."""
        command, begun = process.command, time.monotonic()
        while not self._stopping.is_set():
            is_well = ask.is_port_taken(command) and ask.is_well(command)
            if (code := process.exit_code()) is not None:
                raise start_fault(command, process.said(), code, process.log)
            if is_well:
                return
            waited = time.monotonic() - begun
            if waited > self._start_seconds:
                raise BackendError(
                    f"the {command.role} server ({command.engine} at {command.address}) was not ready after "
                    f"{self._start_seconds:g} s (servers.start_seconds): {last_lines(process.said())}; "
                    f"its output is in {process.log}"
                )
            self._waiting(command, waited, self._start_seconds)
            self._stopping.wait(_LOOK_SECONDS)

    def _watch_processes(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            for place, process in enumerate(self._processes):
                if (code := process.exit_code()) is None:
                    continue
                try:
                    self._processes[place] = self._restarted(process, code)
                except PalmetteError as error:
                    if not self._stopping.is_set():
                        self._on_fault(error)
                    return

    def _restarted(self, ended: ServerProcess, code: int) -> ServerProcess:
        command = ended.command
        told = f"the {command.role} server ended with {describe_code(code)}"
        said = last_lines(ended.said())
        ended.stop()  # Of its group others may be left, with its memory.
        if not self._restarts_left[command.role]:
            raise BackendError(
                f"{told}, and servers.restarts allows no other start: {said}; its output is in {ended.log}"
            )
        self._restarts_left[command.role] -= 1
        self._tell(f"{command.role}: {told}; it is started again")
        process = ServerProcess(command, ended.log)
        try:
            self._wait_until_well(process)
        except BaseException:
            process.stop()
            raise
        if self._stopping.is_set():
            process.stop()
        else:
            self._tell(f"{command.role}: ready again at {command.address}")
        return process


def _check_found(command: ServerCommand) -> None:
    """Raise ConfigError unless who listens at the address is a server of the asked model."""
    served = ask.served_models(command)
    free = f"http://127.0.0.1:{ask.free_port()}"
    if served is None:
        raise ConfigError(
            f"port {command.port} is taken by a program that does not answer as {command.engine} does: "
            f"end it, or set {command.role}.address to a free one, such as {free}"
        )
    if not ask.is_same_model(command.model, served):
        raise ConfigError(
            f"{command.address} serves {one_line(', '.join(served), 200)}, not {command.model}: end that server, or "
            f"set {command.role}.address to a free one, such as {free}"
        )


def _check_model(command: ServerCommand) -> None:
    """Raise BackendError unless the server that was started serves what it was told to serve."""
    served = ask.served_models(command)
    if served is None or not ask.is_same_model(command.model, served):
        found = "what it does not tell" if served is None else one_line(", ".join(served), 200)
        raise BackendError(f"{command.address} was started with {command.model} and serves {found}")


def _short(command: ServerCommand) -> str:
    return one_line(Path(command.model).name, 120)
