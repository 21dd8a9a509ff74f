"""Random forests of cache nodes."""

import random

from palmette.engine.kv_pool import KvPool
from palmette.engine.pieces import Piece
from palmette.engine.tree_cache import CacheNode, TreeCache


def grown(pool: KvPool, rng: random.Random, size: int) -> tuple[TreeCache, list[CacheNode]]:
    """Return a forest of `size` nodes with up to 20 tokens each, all with slots and nothing computed."""
    cache = TreeCache(pool)
    nodes: list[CacheNode] = []
    for _ in range(size):
        parent = rng.choice(nodes) if nodes and rng.random() < 0.85 else None
        nodes.append(cache.add(parent, [rng.randrange(50) for _ in range(rng.randint(1, 20))]))
    cache.reserve([(node, len(node.tokens)) for node in nodes], nodes)
    return cache, nodes


def cut(nodes: list[CacheNode], rng: random.Random) -> list[Piece]:
    """Return pieces of some nodes; every other node counts as computed."""
    pieces = []
    for node in nodes:
        length = len(node.tokens)
        node.computed = length
        if rng.random() < 0.4:
            first = rng.choice([length - 1, rng.randrange(length)])
            pieces.append(Piece(node, first, length))
    rng.shuffle(pieces)
    return pieces or [Piece(nodes[-1], 0, len(nodes[-1].tokens))]
