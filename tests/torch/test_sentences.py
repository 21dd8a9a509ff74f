"""Texts embedded in batches that are bounded in tokens, and blocks that are mapped for a while."""

from palmette.memory import heap as mappings
from palmette.memory.heap import ADAPTED_BYTES, LARGE_BYTES, map_large_blocks, mapped_blocks
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


def test_blocks_mapped_for_a_while_are_mapped_afterwards_as_they_were_before() -> None:
    before = list(mappings._threshold_bytes)
    try:
        mappings._threshold_bytes.clear()
        with mapped_blocks():
            assert mappings._threshold_bytes == [LARGE_BYTES]
        assert mappings._threshold_bytes == [ADAPTED_BYTES]
        map_large_blocks(2**20)
        with mapped_blocks():
            assert mappings._threshold_bytes == [LARGE_BYTES]
        assert mappings._threshold_bytes == [2**20]
    finally:
        map_large_blocks(before[0] if before else ADAPTED_BYTES)
