"""A rank that stops in the middle of an update is named, not those that wait for it."""

import os
import signal

import pytest

from palmette.scale.learning.ranks import RankLostError
from tests.ranks import ranks_learner
from tests.torch.test_ranks import TOKENS, samples

pytestmark = pytest.mark.kills


def test_a_rank_that_does_not_go_on_is_named_after_the_deadline() -> None:
    with ranks_learner(3, answer_seconds=60.0) as (learner, _, ranks):
        learner.update(samples(0), micro_batch_tokens=TOKENS)
        os.kill(ranks.pids[1], signal.SIGSTOP)
        with pytest.raises(RankLostError, match=r"^rank 1 of 3 did not answer 'update' within 60 s, ranks 0, 2 of 3"):
            learner.update(samples(1), micro_batch_tokens=TOKENS)
