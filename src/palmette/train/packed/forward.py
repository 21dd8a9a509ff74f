"""A forward pass over slots of a trie: log-probabilities of what they predict, and keys and values for slots below.

Shapes: T slots of a pass, P predictions of these slots, D hidden size.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from palmette.train.logprobs import no_logprobs, token_logprobs
from palmette.train.model_parts import Head, body_of
from palmette.train.packed.attention import NAME, KeyValue, Pass, most_scores
from palmette.train.packed.tiles import tiles_of
from palmette.train.packed.trie import Trie


@dataclass(frozen=True)
class Outputs:
    """What a pass over slots `first` to `last - 1` gives.

    Log-probabilities, entropies and, with a value head, values have an entry for each prediction of the slots, in the
    trie's order. `keys_values` are those of the slots, by layer; none if nothing below reads them.
    """

    first: int
    last: int
    logprobs_P: torch.Tensor
    entropies_P: torch.Tensor
    values_P: torch.Tensor | None
    keys_values: dict[int, KeyValue]

    def leaves(self) -> "Outputs":
        """Return the same tensors cut off from what they were computed from, and ready to collect gradients."""
        return Outputs(
            self.first,
            self.last,
            _leaf(self.logprobs_P),
            _leaf(self.entropies_P),
            None if self.values_P is None else _leaf(self.values_P),
            {layer: (_leaf(keys), _leaf(values)) for layer, (keys, values) in self.keys_values.items()},
        )

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors, always in the same order."""
        own = [self.logprobs_P, self.entropies_P] + ([] if self.values_P is None else [self.values_P])
        return own + [tensor for layer in sorted(self.keys_values) for tensor in self.keys_values[layer]]


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()


class TrieModel:
    """A causal language model, and a value head if there is one, that compute slots of a trie.

    With `values_only` no logits are computed: log-probabilities and entropies are 0.
    """

    def __init__(
        self,
        model: Any,
        head: Head,
        *,
        chunk_tokens: int | None = None,
        value_head: nn.Module | None = None,
        values_only: bool = False,
    ) -> None:
        self._body: Any = body_of(model)
        self._head = head
        self._chunk_tokens = chunk_tokens
        self._value_head = value_head
        self._values_only = values_only
        self._device = head.weight_VD.device
        self._most_scores = most_scores(model.config.get_text_config())

    @contextmanager
    def attention(self) -> Iterator[None]:
        """Inside the block, let the model use tiled attention.

        Forward and backward passes have to be inside: gradient checkpointing computes layers again in the latter.
        """
        config = self._body.config
        before = config._attn_implementation
        config._attn_implementation = NAME
        try:
            yield
        finally:
            config._attn_implementation = before

    def forward(self, trie: Trie, first: int, last: int, above: Sequence[Outputs], *, is_read: bool = True) -> Outputs:
        """Compute slots `first` to `last - 1`. `above` are the outputs of all slots above them, from the root on.

        Keys and values are kept only if slots below read them: with gradient checkpointing, or without gradients,
        nothing else would hold those of all layers at once.
        """
        hidden_TD, trie_pass = self.hidden(trie, first, last, above, is_read=is_read)
        pairs = trie.predictions[trie.at[first] : trie.at[last]]
        places_P = torch.tensor([slot - first for slot, _ in pairs], dtype=torch.long, device=self._device)
        tokens_P = torch.tensor([token for _, token in pairs], dtype=torch.long, device=self._device)
        hidden_PD = hidden_TD.index_select(0, places_P)
        del hidden_TD
        if self._values_only:
            logprobs_P, entropies_P = no_logprobs(hidden_PD)
        else:
            logprobs_P, entropies_P = token_logprobs(hidden_PD, self._head, tokens_P, chunk_tokens=self._chunk_tokens)
        values_P = None if self._value_head is None else self._value_head(hidden_PD).flatten()
        return Outputs(first, last, logprobs_P, entropies_P, values_P, trie_pass.own)

    def hidden(
        self, trie: Trie, first: int, last: int, above: Sequence[Outputs], *, is_read: bool = True
    ) -> tuple[torch.Tensor, Pass]:
        """Return the hidden states of the slots, and the pass with their keys and values if those are read."""
        nodes = [node for node in trie.nodes if first <= node.first < last]
        ends = [min(node.end, last) - first for node in nodes for _ in range(node.first, min(node.last, last))]
        depths_T = self._positions(trie, first, last)
        trie_pass = Pass(
            tiles=tiles_of(nodes, first, last, [part.last - part.first for part in above], self._most_scores),
            depths_T=depths_T,
            ends_T=torch.tensor(ends, device=self._device),
            above=[(self._positions(trie, part.first, part.last), part.keys_values) for part in above],
            is_read=is_read,
        )
        hidden_1TD = self._body(
            input_ids=torch.tensor([trie.tokens[first:last]], device=self._device),
            position_ids=depths_T[None],
            # Without a mask of padding, positions that do not increase would be taken for packed sequences.
            attention_mask=torch.ones(1, last - first, dtype=torch.bool, device=self._device),
            use_cache=False,
            trie_pass=trie_pass,
        ).last_hidden_state
        return hidden_1TD[0], trie_pass

    def _positions(self, trie: Trie, first: int, last: int) -> torch.Tensor:
        return torch.tensor(trie.depths[first:last], device=self._device)
