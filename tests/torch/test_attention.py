"""The fast path against the slow one, on random forests."""

import random

import numpy as np
import pytest
import torch

from palmette.engine.attention import attend, attend_one_by_one, plan_attention
from palmette.engine.kv_pool import KvPool, KvShape
from palmette.engine.pieces import order_pieces

from .forest import cut, grown

CPU = torch.device("cpu")
SHAPE = KvShape(layers=1, heads=2, width=8, dtype=torch.float32, device=CPU)


@pytest.mark.parametrize("options", [{}, {"window": 7}, {"softcap": 1.5}, {"window": 30, "softcap": 4.0}])
@pytest.mark.parametrize("fold", [1, 3])
def test_what_is_read_together_equals_what_is_read_one_by_one(fold: int, options: dict[str, float]) -> None:
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
        fast = attend(query, pool.keys[0], pool.values[0], reading, **options)  # type: ignore[arg-type]
        slow = attend_one_by_one(query, pool.keys[0], pool.values[0], seen, **options)  # type: ignore[arg-type]
        assert torch.allclose(fast, slow, atol=1e-5)


def test_every_slot_of_the_forest_is_read_once_however_many_rows_share_it() -> None:
    rng = random.Random(0)
    _, nodes = grown(KvPool(SHAPE), rng, 80)
    pieces = cut(nodes, rng)
    _, segments = order_pieces(pieces)
    read = [int(slot) for segment in segments for slot in segment.slots]
    on_paths = {node for piece in pieces for node in piece.node.path()}
    assert len(read) == len(set(read)) == sum(len(node.tokens) for node in on_paths)
