"""Prefix sharing: a forest of nodes, each a run of tokens with its KV blocks; a branch uses its ancestors' blocks."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from palmette.engine.kv_pool import BLOCK_TOKENS, KvPool, PoolFullError, slots_of
from palmette.prefixes import common_length

_NO_SLOTS = np.empty(0, dtype=np.int64)

_SHARED_TOKENS = 16
"""The shortest prefix that two paths share: a shorter one saves less than attention to one more segment costs."""


class CacheNode:
    """A run of tokens below its parent. The first `computed` of them have keys and values in `slots`.

    A node is freed when its `ref_count` and its `child_count` are 0. `start` is the position of its first token in the
    path, `last_used` the time of its last use, for eviction.
    """

    __slots__ = (
        "__weakref__", "blocks", "child_count", "computed", "last_used", "parent", "ref_count", "slots", "start",
        "tokens",
    )  # fmt: skip

    def __init__(self, parent: "CacheNode | None", tokens: Iterable[int], ref_count: int = 1) -> None:
        self.parent = parent
        self.tokens = list(tokens)
        self.start: int = 0 if parent is None else parent.start + len(parent.tokens)
        self.computed = 0
        self.blocks: list[int] = []
        self.slots = _NO_SLOTS
        self.child_count = 0
        self.ref_count = ref_count
        self.last_used = 0

    def path(self) -> "list[CacheNode]":
        """Return the nodes from the root down to this one."""
        return list(self._upward())[::-1]

    def path_tokens(self) -> list[int]:
        """Return all tokens from the root's first to this node's last."""
        return [token for node in self.path() for token in node.tokens]

    def last_tokens(self, count: int) -> list[int]:
        """Return the last `count` tokens of the path, fewer if it has no more."""
        found: list[int] = []
        for node in self._upward():
            found = node.tokens[-(count - len(found)) :] + found
            if len(found) == count:
                break
        return found

    def root(self) -> "CacheNode":
        """Return the first node of the path."""
        *_, first = self._upward()
        return first

    def _upward(self) -> "Iterator[CacheNode]":
        node: CacheNode | None = self
        while node is not None:
            yield node
            node = node.parent


class TreeCache:
    """Assigns the pool's blocks to nodes: branches share their ancestors' blocks, and a freed node returns its own.

    If the pool is full, nodes that are not in use lose their blocks (eviction), least recently used first. They keep
    their tokens and can be computed again.
    """

    def __init__(self, pool: KvPool) -> None:
        self.pool = pool
        self._with_blocks: dict[CacheNode, None] = {}
        self._roots: dict[CacheNode, None] = {}
        self._clock = 0

    def add(self, parent: CacheNode | None, tokens: Iterable[int], ref_count: int = 1) -> CacheNode:
        """Add a node below `parent`, a root without one; return it with no blocks and nothing computed."""
        node = CacheNode(parent, tokens, ref_count)
        if parent is None:
            self._roots[node] = None
        else:
            parent.child_count += 1
        return node

    def add_path(self, tokens: Sequence[int]) -> CacheNode:
        """Add a path of these tokens and return its last node; a prefix that another path has is shared with it.

        Only the roots of other paths are compared: prompts that begin with the same system prompt or examples. The
        returned node has at least one token of its own, so that the model gives an output for it.
        """
        longest, similar = 0, None
        for root in self._roots:
            common = common_length(root.tokens, tokens[:-1])
            if common > longest:
                longest, similar = common, root
        if similar is None or longest < _SHARED_TOKENS:
            return self.add(None, tokens)
        above = similar if longest == len(similar.tokens) else self._split(similar, longest)
        return self.add(above, tokens[len(above.tokens) :])

    def _split(self, node: CacheNode, count: int) -> CacheNode:
        """Move the first `count` tokens of a root, with their blocks, to a new root above it; return the new root."""
        assert node.parent is None and BLOCK_TOKENS == 1
        above = self.add(None, node.tokens[:count], ref_count=0)
        above.child_count, above.last_used = 1, node.last_used
        above.computed, node.computed = min(node.computed, count), max(0, node.computed - count)
        above.blocks, node.blocks = node.blocks[:count], node.blocks[count:]
        above.slots, node.slots = node.slots[:count], node.slots[count:]
        del node.tokens[:count], self._roots[node]
        node.parent, node.start = above, count
        for part in (above, node):
            if part.blocks:
                self._with_blocks[part] = None
            else:
                self._with_blocks.pop(part, None)
        return above

    def extend(self, node: CacheNode, token: int, references: int) -> CacheNode:
        """Append a token for some of the node's references; return the node that these references belong to now.

        Appends in place if they are all its references and it has no children. Else it forks: the references move to a
        new child that holds the token.
        """
        if node.ref_count == references and not node.child_count:
            node.tokens.append(token)
            return node
        node.ref_count -= references
        return self.add(node, [token], references)

    def add_draft(self, tip: CacheNode, tokens: Sequence[int]) -> CacheNode | None:
        """Return a node below `tip` with slots for tokens that may be taken back, None if too few blocks are free.

        The pool does not grow for it, nothing is evicted for it, and where blocks run out it is evicted first. It does
        not count as a child of the tip. It has to be given up by `empty` before the tip is dropped.
        """
        assert BLOCK_TOKENS == 1
        if self.pool.free_blocks < len(tokens):
            return None
        draft = CacheNode(tip, tokens)
        draft.last_used = -1
        draft.blocks = self.pool.take(len(tokens))
        draft.slots = slots_of(draft.blocks)
        self._with_blocks[draft] = None
        return draft

    def accept(self, draft: CacheNode, node: CacheNode) -> None:
        """Move the KV of the draft's first token to a node that ends with this token; the token leaves the draft.

        Where either was evicted in the meantime, nothing is moved, and the token is computed again.
        """
        token = draft.tokens.pop(0)
        assert node.tokens[-1] == token
        if not draft.computed or node.computed < len(node.tokens) - 1:
            self.empty(draft)
            return
        node.blocks.append(draft.blocks.pop(0))
        node.slots, draft.slots = slots_of(node.blocks), draft.slots[1:]
        node.computed, draft.computed = node.computed + 1, draft.computed - 1
        self._with_blocks[node] = None
        if not draft.blocks:
            self.empty(draft)

    def drop(self, node: CacheNode) -> None:
        """Remove one reference; free the node if it has neither references nor children left.

        Then ancestors without references and children are freed too. Dropping a freed node again does nothing.
        """
        node.ref_count = max(0, node.ref_count - 1)
        current: CacheNode | None = node
        while current is not None and not current.ref_count and not current.child_count:
            self.empty(current)
            self._roots.pop(current, None)
            above, current.parent = current.parent, None
            if above is not None:
                above.child_count -= 1
            current = above

    def empty(self, node: CacheNode) -> None:
        """Return the node's blocks to the pool; its tokens must be computed again before they are read."""
        self._with_blocks.pop(node, None)
        self.pool.give_back(node.blocks)
        node.blocks, node.slots, node.computed = [], _NO_SLOTS, 0

    def empty_all(self) -> None:
        """Return all blocks of all nodes to the pool; nodes keep their tokens and are computed again when needed."""
        for node in list(self._with_blocks):
            self.empty(node)

    def reserve(self, needs: Sequence[tuple[CacheNode, int]], in_use: Sequence[CacheNode]) -> None:
        """For every pair (node, tokens) of `needs`, give the node blocks for its first `tokens` tokens.

        Evicts other nodes if needed, but none on the paths of `in_use`. Raises PoolFullError if that is not enough:
        no node has then gained blocks, but all other nodes have been evicted.
        """
        is_bounded = self.pool.limit_tokens is not None
        if is_bounded:
            self._mark_used(in_use)
        missing = [(node, -(-tokens // BLOCK_TOKENS) - len(node.blocks)) for node, tokens in needs]
        short = [(node, count) for node, count in missing if count > 0]
        total = sum(count for _, count in short)
        if not self.pool.make_room(total):
            if not is_bounded:  # The pool has only now found its limit. Without one, uses are not recorded.
                self._mark_used(in_use)
            self._evict(total)
        blocks = iter(self.pool.take(total))
        for node, count in short:
            node.blocks += [next(blocks) for _ in range(count)]
            node.slots = slots_of(node.blocks)
            self._with_blocks[node] = None

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is free or in one node, and no node has more than its tokens need."""
        self.pool.check_integrity([block for node in self._with_blocks for block in node.blocks])
        for node in self._with_blocks:
            assert node.computed <= len(node.slots) == len(node.blocks) * BLOCK_TOKENS, "slots and blocks disagree"
            assert len(node.blocks) <= -(-len(node.tokens) // BLOCK_TOKENS), "a node has more blocks than it needs"

    def _mark_used(self, in_use: Sequence[CacheNode]) -> None:
        self._clock += 1
        for node in in_use:
            self._mark_path(node)

    def _mark_path(self, node: CacheNode) -> None:
        current: CacheNode | None = node
        while current is not None and current.last_used < self._clock:
            current.last_used = self._clock
            current = current.parent

    def _evict(self, blocks: int) -> None:
        """Evict nodes that are not in use until the pool has room for `blocks`; raise PoolFullError if they run out."""
        # Nodes in use have the present time. Of nodes last used at the same time the deepest goes first: the beginning
        # of a path can be read without its end, not the other way round.
        candidates = sorted(
            (node for node in self._with_blocks if node.last_used < self._clock),
            key=lambda node: (node.last_used, -node.start),
        )
        for node in candidates:
            if self.pool.make_room(blocks):
                return
            self.empty(node)
        if not self.pool.make_room(blocks):
            raise PoolFullError
