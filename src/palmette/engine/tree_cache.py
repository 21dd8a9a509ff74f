"""Which KV slots each node of a forest of token stretches holds, so that what branches share is kept once."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from palmette.engine.kv_pool import BLOCK_TOKENS, KvPool, PoolFullError, slots_of

_NO_SLOTS = np.empty(0, dtype=np.int64)

_SHARED_TOKENS = 16
"""The shortest beginning that paths share: a shorter one saves less than one more segment costs to attend to."""


class CacheNode:
    """A stretch of tokens below its parent. `computed` of them, from the first on, have keys and values in `slots`.

    It lives while it is held, `holds` times, or while others hang below it.
    """

    __slots__ = ("blocks", "children", "computed", "holds", "parent", "slots", "start", "tokens", "used")

    def __init__(self, parent: "CacheNode | None", tokens: Iterable[int], holds: int = 1) -> None:
        self.parent = parent
        self.tokens = list(tokens)
        self.start: int = 0 if parent is None else parent.start + len(parent.tokens)
        self.computed = 0
        self.blocks: list[int] = []
        self.slots = _NO_SLOTS
        self.children = 0
        self.holds = holds
        self.used = 0

    def path(self) -> "list[CacheNode]":
        """Return the nodes from the root down to this one."""
        return list(self._upward())[::-1]

    def path_tokens(self) -> list[int]:
        """Return every token from the root's first to this node's last."""
        return [token for node in self.path() for token in node.tokens]

    def _upward(self) -> "Iterator[CacheNode]":
        node: CacheNode | None = self
        while node is not None:
            yield node
            node = node.parent


class TreeCache:
    """Hands the pool's blocks to nodes: a fork shares all above it, a dropped node returns its blocks.

    Nodes that are not in use can lose their blocks to others, the coldest first; their tokens stay known, so that they
    can be computed again.
    """

    def __init__(self, pool: KvPool) -> None:
        self.pool = pool
        self._holders: dict[CacheNode, None] = {}
        self._tops: dict[CacheNode, None] = {}
        self._clock = 0

    def add(self, parent: CacheNode | None, tokens: Iterable[int], holds: int = 1) -> CacheNode:
        """Return a new node that has computed nothing yet, held so many times."""
        node = CacheNode(parent, tokens, holds)
        if parent is None:
            self._tops[node] = None
        else:
            parent.children += 1
        return node

    def add_path(self, tokens: Sequence[int]) -> CacheNode:
        """Return a new node that ends a path of these tokens, below what an older path has in common with it.

        Only the first node of older paths is looked at: prompts that begin with the same examples.
        """
        longest, like = 0, None
        for top in self._tops:
            common = _common(top.tokens, tokens[:-1])
            if common > longest:
                longest, like = common, top
        if like is None or longest < _SHARED_TOKENS:
            return self.add(None, tokens)
        above = like if longest == len(like.tokens) else self._split(like, longest)
        return self.add(above, tokens[len(above.tokens) :])

    def _split(self, node: CacheNode, count: int) -> CacheNode:
        """Cut the first tokens off a path's first node; return the new node that has them, above it."""
        assert node.parent is None and BLOCK_TOKENS == 1
        above = self.add(None, node.tokens[:count], holds=0)
        above.children, above.used = 1, node.used
        above.computed, node.computed = min(node.computed, count), max(0, node.computed - count)
        above.blocks, node.blocks = node.blocks[:count], node.blocks[count:]
        above.slots, node.slots = node.slots[:count], node.slots[count:]
        del node.tokens[:count], self._tops[node]
        node.parent, node.start = above, count
        for part in (above, node):
            if part.blocks:
                self._holders[part] = None
            else:
                self._holders.pop(part, None)
        return above

    def extend(self, node: CacheNode, token: int, holders: int) -> CacheNode:
        """Return where so many of a node's holders go with this token: on in the node where they are all it has."""
        if node.holds == holders and not node.children:
            node.tokens.append(token)
            return node
        node.holds -= holders
        return self.add(node, [token], holders)

    def drop(self, node: CacheNode) -> None:
        """Let go of a node once. With nobody left to hold it and nothing below it, it is forgotten.

        So are its ancestors, where nobody holds them either.
        """
        node.holds = max(0, node.holds - 1)
        current: CacheNode | None = node
        while current is not None and not current.holds and not current.children:
            self.empty(current)
            self._tops.pop(current, None)
            above, current.parent = current.parent, None
            if above is not None:
                above.children -= 1
            current = above

    def empty(self, node: CacheNode) -> None:
        """Return the node's blocks; its tokens have to be computed again before they are read."""
        self._holders.pop(node, None)
        self.pool.give_back(node.blocks)
        node.blocks, node.slots, node.computed = [], _NO_SLOTS, 0

    def empty_all(self) -> None:
        """Return every block; nodes keep their tokens, to be computed again when they are read."""
        for node in list(self._holders):
            self.empty(node)

    def reserve(self, needs: Sequence[tuple[CacheNode, int]], in_use: Sequence[CacheNode]) -> None:
        """Give every node slots for its first so many tokens.

        Raises PoolFullError, with nothing changed but cold nodes emptied, where that does not fit beside the paths of
        `in_use`.
        """
        is_bounded = self.pool.limit_tokens is not None
        if is_bounded:
            self._mark(in_use)
        wanted = [(node, -(-tokens // BLOCK_TOKENS) - len(node.blocks)) for node, tokens in needs]
        short = [(node, count) for node, count in wanted if count > 0]
        total = sum(count for _, count in short)
        if not self.pool.make_room(total):
            if not is_bounded:  # It has just found its limit: until now nobody had to know who is in use.
                self._mark(in_use)
            self._evict(total)
        blocks = iter(self.pool.take(total))
        for node, count in short:
            node.blocks += [next(blocks) for _ in range(count)]
            node.slots = slots_of(node.blocks)
            self._holders[node] = None

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is free or held by one node, with no node holding too many."""
        self.pool.check_integrity([block for node in self._holders for block in node.blocks])
        for node in self._holders:
            assert node.computed <= len(node.slots) == len(node.blocks) * BLOCK_TOKENS, "slots and blocks disagree"
            assert len(node.blocks) <= -(-len(node.tokens) // BLOCK_TOKENS), "a node holds more than its tokens need"

    def _mark(self, in_use: Sequence[CacheNode]) -> None:
        self._clock += 1
        for node in in_use:
            self._touch(node)

    def _touch(self, node: CacheNode) -> None:
        current: CacheNode | None = node
        while current is not None and current.used < self._clock:
            current.used = self._clock
            current = current.parent

    def _evict(self, blocks: int) -> None:
        # What is in use was marked with the present time. Of a path last used together the end goes first: what stays
        # can still be read.
        cold = sorted(
            (node for node in self._holders if node.used < self._clock), key=lambda node: (node.used, -node.start)
        )
        for node in cold:
            if self.pool.make_room(blocks):
                return
            self.empty(node)
        if not self.pool.make_room(blocks):
            raise PoolFullError


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many first tokens two stretches share."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
