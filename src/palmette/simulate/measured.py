"""From the folders of measured runs to what is simulated: questions, costs, and the updates of a learner."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from palmette.errors import ConfigError, RunError
from palmette.settings import Config
from palmette.simulate.costs import fit_costs, tick_points
from palmette.simulate.setup import Learner
from palmette.simulate.work import Recorded, read_run

_NOT_LEARNING = ("rollout",)
_DISPATCH_SECONDS, _DISPATCH_STEP_SECONDS = 0.0012, 0.00007
"""Of a driver for each question and each of its steps, as docs/simulate.md measures them."""
_COMPARED = ("strategy", "width", "total_tokens", "step_tokens")


def read_search(folder: Path) -> Recorded:
    """Return a recorded search. Raises RunError for a folder that holds none, or none that has finished a question."""
    run = read_run(folder)
    if run.questions:
        return run
    if run.updates:
        raise RunError(f"{folder} is a training run, which records no steps: give a search, and this run with --train")
    raise RunError(f"{folder} has no finished question: there is nothing to simulate from")


def read_learner(folder: Path, search: Config, *, ranks: int, moved_seconds: float = 0.0) -> Learner:
    """Return the learner of a recorded training run as it would be on so many ranks: its share of the work each.

    `moved_seconds` are added to every update. Raises RunError for a folder without updates, ConfigError where its
    rollouts were made with other settings than the search.
    """
    run = read_run(folder)
    if not run.updates:
        raise RunError(f"{folder} has no update: give the folder of a training run")
    for key in _COMPARED:
        own, other = getattr(run.config.search, key), getattr(search.search, key)
        if own != other:
            raise ConfigError(
                f"the rollouts of {folder} have search.{key} {own}, the search has {other}: measure a search with {own}"
            )
    if run.config.policy.model != search.policy.model:
        raise ConfigError(
            f"{folder} trains {run.config.policy.model}, the search has {search.policy.model}: measure both of one"
        )
    learning = [
        sum(seconds for phase, seconds in update.seconds.items() if phase not in _NOT_LEARNING)
        for update in run.updates
    ]
    seconds = tuple(own / ranks + moved_seconds for own in learning)
    return Learner(seconds, run.config.train.questions, len(run.updates))


def measured_dispatch(*runs: Recorded) -> float | None:
    """Return the seconds of a driver for each question; None where none of the runs had workers."""
    sessions = [session for run in runs for session in run.sessions if session.driver_seconds and session.questions]
    if not sessions:
        return None
    return sum(session.driver_seconds for session in sessions) / sum(session.questions for session in sessions)


def assumed_dispatch(run: Recorded) -> float:
    """Return the seconds of a driver for each question of a run that had none: by the steps whose events it reads."""
    steps = sum(question.steps for question in run.questions) / max(1, len(run.questions))
    return _DISPATCH_SECONDS + _DISPATCH_STEP_SECONDS * steps


def contention_of(alone: Recorded, beside: Recorded) -> float:
    """Return by which share workers slowed each other down in a run of several of them; raises as below."""
    return measured_contention(alone, [beside], len({event.worker for event in beside.occupancies}))


def measured_contention(alone: Recorded, beside: Sequence[Recorded], workers: int) -> float:
    """Return by which share each of so many workers on one node slows every other down, 0 where they do not.

    `alone` is a run of one worker, `beside` are those of all workers: what they spent on their work is compared with
    what one worker alone would have spent. Raises RunError where they do not tell.
    """
    costs = fit_costs(alone)
    spent = expected = 0.0
    for run in beside:
        spent += sum(sum(bins) for event in run.occupancies for bins in event.spent.values())
        expected += sum(costs.tick_seconds * ticks + costs.row_seconds * rows for ticks, rows, _, _ in tick_points(run))
        expected += costs.step_seconds * sum(question.steps for question in run.questions)
    if workers < 2 or not spent or not expected:
        raise RunError("how workers slow each other down is told by a run of at least 2 of them that tells its ticks")
    return max(0.0, (spent / expected - 1) / (workers - 1))


def with_updates(learner: Learner, updates: int, staleness: int, nodes: int) -> Learner:
    """Return the learner with so many updates to simulate."""
    return replace(learner, updates=updates, staleness=staleness, nodes=nodes)
