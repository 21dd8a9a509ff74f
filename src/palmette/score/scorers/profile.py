"""Scores steps with a published reward model, laid out and read as its profile says.

Shapes: P rows, V outputs of the model for each.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from palmette.profiles.find import read_profile
from palmette.profiles.profile import Profile
from palmette.score.rows.profile_prompt import Renderer
from palmette.score.rows.profile_rows import ProfileRows
from palmette.score.scorers.head import PrmScorer
from palmette.settings import RewardSettings
from palmette.units import parse_bytes


class ProfileScorer(PrmScorer):
    """The score of a step is read at its tag; tokens behind that are not computed.

    The model gives one number for each token, or two of which the profile tells the good one. The softmax of two is the
    sigmoid of their difference.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        profile: Profile,
        renderer: Renderer,
        *,
        batch_rows: int,
        kv_bytes: int | None = None,
    ) -> None:
        super().__init__(model, tokenizer, batch_rows=batch_rows, kv_bytes=kv_bytes, rows=ProfileRows(renderer))
        self._good = _good_output(profile)

    def _logit(self, outputs_PV: torch.Tensor) -> torch.Tensor:
        if self._good is None:
            return outputs_PV[:, 0]
        return outputs_PV[:, self._good] - outputs_PV[:, 1 - self._good]


def _good_output(profile: Profile) -> int | None:
    """Return which of two outputs speaks for a step, None where there is one output."""
    if profile.read.kind == "value":
        return None
    return 0 if profile.read.kind == "tokens" else profile.read.good


def load(settings: RewardSettings) -> ProfileScorer:
    """Return a scorer for `reward.model`, loaded into this process and read by `reward.profile`."""
    from palmette.zoo.load_headed import load_headed, load_reward_tokenizer, load_token_reader

    assert settings.model is not None and settings.profile is not None
    profile = read_profile(settings.profile)
    tokenizer = load_reward_tokenizer(settings.model)
    renderer = Renderer(profile, tokenizer, settings.model)
    options: dict[str, Any] = settings.model_dump(include={"adapter", "dtype", "quantize", "device"})
    read = profile.read
    if read.kind == "tokens":
        assert renderer.ids.good is not None and renderer.ids.bad is not None
        tokens = (renderer.ids.good, renderer.ids.bad)
        model = load_token_reader(settings.model, tokens, tokenizer=tokenizer, **options)
    else:
        outputs = 2 if read.kind == "labels" else 1
        model = load_headed(settings.model, read.weights, outputs, tokenizer=tokenizer, **options)
    kv_bytes = None if settings.kv_budget is None else parse_bytes(settings.kv_budget)
    return ProfileScorer(model, tokenizer, profile, renderer, batch_rows=settings.batch_rows, kv_bytes=kv_bytes)


plugin = load
