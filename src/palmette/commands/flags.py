"""Flags that several commands share, and the config that they make together."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from palmette import registry
from palmette.errors import ConfigError
from palmette.units import one_line

_STRATEGIES = ", ".join(registry.built_ins("strategy"))

RunFile = Annotated[Path | None, typer.Argument(metavar="[RUN]", help="YAML file of the run.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="The same, as a flag.")]
Policy = Annotated[str | None, typer.Option(help="Model that proposes steps: zoo name, folder, hub name.")]
Reward = Annotated[str | None, typer.Option(help="Model that scores steps, package.module:name, or 'none'.")]
BackendName = Annotated[
    str | None, typer.Option("--backend", help="Who runs the policy: local, vllm, sglang, openai, package.module:name.")
]
Embedder = Annotated[str | None, typer.Option(help="Model that tells which steps say the same.")]
TaskName = Annotated[
    str | None, typer.Option(help="ladder, words, rg:GENERATOR, a JSONL file, or package.module:name.")
]
StrategyName = Annotated[str | None, typer.Option(help=f"{_STRATEGIES}, or package.module:name.")]
Width = Annotated[int | None, typer.Option(help="Branches in flight per question.")]
Questions = Annotated[int | None, typer.Option(help="How many questions.")]
Seed = Annotated[int | None, typer.Option(help="Seed of all sampling.")]
Out = Annotated[str | None, typer.Option(help="Folder of the run; must be new or empty.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Any key: --set search.depth=12")]
EtsConfig = Annotated[Path | None, typer.Option("--ets-config", help="Parameter file of the original ETS release.")]
EmbedDevice = Annotated[
    str | None, typer.Option("--embed_device", "--embed-device", help="cpu, cuda:N, or N as in the original.")
]
Devices = Annotated[str | None, typer.Option(help="2x24GiB, 1x80GiB, cpu:24GiB; default: those of this machine.")]
Trust = Annotated[bool, typer.Option("--trust", help="Import code of the run's own, package.module:name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]

_KEYS = {
    "policy": "policy.model", "backend": "policy.backend", "reward": "reward.model", "task": "task.name",
    "strategy": "search.strategy", "width": "search.width", "questions": "task.questions", "seed": "seed", "out": "out",
    "embedder": "embedder.model", "devices": "memory.devices",
}  # fmt: skip
"""The setting that each flag stands for."""


def keyed(**flags: Any) -> dict[str, Any]:
    """Return the values of flags, given by their names, by the keys of their settings."""
    return {_KEYS[name]: value for name, value in flags.items()}


def overrides_of(
    flags: dict[str, Any],
    settings: list[str] | None,
    config_file: Path | None = None,
    ets_config: Path | None = None,
    embed_device: str | None = None,
) -> dict[str, Any]:
    """Return settings by dotted key: those of an ETS file, over them flags, over them `--set`."""
    from palmette.run.ets_file import as_device, read_ets_file
    from palmette.yaml_file import parse_override

    overrides: dict[str, Any] = {}
    if ets_config is not None:
        if config_file is not None:
            raise ConfigError(f"{config_file} and --ets-config are two files for one run: give one of them")
        read = read_ets_file(ets_config)
        overrides.update(read.settings)
        print(*(one_line(f"{ets_config}: {line}", 200) for line in read.notes), sep="\n", file=sys.stderr)
    if embed_device is not None:
        flags = {**flags, "embedder.device": as_device(embed_device)}
    overrides.update((key, value) for key, value in flags.items() if value is not None)
    overrides.update(parse_override(text) for text in settings or [])
    if overrides.get("reward.model") == "none":
        overrides["reward.model"] = None
    return overrides


def one_file(run: Path | None, config_file: Path | None) -> Path | None:
    """Return the YAML file of a run, given as an argument or by `--config`; raise ConfigError for two."""
    if run is not None and config_file is not None:
        raise ConfigError(f"{run} and --config {config_file} are two files for one run: give one of them")
    return run or config_file


def check_trust(folder: Path, names: Sequence[str | None], *, trusted: bool) -> None:
    """Raise ConfigError for a name whose import would run code that a run's folder chose, not the user."""
    own = [name for name in names if name is not None and registry.is_reference(name)]
    if own and not trusted:
        raise ConfigError(
            f"{folder} names {one_line(own[0], 80)}, and importing it runs its code: add --trust if the run is yours"
        )


def numbers_of(flag: str, text: str) -> list[int]:
    """Return whole numbers that were written with commas between."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} {text}: give whole numbers with commas between, for example {flag} 16,64") from None
