"""From a job and a cluster to workers that search, ranks that learn, and what each of them holds. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from palmette.planner.advice import suggestions
from palmette.planner.cluster.nodes import Cluster
from palmette.planner.cluster.rank_sizes import pass_lines, published_bytes, rank_update_lines, state_lines
from palmette.planner.cluster.transfers import Bandwidths, Transfer, transfers
from palmette.planner.devices import HOST, Device
from palmette.planner.job import Job
from palmette.planner.lines import DevicePlan, Line, Phase, Plan
from palmette.planner.plan import plan_job
from palmette.planner.update_sizes import reference_lines
from palmette.units import count_of

_LEARNERS = 4
"""Where a learner fits fewer, every so many-th device learns: generating takes the larger part of most updates."""
_MOST_NODES = 1024


@dataclass(frozen=True)
class ClusterPlan:
    """What one worker and one rank hold, how many there are of each, and what moves between them in one update."""

    cluster: Cluster
    plan: Plan
    workers: int
    worker_devices: int
    ranks: int = 0
    moved: tuple[Transfer, ...] = ()

    @property
    def unused(self) -> int:
        """Devices that neither search nor learn."""
        return self.cluster.devices - self.workers * self.worker_devices - self.ranks

    @property
    def summary(self) -> str:
        """How many devices do what."""
        kind = "GPU" if self.cluster.gpus else "host"
        who = "rollout worker" if self.ranks else "worker"
        parts = [f"{count_of(self.workers, who)} of {count_of(self.worker_devices, kind)} each"]
        if self.ranks:
            parts.insert(0, count_of(self.ranks, "learner rank"))
        if self.unused:
            parts.append(f"{count_of(self.unused, kind)} not used")
        return f"{self.cluster}: {', '.join(parts)}"


def plan_cluster(search: Job, train: Job | None, cluster: Cluster, bandwidths: Bandwidths) -> ClusterPlan:
    """Return the plan of a search, or of training if `train` is given; `ClusterPlan.plan.fits` says whether it fits.

    A worker gets the fewest devices of one node that its search fits. As many ranks learn as the update needs, at least
    a quarter of all devices where that leaves a worker; a learner of more than one node takes whole and half nodes.
    """
    count, worker = _worker(search, cluster)
    if train is None or not worker.fits:
        return ClusterPlan(cluster, _shown(worker, [], "search"), _room(cluster, 0, count), count)
    possible = [ranks for ranks in _rank_counts(cluster) if _room(cluster, ranks, count) > 0]
    fitting = [ranks for ranks in possible if _learns(train, cluster, ranks).fits]
    if not fitting:
        ranks = possible[-1] if possible else 1
        learner = _learns(train, cluster, ranks)
        return ClusterPlan(cluster, _shown(worker, learner.devices, "train"), 0, count, ranks)
    ranks = max([fitting[0], *(more for more in fitting if more <= cluster.devices // _LEARNERS)])
    learner = _learns(train, cluster, ranks)
    assert train.update is not None
    moved = transfers(
        train.policy, train.update, ranks=ranks, learner_nodes=math.ceil(ranks / len(cluster.gpus)),
        all_nodes=cluster.nodes, bandwidths=bandwidths,
    )  # fmt: skip
    return ClusterPlan(
        cluster, _shown(worker, learner.devices, "train"), _room(cluster, ranks, count), count, ranks, moved
    )


def cluster_suggestions(
    search: Job, train: Job | None, cluster: Cluster, bandwidths: Bandwidths, most: int = 4
) -> tuple[str, ...]:
    """Return the first few changes of which each alone makes the plan fit, as verified by planning again."""
    if not _worker(search, cluster)[1].fits:
        return tuple(suggestions(search, cluster.node))
    if train is None or train.update is None:
        return ()
    update, found = train.update, []
    for setting, changed in (
        ("train.gradient_checkpointing true", replace(update, checkpointing=True)),
        (
            f"train.micro_batch_tokens {update.longest_tokens}",
            replace(update, micro_batch_tokens=update.longest_tokens),
        ),
        ("train.optimizer_dtype bfloat16", replace(update, optimizer_dtype="bfloat16")),
        ("train.method lora", replace(update, method="lora")),
    ):
        if changed != update and plan_cluster(search, replace(train, update=changed), cluster, bandwidths).plan.fits:
            found.append(setting)
    nodes = cluster.nodes + 1
    while nodes <= _MOST_NODES:
        larger = cluster.with_nodes(nodes)
        if plan_cluster(search, train, larger, bandwidths).plan.fits:
            found.append(f'devices "{larger}"')
            break
        nodes += max(1, nodes // 4)
    return tuple(found[:most])


def _worker(job: Job, cluster: Cluster) -> tuple[int, Plan]:
    """Return how many devices of a node a worker needs, and what it holds; all of them where nothing fits."""
    host = [device for device in cluster.node if device.kind == "cpu"]
    most = max(1, len(cluster.gpus))
    for count in dict.fromkeys([*_powers(most), most]):
        plan = plan_job(job, [*cluster.gpus[:count], *host])
        if plan.fits:
            break
    return count, plan


def _powers(most: int) -> Iterator[int]:
    count = 1
    while count <= most:
        yield count
        count *= 2


def _rank_counts(cluster: Cluster) -> list[int]:
    """Return how many ranks a learner may have: a part of a node, or whole and half nodes."""
    each = len(cluster.gpus)
    half = max(1, each // 2)
    return [*_powers(each - 1), *range(each, cluster.devices + 1, half)]


def _room(cluster: Cluster, ranks: int, count: int) -> int:
    """Return how many workers of so many devices fit beside the ranks; a worker's devices are of one node."""
    each = max(1, len(cluster.gpus))
    whole, part = divmod(ranks, each)
    return (cluster.nodes - whole - bool(part)) * (each // count) + ((each - part) // count if part else 0)


def _learns(job: Job, cluster: Cluster, ranks: int) -> Plan:
    """Return what one of so many ranks holds, and what the host of a node with ranks holds for them."""
    assert job.update is not None
    model, update, gpu = job.policy, job.update, cluster.gpus[0]
    state, share = state_lines(model, update, ranks), job.training_share
    on_host = [line for line in state if line.kind == "optimizer"] if update.host_optimizer else []
    state = [line for line in state if line not in on_host]
    adding: dict[str, list[Line]] = {"wait": []}
    adding |= {name: pass_lines(model, update, ranks) for name in update.reads}
    if update.reference == "host":
        kept, streamed = reference_lines(model, same_device=False)
        adding["reference"] = [*adding.get("reference", []), *streamed]
        on_host += [replace(line, bytes=math.ceil(line.bytes / ranks)) for line in kept]
    adding["update"] = rank_update_lines(model, update, ranks)
    limit = gpu.limit_bytes(share)
    phases = tuple(Phase(name, (*state, *lines), share, limit) for name, lines in adding.items())
    name = "the learner's GPU" if ranks == 1 else f"each of {ranks} learner ranks"
    learner = DevicePlan(replace(gpu, name=name), ("learner",), phases)
    return Plan("train", (learner, _host(job, cluster, ranks, on_host)))


def _host(job: Job, cluster: Cluster, ranks: int, for_each: Sequence[Line]) -> DevicePlan:
    """Return the host of a node with ranks: what it keeps for each of them, and the weights that are sent out."""
    assert job.update is not None
    host = next((device for device in cluster.node if device.kind == "cpu"), HOST)
    together = min(ranks, len(cluster.gpus))
    lines = [replace(line, bytes=line.bytes * together) for line in for_each]
    size = published_bytes(job.policy, job.update)
    lines.append(Line("new weights", "weights", size, note="gathered on the first rank's host, then sent"))
    share = job.training_share
    device = replace(host, name="host of a learner node")
    return DevicePlan(device, ("learner",), (Phase("send", tuple(lines), share, host.limit_bytes(share)),))


def _shown(worker: Plan, learner: Sequence[DevicePlan], mode: str) -> Plan:
    """Return one plan of a worker's devices and a rank; equal devices of a worker are shown as one."""
    groups: list[list[DevicePlan]] = []
    for own in worker.devices:
        if groups and (groups[-1][0].roles, groups[-1][0].phases) == (own.roles, own.phases):
            groups[-1].append(own)
        else:
            groups.append([own])
    devices = [replace(group[0], device=_of_worker(group)) for group in groups]
    return replace(worker, mode=mode, devices=(*learner, *devices))


def _of_worker(group: Sequence[DevicePlan]) -> Device:
    names = group[0].device.name if len(group) == 1 else f"{group[0].device.name} to {group[-1].device.name}"
    return replace(group[0].device, name=f"{names} of a worker")
