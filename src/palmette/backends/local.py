"""Steps from a transformers model inside the process, by plain batched decoding.

Shapes: R rows, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from palmette.backends.backend import Expansion, Finish, Message, Step
from palmette.backends.chat import render
from palmette.engine.sampler import Sampling, draw, noise
from palmette.errors import BackendError, ConfigError
from palmette.zoo.foreign import told_as

_CONTEXT_TOKENS = 4  # Decoded before a step, so that a tokenizer that drops leading spaces keeps the step's own.


@dataclass
class _Row:
    """One step while it is written."""

    place: int
    expansion: Expansion
    generator: torch.Generator
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None


class LocalBackend:
    """Decodes in batches of `batch_rows`. Every step is computed from its whole prefix: correct before fast."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        step_end: str,
        sampling: Sampling,
        batch_rows: int,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._step_end = step_end
        self._sampling = sampling
        self._batch_rows = batch_rows
        self._ends = _end_tokens(model, tokenizer)
        self._enders: dict[int, bool] = {}
        self.context_tokens = context_tokens(model)
        self.kv_bytes_per_token = _kv_bytes(model)
        self.calls = 0

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the prompt's tokens; see the contract."""
        return render(self._tokenizer, messages)

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Do nothing: no node keeps a cache here."""

    def room_tokens(self) -> int | None:
        """Return None: caches live only while a step is written."""
        return None

    @torch.inference_mode()
    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        """Grow one step for each expansion; see the contract."""
        with told_as(f"the policy, a {self._model.config.model_type}, cannot be decoded"):
            return self._expand(expansions)

    def _expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        # Rows of one length together waste no padding, rows of one prefix together share its prefill.
        order = sorted(range(len(expansions)), key=lambda place: (len(expansions[place].prefix), place))
        steps: dict[int, Step] = {}
        for start in range(0, len(order), self._batch_rows):
            rows = [self._row(place, expansions[place]) for place in order[start : start + self._batch_rows]]
            self._write(rows)
            steps.update((row.place, self._step(row)) for row in rows)
        return [steps[place] for place in range(len(expansions))]

    def _row(self, place: int, expansion: Expansion) -> _Row:
        needed = len(expansion.prefix) + expansion.max_tokens
        if self.context_tokens is not None and needed > self.context_tokens:
            raise ConfigError(
                f"question {expansion.question} may need {needed} tokens, the policy takes {self.context_tokens}: "
                f"lower search.total_tokens by {needed - self.context_tokens} or more"
            )
        return _Row(place, expansion, torch.Generator().manual_seed(expansion.seed))

    def _write(self, rows: list[_Row]) -> None:
        """Decode until every row has ended; rows that have ended leave the batch."""
        logits_RV, cache, mask = self._prefill(rows)
        while True:
            self._append(rows, logits_RV)
            kept = [index for index, row in enumerate(rows) if row.finish is None]
            if not kept:
                return
            if len(kept) < len(rows):
                index = torch.tensor(kept, device=mask.device)
                cache.batch_select_indices(index)
                mask = mask[index]
                rows = [rows[place] for place in kept]
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
            last = torch.tensor([[row.tokens[-1]] for row in rows], device=mask.device)
            positions = mask.sum(1, keepdim=True) - 1
            logits_RV = self._forward(last, mask, positions, cache)

    def _prefill(self, rows: list[_Row]) -> tuple[torch.Tensor, Any, torch.Tensor]:
        """Run each distinct prefix once, padded on the left, then copy it for every row that continues it."""
        prefixes = list(dict.fromkeys(row.expansion.prefix for row in rows))
        longest = max(map(len, prefixes))
        device = self._model.device
        tokens = torch.zeros(len(prefixes), longest, dtype=torch.long)
        mask = torch.zeros(len(prefixes), longest, dtype=torch.long)
        for index, prefix in enumerate(prefixes):
            tokens[index, longest - len(prefix) :] = torch.tensor(prefix)
            mask[index, longest - len(prefix) :] = 1
        tokens, mask = tokens.to(device), mask.to(device)
        cache = DynamicCache(config=self._model.config)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits_RV = self._forward(tokens, mask, positions, cache)
        where = {prefix: index for index, prefix in enumerate(prefixes)}
        index_R = torch.tensor([where[row.expansion.prefix] for row in rows], device=device)
        cache.batch_select_indices(index_R)
        return logits_RV[index_R], cache, mask[index_R]

    def _append(self, rows: list[_Row], logits_RV: torch.Tensor) -> None:
        """Draw the next token of every row, record its log-probability, see whether the step has ended."""
        if not bool(torch.isfinite(logits_RV).all()):
            raise BackendError("the policy's logits are not finite: its weights are damaged or its dtype is too small")
        greedy = self._sampling.temperature == 0
        noise_RV = None if greedy else noise([row.generator for row in rows], logits_RV.shape[1])
        drawn = draw(logits_RV, noise_RV, self._sampling)
        for index in torch.nonzero(drawn.narrow_R)[:, 0].tolist():
            # Too close to call: rounding differs with the batch, so ask again in a batch that is always the same.
            logits_RV[index] = self._alone(rows[index])
            own_noise = None if noise_RV is None else noise_RV[index : index + 1]
            drawn.tokens_R[index] = draw(logits_RV[index : index + 1], own_noise, self._sampling).tokens_R[0]
        logprobs_R = logits_RV.gather(1, drawn.tokens_R[:, None])[:, 0] - logits_RV.logsumexp(-1)
        for row, token, logprob in zip(rows, drawn.tokens_R.tolist(), logprobs_R.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.finish = self._ended(row)

    def _alone(self, row: _Row) -> torch.Tensor:
        """Return the row's next logits computed without a cache, padding or neighbors."""
        tokens = torch.tensor([[*row.expansion.prefix, *row.tokens]], device=self._model.device)
        self.calls += 1
        output = self._model(input_ids=tokens, use_cache=False, logits_to_keep=1)
        logits_V: torch.Tensor = output.logits[0, -1].float()
        return logits_V

    def _forward(self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        self.calls += 1
        output = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits_RV: torch.Tensor = output.logits[:, -1].float()
        return logits_RV

    def _ended(self, row: _Row) -> Finish | None:
        if row.tokens[-1] in self._ends:
            return "end"
        if self._may_end(row.tokens[-1]):
            text = self._text(row)
            while (text := text.lstrip()).startswith(self._step_end):
                text = text[len(self._step_end) :]  # With nothing before it, a delimiter opens the step.
            if self._step_end in text:
                return "step"
        return "length" if len(row.tokens) >= row.expansion.max_tokens else None

    def _may_end(self, token: int) -> bool:
        """Tell whether a delimiter can end in this token; decoding every row on every tick costs a lot."""
        if token not in self._enders:
            self._enders[token] = self._step_end[-1] in str(self._tokenizer.decode([token]))
        return self._enders[token]

    def _text(self, row: _Row) -> str:
        context = list(row.expansion.prefix[-_CONTEXT_TOKENS:])
        tokens = row.tokens[:-1] if row.tokens[-1] in self._ends else row.tokens
        # A character whose first bytes end the context belongs to this step: the step before shows a stand-in.
        above = self._decode(context).rstrip("\ufffd")
        return self._decode(context + tokens)[len(above) :]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _step(self, row: _Row) -> Step:
        assert row.finish is not None
        return Step(tuple(row.tokens), self._text(row), tuple(row.logprobs), row.finish)


def _end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return every token that ends a solution: the generation config may name several, the tokenizer one."""
    generation = getattr(model, "generation_config", None)
    named = getattr(generation, "eos_token_id", None)
    listed = [*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id]
    ends = [token for token in listed if isinstance(token, int)]
    if not ends:
        raise BackendError("the policy names no end token: its solutions would never finish")
    return frozenset(ends)


def context_tokens(model: PreTrainedModel) -> int | None:
    """Return the most tokens a model takes, None where its config names no limit."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def _kv_bytes(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    if not hasattr(config, "num_attention_heads"):
        raise BackendError(f"the policy, a {config.model_type}, has no attention, so no KV cache to search with")
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * int(config.num_hidden_layers) * int(heads) * int(width) * model.dtype.itemsize
