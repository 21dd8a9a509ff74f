"""`palmette up`: starts the planned servers, waits until they are ready, stops them at the end."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from palmette.commands import flags
from palmette.units import format_seconds, one_line

if TYPE_CHECKING:
    from palmette.launch.command import ServerCommand

_PLAIN_SECONDS = 10.0
"""How often waiting is said where stderr is no terminal."""


def up(
    run: flags.RunFile = None,
    config_file: flags.ConfigFile = None,
    policy: flags.Policy = None,
    reward: flags.Reward = None,
    task: flags.TaskName = None,
    strategy: flags.StrategyName = None,
    width: flags.Width = None,
    questions: flags.Questions = None,
    backend: flags.BackendName = None,
    seed: flags.Seed = None,
    out: flags.Out = None,
    settings: flags.Settings = None,
    embedder: flags.Embedder = None,
    devices: flags.Devices = None,
    ets_config: flags.EtsConfig = None,
    embed_device: flags.EmbedDevice = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands in their order, start nothing.")
    ] = False,
) -> None:
    """Start the servers of a run as planned, keep them up until Ctrl-C, then stop them.

    It takes every flag of `palmette search`; --out is the folder for their output.
    """
    from palmette.config import load_config
    from palmette.launch.run import planned_commands, started
    from palmette.run.folder import new_folder

    given = flags.keyed(
        policy=policy, backend=backend, reward=reward, task=task, strategy=strategy, width=width, questions=questions,
        seed=seed, out=out, embedder=embedder, devices=devices,
    )  # fmt: skip
    config_file = flags.one_file(run, config_file)
    config = load_config(config_file, flags.overrides_of(given, settings, config_file, ets_config, embed_device))
    commands = planned_commands(config)
    if dry_run:
        for order, command in enumerate(commands, 1):
            print(f"{order}. {command.role} on {command.device}: {command}")
        return
    waits = StartLine()
    with started(config, commands, new_folder(config, "servers"), waits.tell, waits.show):
        keys = " ".join(f"--set {command.role}.address={command.address}" for command in commands)
        waits.tell(f"all servers are ready; Ctrl-C stops them. Search with --backend {commands[0].engine} {keys}")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            waits.tell("stopping the servers that were started here")


class StartLine:
    """Shows on stderr what servers do: lines, and on a terminal one that changes while a server starts."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._said = 0.0
        self._has_line = False

    def tell(self, text: str) -> None:
        """Show a line."""
        self._clear()
        self._said = time.monotonic()
        print(one_line(text), file=sys.stderr, flush=True)

    def show(self, command: "ServerCommand", seconds: float, most_seconds: float) -> None:
        """Show for how long a server has been waited for."""
        text = f"{command.role}: starting, {format_seconds(seconds)} of at most {format_seconds(most_seconds)}"
        if self._is_terminal:
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
            self._has_line = True
        elif time.monotonic() - self._said >= _PLAIN_SECONDS:
            self.tell(text)

    def _clear(self) -> None:
        if self._has_line:
            print("\r\x1b[K", end="", file=sys.stderr)
        self._has_line = False
