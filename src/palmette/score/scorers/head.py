"""Scores steps with a process reward model: the sigmoid of its scalar head at the last token of a step.

Shapes: P rows, V outputs of the model for each.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Mapping
from typing import Any

import torch

from palmette.engine.tree_cache import CacheNode
from palmette.engine.tree_model import check_finite
from palmette.profiles.profile import SERVED_HEAD
from palmette.score.rows.row import Row
from palmette.score.tree_scorer import TreeScorer
from palmette.score.values import sigmoid
from palmette.settings import RewardSettings
from palmette.units import parse_bytes


class PrmScorer(TreeScorer):
    """The score is the sigmoid of the head's output at the last token of the step."""

    def _values(self, nodes: Mapping[Row, CacheNode]) -> dict[Row, float]:
        found: dict[CacheNode, float] = {}
        pending = list(nodes.values())
        while pending:
            batch = pending[: self._batch_rows]
            pieces, _ = self.tree.fit(batch, batch)
            logits_P = self._logit(self.tree.run(list(pieces.values())))
            check_finite(logits_P, "the reward model's scores")
            for (node, _, last), logit in zip(pieces.values(), logits_P.tolist(), strict=True):
                if last == len(node.tokens):
                    found[node] = logit
            pending = [tip for tip in pending if tip not in found]
        return {row: found[node] for row, node in nodes.items()}

    def _value_alone(self, row: Row, node: CacheNode) -> float:
        return float(self._logit(self.tree.run_alone(row.tokens))[0])

    def _logit(self, outputs_PV: torch.Tensor) -> torch.Tensor:
        """Return the number whose sigmoid is the score, for each row of outputs."""
        return outputs_PV[:, 0]

    def _score(self, value: float) -> float:
        return sigmoid(value)


def load(settings: RewardSettings) -> PrmScorer:
    """Return a scorer for `reward.model`, a classifier with one label that is loaded into this process.

    It is one of tokens, or of sequences: that one is read at every step as if the text ended there.
    """
    from palmette.zoo.load import load_reward
    from palmette.zoo.load_headed import is_sequence_classifier, load_headed, load_reward_tokenizer

    assert settings.model is not None
    options: dict[str, Any] = settings.model_dump(include={"adapter", "dtype", "quantize", "device"})
    if is_sequence_classifier(settings.model):
        tokenizer = load_reward_tokenizer(settings.model)
        model = load_headed(settings.model, SERVED_HEAD, 1, tokenizer=tokenizer, **options)
    else:
        model, tokenizer = load_reward(settings.model, **options)
    kv_bytes = None if settings.kv_budget is None else parse_bytes(settings.kv_budget)
    return PrmScorer(model, tokenizer, batch_rows=settings.batch_rows, kv_bytes=kv_bytes)


plugin = load
