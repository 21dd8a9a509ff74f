"""From a run's config to its servers: planned, started, and the config that finds them."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from palmette.config import load_config
from palmette.errors import BudgetError, ConfigError, PalmetteError
from palmette.launch.command import ServerCommand, server_commands
from palmette.launch.fleet import Fleet, Tell, Waiting
from palmette.planner.advice import refusal
from palmette.planner.devices import detect_gpus
from palmette.planner.run_plan import devices_of, plan_run
from palmette.server_settings import LOGS
from palmette.settings import Config, PolicySettings, RewardSettings


def planned_commands(config: Config) -> list[ServerCommand]:
    """Return how to start the servers of a run, in their order. Raises BudgetError where the plan does not fit."""
    devices = devices_of(config)
    job, plan = plan_run(config, devices=devices)
    if not plan.fits:
        raise BudgetError(refusal(job, devices, plan))
    return server_commands(config, plan)


def with_addresses(config: Config, commands: list[ServerCommand]) -> Config:
    """Return the config of a search on these servers, which waits for one that is started again."""
    told: dict[str, object] = {}
    for command in commands:
        told |= {f"{command.role}.backend": command.engine, f"{command.role}.address": [command.address]}
        settings: PolicySettings | RewardSettings = config.policy if command.role == "policy" else config.reward
        if "return_seconds" not in settings.model_fields_set and config.servers.restarts:
            told[f"{command.role}.return_seconds"] = config.servers.start_seconds
    return load_config(config, told, given_by="palmette up")


@contextmanager
def started(
    config: Config, commands: list[ServerCommand], folder: Path, tell: Tell, waiting: Waiting
) -> Iterator[Fleet]:
    """Start servers, with their output below a run's folder; stop them at the end, on Ctrl-C and on SIGTERM.

    Raises in the main thread the error of a server that has ended for good. Only the main thread can call this.
    """
    if any(command.device.startswith("cuda") for command in commands) and not detect_gpus():
        raise ConfigError(
            f"memory.devices is {config.memory.devices}, and this machine has no GPU: --dry-run prints the commands"
        )
    faults: list[PalmetteError] = []

    def fail(error: PalmetteError) -> None:
        faults.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    fleet = Fleet(
        commands,
        folder / LOGS,
        start_seconds=config.servers.start_seconds,
        restarts=config.servers.restarts,
        tell=tell,
        waiting=waiting,
        on_fault=fail,
    )
    with _raising(signal.SIGTERM, lambda: faults[0] if faults else KeyboardInterrupt()):
        try:
            with fleet:
                yield fleet
        finally:
            with _ignoring_signals():  # A second Ctrl-C must not leave servers behind.
                fleet.stop()


@contextmanager
def _raising(number: int, error: Callable[[], BaseException]) -> Iterator[None]:
    def handle(_: int, __: FrameType | None) -> None:
        raise error()

    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def _ignoring_signals() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
