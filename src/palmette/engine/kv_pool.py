"""Pool of KV cache blocks: takes and frees them, grows when it is full. Independent of tokens and trees.

Shapes: G KV heads, C slots (one for each token that the pool can hold), W head width, T tokens of a tick.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

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
"""Tokens per block. One, so that every slot of a budget can be used: steps are short, and with blocks of 8 up to half
of the slots stayed empty. Measured with the seedling at width 64: blocks of 8 are 1.1 times as fast."""


_ALIGNMENT = 64
"""Bytes. torch aligns its own allocations to the same boundary."""

_LEAST_TOKENS = 512
"""The smallest limit that `shrink` sets: with less, paths do not fit, and little memory is saved."""


class PoolFullError(Exception):
    """Fewer blocks are free than requested, and the pool is at its limit."""


@dataclass(frozen=True)
class KvShape:
    """Sizes, dtype and device of the keys and values that a model caches for one token."""

    layers: int
    heads: int
    width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token in all layers."""
        return 2 * self.layers * self.heads * self.width * self.dtype.itemsize


class KvPool:
    """Keys and values of all layers, in blocks of `BLOCK_TOKENS` slots.

    With a budget the pool has its full size from the start, with every page resident: a budget that is larger than the
    memory fails before the first step. Without one the pool grows when it is full, and on the CPU a page becomes
    resident when it is first written. If memory runs out while the pool grows, its size becomes its limit.
    Raises BudgetError if the budget holds no block.
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
        """Whether the limit was set because memory ran out, not by a budget."""
        self.cache_full: CacheFull | None = None
        """The last failed attempt to grow, None if there was none."""
        self.blocks = 0
        self._free: list[int] = []
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._grow(self._limit or -(-POOL_FIRST_BYTES // (BLOCK_TOKENS * shape.token_bytes)))

    @property
    def limit_tokens(self) -> int | None:
        """The most tokens that the pool may hold, None without a limit."""
        return None if self._limit is None else self._limit * BLOCK_TOKENS

    @property
    def free_blocks(self) -> int:
        """Number of blocks that can be taken without growing."""
        return len(self._free)

    @property
    def taken_bytes(self) -> int:
        """Bytes of all taken blocks."""
        return (self.blocks - len(self._free)) * BLOCK_TOKENS * self.shape.token_bytes

    def make_room(self, count: int) -> bool:
        """Grow if fewer than `count` blocks are free; return whether `take(count)` would succeed.

        The pool doubles, or grows by what is missing if that is more, but not past its limit. If memory runs out, it
        tries smaller steps; if there is none even for the missing blocks, the present size becomes the limit.
        """
        missing = count - len(self._free)
        room = None if self._limit is None else self._limit - self.blocks
        if missing <= 0 or (room is not None and missing > room):
            return missing <= 0
        step = max(self.blocks, missing) if room is None else min(max(self.blocks, missing), room)
        while failure := self._try_to_grow(step):
            if step == missing:
                self._limit, self.is_frozen = self.blocks, True
                self.cache_full = CacheFull((self.blocks + step) * BLOCK_TOKENS, self.blocks * BLOCK_TOKENS, failure)
                return False
            step = max(step // 2, missing)
        return True

    def take(self, count: int) -> list[int]:
        """Take `count` blocks and return their numbers. Raises PoolFullError, with none taken, if too few are left."""
        if not self.make_room(count):
            raise PoolFullError
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken[::-1]

    def shrink(self) -> bool:
        """Free all memory and set the limit to half the present size; the next `take` allocates again.

        Return False, with nothing changed, if the limit would be below `_LEAST_TOKENS`. No block may be taken.
        """
        assert len(self._free) == self.blocks, "blocks are taken"
        if self.blocks * BLOCK_TOKENS < 2 * _LEAST_TOKENS:
            return False
        self._limit, self.is_frozen = self.blocks // 2, True
        self.free_memory()
        return True

    def free_memory(self) -> None:
        """Free all memory; the next `take` allocates again. No block may be taken."""
        assert len(self._free) == self.blocks, "blocks are taken"
        self.blocks, self._free = 0, []
        self.keys, self.values = [], []

    def give_back(self, blocks: Sequence[int]) -> None:
        """Free taken blocks. A block must not be given back twice."""
        self._free.extend(blocks)

    def write(self, layer: int, slots_T: torch.Tensor, keys_GTW: torch.Tensor, values_GTW: torch.Tensor) -> None:
        """Store the keys and values of T tokens in their slots of one layer."""
        self.keys[layer].index_copy_(1, slots_T, keys_GTW)
        self.values[layer].index_copy_(1, slots_T, values_GTW)

    def check_integrity(self, taken: Sequence[int]) -> None:
        """Raise AssertionError unless `taken` and the free blocks together are all blocks, each exactly once."""
        assert sorted([*taken, *self._free]) == list(range(self.blocks)), "a block is lost, or taken twice"

    def _try_to_grow(self, count: int) -> str | None:
        """Grow by `count` blocks and return None; if memory runs out, restore the old size and return the reason."""
        try:
            self._grow(count)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = describe_error(error)
        else:
            return None
        self._undo_growth()
        return failure

    def _grow(self, count: int) -> None:
        # One tensor at a time: only the one that is copied is held twice, in its old and in its new size.
        for tensors in (self.keys, self.values):
            for layer in range(self.shape.layers):
                new = _zeros(self.shape, (self.blocks + count) * BLOCK_TOKENS, resident=self._has_budget)
                if layer < len(tensors):
                    new[:, : self.blocks * BLOCK_TOKENS] = tensors[layer][:, : self.blocks * BLOCK_TOKENS]
                    tensors[layer] = new
                else:
                    tensors.append(new)
        self._free.extend(range(self.blocks + count - 1, self.blocks - 1, -1))
        self.blocks += count

    def _undo_growth(self) -> None:
        """Cut the tensors that have already grown to the size of those that have not."""
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
                        return  # A tensor with more slots than the pool has blocks does no harm.


def _zeros(shape: KvShape, slots: int, *, resident: bool) -> torch.Tensor:
    """Return zeros for one layer's slots. On the CPU all pages are resident if `resident`, else none until written to.

    Zeros, not uninitialized memory: a masked slot still enters a product, and 0 * nan is nan.
    """
    size = (shape.heads, slots, shape.width)
    if resident or shape.device.type != "cpu":
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)
    # torch.zeros writes every page. np.zeros does not: a page becomes resident when it is first written.
    count = math.prod(size) * shape.dtype.itemsize
    raw = np.zeros(count + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return torch.from_numpy(raw[start : start + count]).view(shape.dtype).view(size)


def slots_of(blocks: Sequence[int]) -> np.ndarray:
    """Return the slot numbers of these blocks, in their order."""
    starts = np.asarray(blocks, dtype=np.int64) * BLOCK_TOKENS
    return (starts[:, None] + np.arange(BLOCK_TOKENS)).reshape(-1)
