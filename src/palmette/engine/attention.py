"""Tree attention: each KV segment is read once for all queries that share it, partial results are merged exactly.

As in cascade attention and flash-decoding, every segment on a query's path gives a partial result with its largest
score and its sum of exponentials, by which the partial results are weighted and added up.

Shapes: T queries of a tick, G KV heads, F query heads per KV head, W head width, X = F * W, C slots of the KV pool; in
one batch S segments, N readers of each, L slots of each; J segments on a query's path, P = T * J + 1 partial results,
of which the last takes what padding writes.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers.masking_utils import causal_mask_function

from palmette.engine.limits import GATHERED_SLOTS, PATH_SLOTS

_MASKED = -1e30
"""Added to the score of a masked key. Finite: a segment whose keys are all masked must have weight 0, not nan."""

_READER_CLASS = 4
"""Segments with up to 1, 4, 16, 64, ... readers are batched together: a compromise between many batches and padding."""


class Segment(NamedTuple):
    """KV slots in order of position, read by queries `first` to `last - 1` of the tick.

    The last `new_tokens` slots are written in this tick, and their tokens are the first `new_tokens` readers: each of
    these sees the segment up to its own slot (causal mask), all other readers see the whole segment. `position` is
    the position of the first slot in its sequence, `depth` the number of segments above on the path.
    """

    slots: np.ndarray
    position: int
    first: int
    last: int
    new_tokens: int
    depth: int


@dataclass(frozen=True)
class SegmentBatch:
    """Segments of similar size, padded: the slots of their keys, their readers, and indices of the partial results.

    `mask_SNL` is added to the scores, None if nothing is masked. `position_SN` has the position of each reader in its
    sequence, `start_S` that of each segment's first slot. `size` is (S, N, L).
    """

    slots: torch.Tensor
    readers: torch.Tensor
    parts: torch.Tensor
    mask_SNL: torch.Tensor | None
    position_SN: torch.Tensor
    start_S: torch.Tensor
    size: tuple[int, int, int]

    def bias(self, sees: "Sees | None") -> torch.Tensor | None:
        """Return what to add to the scores (0 for a visible key), None if every key is visible.

        `sees` restricts the keys further, for example to a sliding window.
        """
        if sees is None:
            return self.mask_SNL
        key_S1L = self.start_S[:, None, None] + torch.arange(self.size[2], device=self.start_S.device)
        outside_SNL = torch.where(sees(self.position_SN[:, :, None], key_S1L), 0.0, _MASKED)
        return outside_SNL if self.mask_SNL is None else outside_SNL + self.mask_SNL


Sees = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Tells for positions of queries and of keys, broadcast against each other, which keys a query sees."""


@dataclass(frozen=True)
class AttentionPlan:
    """All KV segments that the queries of one tick read, in batches; at most `depth` segments per query.

    If `by_path`, there is one batch, in which each query in turn is the only reader of a segment: its whole path.
    """

    batches: tuple[SegmentBatch, ...]
    queries: int
    depth: int
    by_path: bool = False


def plan_attention(segments: Sequence[Segment], positions: np.ndarray, device: torch.device) -> AttentionPlan:
    """Batch the segments that the queries at `positions` read. Every query must read at least one segment.

    The first segment of a query starts at the first position of its path. Paths of few slots in all are read one by
    one, which takes a fraction of the operations; otherwise each segment is read once for all its queries.
    """
    queries = len(positions)
    if sum(len(segment.slots) * (segment.last - segment.first) for segment in segments) <= PATH_SLOTS:
        paths = _paths(segments, queries)
        if queries * max(len(path.slots) for path in paths) <= PATH_SLOTS:
            return AttentionPlan((_batch(paths, positions, queries, 1, device),), queries, 1, by_path=True)
    depth = 1 + max(segment.depth for segment in segments)
    batches = tuple(_batch(group, positions, queries, depth, device) for group in _grouped(segments))
    return AttentionPlan(batches, queries, depth)


def _paths(segments: Sequence[Segment], queries: int) -> list[Segment]:
    """Return what each query reads as one segment of its own, up to its own slot. Segments: ancestors come first."""
    read: list[list[np.ndarray]] = [[] for _ in range(queries)]
    starts = [0] * queries
    for segment in segments:
        for rank, query in enumerate(range(segment.first, segment.last)):
            if not read[query]:
                starts[query] = segment.position
            seen = len(segment.slots) - max(0, segment.new_tokens - 1 - rank)
            read[query].append(segment.slots[:seen])
    return [
        Segment(np.concatenate(own), start, query, query + 1, 1, 0)
        for query, (own, start) in enumerate(zip(read, starts, strict=True))
    ]


