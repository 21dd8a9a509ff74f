"""`palmette evaluate`: answers a run's questions again with every aggregate and vote, without generating."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palmette.commands import flags
from palmette.errors import ConfigError
from palmette.units import count_of, one_line

if TYPE_CHECKING:
    from palmette.search.summary import Accuracy


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a run.")],
    trust: flags.Trust = False,
    as_json: flags.AsJson = False,
) -> None:
    """Answer a run's questions again with every aggregate and vote, without generating."""
    from rich.console import Console

    from palmette.event_log import read_events
    from palmette.report.table import accuracy_values, plain_table, plain_text
    from palmette.run.folder import run_config
    from palmette.run.search import judge_of
    from palmette.run.sweep import PLAN
    from palmette.search.answer import VOTES
    from palmette.search.rejudge import Rejudge
    from palmette.search.rejudge import evaluate as evaluate_run
    from palmette.search.replay import replay
    from palmette.tasks.load import load_task, source_of
    from palmette.tasks.task import OWN_QUESTIONS, Task

    if (folder / PLAN).is_file():
        raise ConfigError(f"{folder} is a sweep, not a run: name one of its runs, for example {folder}/RUN")
    config = run_config(folder, imports=False)  # Judging again needs no strategy.
    flags.check_trust(folder, [source_of(config.task.name), config.task.judge], trusted=trust)
    replays = replay(read_events(folder)).values()
    if config.task.name == OWN_QUESTIONS:
        task = Task(OWN_QUESTIONS, tuple(one.question() for one in replays), "\n")
    else:
        task = load_task(config.task)
    found = evaluate_run(replays, Rejudge(judge_of(config, task), task.questions))
    if as_json:
        values = {how: {vote: accuracy_values(votes[vote]) for vote in VOTES} for how, votes in found.items()}
        print(json.dumps(values, indent=2))
        return
    table = plain_table("aggregate", *VOTES)
    questions = found[config.search.aggregate][config.search.vote].questions
    name = one_line(folder.resolve().name, 40)
    table.title = plain_text(f"{name}: {count_of(questions, 'question')}, accuracy with its 95% interval")
    for how, votes in found.items():
        table.add_row(how, *(_with_interval(votes[vote]) for vote in VOTES))
    Console().print(table)


def _with_interval(accuracy: "Accuracy") -> str:
    low, high = accuracy.interval
    return f"{accuracy.share:.3f} ({low:.2f} - {high:.2f})"
