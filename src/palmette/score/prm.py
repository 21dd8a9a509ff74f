"""Step scores from a process reward model with a scalar head, read at each step's last token."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from palmette.backends.chat import render
from palmette.errors import BackendError, ConfigError
from palmette.score.scorer import Candidate


class PrmScorer:
    """Runs whole prefixes in batches of `batch_rows`, padded on the right; a score is the sigmoid of the head."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_rows: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._batch_rows = batch_rows
        self._limit = int(getattr(model.config, "max_position_embeddings", 2**31))
        self.calls = 0

    @torch.inference_mode()
    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Score the last step of each candidate; see the contract."""
        rows = [self._encode(candidate) for candidate in candidates]
        order = sorted(range(len(rows)), key=lambda place: (len(rows[place]), place))
        scores: dict[int, float] = {}
        for start in range(0, len(order), self._batch_rows):
            places = order[start : start + self._batch_rows]
            scores.update(zip(places, self._forward([rows[place] for place in places]), strict=True))
        return [scores[place] for place in range(len(rows))]

    def _encode(self, candidate: Candidate) -> list[int]:
        tokens = [*render(self._tokenizer, candidate.messages)]
        tokens += self._tokenizer.encode("".join(candidate.steps), add_special_tokens=False)
        if candidate.finished and self._tokenizer.eos_token_id is not None:
            tokens.append(self._tokenizer.eos_token_id)
        if len(tokens) > self._limit:
            raise ConfigError(
                f"a solution of {len(tokens)} tokens is too long for the reward model, which takes {self._limit}: "
                f"lower search.total_tokens by {len(tokens) - self._limit} or more"
            )
        return tokens

    def _forward(self, rows: list[list[int]]) -> list[float]:
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
        scores = output.logits[torch.arange(len(rows), device=device), last, 0].float().sigmoid()
        if not bool(torch.isfinite(scores).all()):
            raise BackendError(
                "the reward model's scores are not finite: its weights are damaged or its dtype is too small"
            )
        return [float(score) for score in scores]
