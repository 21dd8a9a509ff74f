"""The parts of a search, built from a config: backend, scorer, embedder."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from palmette import registry
from palmette.backends.backend import Backend
from palmette.errors import BackendError, BudgetError, ConfigError
from palmette.own_parts import name_of, telling
from palmette.planner.run_plan import kv_token_bytes, refuse_what_cannot_fit
from palmette.score.scorer import Embedder, ReadsPrompts, Scorer, make_embedder, make_scorer
from palmette.score.served.load import check_served, load_served
from palmette.search.checked import context_tokens, kv_bytes_per_token, prompt_of
from palmette.search.growth import Limits
from palmette.settings import (
    LIKELIHOODS,
    REWARD_SERVERS,
    SERVERS,
    Config,
    EmbedderSettings,
    PolicySettings,
    RewardSettings,
    SearchSettings,
)
from palmette.tasks.task import Question, Task
from palmette.units import one_line, parse_bytes
from palmette.zoo.resolve import check_model_name


@dataclass(frozen=True)
class Parts:
    """What a search runs on, whatever it asks. The embedder is there where the strategy uses clusters."""

    backend: Backend
    scorer: Scorer | None
    embedder: Embedder | None = None


def build_parts(config: Config, *, clusters: bool | None = None) -> Parts:
    """Refuse what does not fit by plan, then load the models.

    `clusters` tells whether an embedder is needed, where the config's own strategy is not the only one to serve.
    Raises BudgetError where the models cannot fit the memory there is, before a weight is read.
    """
    clusters = "clusters" in config.search.build_strategy().uses if clusters is None else clusters
    check_names(config, clusters=clusters)
    refuse_what_cannot_fit(config)
    embedder = load_embedder(config.embedder, config.reward.device) if clusters else None
    kv_bytes = None if config.search.kv_budget is None else parse_bytes(config.search.kv_budget)
    return Parts(load_backend(config.policy, kv_bytes), load_scorer(config.reward), embedder)


def check_names(config: Config, *, clusters: bool) -> None:
    """Raise ConfigError for a model's name that stands for none, before a model library is imported."""
    if config.policy.backend in registry.built_ins("backend"):
        check_model_name(config.policy.model, "policy")
        _check_address(config.policy)
    if config.reward.model is not None and config.reward.score in registry.built_ins("scorer"):
        check_model_name(config.reward.model, "reward", by_likelihood=config.reward.score in LIKELIHOODS)
        if config.reward.small_model is not None:
            check_model_name(config.reward.small_model, "reward", by_likelihood=True)
    _check_reward_address(config.reward)
    if clusters and not registry.is_own("embedder", config.embedder.model):
        check_model_name(config.embedder.model, "embedder")


def _check_address(policy: PolicySettings) -> None:
    if policy.is_served and not policy.address:
        raise ConfigError(f"policy.backend {policy.backend} needs policy.address, such as http://127.0.0.1:8000")
    if policy.address and not policy.is_served:
        raise ConfigError(
            f"policy.address is set, and policy.backend is {policy.backend}: set that to one of {', '.join(SERVERS)}, "
            f"or leave the address out"
        )


def _check_reward_address(reward: RewardSettings) -> None:
    reads_model = reward.model is not None and reward.score in registry.built_ins("scorer")
    if not reward.is_served:
        for key in ("address", "small_address"):
            if getattr(reward, key):
                raise ConfigError(
                    f"reward.{key} is set, and reward.backend is {reward.backend}: set that to one of "
                    f"{', '.join(REWARD_SERVERS)}, or leave the address out"
                )
        return
    if not reads_model:
        return
    if not reward.address:
        raise ConfigError(f"reward.backend {reward.backend} needs reward.address, such as http://127.0.0.1:8001")
    check_served(reward)


def load_backend(settings: PolicySettings, kv_bytes: int | None = None) -> Backend:
    """Return the backend that `policy.backend` names; with `kv_bytes` its cache never takes more."""
    given: dict[str, Any] = {"settings": settings, "kv_bytes": kv_bytes}
    if settings.is_served:
        given["kv_bytes_per_token"] = kv_token_bytes(settings)
    backend = _built("backend", settings.backend, **given)
    with telling("backend", name_of(backend), "its attributes", BackendError):
        generates = ("start", "finished") if hasattr(backend, "start") else ("expand",)
        needed = ("encode", *generates, "release", "calls", "kv_bytes_per_token", "context_tokens")
        lacking = [name for name in needed if not hasattr(backend, name)]
    if lacking:
        raise ConfigError(
            f"policy.backend: a {type(backend).__name__} is no backend, it has no {', '.join(lacking)}: "
            f"see palmette.backends.backend.Backend"
        )
    return backend  # type: ignore[no-any-return]  # Checked just now.


def load_scorer(settings: RewardSettings) -> Scorer | None:
    """Return the scorer that `reward.score` names, None where it reads a model and the config names none."""
    if settings.model is None and settings.score in registry.built_ins("scorer"):
        return None
    if settings.is_served and settings.score in registry.built_ins("scorer"):
        return load_served(settings)
    return make_scorer(_built("scorer", settings.score, settings=settings))


