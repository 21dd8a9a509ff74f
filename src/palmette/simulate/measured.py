"""From the folders of measured runs to what is simulated: questions, costs, and the updates of a learner."""

from dataclasses import replace
from pathlib import Path

from palmette.errors import ConfigError, RunError
from palmette.settings import Config
from palmette.simulate.setup import Learner
from palmette.simulate.work import Recorded, read_run

_NOT_LEARNING = ("rollout",)
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


def with_updates(learner: Learner, updates: int, staleness: int, nodes: int) -> Learner:
    """Return the learner with so many updates to simulate."""
    return replace(learner, updates=updates, staleness=staleness, nodes=nodes)
