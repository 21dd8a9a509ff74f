"""The engine's rival: steps by plain batched decoding with transformers' own cache, each from its whole prefix.

Distinct prefixes are computed once for each batch and copied for the rows that continue them.
"""

from collections.abc import Sequence

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from palmette.backends.backend import Expansion, Message, Step
from palmette.backends.chat import render
from palmette.engine.cuts import Sampling
from palmette.engine.sampler import Streams, draw


class PlainBackend:
    """Serves the backend contract for models whose steps end with a single token."""

    kv_bytes_per_token = 0
    context_tokens: int | None = None

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sampling: Sampling, batch_rows: int
    ) -> None:
        self._model, self._tokenizer, self._sampling, self._batch_rows = model, tokenizer, sampling, batch_rows
        self._line = tokenizer.convert_tokens_to_ids("\n")
        self.calls = 0

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the prompt's tokens."""
        return render(self._tokenizer, messages)

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Do nothing: no node keeps a cache."""

    @torch.inference_mode()
    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        """Grow one step for each expansion, rows of like length together."""
        order = sorted(range(len(expansions)), key=lambda place: (len(expansions[place].prefix), place))
        written: dict[int, list[int]] = {place: [] for place in order}
        for start in range(0, len(order), self._batch_rows):
            batch = order[start : start + self._batch_rows]
            self._write([expansions[place] for place in batch], [written[place] for place in batch])
        return [self._step(written[place]) for place in range(len(expansions))]

    def _write(self, wishes: list[Expansion], written: list[list[int]]) -> None:
        prefixes = list(dict.fromkeys(wish.prefix for wish in wishes))
        longest = max(map(len, prefixes))
        tokens = torch.zeros(len(prefixes), longest, dtype=torch.long)
        mask = torch.zeros(len(prefixes), longest, dtype=torch.long)
        for index, prefix in enumerate(prefixes):
            tokens[index, longest - len(prefix) :] = torch.tensor(prefix)
            mask[index, longest - len(prefix) :] = 1
        cache = DynamicCache(config=self._model.config)
        logits = self._forward(tokens, mask, (mask.cumsum(1) - 1).clamp(min=0), cache)
        where = {prefix: index for index, prefix in enumerate(prefixes)}
        rows = torch.tensor([where[wish.prefix] for wish in wishes])
        cache.batch_select_indices(rows)
        logits, mask = logits[rows], mask[rows]
        while True:
            streams = Streams([wish.seed for wish in wishes], [len(row) for row in written])
            for row, token in zip(written, draw(logits, streams, self._sampling).tokens_R.tolist(), strict=True):
                row.append(token)
            kept = [
                index
                for index, (wish, row) in enumerate(zip(wishes, written, strict=True))
                if row[-1] != self._tokenizer.eos_token_id
                and (row[-1] != self._line or set(row) == {self._line})
                and len(row) < wish.max_tokens
            ]
            if not kept:
                return
            if len(kept) < len(wishes):
                cache.batch_select_indices(torch.tensor(kept))
                mask = mask[kept]
                wishes, written = [wishes[index] for index in kept], [written[index] for index in kept]
            mask = torch.cat([mask, mask.new_ones(len(kept), 1)], dim=1)
            last = torch.tensor([[row[-1]] for row in written])
            logits = self._forward(last, mask, mask.sum(1, keepdim=True) - 1, cache)

    def _forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        self.calls += 1
        output = self._model(
            input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _step(self, tokens: list[int]) -> Step:
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        ended = tokens[-1] == self._tokenizer.eos_token_id
        return Step(tuple(tokens), str(text), (0.0,) * len(tokens), "end" if ended else "step", 1.0)