def load_embedder(settings: EmbedderSettings, reward_device: str) -> Embedder:
    """Return the embedder: one of the user's own, or a SentenceTransformer beside the reward model unless told else."""
    if registry.is_own("embedder", settings.model):
        return make_embedder(_built("embedder", settings.model, settings=settings))
    from palmette.score.sentences import SentenceEmbedder
    from palmette.zoo import load

    device = reward_device if settings.device == "auto" else settings.device
    return SentenceEmbedder(load.load_embedder(settings.model, device), settings.model, batch_rows=settings.batch_rows)


def _built(kind: str, name: str, **given: Any) -> Any:
    """Return the part of this name, built; raise BackendError, with its class, where building it fails."""
    part = registry.find(kind, name)
    with telling(kind, name_of(part), "its constructor", BackendError):
        return registry.build(part, **given)


def limits_of(settings: SearchSettings, task: Task, stop: str | None, room: int | None) -> Limits:
    """Return where the branches of a task's trees have to stop."""
    return Limits(
        settings.width,
        settings.depth,
        settings.step_tokens,
        settings.total_tokens,
        settings.questions_in_flight,
        room,
        task.step_end,
        stop,
    )


@dataclass(frozen=True)
class Askable:
    """The questions of a task that can be asked, why others cannot, and the KV tokens that each tree may hold.

    `room` is None without a limit.
    """

    questions: tuple[Question, ...]
    skipped: tuple[str, ...]
    room: int | None


def check_questions(
    config: Config,
    task: Task,
    backend: Backend,
    scorer: Scorer | None = None,
    *,
    most_prompt_tokens: int | None = None,
) -> Askable:
    """Return the questions that policy and reward model can be given; called before the first one is asked.

    `most_prompt_tokens` is `train.prompt_tokens`, a limit below that of the policy.
    Raises ConfigError for one that cannot be asked: with `task.unaskable` refuse for the first, with skip only if no
    question is left. Raises BackendError where a model's template or a part fails, BudgetError where the KV budget is
    too small for the longest prompt.
    """
    asked: list[Question] = []
    refused: list[ConfigError] = []
    longest = 0
    for question in task.questions:
        try:
            tokens = _prompt_tokens(question, config.search, backend, scorer)
            if most_prompt_tokens is not None and tokens > most_prompt_tokens:
                raise ConfigError(
                    f"question {one_line(question.id, 80)} has {tokens} tokens, train.prompt_tokens is "
                    f"{most_prompt_tokens}: raise it, or set task.unaskable to skip"
                )
            longest = max(longest, tokens)
            asked.append(question)
        except ConfigError as error:
            refused.append(error)
            if config.task.unaskable == "refuse":
                raise
    if refused and not asked:
        raise refused[0]
    room = room_of(config.search, len(asked), longest, kv_bytes_per_token(backend))
    return Askable(tuple(asked), tuple(str(error) for error in refused), room)


def _prompt_tokens(question: Question, search: SearchSettings, backend: Backend, scorer: Scorer | None) -> int:
    """Return how many tokens a question's prompt has. Raises ConfigError, with its id, if it cannot be asked."""
    name = one_line(question.id, 80)
    with _naming(f"question {name} cannot be put to the policy"):
        tokens = len(prompt_of(backend, question))
    _check_length(name, tokens, search.total_tokens, context_tokens(backend))
    reader: object = scorer
    if isinstance(reader, ReadsPrompts):
        with (
            _naming(f"question {name} cannot be put to the reward model"),
            telling("scorer", name_of(reader), "check_prompt", BackendError),
        ):
            reader.check_prompt(question.messages)
    return tokens


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Put `place` before the message of an error about a question."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}, or set task.unaskable to skip") from error


def _check_length(question: str, prompt_tokens: int, total_tokens: int, limit: int | None) -> None:
    if limit is None or prompt_tokens + total_tokens <= limit:
        return
    if prompt_tokens >= limit:
        raise ConfigError(f"question {question} has {prompt_tokens} tokens, the policy takes {limit}: leave it out")
    raise ConfigError(
        f"question {question} has {prompt_tokens} tokens and may grow by search.total_tokens {total_tokens}, "
        f"the policy takes {limit}: set search.total_tokens to {limit - prompt_tokens} or less"
    )


def room_of(settings: SearchSettings, questions: int, prompt_tokens: int, token_bytes: int) -> int | None:
    """Return the KV tokens each tree may hold: an equal part of the budget, so that no tree depends on its neighbors.

    Raises BudgetError where the longest prompt with one first step does not fit its part.
    """
    if settings.kv_budget is None:
        return None
    trees = max(1, min(settings.questions_in_flight, questions))
    room = parse_bytes(settings.kv_budget) // trees // token_bytes
    needed = prompt_tokens + settings.first_tokens
    if room < needed:
        fits = [f"search.kv_budget {math.ceil(trees * needed * token_bytes / 2**20)}MiB"]
        in_flight = parse_bytes(settings.kv_budget) // (needed * token_bytes)
        fits += [f"search.questions_in_flight {in_flight}"] if in_flight else []
        raise BudgetError(
            f"search.kv_budget {settings.kv_budget} leaves each of {trees} questions {room} KV tokens of {token_bytes} "
            f"bytes, but the longest prompt with a first step alone needs {needed}, whole branches more. "
            f"Fits: {', or '.join(fits)}"
        )
    return room
