"""Attention over slots of a trie, tile by tile, forward and backward: time and memory grow with visible scores only.

As in FlashAttention, the forward pass keeps the logarithm of each query's sum of exponentials, by which the backward
pass computes the weights of a tile again. No scores are kept, no mask is larger than a tile.

Shapes: G KV heads, F query heads per KV head, T slots of a pass, N = T * F, K slots of keys, W width of a query and a
key, X width of a value; of one tile Q queries, M = Q * F, C keys.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface

from palmette.engine.attention import Mask, tree_mask
from palmette.train.packed.tiles import Tile

NAME = "palmette_packed"
"""The name of `packed_attention` in transformers' AttentionInterface and AttentionMaskInterface."""

TILE_BYTES = 2 * 2**20
"""Scores of one tile of all heads: few enough to stay in a CPU core's cache."""

_HIDDEN = -1e30
"""The score of a key that is not visible. Finite: a row of a tile without any visible key must not become nan."""

_LEAST_LOG = -50.0

KeyValue = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Pass:
    """What attention needs to know of one forward pass over slots of a trie.

    `depths_T` are the positions of the slots in their samples, `ends_T` the slots at which those below each end, both
    counted from the first slot of the pass. `above` has for each open node its positions and, by layer, keys and
    values. `own` takes the keys and values of this pass by layer, if slots below will read them (`is_read`); only the
    first ones, since gradient checkpointing computes a layer twice.
    """

    tiles: Sequence[Tile]
    depths_T: torch.Tensor
    ends_T: torch.Tensor
    above: Sequence[tuple[torch.Tensor, dict[int, KeyValue]]] = ()
    is_read: bool = True
    own: dict[int, KeyValue] = field(default_factory=dict)
    masks: dict[int, list[tuple[Tile, torch.Tensor | None]]] = field(default_factory=dict)
    held: list[Mask] = field(default_factory=list)
    """The masks by whose identity `masks` is indexed, held so that no other one takes their place."""

    def masked_tiles(self, mask: Mask) -> list[tuple[Tile, torch.Tensor | None]]:
        """Return each tile that has a visible key, with its hidden scores as QC, None if all are visible.

        They are computed once for all layers that share a mask.
        """
        if id(mask) not in self.masks:
            self.held.append(mask)
            self.masks[id(mask)] = list(self._masked(mask))
        return self.masks[id(mask)]

    def _masked(self, mask: Mask) -> Iterator[tuple[Tile, torch.Tensor | None]]:
        slots_T = torch.arange(len(self.depths_T), device=self.depths_T.device)
        for tile in self.tiles:
            queries, keys = slice(tile.query_first, tile.query_last), slice(tile.key_first, tile.key_last)
            query_Q1 = slots_T[queries, None]
            hidden_QC = None
            if tile.masked:
                hidden_QC = (slots_T[keys] > query_Q1) | (query_Q1 >= self.ends_T[keys])
            if mask.sees is not None:
                depths = self.depths_T if tile.above is None else self.above[tile.above][0]
                outside_QC = ~mask.sees(self.depths_T[queries, None], depths[keys][None])
                outside_QC = outside_QC.expand(query_Q1.shape[0], tile.key_last - tile.key_first)
                hidden_QC = outside_QC if hidden_QC is None else hidden_QC | outside_QC
                if bool(hidden_QC.all()):
                    continue
                hidden_QC = hidden_QC if bool(hidden_QC.any()) else None
            yield tile, hidden_QC


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Mask | torch.Tensor | None,
    *,
    trie_pass: Pass | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Implement transformers' AttentionInterface for one row of slots.

    Raises ValueError for a model that does not pass `trie_pass` to its attention layers, that uses attention sinks, or
    whose mask is not built by transformers' mask functions.
    """
    if trie_pass is None:
        raise ValueError("its model code does not pass keyword arguments on to its attention layers")
    if s_aux is not None:
        raise ValueError("its attention has sinks")
    if not isinstance(attention_mask, Mask):
        raise ValueError("its model code builds its attention mask by itself")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    if trie_pass.is_read:
        trie_pass.own.setdefault(layer, (key, value))
    above = [keys_values[layer] for _, keys_values in trie_pass.above]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    attended_1HTX = attend(
        query, (key, value), above, trie_pass.masked_tiles(attention_mask), scale=scale, softcap=softcap
    )
    return attended_1HTX.transpose(1, 2), None


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, tree_mask)


def attend(
    query_1HTW: torch.Tensor,
    own: KeyValue,
    above: Sequence[KeyValue],
    tiles: Sequence[tuple[Tile, torch.Tensor | None]],
    *,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Return the attention of the queries to `own` keys and those `above`, as far as the tiles reach, as 1HTX.

    Keys are 1GKW, values 1GKX. Every query must see a key in one of the tiles. With a softcap, scores are
    `softcap * tanh(score / softcap)`. Computed in float32 or wider.
    """
    keys_values = [tensor for pair in (own, *above) for tensor in pair]
    attended: torch.Tensor = _TiledAttention.apply(query_1HTW, tiles, scale, softcap, *keys_values)  # type: ignore[no-untyped-call]
    return attended


