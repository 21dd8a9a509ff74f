"""Ranks as actors of Ray on this machine: the same weights, a lost actor named, no room told with what there is."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from palmette.errors import BackendError
from palmette.scale.learning.ranks import RankLostError
from palmette.scale.learning.ranks_learner import RanksLearner
from palmette.scale.learning.ray_ranks import RankDemand, RayRanks
from tests.ranks import build, furthest, plain_learner, trained, trained_seedling
from tests.torch.test_ranks import TOKENS, samples

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.kills


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    found = os.pathsep.join(path for path in sys.path if path)  # Actors find tests by it.
    # By default Ray is so nice to other programs that on a busy machine an actor may not start in time.
    os.environ.update({"PYTHONPATH": found, "RAY_worker_niceness": "0"})
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=128 * 2**20)
    yield ray
    ray.shutdown()


def start(cluster: Any, count: int, cpus: float, start_seconds: float = 300.0) -> RayRanks:
    return RayRanks(
        cluster,
        count,
        RankDemand(cpus),
        threads=1,
        start_seconds=start_seconds,
        answer_seconds=300.0,
        stack=ExitStack(),
    )


@pytest.mark.filterwarnings("ignore")
def test_actors_train_as_one_process_does_and_one_that_is_killed_is_named(cluster: Any) -> None:
    plain, model = plain_learner("full64"), trained_seedling("full64")
    ranks = start(cluster, 2, 1.0)
    try:
        learner = RanksLearner(ranks, partial(build, "full64", None), trained(model))
        for update in range(2):
            plain.update(samples(update), micro_batch_tokens=TOKENS)
            learner.update(samples(update), micro_batch_tokens=TOKENS)
        learner.fetch()
        assert furthest(model, plain.model) < 1e-10
        os.kill(learner.places[1]["pid"], signal.SIGKILL)
        with pytest.raises(RankLostError, match="rank 1 of 2 is lost in 'update'"):
            learner.update(samples(2), micro_batch_tokens=TOKENS)
    finally:
        ranks.close()


@pytest.mark.filterwarnings("ignore")
def test_ranks_that_do_not_fit_are_told_with_what_there_is(cluster: Any) -> None:
    with pytest.raises(BackendError, match=r"did not give 3 ranks 1 cores each within 2\.0 s .*: it has 2 cores, "):
        start(cluster, 3, 1.0, start_seconds=2.0)
