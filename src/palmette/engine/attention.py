"""Attention over a forest of KV segments: a segment is read once for all its readers, the parts are merged exactly.

Shapes: T queries of a tick, G key heads, F query heads per key head, W head width, X = F * W, C slots of the pool; in
one batch S segments, N readers of each, L slots of each; J segments on a query's path, P = T * J + 1 parts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from palmette.engine.limits import GATHERED_SLOTS

_HIDDEN = -1e30
"""Added to the score of a hidden key. Finite: a segment hidden as a whole must weigh nothing, not be nan."""

_READER_CLASS = 4
"""Segments with up to 1, 4, 16, 64, ... readers are batched together: fewer batches against fewer empty places."""


class Segment(NamedTuple):
    """Slots in order of position, read by the queries from `first` to before `last`.

    The first `own` of its readers stand in the segment's last slots: each sees what is up to its own, all others see
    everything. `depth` counts the segments above it.
    """

    slots: np.ndarray
    position: int
    first: int
    last: int
    own: int
    depth: int


@dataclass(frozen=True)
class SegmentBatch:
    """Segments of like size, padded: where their keys are, who reads them, where the parts go, what is hidden.

    `offset_SN` is how far each reader stands behind the segment's first slot.
    """

    slots: torch.Tensor
    readers: torch.Tensor
    parts: torch.Tensor
    hidden_SNL: torch.Tensor | None
    offset_SN: torch.Tensor
    size: tuple[int, int, int]

    def bias(self, window: int | None) -> torch.Tensor | None:
        """Return what is added to the scores: nothing where a key is seen."""
        if window is None:
            return self.hidden_SNL
        place_L = torch.arange(self.size[2], device=self.offset_SN.device)
        far_SNL = torch.where(self.offset_SN[:, :, None] - place_L >= window, _HIDDEN, 0.0)
        return far_SNL if self.hidden_SNL is None else far_SNL + self.hidden_SNL


@dataclass(frozen=True)
class AttentionPlan:
    """All that the queries of one tick read, in batches; at most `depth` parts for each query."""

    batches: tuple[SegmentBatch, ...]
    queries: int
    depth: int


def plan_attention(segments: Sequence[Segment], positions: np.ndarray, device: torch.device) -> AttentionPlan:
    """SegmentBatch the segments that the queries at these positions read. Each query has at least one."""
    depth = 1 + max(segment.depth for segment in segments)
    queries = len(positions)
    batches = tuple(_batch(group, positions, queries, depth, device) for group in _grouped(segments))
    return AttentionPlan(batches, queries, depth)


def _grouped(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    def reader_class(segment: Segment) -> int:
        size = 1
        while size < segment.last - segment.first:
            size *= _READER_CLASS
        return size

    keyed = sorted(((reader_class(s), len(s.slots), index) for index, s in enumerate(segments)), reverse=True)
    group: list[Segment] = []
    widest = longest = 0
    for readers, length, index in keyed:
        full = (len(group) + 1) * longest > GATHERED_SLOTS
        if group and (full or readers != widest or (length < longest // 2 and len(group) > 16)):
            yield group
            group = []
        if not group:
            widest, longest = readers, length
        group.append(segments[index])
    yield group


def _batch(group: list[Segment], positions: np.ndarray, queries: int, depth: int, device: torch.device) -> SegmentBatch:
    lengths = np.array([len(segment.slots) for segment in group])
    starts, ends, own, depths, firsts = np.array(
        [(s.first, s.last, s.own, s.depth, s.position) for s in group], dtype=np.int64
    ).T[:, :, None]
    size = len(group), int((ends - starts).max()), int(lengths.max())
    rank_N, place_L = np.arange(size[1]), np.arange(size[2])
    slots_SL = np.zeros((size[0], size[2]), dtype=np.int64)
    slots_SL[place_L < lengths[:, None]] = np.concatenate([segment.slots for segment in group])
    real_SN = rank_N < ends - starts
    readers_SN = np.where(real_SN, starts + rank_N, starts)
    parts_SN = np.where(real_SN, readers_SN * depth + depths, queries * depth)
    seen_SN = np.where(rank_N < own, lengths[:, None] - own + 1 + rank_N, lengths[:, None])
    if (own <= 1).all():
        seen_SN = seen_SN[:, :1]  # The same for all readers.
    hidden = None
    if (seen_SN < size[2]).any():
        hidden = torch.from_numpy(np.where(place_L < seen_SN[:, :, None], np.float32(0), np.float32(_HIDDEN)))
    return SegmentBatch(
        torch.from_numpy(slots_SL.reshape(-1)).to(device),
        torch.from_numpy(readers_SN.reshape(-1)).to(device),
        torch.from_numpy(parts_SN.reshape(-1)).to(device),
        None if hidden is None else hidden.to(device),
        torch.from_numpy(positions[readers_SN] - firsts).to(device),
        size,
    )


def attend(
    query_GTFW: torch.Tensor,
    keys_GCW: torch.Tensor,
    values_GCW: torch.Tensor,
    reading: AttentionPlan,
    *,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Return the attention of scaled queries, as GTFW in float32.

    Query heads of one key head stand side by side behind each query: gathered queries are then the matrices that are
    multiplied, and their results the parts that are written, without another copy.
    """
    groups, queries, fold, width = query_GTFW.shape
    depth = reading.depth
    query_GTX = query_GTFW.reshape(groups, queries, fold * width)
    # Parts that no segment writes have a top of -inf: they weigh nothing, whatever their numbers are.
    parts_GPX = query_GTX.new_zeros(groups, queries * depth + 1, fold * width, dtype=torch.float32)
    top_GPF = parts_GPX.new_full((groups, queries * depth + 1, fold), -torch.inf)
    mass_GPF = torch.zeros_like(top_GPF)
    for batch in reading.batches:
        count, readers, length = batch.size
        asked = query_GTX.index_select(1, batch.readers).view(groups * count, readers * fold, width)
        keys = keys_GCW.index_select(1, batch.slots).view(groups * count, length, width)
        values = values_GCW.index_select(1, batch.slots).view(groups * count, length, width)
        scores = torch.bmm(asked, keys.transpose(1, 2)).float()
        if softcap is not None:
            scores = (scores / softcap).tanh_() * softcap
        bias = batch.bias(window)
        if bias is not None:
            scores.view(groups, count, readers, fold, length).add_(bias[:, :, None])
        top = scores.amax(-1, keepdim=True)
        # Below e^-80 nothing is left of a weight beside 1, and exp is five times as slow on what it cannot represent.
        weights = scores.sub_(top).clamp_(min=-80).exp_()
        parts = torch.bmm(weights.to(values.dtype), values).float()
        parts_GPX.index_copy_(1, batch.parts, parts.view(groups, count * readers, fold * width))
        top_GPF.index_copy_(1, batch.parts, top.view(groups, count * readers, fold))
        mass_GPF.index_copy_(1, batch.parts, weights.sum(-1).view(groups, count * readers, fold))
    return _merged(parts_GPX[:, :-1], top_GPF[:, :-1], mass_GPF[:, :-1], depth)


