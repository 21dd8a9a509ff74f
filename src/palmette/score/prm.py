"""Step scores from a process reward model with a scalar head, read at each step's last token."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from palmette.backends.chat import render
from palmette.backends.local import context_tokens
from palmette.errors import BackendError
from palmette.score.scorer import Candidate
from palmette.zoo.foreign import told_as

GRID = 1 / 64
"""Logits are rounded to this, so that a score is the same whatever is scored beside it: a batch moves a logit by about
1e-5, and a strategy that breaks ties by score would see it. In probabilities a step of the grid is 1.6% at the most."""

NARROW = 1e-4
"""A logit this close to the border between two grid points is computed again alone; one in eighty is."""


class PrmScorer:
    """Runs whole prefixes in batches of `batch_rows`, padded on the right; a score is the sigmoid of the head.

    A solution longer than the model reads scores 0: it cannot be judged.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_rows: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._batch_rows = batch_rows
        self._limit = context_tokens(model)
        self.calls = 0

    @torch.inference_mode()
    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Score the last step of each candidate; see the contract."""
        with told_as(f"the reward model, a {self._model.config.model_type}, cannot score"):
            rows = [self._encode(candidate) for candidate in candidates]
            distinct = sorted({row for row in rows if row is not None}, key=lambda row: (len(row), row))
            logits: dict[tuple[int, ...], float] = {}
            for start in range(0, len(distinct), self._batch_rows):
                batch = distinct[start : start + self._batch_rows]
                logits.update(zip(batch, self._forward(batch), strict=True))
            for row, logit in logits.items():
                if abs(logit / GRID % 1 - 0.5) * GRID < NARROW:
                    logits[row] = self._forward([row])[0]
            return [0.0 if row is None else _sigmoid(round(logits[row] / GRID) * GRID) for row in rows]

    def _encode(self, candidate: Candidate) -> tuple[int, ...] | None:
        # The policy's text is split as text: a control token that it spells out must not become one.
        text = "".join(candidate.steps)
        steps = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        ends = candidate.finished and self._tokenizer.eos_token_id is not None
        tokens = (*render(self._tokenizer, candidate.messages), *steps, *[self._tokenizer.eos_token_id] * ends)
        return None if self._limit is not None and len(tokens) > self._limit else tokens

    def _forward(self, rows: Sequence[tuple[int, ...]]) -> list[float]:
        longest = max(map(len, rows))
        tokens = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros(len(rows), longest, dtype=torch.long)
        for index, row in enumerate(rows):
            tokens[index, : len(row)] = torch.tensor(row)
            mask[index, : len(row)] = 1
        device = self._model.device
        self.calls += 1
        output = self._model(input_ids=tokens.to(device), attention_mask=mask.to(device))
        last = torch.tensor([len(row) - 1 for row in rows], device=device)
        logits = output.logits[torch.arange(len(rows), device=device), last, 0].float()
        if not bool(torch.isfinite(logits).all()):
            raise BackendError(
                "the reward model's scores are not finite: its weights are damaged or its dtype is too small"
            )
        return [float(logit) for logit in logits]


def _sigmoid(logit: float) -> float:
    return float(torch.tensor(logit, dtype=torch.float64).sigmoid())
