"""Flags in, exit code out."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from palmette import __version__
from palmette.errors import ConfigError, PalmetteError
from palmette.units import one_line

app = typer.Typer(
    help="Makes language models reason better in the memory you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def main() -> None:
    """Run a command; every error a user can cause is one line on stderr with its exit code."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(arguments)
    except PalmetteError as error:
        if debug:
            raise
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("stopped", 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:
        if debug:
            raise
        _fail(f"unexpected {type(error).__name__}: {error}. --debug shows where", 1)


def _fail(message: str, code: int) -> None:
    print(f"palmette: {one_line(message)}", file=sys.stderr)
    sys.exit(code)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if version:
        print(f"palmette {__version__}")
        raise typer.Exit


@app.command()
def search(
    config_file: Annotated[Path | None, typer.Option("--config", help="YAML file of the run.")] = None,
    policy: Annotated[str | None, typer.Option(help="Model that proposes steps.")] = None,
    reward: Annotated[str | None, typer.Option(help="Model that scores steps; 'none' for none.")] = None,
    task: Annotated[str | None, typer.Option(help="ladder, rg:GENERATOR or a JSONL file.")] = None,
    strategy: Annotated[str | None, typer.Option(help="best_of_n, beam, dvts, rebase or ets.")] = None,
    width: Annotated[int | None, typer.Option(help="Branches in flight per question.")] = None,
    questions: Annotated[int | None, typer.Option(help="How many questions.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all sampling.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; must be new or empty.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any key: --set search.depth=12")] = None,
    ets_config: Annotated[
        Path | None, typer.Option("--ets-config", help="Parameter file of the original ETS release.")
    ] = None,
    embed_device: Annotated[
        str | None, typer.Option("--embed_device", "--embed-device", help="cpu, cuda:N, or N as in the original.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Search a task's questions with one strategy and report accuracy, tokens and KV cache."""
    from palmette import console
    from palmette.config import load_config

    flags: dict[str, Any] = {
        "policy.model": policy,
        "reward.model": reward,
        "task.name": task,
        "search.strategy": strategy,
        "search.width": width,
        "task.questions": questions,
        "seed": seed,
        "out": out,
    }
    overrides = _overrides(flags, settings, config_file, ets_config, embed_device)
    if resume is None:
        console.search(load_config(config_file, overrides), as_json=as_json)
        return
    if overrides or config_file or ets_config:
        given = "--config" if config_file else "--ets-config" if ets_config else next(iter(overrides))
        raise ConfigError(f"--resume continues a run with the config it has: leave {given} out")
    console.resume(resume, as_json=as_json)


@app.command()
def plan(
    config_file: Annotated[Path | None, typer.Option("--config", help="YAML file of the run.")] = None,
    policy: Annotated[str | None, typer.Option(help="Model that proposes steps.")] = None,
    reward: Annotated[str | None, typer.Option(help="Model that scores steps; 'none' for none.")] = None,
    embedder: Annotated[str | None, typer.Option(help="Model that groups steps.")] = None,
    strategy: Annotated[str | None, typer.Option(help="best_of_n, beam, dvts, rebase or ets.")] = None,
    width: Annotated[int | None, typer.Option(help="Branches in flight per question.")] = None,
    devices: Annotated[str | None, typer.Option(help="2x24GiB, 1x80GiB, cpu:24GiB; default: detected.")] = None,
    train: Annotated[bool, typer.Option("--train", help="Plan updates too, not only a search.")] = False,
    predict: Annotated[
        bool, typer.Option("--predict", help="With --train: the update itself on fake tensors; takes seconds.")
    ] = False,
    server: Annotated[str, typer.Option(help="sglang or vllm: whose KV the table shows.")] = "sglang",
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any key: --set search.depth=12")] = None,
    ets_config: Annotated[
        Path | None, typer.Option("--ets-config", help="Parameter file of the original ETS release.")
    ] = None,
    embed_device: Annotated[
        str | None, typer.Option("--embed_device", "--embed-device", help="cpu, cuda:N, or N as in the original.")
    ] = None,
    any_embed_device: Annotated[
        bool, typer.Option("--any-embed-device", help="Allow an embedder away from the reward model.")
    ] = False,
    page: Annotated[Path | None, typer.Option("--html", help="Write a page with a bar for each phase.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what a run will hold on which device, before anything is loaded; exit 3 where it does not fit."""
    from palmette import console
    from palmette.config import load_config

    if server not in ("sglang", "vllm"):
        raise ConfigError(f"--server {server}: choose sglang or vllm")
    if predict and not train:
        raise ConfigError("--predict runs an update on fake tensors, and without --train none is planned: add --train")
    flags: dict[str, Any] = {
        "policy.model": policy,
        "reward.model": reward,
        "embedder.model": embedder,
        "search.strategy": strategy,
        "search.width": width,
        "memory.devices": devices,
        "memory.any_embed_device": any_embed_device or None,
    }
    overrides = _overrides(flags, settings, config_file, ets_config, embed_device)
    config = load_config(config_file, overrides)
    console.plan(config, train=train, server=server, predict=predict, as_json=as_json, page=page)


@app.command()
def sweep(
    strategies: Annotated[str, typer.Option(help="Names with commas between.")] = "best_of_n,beam,dvts,rebase,ets",
    widths: Annotated[str, typer.Option(help="Numbers with commas between.")] = "4,16",
    seeds: Annotated[str, typer.Option(help="Numbers with commas between.")] = "0",
    questions: Annotated[int | None, typer.Option(help="How many questions each run has.")] = None,
    config_file: Annotated[Path | None, typer.Option("--config", help="YAML file of what all runs share.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the sweep; must be new or empty.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any key: --set search.depth=12")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the sweep in this folder.")] = None,
) -> None:
    """Compare strategies x widths x seeds over one task: a table, CSV, Markdown and a report."""
    from palmette import console
    from palmette.config import load_config, parse_override

    if resume is not None:
        if config_file or settings or out or questions is not None:
            raise ConfigError(
                "--resume continues a sweep with what it was told: leave --questions, --config, --set and --out out"
            )
        console.resume_sweep(resume)
        return
    overrides = dict(parse_override(text) for text in settings or [])
    for key, flag in {"search.width": "--widths", "search.strategy": "--strategies", "seed": "--seeds"}.items():
        if key in overrides:
            raise ConfigError(f"--set {key}: a sweep has many of them: use {flag}")
    if out is not None:
        overrides["out"] = out
    if questions is not None:
        overrides["task.questions"] = questions
    names = [name.strip() for name in strategies.split(",")]
    overrides.setdefault("search.strategy", "ets" if "ets" in names else names[0])
    base = load_config(config_file, overrides)
    console.sweep(base, names, _numbers("--widths", widths), _numbers("--seeds", seeds))


@app.command()
def demo(
    questions: Annotated[int, typer.Option(help="Questions per strategy.", min=1)] = 48,
    width: Annotated[int, typer.Option(help="Branches in flight per question.", min=1)] = 16,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; must be new or empty.")] = None,
) -> None:
    """Compare the strategies on the embedded default: a table, and a report to look at."""
    from palmette import console

    console.demo(questions, width, out)


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a run.")], as_json: AsJson = False
) -> None:
    """Answer a run's questions again with every fold and vote, without generating."""
    from palmette import console

    console.evaluate(folder, as_json=as_json)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the models that need no hub."""
    from palmette import console

    console.models(as_json=as_json)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Folders of runs or sweeps.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; default: in the run's folder, for several runs here.")
    ] = None,
) -> None:
    """Write one self-contained HTML page about runs or sweeps: tables, plots, every tree."""
    from palmette import console

    console.report(folders, out)


@app.command()
def grade(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="Rows with solution and reference or answer.")],
    seconds: Annotated[float, typer.Option(help="Time limit for one answer.", min=0.1)] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one verdict a row as JSON.")] = False,
) -> None:
    """Check solutions against references and count the four outcomes."""
    from palmette import console

    console.grade(file, seconds, as_json=as_json)


def _overrides(
    flags: dict[str, Any],
    settings: list[str] | None,
    config_file: Path | None,
    ets_config: Path | None,
    embed_device: str | None,
) -> dict[str, Any]:
    """Return settings by dotted key: those of an ETS file, over them flags, over them `--set`."""
    from palmette.config import parse_override
    from palmette.run.ets_file import as_device, read_ets_file

    overrides: dict[str, Any] = {}
    if ets_config is not None:
        if config_file is not None:
            raise ConfigError("--config and --ets-config are two files for one run: give one of them")
        reading = read_ets_file(ets_config)
        overrides.update(reading.settings)
        print(*(one_line(f"{ets_config}: {line}", 200) for line in reading.told), sep="\n", file=sys.stderr)
    if embed_device is not None:
        flags = {**flags, "embedder.device": as_device(embed_device)}
    overrides.update((key, value) for key, value in flags.items() if value is not None)
    overrides.update(parse_override(text) for text in settings or [])
    if overrides.get("reward.model") == "none":
        overrides["reward.model"] = None
    return overrides


def _numbers(flag: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} {text}: give whole numbers with commas between, for example {flag} 16,64") from None