def _merged(parts_GPX: torch.Tensor, top_GPF: torch.Tensor, mass_GPF: torch.Tensor, depth: int) -> torch.Tensor:
    """Add up each query's parts, every one weighed by what its scores were measured from."""
    groups, parts, fold = top_GPF.shape
    parts_GTJFW = parts_GPX.view(groups, parts // depth, depth, fold, -1)
    if depth == 1:
        return parts_GTJFW[:, :, 0] / mass_GPF[..., None]
    top_GTJF = top_GPF.view(groups, -1, depth, fold)
    weight_GTJF = (top_GTJF - top_GTJF.amax(2, keepdim=True)).exp_()
    total_GTF = (weight_GTJF * mass_GPF.view(groups, -1, depth, fold)).sum(2)
    share_GTJF = weight_GTJF.div_(total_GTF[:, :, None])
    return (parts_GTJFW * share_GTJF[..., None]).sum(2)


def attend_one_by_one(
    query_GTFW: torch.Tensor,
    keys_GCW: torch.Tensor,
    values_GCW: torch.Tensor,
    seen: Sequence[Sequence[int]],
    *,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Return the same as `attend`, one query after the other: the slow reference.

    `seen` names the slots on each query's path up to its own, in order of position.
    """
    results = []
    for query, path in enumerate(seen):
        slots = list(path)[-window if window else 0 :]
        keys_GLW, values_GLW = keys_GCW[:, slots].float(), values_GCW[:, slots].float()
        scores_GFL = query_GTFW[:, query].float() @ keys_GLW.transpose(1, 2)
        if softcap is not None:
            scores_GFL = (scores_GFL / softcap).tanh() * softcap
        results.append(scores_GFL.softmax(-1) @ values_GLW)
    return torch.stack(results, 1)


@dataclass(frozen=True)
class Tick:
    """What one forward pass writes to the pool and reads from it."""

    pool: Any
    slots_T: torch.Tensor
    reading: AttentionPlan


NAME = "palmette_tree"
"""Under this name transformers finds `tree_attention`."""


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tick: Tick | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Serve transformers' attention interface: write the tick's keys and values, then read what its queries see."""
    if tick is None:
        raise ValueError("its model code does not hand arguments on to attention")
    if s_aux is not None:
        raise ValueError("its attention has sinks, which the tree cache does not know")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    tick.pool.write(layer, tick.slots_T, key[0], value[0])
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    groups = key.shape[1]
    query_GTFW = query[0].view(groups, -1, *query.shape[2:]).transpose(1, 2)
    scaled_GTFW = torch.mul(query_GTFW, scale, out=torch.empty_like(query_GTFW, memory_format=torch.contiguous_format))
    attended_GTFW = attend(
        scaled_GTFW,
        tick.pool.keys[layer],
        tick.pool.values[layer],
        tick.reading,
        window=sliding_window,
        softcap=softcap,
    )
    return attended_GTFW.to(query.dtype).transpose(0, 1).flatten(1, 2)[None], None
