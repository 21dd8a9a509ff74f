"""Starts rollout workers for a training run, on this machine or on a cluster, and ends them with it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from palmette.events import Event
from palmette.run.cluster.demand import count_of_workers, demand_of, gpu_notices, own_cores
from palmette.run.cluster.rollouts.drive import WorkerRollouts
from palmette.run.cluster.rollouts.worker import RolloutWorker
from palmette.run.cluster.wire import config_text
from palmette.scale.connect import Ray, connected, node_rooms
from palmette.scale.crew import Crew
from palmette.scale.transport.broadcast import BroadcastSender
from palmette.scale.transport.object_store import StoreSender
from palmette.scale.transport.sender import Sender
from palmette.settings import Config
from palmette.tasks.task import Task

_BROADCAST_SECONDS = 60.0
"""How long sender and receivers of a broadcast wait for each other; what did not come is sent again."""


@contextmanager
def rollout_workers(
    config: Config,
    task: Task,
    weight_bytes: int,
    device: str,
    tell: Callable[[str], None],
    write: Callable[[Event], None],
) -> Iterator[WorkerRollouts]:
    """Start `scale.workers` workers; they load meanwhile. `weight_bytes` are those that go to them after each update.

    Raises ConfigError without Ray or for parts that workers cannot import, BackendError where there is no cluster,
    BudgetError where workers can never be placed.
    """
    text, demand = config_text(config, task), demand_of(config)
    # Room for two versions: the one before is freed when its last reader is done.
    with connected(config.scale, own_cores(), 2 * weight_bytes) as ray:
        nodes = node_rooms(ray)
        count = count_of_workers(config, demand, nodes)
        made_with = (text, os.getcwd(), str(max(1, int(demand.cpus))))
        crew = Crew(ray, RolloutWorker, demand, lambda member: made_with)
        workers = WorkerRollouts(
            config.scale,
            config.search.questions_in_flight,
            crew,
            demand,
            _sender(config, ray, device),
            lambda: node_rooms(ray),
            tell,
            write,
        )
        for notice in gpu_notices(config, nodes):
            tell(notice)
        try:
            workers.start(count)
            yield workers
        finally:
            workers.close()


def _sender(config: Config, ray: Ray, device: str) -> Sender:
    if config.scale.transport == "store":
        return StoreSender(ray)
    host = "127.0.0.1" if config.scale.address is None else ray.util.get_node_ip_address()
    return BroadcastSender(host, device=device, wait_seconds=min(_BROADCAST_SECONDS, config.scale.answer_seconds))
