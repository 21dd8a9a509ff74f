"""Scores steps with any causal language model: the likelihood of the step's tokens under that model.

A model that solves the task better than the policy gives mistakes a low likelihood. No reward model has to be trained.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Mapping

import torch

from palmette.engine.limits import scored_tokens
from palmette.engine.tree_cache import CacheNode
from palmette.engine.tree_model import check_finite
from palmette.score.rows.row import Row, Tokens
from palmette.score.tree_scorer import TreeScorer
from palmette.score.values import likelihood
from palmette.settings import RewardSettings
from palmette.units import parse_bytes


class LikelihoodScorer(TreeScorer):
    """The score is the geometric mean of the probabilities of the step's tokens; 1 for an empty step.

    The cache node of a row leaves out the last token: the logits at a token are those of the token after it.
    """

    omitted_tokens = 1

    def _values(self, nodes: Mapping[Row, CacheNode]) -> dict[Row, float]:
        rows = {node: row for row, node in nodes.items() if node.computed < len(node.tokens)}
        sums = dict.fromkeys(rows, 0.0)
        pending = list(rows)
        together = scored_tokens(self._vocabulary)
        while pending:
            batch = pending[: min(self._batch_rows, together)]
            pieces, _ = self.tree.fit(batch, batch, together)
            for (node, first, last), logits_TV in zip(
                pieces.values(), self.tree.run_every(list(pieces.values())), strict=True
            ):
                if node in rows:
                    sums[node] = 0.0 if first == 0 else sums[node]  # An evicted node starts again.
                    # Tokens of the steps before the last are not counted.
                    skipped = max(0, len(node.tokens) - rows[node].step_tokens - first)
                    start = node.start + first + skipped + 1
                    sums[node] += _log_probability(
                        logits_TV[skipped:], rows[node].tokens[start : start + max(0, last - first - skipped)]
                    )
            del logits_TV  # Else these logits stay in memory beside those of the next tick.
            pending = [node for node in pending if node.computed < len(node.tokens)]
        return {row: sums.get(node, 0.0) / max(1, row.step_tokens) for row, node in nodes.items()}

    def _value_alone(self, row: Row, node: CacheNode) -> float:
        tokens, count = row
        if not count:
            return 0.0
        return _log_probability(self.tree.run_alone(tokens[:-1], count), tokens[-count:]) / count

    def _score(self, value: float) -> float:
        return likelihood(value)


def _log_probability(logits_TV: torch.Tensor, tokens: Tokens) -> float:
    """Return the sum of the log-probabilities of these tokens, one row of logits for each."""
    check_finite(logits_TV, "the reward model's logits")
    chosen = torch.tensor(tokens, device=logits_TV.device, dtype=torch.long)[:, None]
    return float((logits_TV.gather(1, chosen)[:, 0] - logits_TV.logsumexp(-1)).double().sum())


def load(settings: RewardSettings) -> LikelihoodScorer:
    """Return a scorer for `reward.model`, any causal language model, which is loaded into this process."""
    from palmette.zoo.load import load_likelihood_model

    assert settings.model is not None
    options = settings.model_dump(include={"adapter", "dtype", "quantize", "device"})
    model, tokenizer = load_likelihood_model(settings.model, **options)
    kv_bytes = None if settings.kv_budget is None else parse_bytes(settings.kv_budget)
    return LikelihoodScorer(model, tokenizer, batch_rows=settings.batch_rows, kv_bytes=kv_bytes)


plugin = load
