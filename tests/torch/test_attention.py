"""The fast path against the slow one, on random forests."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from palmette.engine.attention import attend, plan_attention
from palmette.engine.kv_pool import KvPool, KvShape
from palmette.engine.pieces import order_pieces

from .forest import cut, grown

CPU = torch.device("cpu")
SHAPE = KvShape(layers=1, heads=2, width=8, dtype=torch.float32, device=CPU)


def attend_one_by_one(
    query_GTFW: torch.Tensor,
    keys_GCW: torch.Tensor,
    values_GCW: torch.Tensor,
    seen: Sequence[Sequence[int]],
    *,
    sees: Callable[[int, int], bool] | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Return the same as `attend`, computed one query at a time.

    `seen` lists for each query the slots of its path in order of position, up to and including its own.
    """
    results = []
    for query, path in enumerate(seen):
        slots = [slot for position, slot in enumerate(path) if sees is None or sees(len(path) - 1, position)]
        keys_GLW, values_GLW = keys_GCW[:, slots].float(), values_GCW[:, slots].float()
        scores_GFL = query_GTFW[:, query].float() @ keys_GLW.transpose(1, 2)
        if softcap is not None:
            scores_GFL = (scores_GFL / softcap).tanh() * softcap
        results.append(scores_GFL.softmax(-1) @ values_GLW)
    return torch.stack(results, 1)


def window(size: int) -> Callable[[Any, Any], Any]:
    return lambda query, key: query - key < size


def chunks(size: int) -> Callable[[Any, Any], Any]:
    return lambda query, key: query // size == key // size


@pytest.mark.parametrize(
    "options",
    [{}, {"sees": window(7)}, {"softcap": 1.5}, {"sees": window(30), "softcap": 4.0}, {"sees": chunks(9)}],
)
@pytest.mark.parametrize("fold", [1, 3])
@pytest.mark.parametrize("path_slots", [0, 10**6], ids=["by segment", "by path"])
def test_what_is_read_together_equals_what_is_read_one_by_one(
    path_slots: int, fold: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palmette.engine.attention.PATH_SLOTS", path_slots)
    for seed in range(12):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        pool = KvPool(SHAPE)
        _, nodes = grown(pool, rng, rng.randint(1, 60))
        pool.keys[0].normal_(std=2)
        pool.values[0].normal_()
        ordered, segments = order_pieces(cut(nodes, rng))
        seen = [
            [int(slot) for part in piece.node.path()[:-1] for slot in part.slots[: len(part.tokens)]]
            + piece.node.slots[: at + 1].tolist()
            for piece in ordered
            for at in range(piece.first, piece.last)
        ]
        query = torch.randn(2, len(seen), fold, 8)
        reading = plan_attention(segments, np.array([len(path) - 1 for path in seen]), CPU)
        assert reading.by_path == bool(path_slots)
        fast = attend(query, pool.keys[0], pool.values[0], reading, **options)
        slow = attend_one_by_one(query, pool.keys[0], pool.values[0], seen, **options)
        assert torch.allclose(fast, slow, atol=1e-5)


def test_every_slot_of_the_forest_is_read_once_however_many_rows_share_it() -> None:
    rng = random.Random(0)
    _, nodes = grown(KvPool(SHAPE), rng, 80)
    pieces = cut(nodes, rng)
    _, segments = order_pieces(pieces)
    read = [int(slot) for segment in segments for slot in segment.slots]
    on_paths = {node for piece in pieces for node in piece.node.path()}
    assert len(read) == len(set(read)) == sum(len(node.tokens) for node in on_paths)
