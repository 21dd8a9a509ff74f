"""The splitting decision, by hand-worked sequences and against an oracle that fails above a size."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.memory.batch_limit import FIRST_PATIENCE, STALE_AFTER, BatchLimit, first_batch


def climbed(ladder: BatchLimit, pieces: int) -> BatchLimit:
    for _ in range(pieces):
        assert ladder.limit is not None
        ladder = ladder.after_success(ladder.limit, full=True)
    return ladder


def test_what_failed_is_halved_down_to_one() -> None:
    ladder, limits = BatchLimit(), []
    for size in (13, 6, 3, 1):
        ladder = ladder.after_failure(size)
        limits.append(ladder.limit)
    assert limits == [6, 3, 1, 1]
    assert ladder.failed == 1


def test_a_limit_grows_by_doubling_then_halfway_to_what_failed() -> None:
    ladder = BatchLimit().after_failure(32).after_failure(16).after_failure(8)
    assert (ladder.limit, ladder.failed) == (4, 8)
    ladder = climbed(ladder, FIRST_PATIENCE)
    assert ladder.limit == 6  # halfway to 8, not 8 itself
    ladder = climbed(ladder, FIRST_PATIENCE)
    assert ladder.limit == 7
    assert climbed(ladder, STALE_AFTER * FIRST_PATIENCE - 1).limit == 7


def test_a_size_that_failed_is_tried_again_only_after_a_long_clean_stretch() -> None:
    ladder = BatchLimit().after_failure(2)
    assert climbed(ladder, STALE_AFTER * FIRST_PATIENCE - 1).limit == 1
    ladder = climbed(ladder, STALE_AFTER * FIRST_PATIENCE)
    assert (ladder.limit, ladder.failed) == (1, None)
    assert climbed(ladder, FIRST_PATIENCE).limit == 2


def test_growing_too_far_goes_back_to_what_worked_and_makes_the_next_growth_slower() -> None:
    ladder = climbed(BatchLimit().after_failure(16), FIRST_PATIENCE)
    assert ladder.limit == 12
    ladder = ladder.after_failure(12)
    assert (ladder.limit, ladder.patience) == (8, 2 * FIRST_PATIENCE)
    assert climbed(ladder, 2 * FIRST_PATIENCE - 1).limit == 8
    assert climbed(ladder, 2 * FIRST_PATIENCE).limit == 10
    assert ladder.after_failure(8).limit == 4  # what worked once does not any more: halved


def test_pieces_that_are_not_full_prove_nothing() -> None:
    ladder = BatchLimit().after_failure(8)
    for _ in range(100):
        ladder = ladder.after_success(1, full=False)
    assert ladder.limit == 4


def test_a_single_item_larger_than_what_failed_makes_the_failure_stale() -> None:
    assert BatchLimit().after_failure(8).after_success(9, full=True).failed is None


def test_pieces_are_cut_between_groups_first() -> None:
    groups = ["a", "a", "a", "b", "b", "c"]
    costs = [10, 10, 10, 10, 10, 10]
    assert first_batch(BatchLimit(), costs, groups) == 6
    assert first_batch(BatchLimit(50, 60), costs, groups) == 5
    assert first_batch(BatchLimit(49, 60), costs, groups) == 3
    assert first_batch(BatchLimit(20, 40), costs, groups) == 3  # 30 has not failed: the group is tried whole
    assert first_batch(BatchLimit(20, 30), costs, groups) == 2  # it has: the group is split
    assert first_batch(BatchLimit(5, 10), costs, groups) == 1


@settings(max_examples=300)
@given(
    costs=st.lists(st.integers(1, 20), min_size=1, max_size=40),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=40),
    fits=st.integers(20, 200),
)
def test_work_that_fits_one_by_one_is_done_once_each_with_groups_split_only_alone(
    costs: list[int], sizes: list[int], fits: int
) -> None:
    groups = [number for number, size in enumerate(sizes) for _ in range(size)]
    groups = (groups + list(range(1000, 1000 + len(costs))))[: len(costs)]
    ladder, start, failures, last = BatchLimit(), 0, 0, None
    done: list[tuple[int, int]] = []
    while start < len(costs):
        count = first_batch(ladder, costs[start:], groups[start:])
        piece = range(start, start + count)
        cut = start + count < len(costs) and groups[start + count] == groups[start + count - 1]
        assert not cut or len({groups[place] for place in piece}) == 1
        size = sum(costs[place] for place in piece)
        if size > fits:
            assert count > 1
            assert (start, count) != last  # a piece that failed is never tried again as it was
            last, failures = (start, count), failures + 1
            ladder = ladder.after_failure(size)
        else:
            done.append((start, count))
            ladder = ladder.after_success(size, full=size >= (ladder.limit or size + 1))
            start, last = start + count, None
    assert [place for begin, count in done for place in range(begin, begin + count)] == list(range(len(costs)))
    assert failures <= 10 + len(done)


def pieces_of(costs: Sequence[int], fits: int) -> list[int]:
    ladder, start, sizes = BatchLimit(), 0, []
    while start < len(costs):
        count = first_batch(ladder, costs[start:], range(start, len(costs)))
        size = sum(costs[start : start + count])
        if size > fits:
            ladder = ladder.after_failure(size)
        else:
            ladder = ladder.after_success(size, full=start + count < len(costs))
            sizes.append(size)
            start += count
    return sizes


def test_in_the_long_run_pieces_stay_near_the_largest_that_fits() -> None:
    sizes = pieces_of([1] * 4000, fits=13)
    assert sum(sizes) == 4000
    assert max(sizes) == 13
    assert len(sizes) <= 1.1 * 4000 / 13
