"""The next size to try, by hand-worked sequences and against work that fails above a size."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.memory.batch_limit import FIRST_PATIENCE, STALE_AFTER, BatchLimit, next_item_count


def after_full_pieces(limit: BatchLimit, pieces: int) -> BatchLimit:
    for _ in range(pieces):
        assert limit.limit is not None
        limit = limit.after_success(limit.limit, full=True)
    return limit


def test_a_size_that_failed_is_halved_down_to_one() -> None:
    limit, limits = BatchLimit(), []
    for size in (13, 6, 3, 1):
        limit = limit.after_failure(size)
        limits.append(limit.limit)
    assert limits == [6, 3, 1, 1]
    assert limit.failed == 1


def test_a_limit_grows_by_doubling_then_halfway_to_what_failed() -> None:
    limit = BatchLimit().after_failure(32).after_failure(16).after_failure(8)
    assert (limit.limit, limit.failed) == (4, 8)
    limit = after_full_pieces(limit, FIRST_PATIENCE)
    assert limit.limit == 6  # halfway to 8, not 8 itself
    limit = after_full_pieces(limit, FIRST_PATIENCE)
    assert limit.limit == 7
    assert after_full_pieces(limit, STALE_AFTER * FIRST_PATIENCE - 1).limit == 7


def test_a_size_that_failed_is_tried_again_only_after_many_successes() -> None:
    limit = BatchLimit().after_failure(2)
    assert after_full_pieces(limit, STALE_AFTER * FIRST_PATIENCE - 1).limit == 1
    limit = after_full_pieces(limit, STALE_AFTER * FIRST_PATIENCE)
    assert (limit.limit, limit.failed) == (1, None)
    assert after_full_pieces(limit, FIRST_PATIENCE).limit == 2


def test_growing_too_far_goes_back_to_what_worked_and_makes_the_next_growth_slower() -> None:
    limit = after_full_pieces(BatchLimit().after_failure(16), FIRST_PATIENCE)
    assert limit.limit == 12
    limit = limit.after_failure(12)
    assert (limit.limit, limit.patience) == (8, 2 * FIRST_PATIENCE)
    assert after_full_pieces(limit, 2 * FIRST_PATIENCE - 1).limit == 8
    assert after_full_pieces(limit, 2 * FIRST_PATIENCE).limit == 10
    assert limit.after_failure(8).limit == 4  # the previous limit fails too now: halved


def test_pieces_that_are_not_full_do_not_let_the_limit_grow() -> None:
    limit = BatchLimit().after_failure(8)
    for _ in range(100):
        limit = limit.after_success(1, full=False)
    assert limit.limit == 4


def test_a_single_item_larger_than_what_failed_makes_the_failure_stale() -> None:
    assert BatchLimit().after_failure(8).after_success(9, full=True).failed is None


def test_pieces_are_cut_between_groups_first() -> None:
    groups = ["a", "a", "a", "b", "b", "c"]
    costs = [10, 10, 10, 10, 10, 10]
    assert next_item_count(BatchLimit(), costs, groups) == 6
    assert next_item_count(BatchLimit(50, 60), costs, groups) == 5
    assert next_item_count(BatchLimit(49, 60), costs, groups) == 3
    assert next_item_count(BatchLimit(20, 40), costs, groups) == 3  # 30 has not failed: the group is tried whole
    assert next_item_count(BatchLimit(20, 30), costs, groups) == 2  # it has: the group is split
    assert next_item_count(BatchLimit(5, 10), costs, groups) == 1


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
    limit, start, failures, last = BatchLimit(), 0, 0, None
    done: list[tuple[int, int]] = []
    while start < len(costs):
        count = next_item_count(limit, costs[start:], groups[start:])
        piece = range(start, start + count)
        cut = start + count < len(costs) and groups[start + count] == groups[start + count - 1]
        assert not cut or len({groups[place] for place in piece}) == 1
        size = sum(costs[place] for place in piece)
        if size > fits:
            assert count > 1
            assert (start, count) != last  # a piece that failed is never tried again as it was
            last, failures = (start, count), failures + 1
            limit = limit.after_failure(size)
        else:
            done.append((start, count))
            limit = limit.after_success(size, full=size >= (limit.limit or size + 1))
            start, last = start + count, None
    assert [place for begin, count in done for place in range(begin, begin + count)] == list(range(len(costs)))
    assert failures <= 10 + len(done)


def pieces_of(costs: Sequence[int], fits: int) -> list[int]:
    limit, start, sizes = BatchLimit(), 0, []
    while start < len(costs):
        count = next_item_count(limit, costs[start:], range(start, len(costs)))
        size = sum(costs[start : start + count])
        if size > fits:
            limit = limit.after_failure(size)
        else:
            limit = limit.after_success(size, full=start + count < len(costs))
            sizes.append(size)
            start += count
    return sizes


def test_in_the_long_run_pieces_stay_near_the_largest_that_fits() -> None:
    sizes = pieces_of([1] * 4000, fits=13)
    assert sum(sizes) == 4000
    assert max(sizes) == 13
    assert len(sizes) <= 1.1 * 4000 / 13
