"""`palmette search`: searches a task's questions with one strategy and shows what was found."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palmette.commands import flags
from palmette.commands.progress import ProgressLine
from palmette.commands.up import StartLine
from palmette.errors import ConfigError, StoppedError
from palmette.units import count_of, format_count, format_seconds, one_line, one_line_path

if TYPE_CHECKING:
    from palmette.launch.command import ServerCommand
    from palmette.search.summary import Summary
    from palmette.settings import Config


def search(
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
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    up: Annotated[bool, typer.Option("--up", help="Start the servers as planned, stop them at the end.")] = False,
    as_json: flags.AsJson = False,
) -> None:
    """Search a task's questions with one strategy and report accuracy, tokens and KV cache."""
    given = flags.keyed(
        policy=policy, backend=backend, reward=reward, task=task, strategy=strategy, width=width, questions=questions,
        seed=seed, out=out, embedder=embedder, devices=devices,
    )  # fmt: skip
    config_file = flags.one_file(run, config_file)
    overrides = flags.overrides_of(given, settings, config_file, ets_config, embed_device)
    if resume is None:
        folder = _start(config_file, overrides, up=up)
    else:
        others = [key for key in overrides if not key.startswith("scale.")]
        if others or config_file or ets_config:
            told = str(config_file) if config_file else "--ets-config" if ets_config else others[0]
            raise ConfigError(f"--resume continues a run with the config it has: leave {told} out")
        folder = _resume(resume, overrides, up=up)
    _show(folder, as_json=as_json)


def _start(config_file: Path | None, overrides: dict[str, Any], *, up: bool) -> Path:
    from palmette.api import Searcher
    from palmette.config import load_config
    from palmette.run.folder import new_folder
    from palmette.run.parts import check_names
    from palmette.tasks.load import load_task

    config = load_config(config_file, overrides)
    if up and config.scale.address is not None:
        raise ConfigError("--up starts servers that only this machine reaches: leave scale.address out, or --up")
    commands = _planned(config) if up else []
    config = _with_addresses(config, commands)
    check_names(config, clusters="clusters" in config.search.build_strategy().uses)
    task = load_task(config.task)
    folder = new_folder(config)
    print(_cost(config, len(task.questions), folder), file=sys.stderr)
    with (
        _told_how_to_continue(folder),
        _servers(config, commands, folder),
        ProgressLine(config.search.strategy) as line,
    ):
        searcher = Searcher(config=config)
        for _ in searcher.stream(task, out=folder, progress=line.tell):
            pass
        searcher.close()
    return folder


def _resume(folder: Path, scale: dict[str, Any], *, up: bool) -> Path:
    """Go on with a run, on as many workers as it had or on others: no tree depends on where it grows."""
    from palmette.api import Searcher
    from palmette.run.folder import check_command, folder_path, run_config
    from palmette.run.sweep import PLAN

    if (folder / PLAN).is_file():
        raise ConfigError(f"{folder} is a sweep, not a run: palmette sweep --resume {folder}")
    check_command(folder, "search")
    searcher = Searcher(config=run_config(folder_path(folder)), settings=scale)
    commands = _planned(searcher.config) if up else []
    searcher = Searcher(config=_with_addresses(searcher.config, commands))
    with _told_how_to_continue(folder), _servers(searcher.config, commands, folder), ProgressLine(folder.name) as line:
        for _ in searcher.resume(folder, progress=line.tell):
            pass
        searcher.close()
    return folder


def _planned(config: "Config") -> "list[ServerCommand]":
    from palmette.launch.run import planned_commands

    return planned_commands(config)


def _with_addresses(config: "Config", commands: "list[ServerCommand]") -> "Config":
    from palmette.launch.run import with_addresses

    return with_addresses(config, commands) if commands else config


@contextmanager
def _servers(config: "Config", commands: "list[ServerCommand]", folder: Path) -> Iterator[None]:
    """Start the servers of a run, if any, and stop them at the end."""
    from palmette.launch.run import started

    if not commands:
        yield
        return
    waits = StartLine()
    with started(config, commands, folder, waits.tell, waits.show):
        yield


@contextmanager
def _told_how_to_continue(folder: Path) -> Iterator[None]:
    """Turn Ctrl-C into an error that says how to continue, where there is anything to continue."""
    from palmette.event_log import FILE_NAME

    try:
        yield
    except KeyboardInterrupt:
        again = f"; continue with: palmette search --resume {folder}" if (folder / FILE_NAME).exists() else ""
        raise StoppedError(f"stopped{again}") from None


def _cost(config: "Config", questions: int, folder: Path) -> str:
    """Say what the run may cost at the most, before it starts."""
    search = config.search
    tokens = questions * search.width * search.total_tokens
    return (
        f"{count_of(questions, 'question')} of {one_line(config.task.name, 80)}, {search.strategy} at width "
        f"{search.width}: at most {format_count(tokens)} tokens ({search.total_tokens} a branch); "
        f"events in {one_line_path(folder)}"
    )


def _show(folder: Path, *, as_json: bool) -> None:
    """Print what a run found, then write its page: results are not lost where the page cannot be written."""
    from rich.console import Console

    from palmette.commands.report import rejudging
    from palmette.event_log import read_events
    from palmette.report.compare import compare
    from palmette.report.page import write_page
    from palmette.report.table import answers_table, summary_values
    from palmette.search.summary import summarize

    summary = summarize(read_events(folder))
    page = folder / "report.html"
    if as_json:
        print(json.dumps({"run": str(folder), "report": str(page), **summary_values(summary)}, indent=2))
    else:
        console = Console()
        console.print(answers_table(summary))
        console.print(_tokens_line(summary), highlight=False, markup=False, soft_wrap=True)
        if summary.server_hit_share is not None:
            console.print(_servers_line(summary), highlight=False, markup=False, soft_wrap=True)
        if summary.out_of_room:
            print(
                f"{summary.out_of_room} of {summary.questions} trees ended because their part of search.kv_budget "
                f"({summary.config['search']['kv_budget']}) was full: give more, or lower search.questions_in_flight",
                file=sys.stderr,
            )
        print(f"run     {one_line_path(folder)}\nreport  {one_line_path(page)}")
    write_page(compare([folder], rejudging(trusted=True)), page)


def _servers_line(summary: "Summary") -> str:
    """Say what the servers did with their KV caches, by their own counts."""
    looked_up = sum(use.prefix_tokens or 0 for use in summary.servers)
    told = f"servers: {summary.server_hit_share:.1%} of {format_count(looked_up)} prompt tokens found in their caches"
    preemptions = summary.server_preemptions
    return told if preemptions is None else f"{told}, {count_of(preemptions, 'preemption')}"


def _tokens_line(summary: "Summary") -> str:
    peak, unshared = format_count(summary.peak_kv_tokens), format_count(summary.peak_separate_kv_tokens)
    return (
        f"per question: {format_count(summary.generated_tokens)} tokens, KV {format_count(summary.mean_kv_tokens)} "
        f"mean, {peak} peak ({unshared} unshared); {format_seconds(summary.seconds)} in all"
    )
