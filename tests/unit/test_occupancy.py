"""Ticks and time counted in bins, on a clock that the test sets."""

from palmette.events import Occupancy
from palmette.report.occupancy_data import occupancies
from palmette.run.occupancy import MOST_BINS, OccupancyBins


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_is_shared_out_among_bins_and_counts_for_the_innermost_activity() -> None:
    clock = Clock()
    bins = OccupancyBins(clock)  # bins of 0.05 s
    clock.now = 100.02
    with bins.during("policy"):
        clock.now = 100.04
        bins.tick(3)
        clock.now = 100.07
        with bins.during("reward"):
            clock.now = 100.12
        bins.tick(5)
        bins.tick(1)
    told = bins.event()
    assert (told.bin_seconds, told.ticks, told.rows) == (0.05, (1, 0, 2), (3, 0, 6))
    assert told.spent == {"policy": (0.03, 0.02, 0.0), "reward": (0.0, 0.03, 0.02)}


def test_bins_double_when_there_are_too_many_and_nothing_is_lost() -> None:
    clock = Clock()
    bins = OccupancyBins(clock)
    for _ in range(1000):
        with bins.during("policy"):
            clock.now += 0.03
        bins.tick(2)
        clock.now += 0.01
    told = bins.event()
    assert len(told.ticks) <= MOST_BINS
    assert told.bin_seconds == 0.4  # 40 s in at most 100 bins
    assert (sum(told.ticks), sum(told.rows)) == (1000, 2000)
    assert abs(sum(told.spent["policy"]) - 30.0) < 1e-2
    assert set(told.ticks[:-1]) <= {9, 10, 11}


def test_what_is_left_of_a_bin_is_told_as_other_time() -> None:
    event = Occupancy(5.0, 0.5, (2, 0, 1), (8, 0, 1), {"policy": (0.25, 0.0, 0.125), "reward": (0.125, 0.5, 0.0)})
    (entry,) = occupancies([event])
    assert entry == {
        "worker": "",
        "bin": 0.5,
        "ticks": [2, 0, 1],
        "rows": [8, 0, 1],
        # The search ended within the last bin.
        "spent": {"policy": [0.25, 0.0, 0.125], "reward": [0.125, 0.5, 0.0], "other": [0.125, 0.0, 0.0]},
    }


def test_bins_that_are_not_complete_are_not_drawn() -> None:
    (entry,) = occupancies([Occupancy(5.0, 0.5, (2, 1), (8,), {"policy": (0.25, 0.0), "<script>": (1.0,)})])
    assert (entry["ticks"], entry["rows"], list(entry["spent"])) == ([2], [8], ["policy", "other"])


def test_a_tick_that_comes_when_bins_double_is_counted() -> None:
    clock = Clock()
    bins = OccupancyBins(clock)
    bins.tick(1)
    clock.now = 100.0 + 0.05 * MOST_BINS + 0.01
    bins.tick(2)  # It doubles the bins.
    told = bins.event()
    assert (sum(told.ticks), sum(told.rows)) == (2, 3)


def test_ticks_of_similar_size_are_told_with_the_policy_s_seconds_since_the_tick_before() -> None:
    clock = Clock()
    bins = OccupancyBins(clock)
    for rows, seconds in ((1, 0.01), (5, 0.02), (7, 0.04), (8, 0.08)):
        with bins.during("policy"):
            clock.now += seconds / 2
            with bins.during("reward"):
                clock.now += 1.0
            clock.now += seconds / 2
            bins.tick(rows)
    by_size = bins.event().by_size
    assert [(size.ticks, size.rows) for size in by_size] == [(1, 1), (2, 12), (1, 8)]
    assert [round(size.seconds, 6) for size in by_size] == [0.01, 0.06, 0.08]