def _grouped(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Yield groups of segments with the same reader class, longest first.

    With padding a group has at most `GATHERED_SLOTS` slots, or a single segment. To limit padding, a group of more
    than 16 segments takes none that is shorter than half of its longest.
    """

    def reader_class(segment: Segment) -> int:
        size = 1
        while size < segment.last - segment.first:
            size *= _READER_CLASS
        return size

    by_size = sorted(((reader_class(s), len(s.slots), index) for index, s in enumerate(segments)), reverse=True)
    group: list[Segment] = []
    group_readers = longest = 0
    for readers, length, index in by_size:
        full = (len(group) + 1) * longest > GATHERED_SLOTS
        if group and (full or readers != group_readers or (length < longest // 2 and len(group) > 16)):
            yield group
            group = []
        if not group:
            group_readers, longest = readers, length
        group.append(segments[index])
    yield group


def _batch(group: list[Segment], positions: np.ndarray, queries: int, depth: int, device: torch.device) -> SegmentBatch:
    lengths = np.array([len(segment.slots) for segment in group])
    first_S1, last_S1, new_S1, depth_S1, position_S1 = np.array(
        [(s.first, s.last, s.new_tokens, s.depth, s.position) for s in group], dtype=np.int64
    ).T[:, :, None]
    size = len(group), int((last_S1 - first_S1).max()), int(lengths.max())
    rank_N, index_L = np.arange(size[1]), np.arange(size[2])
    slots_SL = np.zeros((size[0], size[2]), dtype=np.int64)
    slots_SL[index_L < lengths[:, None]] = np.concatenate([segment.slots for segment in group])
    real_SN = rank_N < last_S1 - first_S1
    readers_SN = np.where(real_SN, first_S1 + rank_N, first_S1)
    parts_SN = np.where(real_SN, readers_SN * depth + depth_S1, queries * depth)
    visible_SN = np.where(rank_N < new_S1, lengths[:, None] - new_S1 + 1 + rank_N, lengths[:, None])
    if (new_S1 <= 1).all():
        visible_SN = visible_SN[:, :1]  # The same for all readers.
    mask = None
    if (visible_SN < size[2]).any():
        mask = torch.from_numpy(np.where(index_L < visible_SN[:, :, None], np.float32(0), np.float32(_MASKED)))
    return SegmentBatch(
        torch.from_numpy(slots_SL.reshape(-1)).to(device),
        torch.from_numpy(readers_SN.reshape(-1)).to(device),
        torch.from_numpy(parts_SN.reshape(-1)).to(device),
        None if mask is None else mask.to(device),
        torch.from_numpy(positions[readers_SN]).to(device),
        torch.from_numpy(position_S1[:, 0]).to(device),
        size,
    )


def attend(
    query_GTFW: torch.Tensor,
    keys_GCW: torch.Tensor,
    values_GCW: torch.Tensor,
    plan: AttentionPlan,
    *,
    sees: Sees | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Return the attention of already scaled queries, as GTFW in float32. `sees` is None where a query sees its path.

    The F query heads of a KV head are stored side by side within each query: the gathered queries are then the
    matrices to multiply, and the products the partial results to store, without another copy.
    """
    groups, queries, heads, width = query_GTFW.shape
    depth = plan.depth
    if plan.by_path:
        return _attend_by_path(query_GTFW, keys_GCW, values_GCW, plan.batches[0], sees, softcap)
    query_GTX = query_GTFW.reshape(groups, queries, heads * width)
    # A partial result that no segment writes keeps a largest score of -inf: its weight is 0, whatever its values are.
    parts_GPX = query_GTX.new_zeros(groups, queries * depth + 1, heads * width, dtype=torch.float32)
    max_GPF = parts_GPX.new_full((groups, queries * depth + 1, heads), -torch.inf)
    sum_GPF = torch.zeros_like(max_GPF)
    for batch in plan.batches:
        count, readers, length = batch.size
        query = query_GTX.index_select(1, batch.readers).view(groups * count, readers * heads, width)
        keys = keys_GCW.index_select(1, batch.slots).view(groups * count, length, width)
        values = values_GCW.index_select(1, batch.slots).view(groups * count, length, width)
        scores = torch.bmm(query, keys.transpose(1, 2)).float()
        if softcap is not None:
            scores = (scores / softcap).tanh_() * softcap
        bias = batch.bias(sees)
        if bias is not None:
            scores.view(groups, count, readers, heads, length).add_(bias[:, :, None])
        largest = scores.amax(-1, keepdim=True)
        # A weight below e^-80 is lost beside one of 1, and exp is five times slower if it cannot represent the result.
        weights = scores.sub_(largest).clamp_(min=-80).exp_()
        parts = torch.bmm(weights.to(values.dtype), values).float()
        parts_GPX.index_copy_(1, batch.parts, parts.view(groups, count * readers, heads * width))
        max_GPF.index_copy_(1, batch.parts, largest.view(groups, count * readers, heads))
        sum_GPF.index_copy_(1, batch.parts, weights.sum(-1).view(groups, count * readers, heads))
    return _merged(parts_GPX[:, :-1], max_GPF[:, :-1], sum_GPF[:, :-1], depth)


def _attend_by_path(
    query_GTFW: torch.Tensor,
    keys_GCW: torch.Tensor,
    values_GCW: torch.Tensor,
    batch: SegmentBatch,
    sees: Sees | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attend as `attend` does, with one segment for each query: nothing is merged."""
    groups, queries, heads, width = query_GTFW.shape
    length = batch.size[2]
    keys = keys_GCW.index_select(1, batch.slots).view(groups * queries, length, width)
    values = values_GCW.index_select(1, batch.slots).view(groups * queries, length, width)
    scores = torch.bmm(query_GTFW.reshape(groups * queries, heads, width), keys.transpose(1, 2)).float()
    if softcap is not None:
        scores = (scores / softcap).tanh_() * softcap
    bias_S1L = batch.bias(sees)
    if bias_S1L is not None:
        scores.view(groups, queries, heads, length).add_(bias_S1L)
    weights = scores.softmax(-1)
    return torch.bmm(weights.to(values.dtype), values).float().view(groups, queries, heads, width)


def _merged(parts_GPX: torch.Tensor, max_GPF: torch.Tensor, sum_GPF: torch.Tensor, depth: int) -> torch.Tensor:
    """Add up each query's partial results, rescaled to a common largest score, and normalize; return GTFW."""
    groups, parts, heads = max_GPF.shape
    parts_GTJFW = parts_GPX.view(groups, parts // depth, depth, heads, -1)
    if depth == 1:
        return parts_GTJFW[:, :, 0] / sum_GPF[..., None]
    max_GTJF = max_GPF.view(groups, -1, depth, heads)
    weight_GTJF = (max_GTJF - max_GTJF.amax(2, keepdim=True)).exp_()
    total_GTF = (weight_GTJF * sum_GPF.view(groups, -1, depth, heads)).sum(2)
    share_GTJF = weight_GTJF.div_(total_GTF[:, :, None])
    return (parts_GTJFW * share_GTJF[..., None]).sum(2)


@dataclass(frozen=True)
class Tick:
    """What one forward pass needs of the KV cache: the pool, the slots to write and the segments to read."""

    pool: Any
    slots_T: torch.Tensor
    plan: AttentionPlan


NAME = "palmette_tree"
"""The name of `tree_attention` in transformers' AttentionInterface and of `tree_mask` in its AttentionMaskInterface."""


@dataclass(frozen=True)
class Mask:
    """What a model passes to its attention layers in place of a mask: which positions a query sees of its own path.

    `sees` is None where it sees them all. Taken from the mask that the model builds, since windows and chunks of many
    models stand nowhere else.
    """

    sees: Sees | None


def tree_mask(*, mask_function: Callable[..., Any], use_vmap: bool = False, **_: object) -> Mask:
    """Implement transformers' AttentionMaskInterface. Raises ValueError for functions that do not take tensors."""
    if mask_function is causal_mask_function:
        return Mask(None)
    if use_vmap:
        raise ValueError("its attention mask is not causal, nor a window or chunks of a causal one")

    def sees(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        first = torch.zeros((), dtype=torch.long, device=key.device)
        visible: torch.Tensor = mask_function(first, first, query, key)
        return visible

    return Mask(sees)


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Mask | torch.Tensor | None,
    *,
    tick: Tick | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Implement transformers' AttentionInterface: write the tick's keys and values to the pool, then attend.

    Raises ValueError for a model that does not pass `tick` to its attention layers, that uses attention sinks, or whose
    mask is not built by transformers' mask functions.
    """
    if tick is None:
        raise ValueError("its model code does not pass keyword arguments on to its attention layers")
    if s_aux is not None:
        raise ValueError("its attention has sinks, which tree attention does not support")
    if not isinstance(attention_mask, Mask):
        raise ValueError("its model code builds its attention mask by itself, so windows could not be seen")
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
        tick.plan,
        sees=attention_mask.sees,
        softcap=softcap,
    )
    return attended_GTFW.to(query.dtype).transpose(0, 1).flatten(1, 2)[None], None
