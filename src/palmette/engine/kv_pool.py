"""Blocks of KV memory, each free or taken once. Knows no tokens and no trees.

Shapes: G key heads, C slots (one for each token the pool can hold), W head width, T tokens of a tick.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from palmette.errors import BudgetError
from palmette.memory.tick import POOL_FIRST_BYTES

BLOCK_TOKENS = 1
"""One, so that a budget holds as many tokens as it says: steps are short, and of blocks of 8 up to a half stayed empty.
Measured with the seedling at width 64: blocks of 8 are 1.1 times as fast."""


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

    With a budget the pool has its full size from the start and never more; without one it grows when it is full.
    """

    def __init__(self, shape: KvShape, budget_bytes: int | None = None) -> None:
        self.shape = shape
        self._limit = None if budget_bytes is None else budget_bytes // (BLOCK_TOKENS * shape.token_bytes)
        if self._limit == 0:
            raise BudgetError(
                f"a KV budget of {budget_bytes} bytes holds no block of {BLOCK_TOKENS} tokens: "
                f"give it {BLOCK_TOKENS * shape.token_bytes} bytes or more"
            )
        self.blocks = 0
        self._free: list[int] = []
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._grow(self._limit or -(-POOL_FIRST_BYTES // (BLOCK_TOKENS * shape.token_bytes)))

    @property
    def limit_tokens(self) -> int | None:
        """How many tokens the budget holds, None without one."""
        return None if self._limit is None else self._limit * BLOCK_TOKENS

    @property
    def free_blocks(self) -> int:
        """Blocks that can be taken now, without growing."""
        return len(self._free)

    @property
    def taken_bytes(self) -> int:
        """Bytes of all blocks in use."""
        return (self.blocks - len(self._free)) * BLOCK_TOKENS * self.shape.token_bytes

    def can_take(self, count: int) -> bool:
        """Tell whether `take` would succeed."""
        return self._limit is None or count <= len(self._free)

    def take(self, count: int) -> list[int]:
        """Take `count` blocks, return their numbers. Raises PoolFullError, with none taken, where they do not fit."""
        if count > len(self._free):
            if self._limit is not None:
                raise PoolFullError
            self._grow(max(self.blocks, count))
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken[::-1]

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

    def _grow(self, count: int) -> None:
        shape = self.shape
        size = (shape.heads, count * BLOCK_TOKENS, shape.width)
        for tensors in (self.keys, self.values):
            for layer in range(shape.layers):
                # Zeros, not garbage: a masked slot still enters a product, and 0 * nan is nan.
                new = torch.zeros(size, dtype=shape.dtype, device=shape.device)
                if self.blocks:
                    tensors[layer] = torch.cat([tensors[layer], new], dim=1)
                else:
                    tensors.append(new)
        self._free.extend(range(self.blocks + count - 1, self.blocks - 1, -1))
        self.blocks += count


def slots_of(blocks: Sequence[int]) -> np.ndarray:
    """Return the slots of these blocks, in order."""
    starts = np.asarray(blocks, dtype=np.int64) * BLOCK_TOKENS
    return (starts[:, None] + np.arange(BLOCK_TOKENS)).reshape(-1)
