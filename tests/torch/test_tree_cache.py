import ctypes
import mmap
import random
import subprocess
import sys

import pytest
import torch

from palmette.engine.kv_pool import BLOCK_TOKENS, KvPool, KvShape, PoolFullError
from palmette.engine.tree_cache import CacheNode, TreeCache
from palmette.errors import BudgetError

from .forest import grown

SHAPE = KvShape(layers=2, heads=2, width=4, dtype=torch.float32, device=torch.device("cpu"))
BLOCK_BYTES = BLOCK_TOKENS * SHAPE.token_bytes
ROOMY_BYTES = 2**14 * SHAPE.token_bytes
"""More than the forests here hold. Without a budget a pool has so many blocks that looking at each takes a while."""


def test_after_the_last_drop_the_pool_is_whole() -> None:
    rng = random.Random(0)
    pool = KvPool(SHAPE, ROOMY_BYTES)
    cache, nodes = grown(pool, rng, 200)
    cache.check_integrity()
    assert pool.taken_bytes == BLOCK_BYTES * sum(-(-len(node.tokens) // BLOCK_TOKENS) for node in nodes)
    for node in rng.sample(nodes, len(nodes)):
        cache.drop(node)
        cache.drop(node)
        cache.check_integrity()
    assert pool.taken_bytes == 0


def test_a_dropped_node_stays_while_something_hangs_below_it() -> None:
    pool = KvPool(SHAPE)
    cache = TreeCache(pool)
    root = cache.add(None, range(8))
    child = cache.add(root, range(8))
    cache.reserve([(root, 8), (child, 8)], [child])
    cache.drop(root)
    assert root.blocks and child.parent is root
    cache.drop(child)
    assert pool.taken_bytes == 0


def resident_share(tensors: list[torch.Tensor]) -> float:
    """Return how much of these tensors the kernel holds pages for."""
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    here = pages = 0
    for tensor in tensors:
        first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        count = (tensor.data_ptr() + tensor.numel() * tensor.element_size() - first) // mmap.PAGESIZE
        marks = (ctypes.c_ubyte * count)()
        assert mincore(ctypes.c_void_p(first), ctypes.c_size_t(count * mmap.PAGESIZE), marks) == 0
        here, pages = here + sum(mark & 1 for mark in marks), pages + count
    return here / pages


def resident_at_the_start() -> tuple[float, float]:
    """Return the resident shares of a pool with a budget and of one without that has grown to the same size."""
    wide = KvShape(layers=1, heads=2, width=1024, dtype=torch.float32, device=torch.device("cpu"))
    pool, lazy = KvPool(wide, budget_bytes=128 * 2**20), KvPool(wide)
    lazy.take(2 * lazy.blocks)
    assert pool.blocks * wide.token_bytes == lazy.blocks * wide.token_bytes == 128 * 2**20
    return resident_share([*pool.keys, *pool.values]), resident_share([*lazy.keys, *lazy.values])


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which pages it holds")
def test_only_a_budget_is_resident_from_the_start() -> None:
    # In a process of its own: here the heap may hand out blocks of earlier tests, whose pages are resident.
    code = "from tests.torch.test_tree_cache import resident_at_the_start; print(*resident_at_the_start())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    budget, lazy = map(float, told)
    assert budget == 1
    assert lazy < 0.6  # What was copied when it doubled, not what is free.


def test_a_pool_that_shrank_is_empty_and_grows_to_half_its_limit() -> None:
    pool = KvPool(SHAPE, ROOMY_BYTES)
    assert pool.shrink() and pool.blocks == 0
    pool.take(1024)
    assert pool.limit_tokens == 2**13


def test_the_coldest_node_that_is_not_in_use_loses_its_blocks_first() -> None:
    pool = KvPool(SHAPE, budget_bytes=4 * 8 * SHAPE.token_bytes)
    cache = TreeCache(pool)
    root, old, young, new = (CacheNode(None, range(8)) for _ in range(4))
    last = cache.add(root, range(8))
    for node in (root, old, young, new):
        cache.reserve([(node, 8)], [node])
    cache.reserve([(last, 8)], [last])
    assert [bool(node.blocks) for node in (root, old, young, new, last)] == [True, False, True, True, True]
    assert old.computed == 0
    cache.check_integrity()


def test_of_a_path_used_together_the_end_loses_its_blocks_first() -> None:
    cache = TreeCache(KvPool(SHAPE, budget_bytes=6 * BLOCK_BYTES))
    above = cache.add(None, range(2))
    below = cache.add(above, range(2))
    cache.reserve([(below, 2), (above, 2)], [below])
    other = cache.add(None, range(4))
    cache.reserve([(other, 4)], [other])
    assert (len(above.blocks), len(below.blocks)) == (2, 0)
    cache.check_integrity()


def test_a_budget_is_never_passed() -> None:
    pool = KvPool(SHAPE, budget_bytes=3 * BLOCK_BYTES + 5)
    cache = TreeCache(pool)
    assert pool.limit_tokens == 3 * BLOCK_TOKENS
    node = cache.add(None, range(100))
    with pytest.raises(PoolFullError):
        cache.reserve([(node, 100)], [node])
    assert pool.taken_bytes == 0
    with pytest.raises(BudgetError, match=f"holds no token: one takes {SHAPE.token_bytes} bytes"):
        KvPool(SHAPE, budget_bytes=BLOCK_BYTES - 1)


def test_growing_keeps_what_is_written() -> None:
    pool = KvPool(SHAPE)
    first = pool.blocks * BLOCK_TOKENS - 1
    pool.write(1, torch.tensor([first]), torch.ones(2, 1, 4), torch.full((2, 1, 4), 2.0))
    pool.take(pool.blocks + 1)
    assert pool.keys[1][:, first].eq(1).all()
    assert pool.values[1][:, first].eq(2).all()
    assert len(pool.keys) == len(pool.values) == 2


def test_paths_with_a_common_beginning_hold_it_once_whoever_comes_and_goes() -> None:
    rng = random.Random(5)
    pool = KvPool(SHAPE, ROOMY_BYTES)
    cache = TreeCache(pool)
    examples = [list(range(100 * kind, 100 * kind + 40)) for kind in range(3)]
    alive: dict[CacheNode, list[int]] = {}
    for _ in range(300):
        if alive and rng.random() < 0.45:
            node = rng.choice(list(alive))
            del alive[node]
            cache.drop(node)
        else:
            tokens = rng.choice(examples)[: rng.randint(1, 40)] + [
                rng.randrange(1000, 1005) for _ in range(rng.randint(1, 9))
            ]
            node = cache.add_path(tokens)
            alive[node] = tokens
            path = node.path()
            cache.reserve([(part, len(part.tokens)) for part in path], path)
            for part in path:
                part.computed = len(part.tokens)
        cache.check_integrity()
        for node, tokens in alive.items():
            path = node.path()
            assert node.path_tokens() == tokens
            assert [part.start for part in path] == [
                sum(len(p.tokens) for p in path[:place]) for place in range(len(path))
            ]
            assert all(part.computed == len(part.tokens) == len(part.slots) for part in path)
    for node in alive:
        cache.drop(node)
    assert pool.taken_bytes == 0


def test_a_beginning_is_shared_from_sixteen_tokens_on() -> None:
    pool = KvPool(SHAPE)
    cache = TreeCache(pool)
    first = cache.add_path(range(30))
    cache.reserve([(first, 30)], [first])
    first.computed = 30
    other = cache.add_path([*range(15), 99])
    assert other.parent is None
    second = cache.add_path([*range(16), 99, 98])
    assert second.parent is first.parent is not None
    assert (first.parent.tokens, first.parent.computed, first.computed, second.tokens) == (
        list(range(16)),
        16,
        14,
        [99, 98],
    )
    # The same tokens once more: at least the last is its own, so that an output can come from it.
    third = cache.add_path([*range(16), 99, 98])
    assert third.tokens == [99, 98]
