"""`palmette plan`: shows what a run would hold on which device, before anything is loaded."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palmette.commands import flags
from palmette.errors import BackendError, BudgetError, ConfigError
from palmette.units import one_line_path

if TYPE_CHECKING:
    from rich.console import Console

    from palmette.report.cluster_plan import ClusterMemoryPlan
    from palmette.report.memory_plan import MemoryPlan
    from palmette.settings import Config

_PIPED_COLUMNS = 160


def plan(
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
    train: Annotated[bool, typer.Option("--train", help="Plan updates too, not only a search.")] = False,
    predict: Annotated[
        bool, typer.Option("--predict", help="With --train: the update itself on fake tensors; takes seconds.")
    ] = False,
    server: Annotated[
        str | None, typer.Option(help="sglang or vllm: whose KV the table shows; default: the backend, else sglang.")
    ] = None,
    any_embed_device: Annotated[
        bool, typer.Option("--any-embed-device", help="Allow an embedder away from the reward model.")
    ] = False,
    resume: Annotated[Path | None, typer.Option(help="Plan the run in this folder.")] = None,
    trust: flags.Trust = False,
    page: Annotated[Path | None, typer.Option("--html", help="Write a page with a bar for each phase.")] = None,
    as_json: flags.AsJson = False,
) -> None:
    """Tell what a run will hold on which device, before anything is loaded; exit 3 where it does not fit.

    It takes every flag of `palmette search`: paste the command and change its verb.
    """
    from palmette.config import load_config
    from palmette.run.folder import run_config
    from palmette.run.training_checks import training_config

    if predict and not train:
        raise ConfigError("--predict runs an update on fake tensors, and without --train none is planned: add --train")
    given = flags.keyed(
        policy=policy, backend=backend, reward=reward, task=task, strategy=strategy, width=width, questions=questions,
        seed=seed, out=out, embedder=embedder, devices=devices,
    )  # fmt: skip
    given["memory.any_embed_device"] = any_embed_device or None
    config_file = flags.one_file(run, config_file)
    overrides = flags.overrides_of(given, settings, config_file, ets_config, embed_device)
    if resume is not None:
        flags.check_trust(resume, [run_config(resume, imports=False).search.strategy], trusted=trust)
    config = load_config(config_file, overrides) if resume is None else run_config(resume)
    if train:
        config = training_config(config)
    show_plan(config, train=train, server=server, predict=predict, as_json=as_json, page=page)


def show_plan(
    config: "Config", *, train: bool, server: str | None, predict: bool, as_json: bool, page: Path | None
) -> None:
    """Show what a run would hold, device by device; raise BudgetError where it does not fit."""
    planned = _planned(config, train=train, server=server, predict=predict)
    if page is not None:
        planned.write_html(page)
    if as_json:
        print(json.dumps(planned.to_dict(), indent=2))
    else:
        planned.print_to(_wide_console())
        if page is not None:
            print(f"page    {one_line_path(page)}")
    if planned.refusal is not None:
        raise BudgetError(planned.refusal)


def _planned(config: "Config", *, train: bool, server: str | None, predict: bool) -> "MemoryPlan | ClusterMemoryPlan":
    """Return the plan for one machine, or for a cluster where the devices declare nodes."""
    from palmette.planner.cluster.nodes import is_cluster

    if is_cluster(config.memory.devices):
        from palmette.report.cluster_plan import plan_cluster_config

        if predict:
            raise ConfigError("--predict runs the update of one machine: leave it out for a cluster")
        return plan_cluster_config(config, train=train, server=server)
    from palmette.report.memory_plan import plan_config

    predicted, notes = _predicted(config) if predict else ({}, ())
    planned = plan_config(config, train=train, server=server, predicted=predicted)
    return replace(planned, plan=replace(planned.plan, remarks=(*planned.plan.remarks, *notes)))


def _wide_console() -> "Console":
    """Return a console for wide tables: a file or a pipe has the columns that its reader wants, if none are told."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_PIPED_COLUMNS)


def _predicted(config: "Config") -> tuple[dict[str, int], tuple[str, ...]]:
    try:
        from palmette.planner.predict import predicted_lines
    except ImportError as error:
        raise BackendError(f"--predict runs the learner and needs {error.name}: plan without it") from error
    return predicted_lines(config)
