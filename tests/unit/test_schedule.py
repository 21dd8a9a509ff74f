"""Learning rates of updates, against numbers worked by hand."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.errors import ConfigError
from palmette.train.schedule import learning_rate


def rates(count: int, **options: Any) -> list[float]:
    return [learning_rate(step, peak=1.0, **options) for step in range(count)]


def test_a_warm_up_grows_in_equal_parts_and_its_last_update_has_the_peak() -> None:
    assert rates(6, steps=6, warmup=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rates(3, steps=3) == [1.0, 1.0, 1.0]


def test_a_line_and_a_cosine_fall_to_the_least_share_at_the_last_update() -> None:
    # Two updates of warm-up, then a fall over four: a quarter, half, three quarters and all of the way.
    assert rates(7, steps=6, warmup=2, shape="linear") == [0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert rates(7, steps=6, warmup=2, shape="linear", least=0.5) == [0.5, 1.0, 0.875, 0.75, 0.625, 0.5, 0.5]
    # (1 + cos(pi / 4)) / 2 = 0.853553, (1 + cos(pi / 2)) / 2 = 0.5, (1 + cos(3 pi / 4)) / 2 = 0.146447.
    falling = [0.5, 1.0, 0.8535533905932737, 0.5, 0.14644660940672627, 0.0]
    assert rates(6, steps=6, warmup=2, shape="cosine") == pytest.approx(falling, abs=1e-15)


@given(st.integers(1, 50), st.integers(0, 50), st.sampled_from(["constant", "linear", "cosine"]), st.floats(0, 1))
def test_rates_rise_to_the_peak_and_then_never_rise_again(steps: int, warmup: int, shape: Any, least: float) -> None:
    warmup = min(warmup, steps)
    found = rates(steps + 3, steps=steps, warmup=warmup, shape=shape, least=least)
    assert all(one <= other for one, other in pairwise(found[:warmup]))
    later = found[warmup:]
    assert all(one >= other for one, other in pairwise(later))
    assert max(found) <= 1 and min(later) >= least - 1e-12


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 5, "shape": "step"}, "the schedule is 'step': give one of constant, linear, cosine"),
        ({"steps": 5, "warmup": 6}, "6 updates of warm-up in 5 updates are no schedule: give 0 to 5"),
        ({"steps": 0}, "in 0 updates"),
        ({"steps": 5, "least": 1.5}, "cannot end at 1.5 times its peak"),
    ],
)
def test_numbers_that_make_no_schedule_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        learning_rate(0, peak=1.0, **options)
