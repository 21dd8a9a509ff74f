"""Steps labeled by rollouts: the policy solves questions of a task, labels go to a file of the run's folder."""

import json
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from palmette.errors import ConfigError, RunError
from palmette.memory.meter import Meter
from palmette.planner.run_plan import refuse_what_cannot_fit
from palmette.run.parts import Parts, check_questions, load_backend
from palmette.run.rollout import Rollouts
from palmette.search.result import SearchResult
from palmette.settings import Config
from palmette.tasks.load import load_task
from palmette.tasks.task import Task
from palmette.train.supervised.labels import labels_of
from palmette.units import count_of, parse_bytes

FILE_NAME = "labels.jsonl"


def labeled_task(config: Config) -> Task:
    """Return the questions whose steps are labeled: the first `prm.questions` of the task, of its training split."""
    return load_task(config.task.model_copy(update={"split": "train", "questions": config.prm.questions}))


def label_steps(
    config: Config, task: Task, folder: Path, on_labeled: Callable[[int, int], None] | None = None
) -> tuple[Path, list[str]]:
    """Label the steps of a solution to each question; return the file of rows, and what the user should know.

    Rows are in TRL's format, in the order of the questions. Questions that have a row are not asked again: safe to stop
    and call again. `on_labeled` is called with how many questions are done and how many there are. Raises ConfigError
    if no question gave labels, BudgetError where the search does not fit.
    """
    path = folder / FILE_NAME
    done = _done(path, task)
    notes: list[str] = []
    if len(done) < len(task.questions):
        refuse_what_cannot_fit(config)
        kv_bytes = None if config.search.kv_budget is None else parse_bytes(config.search.kv_budget)
        backend = load_backend(config.policy, kv_bytes)
        askable = check_questions(config, task, backend)
        if askable.skipped:
            notes.append(f"{count_of(len(askable.skipped), 'question')} cannot be asked: {askable.skipped[0]}")
        remaining = [question for question in askable.questions if question.id not in done]
        waiting = iter(remaining)
        asked = len(askable.questions) - len(remaining)
        with Meter(sample_seconds=config.memory.sample_seconds) as meter, meter.phase("label"):
            rollouts = Rollouts(config, Parts(backend, None), task, meter, askable.room)
            while part := list(islice(waiting, config.search.questions_in_flight)):
                _append(path, list(_rows(rollouts(part, config.seed), config, task.step_end)))
                asked += len(part)
                if on_labeled is not None:
                    on_labeled(asked, len(askable.questions))
    labeled = len(_done(path, task))
    if not labeled:
        raise ConfigError(
            f"{task.name}: no question gave a label for a step. Labels come from solutions that a judge can check: the "
            f"questions need reference answers, and the solutions have to fit search.total_tokens"
        )
    if labeled < len(task.questions):
        notes.append(f"{len(task.questions) - labeled} of {count_of(len(task.questions), 'question')} gave no labels")
    return path, notes


def _rows(results: list[SearchResult], config: Config, step_end: str) -> Iterator[dict[str, Any]]:
    for result in results:
        found = labels_of(result.tree, config.prm.labels, step_end)
        if found is not None:
            yield {
                "id": result.question.id,
                "prompt": list(result.question.messages),
                "completions": found.steps,
                "labels": found.labels,
                "finished": found.finished,
            }


def _append(path: Path, rows: list[dict[str, Any]]) -> None:
    """Append rows and write them to disk. Raises RunError where that cannot be done."""
    try:
        with path.open("ab") as file:
            file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"cannot write labels to {path}: {error.strerror}") from error


def _done(path: Path, task: Task) -> set[str]:
    """Return the ids of questions that have a row. A row that a killed process left half is cut off.

    Raises RunError for a file that is damaged, or of other questions.
    """
    if not path.exists():
        return set()
    try:
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            os.truncate(path, len(whole))
        found = {str(json.loads(line)["id"]) for line in whole.splitlines()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged: remove it, and the steps are labeled again") from error
    strange = found - {question.id for question in task.questions}
    if strange:
        raise RunError(f"{path} has labels of other questions than {task.name}: give the same task, or another --out")
    return found