class _TiledAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query_1HTW: torch.Tensor,
        tiles: Sequence[tuple[Tile, torch.Tensor | None]],
        scale: float,
        softcap: float | None,
        *keys_values: torch.Tensor,
    ) -> torch.Tensor:
        views = _Views(query_1HTW, keys_values, scale)
        groups, rows, _ = views.query_GNW.shape
        out_GNX = views.query_GNW.new_zeros(groups, rows, keys_values[1].shape[-1])
        top_GN1 = views.query_GNW.new_full((groups, rows, 1), _HIDDEN)
        sum_GN1 = torch.zeros_like(top_GN1)
        for tile, hidden_QC in tiles:
            queries, keys_GCW, values_GCX = views.of(tile)
            scores_GMC = torch.bmm(views.query_GNW[:, queries], keys_GCW.transpose(1, 2))
            if softcap is not None:
                scores_GMC.div_(softcap).tanh_().mul_(softcap)
            _hide(scores_GMC, hidden_QC)
            before_GM1 = top_GN1[:, queries]
            now_GM1 = torch.maximum(before_GM1, scores_GMC.amax(-1, keepdim=True))
            faded_GM1 = (before_GM1 - now_GM1).exp_()
            weights_GMC = weigh(scores_GMC, now_GM1)
            sum_GN1[:, queries] = sum_GN1[:, queries] * faded_GM1 + weights_GMC.sum(-1, keepdim=True)
            out_GNX[:, queries] = torch.baddbmm(out_GNX[:, queries].mul_(faded_GM1), weights_GMC, values_GCX)
            top_GN1[:, queries] = now_GM1
        out_GNX.div_(sum_GN1)
        attended_1HTX = views.to_heads(out_GNX).to(query_1HTW.dtype)
        ctx.save_for_backward(query_1HTW, attended_1HTX, sum_GN1.log_().add_(top_GN1), *keys_values)
        ctx.settings = tiles, scale, softcap
        return attended_1HTX

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_1HTX: torch.Tensor) -> tuple[Any, ...]:
        query_1HTW, attended_1HTX, logsums_GN1, *keys_values = ctx.saved_tensors
        tiles, scale, softcap = ctx.settings
        views = _Views(query_1HTW, keys_values, scale)
        grad_out_GNX, out_GNX = views.to_rows(grad_1HTX), views.to_rows(attended_1HTX)
        means_GN1 = (grad_out_GNX * out_GNX).sum(-1, keepdim=True)
        grad_query_GNW = torch.zeros_like(views.query_GNW)
        grads = [torch.zeros_like(tensor) for tensor in views.keys_values]
        for tile, hidden_QC in tiles:
            queries, keys_GCW, values_GCX = views.of(tile)
            grad_keys_GCW, grad_values_GCX = views.of(tile, grads)[1:]
            query_GMW, grad_GMX = views.query_GNW[:, queries], grad_out_GNX[:, queries]
            scores_GMC = torch.bmm(query_GMW, keys_GCW.transpose(1, 2))
            slopes_GMC = None
            if softcap is not None:
                scores_GMC.div_(softcap).tanh_()
                slopes_GMC = scores_GMC.square().neg_().add_(1)
                scores_GMC.mul_(softcap)
            _hide(scores_GMC, hidden_QC)
            weights_GMC = weigh(scores_GMC, logsums_GN1[:, queries])
            grad_values_GCX.baddbmm_(weights_GMC.transpose(1, 2), grad_GMX)
            grad_scores_GMC = torch.bmm(grad_GMX, values_GCX.transpose(1, 2))
            grad_scores_GMC.sub_(means_GN1[:, queries]).mul_(weights_GMC)
            if slopes_GMC is not None:
                grad_scores_GMC.mul_(slopes_GMC)
            grad_query_GNW[:, queries].baddbmm_(grad_scores_GMC, keys_GCW)
            grad_keys_GCW.baddbmm_(grad_scores_GMC.transpose(1, 2), query_GMW)
        grad_query_1HTW = views.to_heads(grad_query_GNW.mul_(scale)).to(query_1HTW.dtype)
        to_keys_values = [
            grad[None].to(tensor.dtype) if needed else None
            for grad, tensor, needed in zip(grads, keys_values, ctx.needs_input_grad[4:], strict=True)
        ]
        return (grad_query_1HTW, None, None, None, *to_keys_values)


