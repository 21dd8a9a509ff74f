"""Plans against the peak resident set of real searches and updates, each in a process of its own."""

import pytest

from benchmarks.plan_vs_measured import MOST_ABOVE, SEARCHES, UPDATES, measure, planned_search, planned_update


@pytest.mark.parametrize("name", ["seedling, ets 16, no embedder", "seedling with a scalar head, ets 16"])
def test_a_plan_is_never_below_the_measured_peak_nor_far_above_it(name: str) -> None:
    measured = measure("--measure", SEARCHES[name])
    assert measured <= planned_search(SEARCHES[name]) <= (1 + MOST_ABOVE) * measured


def test_an_update_is_planned_right_by_formula_and_by_prediction() -> None:
    settings = UPDATES["seedling, full, checkpointing"]
    measured = measure("--measure-update", settings)
    for predict in (False, True):
        assert measured <= planned_update(settings, predict=predict) <= (1 + MOST_ABOVE) * measured
