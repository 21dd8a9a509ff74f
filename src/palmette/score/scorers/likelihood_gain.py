"""Scores steps with two causal language models: how much more the larger one expects a step than the smaller one.

Contrastive-Guided Selection of arXiv 2606.01682, as a score. Its authors compare chunks of a fixed number of tokens:
over steps of different lengths the mean is biased. Nothing has to be trained.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Sequence
from typing import Any

from palmette.backends.backend import Message
from palmette.errors import ConfigError
from palmette.memory.guard import RunPieces, run_whole
from palmette.memory.oom import CacheFull
from palmette.score.scorer import Candidate
from palmette.score.scorers.likelihood import LikelihoodScorer
from palmette.score.values import gain
from palmette.settings import RewardSettings
from palmette.units import parse_bytes


class LikelihoodGainScorer:
    """The score is the sigmoid of GAIN_SCALE times the difference of the mean log-probabilities of the step's tokens.

    0.5 where both models expect the step alike, 0 where it does not fit the context of one of them.
    """

    def __init__(self, large: LikelihoodScorer, small: LikelihoodScorer) -> None:
        self._scorers = (large, small)

    @property
    def calls(self) -> int:
        """Forward passes made so far, of both models."""
        return sum(scorer.calls for scorer in self._scorers)

    @property
    def cache_full(self) -> CacheFull | None:
        """Why a KV cache could not grow the last time, None if both always could."""
        large, small = self._scorers
        return large.cache_full or small.cache_full

    def give_up_cache(self) -> bool:
        """Free both KV caches and use smaller ones from now on; return whether there was anything to free."""
        large, small = (scorer.give_up_cache() for scorer in self._scorers)
        return large or small

    def forget(self, messages: Sequence[Message]) -> None:
        """Free the cached paths of a question; see `KeepsPaths`."""
        for scorer in self._scorers:
            scorer.forget(messages)

    def check_prompt(self, messages: Sequence[Message]) -> None:
        """Raise ConfigError for messages that a model cannot be given; see `ReadsPrompts`."""
        for scorer in self._scorers:
            scorer.check_prompt(messages)

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return the score of the last step of each candidate, in order. Raises BackendError if a model fails."""
        return self.score_in_pieces(candidates, run_whole)

    def score_in_pieces(self, candidates: Sequence[Candidate], run_pieces: RunPieces) -> list[float]:
        """Return the same scores as `score`; the models run on pieces of the rows inside `run_pieces`."""
        large, small = (scorer.score_in_pieces(candidates, run_pieces) for scorer in self._scorers)
        return [gain(expected, before) for expected, before in zip(large, small, strict=True)]


def load(settings: RewardSettings) -> LikelihoodGainScorer:
    """Return a scorer for `reward.model` and `reward.small_model`, which are loaded into this process."""
    from palmette.zoo.load import load_likelihood_model

    assert settings.model is not None and settings.small_model is not None
    options: dict[str, Any] = settings.model_dump(include={"dtype", "quantize", "device"})
    kv_bytes = None if settings.kv_budget is None else parse_bytes(settings.kv_budget)
    loaded = [
        load_likelihood_model(settings.model, adapter=settings.adapter, **options),
        load_likelihood_model(settings.small_model, **options),
    ]
    large, small = (tokenizer.get_vocab() for _, tokenizer in loaded)
    if large != small:
        raise ConfigError(
            f"reward.small_model {settings.small_model} has another tokenizer than {settings.model}: what they expect "
            f"of a token cannot be compared. Take two models of one family"
        )
    return LikelihoodGainScorer(
        *(
            LikelihoodScorer(model, tokenizer, batch_rows=settings.batch_rows, kv_bytes=kv_bytes)
            for model, tokenizer in loaded
        )
    )


plugin = load
