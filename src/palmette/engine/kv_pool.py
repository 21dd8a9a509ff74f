"""Blocks of KV memory, each free or taken once. Knows no tokens and no trees.

Shapes: G key heads, C slots (one for each token the pool can hold), W head width, T tokens of a tick.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from palmette.engine.limits import POOL_FIRST_BYTES
from palmette.errors import BudgetError
from palmette.memory.oom import CacheFull, is_out_of_memory
from palmette.units import describe_error

BLOCK_TOKENS = 1
"""One, so that a budget holds as many tokens as it says: steps are short, and of blocks of 8 up to a half stayed empty.
Measured with the seedling at width 64: blocks of 8 are 1.1 times as fast."""


_ALIGNMENT = 64
"""Bytes, as torch aligns its own."""

_LEAST_TOKENS = 512
"""A pool that has to shrink stays larger than this: below it paths do not fit, and nothing is gained."""


class PoolFullError(Exception):
    """There are fewer free blocks than asked for, and the budget allows no more."""


@dataclass(frozen=True)
class KvShape:
    """What a model keeps for each token."""

    layers: int
    heads: int
    width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.heads * self.width * self.dtype.itemsize


class KvPool:
    """Keys and values of all layers in blocks of `BLOCK_TOKENS` slots.

    With a budget the pool has its full size from the start and never more, and every page of it is there: a budget that
    memory does not hold shows before the first step. Without one it grows when it is full, and on the CPU its pages
    come as they are written. Where it cannot grow, for want of memory, its size becomes its limit.
    """

    def __init__(self, shape: KvShape, budget_bytes: int | None = None) -> None:
        self.shape = shape
        self._limit = None if budget_bytes is None else budget_bytes // (BLOCK_TOKENS * shape.token_bytes)
        if self._limit == 0:
            raise BudgetError(
                f"the KV budget of {budget_bytes} bytes holds no token: one takes {shape.token_bytes} bytes, and "
                f"the longest prompt with all its steps must fit"
            )
        self._has_budget = budget_bytes is not None
        self.is_frozen = False
        """Whether the limit is where memory ran out, not what a budget says."""
        self.cache_full: CacheFull | None = None
        """The last time that the pool could not grow."""
        self.blocks = 0
        self._free: list[int] = []
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._grow(self._limit or -(-POOL_FIRST_BYTES // (BLOCK_TOKENS * shape.token_bytes)))

    @property
    def limit_tokens(self) -> int | None:
        """How many tokens the pool may hold, None without a limit."""
        return None if self._limit is None else self._limit * BLOCK_TOKENS

    @property
    def free_blocks(self) -> int:
        """Blocks that can be taken now, without growing."""
        return len(self._free)

    @property
    def taken_bytes(self) -> int:
        """Bytes of all blocks in use."""
        return (self.blocks - len(self._free)) * BLOCK_TOKENS * self.shape.token_bytes

    def make_room(self, count: int) -> bool:
        """Grow where that is needed and possible; tell whether `take` would succeed.

        Without a limit it doubles. Where memory runs out it tries smaller steps, then makes its size the limit.
        """
        missing = count - len(self._free)
        room = None if self._limit is None else self._limit - self.blocks
        if missing <= 0 or (room is not None and missing > room):
            return missing <= 0
        step = max(self.blocks, missing) if room is None else min(max(self.blocks, missing), room)
        while failure := self._tried_to_grow(step):
            if step == missing:
                self._limit, self.is_frozen = self.blocks, True
                self.cache_full = CacheFull((self.blocks + step) * BLOCK_TOKENS, self.blocks * BLOCK_TOKENS, failure)
                return False
            step = max(step // 2, missing)
        return True

    def take(self, count: int) -> list[int]:
        """Take `count` blocks, return their numbers. Raises PoolFullError, with none taken, where they do not fit."""
        if not self.make_room(count):
            raise PoolFullError
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken[::-1]

    def shrink(self) -> bool:
        """Give all memory back and go on with half of it as the limit; tell whether there was any worth it.

        No block may be taken.
        """
        assert len(self._free) == self.blocks, "blocks are taken"
        if self.blocks * BLOCK_TOKENS < 2 * _LEAST_TOKENS:
            return False
        self._limit, self.is_frozen = self.blocks // 2, True
        self.blocks, self._free = 0, []
        self.keys, self.values = [], []
        return True

    def give_back(self, blocks: Sequence[int]) -> None:
        """Free blocks that were taken; each once."""
        self._free.extend(blocks)

    def write(self, layer: int, slots_T: torch.Tensor, keys_GTW: torch.Tensor, values_GTW: torch.Tensor) -> None:
        """Put one layer's keys and values of T tokens into their slots."""
        self.keys[layer].index_copy_(1, slots_T, keys_GTW)
        self.values[layer].index_copy_(1, slots_T, values_GTW)

    def check_integrity(self, taken: Sequence[int]) -> None:
        """Raise AssertionError unless `taken` with the free blocks are all blocks, each once."""
        assert sorted([*taken, *self._free]) == list(range(self.blocks)), "a block is lost, or held twice"

    def _tried_to_grow(self, count: int) -> str | None:
        """Grow, or leave the pool as it was where memory runs out; return what was said then."""
        try:
            self._grow(count)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = describe_error(error)
        else:
            return None
        self._cut_back()
        return failure

    def _grow(self, count: int) -> None:
        # One layer at a time: while all but one layer have their old size or their new one, little more is held.
        for tensors in (self.keys, self.values):
            for layer in range(self.shape.layers):
                new = _zeros(self.shape, (self.blocks + count) * BLOCK_TOKENS, written=self._has_budget)
                if layer < len(tensors):
                    new[:, : self.blocks * BLOCK_TOKENS] = tensors[layer][:, : self.blocks * BLOCK_TOKENS]
                    tensors[layer] = new
                else:
                    tensors.append(new)
        self._free.extend(range(self.blocks + count - 1, self.blocks - 1, -1))
        self.blocks += count

    def _cut_back(self) -> None:
        """Bring layers that have grown back to the size of those that could not."""
        slots = self.blocks * BLOCK_TOKENS
        for tensors in (self.keys, self.values):
            if not slots:
                tensors.clear()
            for layer, tensor in enumerate(tensors):
                if tensor.shape[1] > slots:
                    try:
                        tensors[layer] = tensor[:, :slots].clone()
                    except Exception as error:
                        if not is_out_of_memory(error):
                            raise
                        return  # A layer with more slots than are handed out is no harm.


def _zeros(shape: KvShape, slots: int, *, written: bool) -> torch.Tensor:
    """Return a layer's slots, on the CPU with every page `written` or none.

    Zeros, not garbage: a masked slot still enters a product, and 0 * nan is nan.
    """
    size = (shape.heads, slots, shape.width)
    if written or shape.device.type != "cpu":
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)
    # torch.zeros writes every page, numpy's come from the system as they are first written.
    count = math.prod(size) * shape.dtype.itemsize
    raw = np.zeros(count + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return torch.from_numpy(raw[start : start + count]).view(shape.dtype).view(size)


def slots_of(blocks: Sequence[int]) -> np.ndarray:
    """Return the slots of these blocks, in order."""
    starts = np.asarray(blocks, dtype=np.int64) * BLOCK_TOKENS
    return (starts[:, None] + np.arange(BLOCK_TOKENS)).reshape(-1)
