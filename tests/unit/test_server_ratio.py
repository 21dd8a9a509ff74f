"""Ratios of learner and server, and what becomes of tokens above the cut, against numbers worked by hand."""

import math

import pytest

from palmette.errors import RunError
from palmette.train.samples import Sample
from palmette.train.server_ratio import corrected

LOG2 = math.log(2)
SAMPLE = Sample(
    prompt=(1,),
    response=(2, 3, 4, 5),
    advantages=(1.0, 1.0, -3.0, 1.0),
    old_logprobs=(-1.0, -2.0, -3.0, -9.0),
    mask=(True, True, True, False),
)
LEARNER = [(-1.0, -2.0 - LOG2, -3.0 + 2 * LOG2, -1.0)]
"""Ratios 1, 1/2 and 4; the last token does not count."""


def test_ratios_above_the_cut_are_truncated_and_smaller_ones_kept() -> None:
    [changed], numbers = corrected([SAMPLE], LEARNER, "truncate", 2.0)
    assert changed.advantages[:3] == pytest.approx((1.0, 0.5, -6.0))
    assert changed.old_logprobs == LEARNER[0] and changed.mask == SAMPLE.mask
    assert numbers == pytest.approx(
        {
            "server_ratio_low": 0.5,
            "server_ratio": 5.5 / 3,
            "server_ratio_high": 4.0,
            "server_ratio_cut": 1 / 3,
        }
    )


def test_masked_tokens_have_no_advantage() -> None:
    [changed], _ = corrected([SAMPLE], LEARNER, "mask", 2.0)
    assert changed.advantages[:3] == pytest.approx((1.0, 0.5, 0.0))


def test_log_probabilities_that_no_rounding_explains_are_told() -> None:
    with pytest.raises(RunError, match="-1 in this process and -900 on its server: they do not have the same weights"):
        corrected([Sample((1,), (2,), (1.0,), old_logprobs=(-900.0,))], [(-1.0,)], "truncate", 2.0)
