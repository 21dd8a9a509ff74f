"""The public surface: search questions, plan memory, grade answers, load tasks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, overload
from weakref import finalize

from palmette import registry
from palmette.config import load_config
from palmette.errors import ConfigError, RunError
from palmette.event_log import EventLog
from palmette.memory.meter import Meter
from palmette.report.memory_plan import MemoryPlan, plan_config
from palmette.run.folder import anchored, finished_questions, folder_path, new_folder, resumed_config, run_config
from palmette.run.parts import Parts, build_parts, check_questions
from palmette.run.search import Listener, Progress, config_for, make_meter, search_into, search_task
from palmette.run.training_checks import training_config
from palmette.score.verify import Outcome
from palmette.score.verify import grade as grade_solution
from palmette.search.result import SearchResult
from palmette.settings import Config
from palmette.tasks.ask import QuestionLike, as_task
from palmette.tasks.load import load_task as load_task_of
from palmette.tasks.task import Task
from palmette.units import parse_bytes

__all__ = ["MemoryPlan", "Outcome", "Progress", "SearchResult", "Searcher", "grade", "load_task", "plan"]

Part = Any
"""A part by name, or the object itself: a class, an instance or a plain function."""


class Searcher:
    """Searches questions with one policy, one scorer and one strategy, which are loaded once.

    `policy` is a model (zoo name, folder, hub name) or a backend; `reward` a model, a scorer or None; `strategy` a
    name, a subclass of `Strategy` or a function; `judge` a judge or a reward function; `embedder` a model or an
    embedder.
    Other keys of `search.` are given by their names (`width=16, step_tokens=64, lambda_kv=1.0`), those of other tables
    in `settings` (`{"policy.temperature": 0.8}`). A `config` (a path or a Config) is what all of these are laid over.

    Use it in a `with` block, or call `close`. Models are loaded when it is entered or first used. Raises ConfigError
    for wrong settings at once, BudgetError before a weight is read where the plan does not fit.
    """

    def __init__(
        self,
        policy: Part = None,
        reward: Part = "auto",
        strategy: Part = None,
        *,
        judge: Part = None,
        embedder: Part = None,
        seed: int | None = None,
        config: Config | str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        parts: Parts | None = None,
        **search: Any,
    ) -> None:
        told: Any = {} if settings is None else settings
        if not isinstance(told, Mapping) or not all(isinstance(key, str) for key in told):
            raise ConfigError('settings: give a table of keys and values, such as {"policy.temperature": 0.8}')
        objects: list[registry.Given] = []

        def named(kind: str, part: Part) -> str | None:
            if part is None or isinstance(part, str):
                return part
            objects.append(registry.add(kind, part))
            return objects[-1].name

        given = {
            "policy.model": named("backend", policy),
            "search.strategy": named("strategy", strategy),
            "task.judge": named("judge", judge),
            "embedder.model": named("embedder", embedder),
            "seed": seed,
        }
        overrides: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if not isinstance(reward, str):
            overrides["reward.model"] = named("scorer", reward)
        elif reward != "auto":
            overrides["reward.model"] = None if reward == "none" else reward
        overrides |= {f"search.{key}": value for key, value in search.items()}
        self.config = load_config(config, {**overrides, **told}, given_by="arguments")
        self.config.hold(*objects)
        self._parts = self._given_parts = parts
        self._meter: Meter | None = None
        self._searching = Lock()

    def __enter__(self) -> "Searcher":
        self.load()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def load(self) -> Parts:
        """Load the models unless they are loaded; raise BudgetError before a weight is read where they cannot fit."""
        try:
            meter = self._started_meter()
            if self._parts is None:
                with meter.phase("load"):
                    self._parts = build_parts(self.config)
                meter.reclaim("load", parse_bytes(self.config.memory.reclaim_least))
        except BaseException:
            self.close()
            raise
        return self._parts

    def close(self) -> None:
        """Let go of the models. A search can be started again, which loads them anew; `parts` given are used again."""
        self._parts = self._given_parts
        if self._meter is not None:
            self._meter.__exit__(None, None, None)
            self._meter = None

    @overload
    def search(  # type: ignore[overload-overlap]  # A list of messages is one question, any other list is many.
        self, questions: QuestionLike, *, out: str | Path | None = None, progress: Listener | None = None
    ) -> SearchResult: ...

    @overload
    def search(
        self,
        questions: Task | Sequence[QuestionLike],
        *,
        out: str | Path | None = None,
        progress: Listener | None = None,
    ) -> list[SearchResult]: ...

    def search(
        self,
        questions: QuestionLike | Task | Sequence[QuestionLike],
        *,
        out: str | Path | None = None,
        progress: Listener | None = None,
    ) -> SearchResult | list[SearchResult]:
        """Search one question, or several in the order given; return one result, or a list of them.

        A question is its text, chat messages, a Question, or a row with `question` (or `problem`, `messages`) and
        `answer`. With `out` the run is recorded in that new folder, for `palmette report` and `palmette evaluate`. A
        question that cannot be asked is refused, or left out of the list with `task.unaskable` skip.
        """
        task, is_one = as_task(questions, self.config.task)
        found = {result.question.id: result for result in self._stream(task, out, progress)}
        results = [found[question.id] for question in task.questions if question.id in found]
        return results[0] if is_one else results

    def stream(
        self,
        questions: QuestionLike | Task | Sequence[QuestionLike],
        *,
        out: str | Path | None = None,
        progress: Listener | None = None,
    ) -> Iterator[SearchResult]:
        """Search as `search` does, but give each result as soon as it is ready."""
        task, _ = as_task(questions, self.config.task)
        return self._stream(task, out, progress)

    def _stream(self, task: Task, out: str | Path | None, progress: Listener | None) -> Iterator[SearchResult]:
        with self._one_at_a_time():
            yield from self._record(task, out, progress)

    def _record(self, task: Task, out: str | Path | None, progress: Listener | None) -> Iterator[SearchResult]:
        config = config_for(self.config, task)
        if config.scale.is_on:
            yield from self._record_on_workers(config, task, out, progress)
            return
        if out is None:
            yield from search_task(config, self.load(), task, self._started_meter(), listener=progress)
            return
        config = anchored(config.model_copy(update={"out": str(out)}))
        folder = new_folder(config)
        try:
            parts = self.load()
            askable = check_questions(config, task, parts.backend, parts.scorer)
        except BaseException:
            with suppress(OSError):  # Nothing was begun: the same call can be made once more.
                folder.rmdir()
            raise
        meter = self._started_meter()
        yield from search_into(folder, config, parts, task, meter, is_new=True, askable=askable, listener=progress)

    def _record_on_workers(
        self, config: Config, task: Task, out: str | Path | None, progress: Listener | None
    ) -> Iterator[SearchResult]:
        from palmette.run.cluster.search import search_on_workers

        if out is None:
            yield from search_on_workers(anchored(config), task, None, listener=progress)
            return
        config = anchored(config.model_copy(update={"out": str(out)}))
        folder = new_folder(config)
        try:
            yield from search_on_workers(config, task, folder, is_new=True, listener=progress)
        finally:
            with suppress(OSError):  # Where nothing was begun it is empty: the same call can be made once more.
                folder.rmdir()

    def resume(
        self,
        folder: str | Path,
        questions: QuestionLike | Task | Sequence[QuestionLike] | None = None,
        *,
        progress: Listener | None = None,
    ) -> Iterator[SearchResult]:
        """Search the questions of a recorded run that are not finished yet; safe to stop and call again.

        Without `questions` they are those of the run's task; questions of your own are given once more. Raises RunError
        where the run was recorded with other parts or settings than this searcher has.
        """
        place = folder_path(folder)
        recorded = run_config(place, imports=False)
        with EventLog(place):  # Before anything is loaded: a second process should hear at once.
            task = load_task_of(recorded.task) if questions is None else as_task(questions, recorded.task)[0]
            config = resumed_config(place, recorded, config_for(self.config, task))
            done = finished_questions(place, task)
        if len(done) == len(task.questions):
            if progress is not None:
                progress(Progress(len(done), len(done), 0))
            return
        with self._one_at_a_time():
            if config.scale.is_on:
                from palmette.run.cluster.search import search_on_workers

                yield from search_on_workers(config, task, place, listener=progress)
                return
            yield from search_into(place, config, self.load(), task, self._started_meter(), listener=progress)

    @classmethod
    def of_run(cls, folder: str | Path) -> "Searcher":
        """Return a searcher with the config that a recorded run was started with, for `resume`."""
        return cls(config=run_config(folder_path(folder)))

    def _started_meter(self) -> Meter:
        if self._meter is None:
            self._meter = make_meter(self.config)
            self._meter.__enter__()
            finalize(self, self._meter.__exit__, None, None, None)  # A searcher that is dropped ends its thread too.
        return self._meter

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Refuse a search while another one goes on: both would use one cache, one meter and one place to record."""
        if not self._searching.acquire(blocking=False):
            raise RunError(
                "this Searcher is searching already: exhaust or close the stream that is open, give all questions in "
                "one call, or use a second Searcher"
            )
        try:
            yield
        finally:
            self._searching.release()


