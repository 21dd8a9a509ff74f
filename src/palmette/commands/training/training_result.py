"""How a training run ends: with its result, stopped with what it will go on from, or finished before."""

import json
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from palmette.commands.training.training_run import Page
from palmette.commands.training.training_table import TrainingTable
from palmette.errors import StoppedError
from palmette.units import count_of, one_line, one_line_path

if TYPE_CHECKING:
    from palmette.settings import Config


def tell_result(
    config: "Config",
    folder: Path,
    trained: Path | None,
    summary: dict[str, float],
    *,
    as_json: bool,
    reward: bool = False,
) -> None:
    """Print where the run, what it trained (a policy, or with `reward` a reward model) and its report are."""
    report = Page(folder).path
    if as_json:
        result = {"reward": str(trained)} if reward else result_of(config, trained)
        print(json.dumps({"run": str(folder), **result, "report": str(report), **summary}, indent=2))
        return
    reward_lines = [f"reward  {one_line_path(trained)}"] if trained is not None else []
    lines = reward_lines if reward else result_lines(config, trained)
    print(f"run     {one_line_path(folder)}", *lines, f"report  {one_line_path(report)}", sep="\n")


def tell_finished(
    config: "Config", folder: Path, trained: Path, more: str, *, as_json: bool, reward: bool = False
) -> None:
    """Say that a run has made all its updates, how it is given more, and where its result is; nothing is loaded."""
    from palmette.event_log import read_events

    done = count_of(int(trained.name.rpartition("-")[2]), "update")
    print(f"{one_line_path(folder)} is already finished: it has made {done}. More {more} go on", file=sys.stderr)
    table = TrainingTable(config.train.updates)
    for event in read_events(folder):
        table.recall(event)
    tell_result(config, folder, trained, table.summary(), as_json=as_json, reward=reward)
    page = Page(folder)
    if not page.path.exists():
        page.write()


def result_of(config: "Config", trained: Path | None) -> dict[str, str]:
    """Return what was trained by the names of flags and settings: the policy, or with LoRA its base and the adapter."""
    if config.train.method == "lora" and trained is not None:
        return {"policy": config.policy.model, "adapter": str(trained)}
    return {"policy": str(trained)}


def result_lines(config: "Config", trained: Path | None) -> list[str]:
    """Return lines that say where the trained policy is, and with LoRA how to search with it."""
    if trained is None:
        return []
    if config.train.method != "lora":
        return [f"policy  {one_line_path(trained)}"]
    flags = f"--policy {quote(config.policy.model)} --set policy.adapter={quote(str(trained))}{_task_flags(config)}"
    return [f"adapter {one_line_path(trained)}", f"search  palmette search {one_line(flags, 4000)}"]


def _task_flags(config: "Config") -> str:
    """Return the flags of a search that asks the task of a run, where it is not the default."""
    task, usual = config.task, type(config.task)()
    name = f" --task {quote(task.name)}" if task.name != usual.name else ""
    grade = f" --set task.grade={task.grade}" if task.grade != usual.grade else ""
    generator = f" --set {quote(f'task.generator={json.dumps(task.generator)}')}" if task.generator else ""
    return name + grade + generator


def stopped(command: str, folder: Path, update: int | None) -> StoppedError:
    """Return the error of a run that was stopped after so many updates, with what it will go on from."""
    from palmette.event_log import FILE_NAME
    from palmette.run.training_folder import last_update

    again = f"palmette {command} --resume {quote(str(folder))}"
    if not (folder / FILE_NAME).exists():
        return StoppedError("stopped before anything was recorded: the same command starts it again")
    after = f"stopped after update {update}" if update is not None else "stopped"
    last = last_update(folder)
    if last is None:
        return StoppedError(f"{after}, before the first checkpoint: {again} starts from the beginning")
    return StoppedError(f"{after}; the last checkpoint is update {last}: {again} goes on from there")
