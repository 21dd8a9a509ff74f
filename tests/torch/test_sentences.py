"""Texts embedded in batches that are bounded in tokens, and blocks that are mapped for a while."""

import platform
import subprocess
import sys

import pytest

from palmette.score.sentences import batches


def test_batches_keep_to_rows_and_to_tokens_with_padding() -> None:
    lengths = [3, 10, 4, 4, 1, 1, 1]
    assert list(batches(lengths, 4, 100)) == [[1, 2, 3, 0], [4, 5, 6]]
    assert list(batches(lengths, 4, 12)) == [[1], [2, 3, 0], [4, 5, 6]]
    assert list(batches(lengths, 4, 5)) == [[1], [2], [3], [0], [4, 5, 6]]
    assert list(batches([], 4, 5)) == []


def test_every_text_is_in_one_batch() -> None:
    lengths = [(7 * place) % 31 + 1 for place in range(200)]
    found = list(batches(lengths, 16, 64))
    assert sorted(place for batch in found for place in batch) == list(range(200))
    assert all(len(batch) <= 16 and len(batch) * max(lengths[place] for place in batch) <= 64 for batch in found)


# In a process of its own: a heap that has been used serves a block from what it holds, whatever it was told.
GIVEN_BACK = """
import ctypes
from pathlib import Path
from palmette.memory.heap import ADAPTED_BYTES, LARGE_BYTES, map_large_blocks, mapped_blocks

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p

def given_back(size_bytes):
    block, above = library.malloc(ctypes.c_size_t(size_bytes)), library.malloc(ctypes.c_size_t(64))
    library.free(ctypes.c_void_p(block))
    spans = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return not any(int(first, 16) <= block < int(last, 16) for first, last in spans)

with mapped_blocks():
    print(given_back(4 * LARGE_BYTES))
print(given_back(ADAPTED_BYTES // 2), given_back(ADAPTED_BYTES))
map_large_blocks(2 * ADAPTED_BYTES)
with mapped_blocks():
    print(given_back(ADAPTED_BYTES))
print(given_back(ADAPTED_BYTES), given_back(2 * ADAPTED_BYTES))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_blocks_mapped_for_a_while_are_mapped_afterwards_as_they_were_before() -> None:
    done = subprocess.run([sys.executable, "-c", GIVEN_BACK], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True", "False True", "True", "False True"]