def load_task(name: str, **settings: Any) -> Task:
    """Return a task's questions: `ladder`, `words`, `rg:NAME`, the path of a JSONL file, or `package.module:name`.

    Keywords are the keys of `task.`: `load_task("ladder", questions=20, grade=2)`.
    """
    given = {"task.name": name, **{f"task.{key}": value for key, value in settings.items()}}
    task = load_config(None, given, given_by="arguments").task
    return load_task_of(task.model_copy(update={"format": settings.get("format", "auto")}))


def grade(solution: str, reference: str, *, seconds: float = 5.0) -> Outcome:
    """Check the final answer of a solution against a reference: `correct`, `wrong`, `unparseable` or `timed_out`.

    Both may be LaTeX, plain numbers or worked solutions. The check runs in a process of its own and ends after
    `seconds`.
    """
    return grade_solution(solution, reference, seconds=seconds)


def plan(
    policy: str | None = None,
    reward: str | None = "auto",
    strategy: Part = None,
    *,
    devices: str | None = None,
    train: bool = False,
    server: str | None = None,
    config: Config | str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    **search: Any,
) -> MemoryPlan:
    """Return what a search, or training, would hold on which device in which phase; nothing is loaded.

    Arguments are those of `Searcher`; `devices` is written like `2x24GiB` or `cpu:24GiB`, by default those of this
    machine. `plan.fits` tells whether it can run; `print(plan)` shows it. Raises ConfigError or BackendError for a
    model whose shape is not known.
    """
    given = {**(settings or {}), **({} if devices is None else {"memory.devices": devices})}
    searcher = Searcher(policy, reward, strategy, config=config, settings=given, **search)
    config = training_config(searcher.config) if train else searcher.config
    return plan_config(config, train=train, server=server)
