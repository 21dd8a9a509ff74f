"""Builds the scorer of a reward model on servers from its settings."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from palmette.backends.servers.client import require_httpx
from palmette.backends.servers.served_model import ServedModel
from palmette.errors import ConfigError
from palmette.profiles.find import read_profile
from palmette.profiles.profile import Profile
from palmette.score.rows.profile_prompt import Renderer
from palmette.score.rows.profile_rows import ProfileRows
from palmette.score.rows.row import ChatRows, Rows
from palmette.score.served.reading import Head, Likelihood, Reading, RewardDialect, TwoTokens
from palmette.score.served.scorer import ServedGain, ServedScorer
from palmette.score.served.sglang import SglangReward
from palmette.score.served.vllm import VllmReward
from palmette.score.values import likelihood, sigmoid
from palmette.settings import LIKELIHOODS, RewardSettings

_DIALECTS: dict[str, Callable[[ServedModel, Reading], RewardDialect]] = {"vllm": VllmReward, "sglang": SglangReward}


def check_served(settings: RewardSettings) -> None:
    """Raise ConfigError for what cannot be read of a reward model on servers, before any is asked."""
    for key, unset in (("adapter", None), ("quantize", "none"), ("kv_budget", None)):
        if getattr(settings, key) != unset:
            raise ConfigError(
                f"reward.{key} is {getattr(settings, key)}, and the reward model is on a server: start the server with "
                f"a model that is so, and leave reward.{key} out"
            )
    if settings.score == "profile" and settings.profile is not None:
        profile = read_profile(settings.profile)
        if not profile.is_servable:
            raise ConfigError(
                f"reward.profile {settings.profile} reads the head {getattr(profile.read, 'weights', None)}, which no "
                f"stock server loads: set reward.backend to local"
            )
    if settings.score == "likelihood_gain" and not settings.small_address:
        raise ConfigError(
            "reward.score likelihood_gain asks two models, and reward.small_address is not set: give the address of "
            "the server of reward.small_model"
        )


def load_served(settings: RewardSettings) -> ServedScorer | ServedGain:
    """Return the scorer of `reward.model` on the servers at `reward.address`. No weight is read here.

    Raises ConfigError where profile and tokenizer do not fit each other, otherwise as `ServedScorer` does.
    """
    check_served(settings)
    require_httpx()
    assert settings.model is not None
    if settings.score != "likelihood_gain":
        return _scorer(settings)
    small = settings.model_copy(
        update={
            "model": settings.small_model,
            "address": settings.small_address,
            "served_model": settings.small_served_model,
        }
    )
    if _tokenizer(settings)[0].get_vocab() != _tokenizer(small)[0].get_vocab():
        raise ConfigError(
            f"reward.small_model {settings.small_model} has another tokenizer than {settings.model}: what they expect "
            f"of a token cannot be compared. Take two models of one family"
        )
    large = _scorer(settings)
    try:
        return ServedGain(large, _scorer(small, "small_"))
    except BaseException:
        large.close()
        raise


def _scorer(settings: RewardSettings, which: str = "") -> ServedScorer:
    assert settings.model is not None
    tokenizer, folder = _tokenizer(settings)
    rows, reading = _reading(settings, tokenizer)
    # Rows are encoded in the caller's thread, servers checked in another one: encoding changes settings of a tokenizer.
    model = ServedModel(
        f"reward.{which}model",
        settings.model,
        f"reward.{which}served_model",
        settings.served_model,
        deepcopy(tokenizer),
        folder,
    )
    by_likelihood = isinstance(reading, Likelihood)
    return ServedScorer(
        _DIALECTS[settings.backend](model, reading),
        rows,
        likelihood if by_likelihood else sigmoid,
        addresses=settings.address,
        answer_seconds=settings.answer_seconds,
        batch_rows=settings.batch_rows,
        return_seconds=settings.return_seconds,
        skips_empty=by_likelihood,
    )


def _tokenizer(settings: RewardSettings) -> tuple[Any, str]:
    from palmette.zoo.load import load_tokenizer_of_reward

    assert settings.model is not None
    tokenizer, folder = load_tokenizer_of_reward(settings.model, by_likelihood=settings.score in LIKELIHOODS)
    return tokenizer, str(folder)


def _reading(settings: RewardSettings, tokenizer: Any) -> tuple[Rows, Reading]:
    if settings.score in LIKELIHOODS:
        return ChatRows(tokenizer), Likelihood()
    if settings.score != "profile" or settings.profile is None:
        return ChatRows(tokenizer), Head()
    profile = read_profile(settings.profile)
    renderer = Renderer(profile, tokenizer, str(settings.model))
    return ProfileRows(renderer), _of_profile(profile, renderer)


def _of_profile(profile: Profile, renderer: Renderer) -> Reading:
    ids, read = renderer.ids, profile.read
    if read.kind == "tokens":
        assert ids.good is not None and ids.bad is not None
        return TwoTokens(ids.good, ids.bad)
    return Head(read.good if read.kind == "labels" else None, ids.tag)
