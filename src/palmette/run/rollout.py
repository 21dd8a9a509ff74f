"""Searches inside a training run: the same parts and guards from one to the next, nothing recorded."""

from collections.abc import Iterable, Iterator, Sequence

from palmette.config import load_config
from palmette.memory.meter import Meter
from palmette.run.parts import Parts, limits_of
from palmette.run.search import judge_of
from palmette.run.watch import Watch
from palmette.search.cluster import by_meaning
from palmette.search.growth import Observer
from palmette.search.loop import search
from palmette.search.result import SearchResult, judge_tree
from palmette.settings import Config
from palmette.tasks.task import Question, Task


class Rollouts:
    """Searches questions of a task with the config's strategy."""

    def __init__(self, config: Config, parts: Parts, task: Task, meter: Meter, room: int | None) -> None:
        self._config = config
        self._watch = Watch(meter, config.memory, parts.backend, parts.scorer)
        self._judge = judge_of(config, task)
        self._strategy = config.search.build_strategy()
        self._limits = limits_of(config.search, task, config.task.stop, room)
        self._clusterer = None
        if parts.embedder is not None and "clusters" in self._strategy.uses:
            self._clusterer = by_meaning(self._watch.embedder(parts.embedder), config.embedder.cut)

    def __call__(self, questions: Sequence[Question], seed: int) -> list[SearchResult]:
        """Search the questions and return their results in order."""
        found = {result.question.id: result for result in self.found(questions, seed)}
        return [found[question.id] for question in questions]

    def found(self, questions: Iterable[Question], seed: int) -> Iterator[SearchResult]:
        """Search questions as they come; yield each result when it is there."""
        for growth in search(
            questions,
            self._watch.backend,
            self._watch.scorer,
            self._watch.strategy(self._strategy),
            self._limits,
            seed=seed,
            aggregate=self._config.search.aggregate,
            observer=Observer(),
            clusterer=self._clusterer,
        ):
            yield judge_tree(growth, self._judge, self._config.search)


def evaluation_config(config: Config) -> Config:
    """Return the config of searches that evaluate: with the strategy and the width that `train` has for them."""
    return load_config(config, {"search.strategy": config.train.eval_strategy, "search.width": config.train.eval_width})
