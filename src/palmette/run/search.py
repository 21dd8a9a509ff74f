"""The composition root: reads a config, builds the parts, starts the job."""

import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from typing import Any

from palmette import __version__
from palmette.backends.backend import Backend
from palmette.config import Config, EmbedderSettings, PolicySettings, RewardSettings, SearchSettings, check_config
from palmette.errors import BudgetError, ConfigError, RunError
from palmette.events import FILE_NAME, EventLog, QuestionFinished, QuestionStarted, RunStarted, Session, read_events
from palmette.memory.device import limit_device_memory
from palmette.memory.meter import Meter
from palmette.planner.run_plan import planned_memory, refuse_what_cannot_fit
from palmette.run.watch import Watch
from palmette.score.judge import GymJudge, Judge, MathJudge
from palmette.score.scorer import Embedder, Scorer
from palmette.search.cluster import by_meaning
from palmette.search.loop import Limits, search
from palmette.search.record import Recorder
from palmette.search.strategies import beam, best_of_n, dvts, ets, rebase
from palmette.search.strategy import Strategy
from palmette.tasks.load import load_task
from palmette.tasks.task import Question, Task
from palmette.units import parse_bytes
from palmette.zoo.catalog import ENTRIES


def _ets(settings: SearchSettings) -> Strategy:
    if settings.kv_budget is not None:
        return ets.within_room(settings.rebase_temperature, settings.diversity, _first_step(settings))
    return ets.weighted(settings.rebase_temperature, settings.lambda_kv, settings.diversity, settings.kv_cost)


STRATEGIES: dict[str, Callable[[SearchSettings], Strategy]] = {
    "best_of_n": lambda settings: best_of_n.allocate,
    "beam": lambda settings: beam.allocate,
    "dvts": lambda settings: dvts.allocate,
    "rebase": lambda settings: rebase.at_temperature(settings.rebase_temperature),
    "ets": _ets,
}
JUDGES: dict[str, Callable[[float], Judge]] = {"math": MathJudge, "gym": GymJudge}

Progress = Callable[[int, int], None]
"""Called with the questions finished so far and their number."""


@dataclass(frozen=True)
class Parts:
    """What a search is made of, built from its config. The embedder is there where the strategy asks for one."""

    task: Task
    backend: Backend
    scorer: Scorer | None
    embedder: Embedder | None = None