class _Views:
    """Queries, keys and values in the layouts in which tiles are slices: query heads of a KV head side by side."""

    def __init__(self, query_1HTW: torch.Tensor, keys_values: Sequence[torch.Tensor], scale: float) -> None:
        self._dtype = torch.promote_types(query_1HTW.dtype, torch.float32)
        self.keys_values = [tensor[0].to(self._dtype) for tensor in keys_values]
        self._groups = self.keys_values[0].shape[0]
        self._heads = query_1HTW.shape[1] // self._groups
        self.query_GNW = self.to_rows(query_1HTW) * scale

    def to_rows(self, heads_1HTX: torch.Tensor) -> torch.Tensor:
        """Return 1HTX as GNX."""
        split_GFTX = heads_1HTX[0].reshape(self._groups, self._heads, *heads_1HTX.shape[2:])
        return split_GFTX.transpose(1, 2).flatten(1, 2).to(self._dtype)

    def to_heads(self, rows_GNX: torch.Tensor) -> torch.Tensor:
        """Return GNX as 1HTX."""
        groups, rows, width = rows_GNX.shape
        return rows_GNX.view(groups, rows // self._heads, self._heads, width).transpose(1, 2).flatten(0, 1)[None]

    def of(
        self, tile: Tile, keys_values: Sequence[torch.Tensor] | None = None
    ) -> tuple[slice, torch.Tensor, torch.Tensor]:
        """Return the tile's rows of queries, its keys and its values, which are views."""
        tensors = self.keys_values if keys_values is None else keys_values
        place = 0 if tile.above is None else 2 * (tile.above + 1)
        keys = slice(tile.key_first, tile.key_last)
        rows = slice(tile.query_first * self._heads, tile.query_last * self._heads)
        return rows, tensors[place][:, keys], tensors[place + 1][:, keys]


def weigh(scores_GMC: torch.Tensor, logs_GM1: torch.Tensor) -> torch.Tensor:
    """Turn scores into e^(score - log) in place, 0 where that is lost beside a weight of 1 even in float64.

    A weight of a hidden key must be 0: its products with gradients would have no normal numbers, with which processors
    of Intel multiply a hundred times slower. exp is five times slower on results that underflow.
    """
    weights_GMC = scores_GMC.sub_(logs_GM1).clamp_(min=_LEAST_LOG).exp_()
    return torch.nn.functional.threshold(weights_GMC, 1.01 * math.exp(_LEAST_LOG), 0.0, inplace=True)


def _hide(scores_GMC: torch.Tensor, hidden_QC: torch.Tensor | None) -> None:
    if hidden_QC is not None:
        groups, _, keys = scores_GMC.shape
        scores_GMC.view(groups, hidden_QC.shape[0], -1, keys).masked_fill_(hidden_QC[:, None], _HIDDEN)


def most_scores(config: Any) -> int:
    """Return the number of scores of one head that a tile may hold."""
    heads = int(getattr(config, "num_attention_heads", None) or 1)
    return max(128 * 128, TILE_BYTES // (4 * heads))
