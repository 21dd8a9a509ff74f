"""What a worker is given of a cluster, and how many workers there will be: by the settings and by the plan."""

import os

from palmette.errors import BudgetError
from palmette.planner.run_plan import planned_memory
from palmette.scale.fit import Demand, NodeRoom, most_workers, shortage
from palmette.settings import Config
from palmette.units import parse_bytes


def own_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def demand_of(config: Config) -> Demand:
    """Return what one worker needs.

    Memory is what the plan counts for a search in one process; nothing where models are on GPUs, all of them on
    servers, or of unknown shape.
    """
    scale = config.scale
    cpus = scale.worker_cpus
    if cpus is None:
        cpus = 1.0 if scale.address is not None or scale.workers is None else own_cores() / scale.workers
    if scale.worker_memory is not None:
        return Demand(cpus, scale.worker_gpus, parse_bytes(scale.worker_memory))
    planned = {} if scale.worker_gpus else planned_memory(config).by_phase
    return Demand(cpus, scale.worker_gpus, max(planned.values(), default=0))


def count_of_workers(config: Config, demand: Demand, nodes: list[NodeRoom]) -> int:
    """Return how many workers to start.

    Raises BudgetError where they can never be placed: on this machine alone, to which no node can be added, or where
    nothing says how many and none fits. Others are awaited for `scale.start_seconds`: nodes may join.
    """
    wanted, fits = config.scale.workers, most_workers(nodes, demand)
    if (wanted is None and not fits) or (wanted is not None and config.scale.address is None and wanted > fits):
        raise BudgetError(shortage(wanted or 1, demand, nodes))
    return wanted or fits


def gpu_notices(config: Config, nodes: list[NodeRoom]) -> list[str]:
    """Say where GPUs would stay idle that a policy in the workers could use."""
    gpus = int(sum(node.gpus for node in nodes))
    if not gpus or config.scale.worker_gpus or config.policy.is_served or config.policy.device == "cpu":
        return []
    return [f"the cluster has {gpus} GPUs and workers get none of them: set scale.worker_gpus=1 to use them"]