def new_folder(config: Config, label: str | None = None) -> Path:
    """Make the run's folder; without `out` it is named by the moment and `label`.

    Raises ConfigError where it cannot be made or already holds something.
    """
    folder = Path(config.out or _new_name(label or f"{config.search.strategy}-{config.search.width}"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"out: {folder} is not empty. Choose a new folder, or continue it with --resume {folder}")
    except OSError as error:
        raise ConfigError(f"out: cannot make the folder {folder}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"out: {str(folder)!r} is no name of a folder: {error}") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"out: cannot write to {folder}: permission denied")
    return folder


def start_search(folder: Path, config: Config, progress: Progress) -> None:
    """Search all questions into an empty folder. The effective config is the first event.

    Where the parts cannot be built the folder is removed again, so that the same command can be given once more.
    """
    with _meter(config) as meter:
        try:
            config = anchored(config)
            with meter.phase("load"):
                parts = build(config)
            meter.reclaim("load", parse_bytes(config.memory.reclaim_least))
        except BaseException:
            with suppress(OSError):
                folder.rmdir()
            raise
        with EventLog(folder) as log:
            if not log.is_empty:
                raise RunError(f"{folder} was taken by another process while this one loaded; choose another --out")
            log.write(RunStarted(__version__, config.model_dump(mode="json")))
            _search(log, config, parts, set(), progress, meter)


def resume_search(folder: Path, progress: Progress) -> None:
    """Search the questions of a run that are not finished yet. Safe to stop at any point and call again."""
    config = run_config(folder)
    with EventLog(folder) as log:  # Before anything is loaded: a second process should hear at once.
        task = load_task(config.task)
        done = _finished(folder, task)
        if len(done) < len(task.questions):
            with _meter(config) as meter:
                with meter.phase("load"):
                    parts = build(config, task)
                meter.reclaim("load", parse_bytes(config.memory.reclaim_least))
                _search(log, config, parts, done, progress, meter)


def search_into(folder: Path, config: Config, parts: Parts, progress: Progress) -> None:
    """Search what the folder's events do not show as finished, with parts that are built already."""
    with EventLog(folder) as log:
        if log.is_empty:
            log.write(RunStarted(__version__, config.model_dump(mode="json")))
        with _meter(config) as meter:
            _search(log, config, parts, _finished(folder, parts.task), progress, meter)


def run_config(folder: Path) -> Config:
    """Return the config a run was started with."""
    first = next(read_events(folder), None)
    if not isinstance(first, RunStarted):
        raise RunError(f"{folder / FILE_NAME}: the first event is not run_started; start the run again in a new folder")
    return check_config(first.config, {}, str(folder / FILE_NAME))


def anchored(config: Config) -> Config:
    """Return the config with its relative paths made absolute, so that it holds in any working directory."""
    values = config.model_dump(mode="json")
    for table, key in (("task", "name"), ("embedder", "model"), *product(("policy", "reward"), ("model", "adapter"))):
        name = values[table][key]
        if name and name not in ENTRIES and os.path.exists(os.path.expanduser(name)):
            values[table][key] = os.path.abspath(os.path.expanduser(name))
    return check_config(values, {}, "config")


def build(config: Config, task: Task | None = None, *, groups_steps: bool | None = None) -> Parts:
    """Plan, load the task, then the models; refuse what cannot work before the first question, not in the middle.

    `groups_steps` tells whether an embedder is needed, where the config's own strategy is not the only one to serve.
    Raises BudgetError where the models cannot fit the memory there is, before a weight is read.
    """
    refuse_what_cannot_fit(config)
    task = task or load_task(config.task)
    groups_steps = config.search.groups_steps if groups_steps is None else groups_steps
    embedder = load_embedder(config.embedder, config.reward.device) if groups_steps else None
    kv_bytes = None if config.search.kv_budget is None else parse_bytes(config.search.kv_budget)
    backend = load_backend(config.policy, task.step_end, kv_bytes, stop=config.task.stop)
    parts = Parts(task, backend, load_scorer(config.reward), embedder)
    for question in task.questions:
        _check_length(question, parts.backend, config.search.total_tokens)
    _limits(config.search, parts)
    return parts


def _check_length(question: Question, backend: Backend, total_tokens: int) -> None:
    prompt_tokens, limit = len(backend.encode(question.messages)), backend.context_tokens
    if limit is None or prompt_tokens + total_tokens <= limit:
        return
    if prompt_tokens >= limit:
        raise ConfigError(f"question {question.id} has {prompt_tokens} tokens, the policy takes {limit}: leave it out")
    raise ConfigError(
        f"question {question.id} has {prompt_tokens} tokens and may grow by search.total_tokens {total_tokens}, "
        f"the policy takes {limit}: set search.total_tokens to {limit - prompt_tokens} or less"
    )


def _search(log: EventLog, config: Config, parts: Parts, done: set[str], progress: Progress, meter: Meter) -> None:
    task, backend, scorer = parts.task, parts.backend, parts.scorer
    begun, finished = time.monotonic(), len(done)
    policy_calls, reward_calls = backend.calls, scorer.calls if scorer else 0
    progress(finished, len(task.questions))
    if finished == len(task.questions):
        return

    def count() -> None:
        nonlocal finished
        finished += 1
        progress(finished, len(task.questions))

    recorder = Recorder(log.write, JUDGES[task.judge](config.task.verify_seconds), config.search.fold, count)
    with ExitStack() as stack:
        device = str(getattr(backend, "device", "cpu"))
        if limit_device_memory(device, config.memory.inference_share):
            meter = stack.enter_context(_meter(config, device))
        stack.enter_context(meter.recording(log.write))
        watch = Watch(meter, config.memory, backend, scorer)
        clusterer = None
        if parts.embedder is not None and config.search.groups_steps:
            clusterer = by_meaning(watch.embedder(parts.embedder), config.embedder.cut)
        try:
            with meter.phase("search"):
                search(
                    [question for question in task.questions if question.id not in done],
                    watch.backend,
                    watch.scorer,
                    STRATEGIES[config.search.strategy](config.search),
                    _limits(config.search, parts),
                    seed=config.seed,
                    how=config.search.fold,
                    observer=recorder,
                    clusterer=clusterer,
                )
        finally:
            log.write(
                Session(
                    seconds=round(time.monotonic() - begun, 3),
                    policy_calls=backend.calls - policy_calls,
                    reward_calls=(scorer.calls if scorer else 0) - reward_calls,
                    questions=finished - len(done),
                    kv_bytes_per_token=backend.kv_bytes_per_token,
                    peak_kv_tokens=recorder.peak_kv_tokens,
                )
            )


def _meter(config: Config, device: str = "cpu") -> Meter:
    planned = planned_memory(config)
    return Meter(
        device,
        sample_seconds=config.memory.sample_seconds,
        planned_bytes=planned.by_phase,
        limit_bytes=planned.limit_bytes,
    )


def load_backend(
    settings: PolicySettings, step_end: str, kv_bytes: int | None = None, *, stop: str | None = None
) -> Backend:
    """Load the policy into this process; with `kv_bytes` its cache never takes more."""
    from palmette.backends.local import LocalBackend
    from palmette.engine.cuts import Sampling
    from palmette.zoo.load import load_policy

    model, tokenizer = load_policy(settings.model, **_loading(settings))
    sampling = Sampling(settings.temperature, settings.top_p, settings.top_k, settings.min_p)
    return LocalBackend(
        model,
        tokenizer,
        step_end=step_end,
        stop=stop,
        sampling=sampling,
        batch_rows=settings.batch_rows,
        kv_bytes=kv_bytes,
    )


def load_scorer(settings: RewardSettings) -> Scorer | None:
    """Load the reward model into this process, None where the config names none."""
    if settings.model is None:
        return None
    from palmette.score.scorers.head import PrmScorer
    from palmette.score.scorers.likelihood import LikelihoodScorer
    from palmette.zoo.load import load_likelihood_model, load_reward

    by_likelihood = settings.score == "likelihood"
    load, scorer = (load_likelihood_model, LikelihoodScorer) if by_likelihood else (load_reward, PrmScorer)
    model, tokenizer = load(settings.model, **_loading(settings))
    kv_bytes = None if settings.kv_budget is None else parse_bytes(settings.kv_budget)
    return scorer(model, tokenizer, batch_rows=settings.batch_rows, kv_bytes=kv_bytes)


def _loading(settings: PolicySettings | RewardSettings) -> dict[str, Any]:
    return settings.model_dump(include={"adapter", "dtype", "quantize", "device"})


def load_embedder(settings: EmbedderSettings, reward_device: str) -> Embedder:
    """Load the embedder into this process, beside the reward model unless it is told another place."""
    from palmette.score.sentences import SentenceEmbedder
    from palmette.zoo import load

    model = load.load_embedder(settings.model, reward_device if settings.device == "auto" else settings.device)
    return SentenceEmbedder(model, settings.model, batch_rows=settings.batch_rows)


def _limits(settings: SearchSettings, parts: Parts) -> Limits:
    return Limits(
        settings.width,
        settings.depth,
        settings.step_tokens,
        settings.total_tokens,
        settings.questions_in_flight,
        room_of(settings, parts),
    )


def _first_step(settings: SearchSettings) -> int:
    return min(settings.first_step_tokens, settings.step_tokens, settings.total_tokens)


def room_of(settings: SearchSettings, parts: Parts) -> int | None:
    """Return the KV tokens each tree may hold: an equal part of the budget, so that no tree hangs on its neighbors.

    Raises BudgetError where a prompt with one first step does not fit its part.
    """
    if settings.kv_budget is None:
        return None
    token = parts.backend.kv_bytes_per_token
    trees = max(1, min(settings.questions_in_flight, len(parts.task.questions)))
    room = parse_bytes(settings.kv_budget) // trees // token
    prompt = max((len(parts.backend.encode(question.messages)) for question in parts.task.questions), default=0)
    needed = prompt + _first_step(settings)
    if room < needed:
        fits = [f"search.kv_budget {math.ceil(trees * needed * token / 2**20)}MiB"]
        in_flight = parse_bytes(settings.kv_budget) // (needed * token)
        fits += [f"search.questions_in_flight {in_flight}"] if in_flight else []
        raise BudgetError(
            f"search.kv_budget {settings.kv_budget} leaves each of {trees} questions {room} KV tokens of {token} "
            f"bytes, but the longest prompt with a first step alone needs {needed}, whole branches more. "
            f"Fits: {', or '.join(fits)}"
        )
    return room


def _finished(folder: Path, task: Task) -> set[str]:
    """Return the ids of finished questions; raise RunError where the task is not the one the run was started on."""
    known = {question.id: question for question in task.questions}
    done = set()
    for event in read_events(folder):
        if isinstance(event, QuestionStarted):
            question = known.get(event.question)
            if question is None or question.digest != event.digest:
                raise RunError(f"{folder}: question {event.question} is no longer what it was; the task has changed")
        elif isinstance(event, QuestionFinished):
            done.add(event.question)
    return done


def _new_name(label: str) -> str:
    moment = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return f"runs/{moment}-{label}"
