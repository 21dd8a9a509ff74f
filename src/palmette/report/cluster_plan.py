"""The plan of a cluster as an object: whether the run fits, why not, what would fit; as text, HTML or JSON values."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from palmette.errors import ConfigError
from palmette.planner.advice import reason, refusal_of
from palmette.planner.cluster.nodes import Cluster, parse_cluster
from palmette.planner.cluster.plan_cluster import ClusterPlan, cluster_suggestions, plan_cluster
from palmette.planner.cluster.transfers import Bandwidths
from palmette.planner.job import Job
from palmette.planner.run_plan import engine_of, job_of
from palmette.report.plan_bars import write_plan_page
from palmette.report.plan_table import plan_lines, plan_tables, plan_values
from palmette.report.table import plain_table
from palmette.settings import Config
from palmette.units import format_bytes, format_seconds, one_line, parse_bytes

_LONGEST_LINE = 10_000


@dataclass(frozen=True)
class ClusterMemoryPlan:
    """What workers and ranks of a run on a cluster would hold, and which settings to change if they do not fit."""

    search: Job
    train: Job | None
    cluster: Cluster
    bandwidths: Bandwidths
    planned: ClusterPlan

    @property
    def fits(self) -> bool:
        """Whether every phase fits into its device."""
        return self.planned.plan.fits

    @cached_property
    def suggestions(self) -> tuple[str, ...]:
        """Changes of which each alone makes the run fit, as verified by planning again; none if it fits."""
        if self.fits:
            return ()
        return cluster_suggestions(self.search, self.train, self.cluster, self.bandwidths)

    @property
    def refusal(self) -> str | None:
        """Why the run does not fit and what would fit, None if it fits."""
        return None if self.fits else refusal_of(self._job, self.planned.plan, self.suggestions)

    @property
    def _job(self) -> Job:
        return self.train or self.search

    def to_dict(self) -> dict[str, Any]:
        """Return the plan, the reason and the suggestions as JSON values; sizes in bytes."""
        planned = self.planned
        why = None if self.fits else reason(self._job, planned.plan)
        return {
            "cluster": str(self.cluster),
            "workers": planned.workers,
            "worker_devices": planned.worker_devices,
            "ranks": planned.ranks,
            "unused": planned.unused,
            "moved": [vars(transfer) for transfer in planned.moved],
            "bandwidths": vars(self.bandwidths),
            **plan_values(planned.plan, why, self.suggestions),
        }

    def print_to(self, console: Console) -> None:
        """Print who does what, a table for each kind of device, and what moves in one update."""
        if self.fits:
            console.print(one_line(self.planned.summary), highlight=False, markup=False)
        for table in plan_tables(self.planned.plan, console.width):
            console.print(table)
        if self.planned.moved:
            table = plain_table("moves in one update", "to", "bytes", "seconds", "by", "made of")
            for own in self.planned.moved:
                table.add_row(
                    own.what, own.receiver, format_bytes(own.bytes), format_seconds(own.seconds), own.by, own.note
                )
            link, network = format_bytes(int(self.bandwidths.link)), format_bytes(int(self.bandwidths.network))
            table.caption = f"link {link}/s (memory.link_bandwidth), network {network}/s (memory.network_bandwidth)"
            console.print(table)
        for line in plan_lines(self.planned.plan):
            console.print(one_line(line, _LONGEST_LINE), highlight=False, markup=False, soft_wrap=True)

    def write_html(self, path: str | Path) -> None:
        """Write the plan as an HTML page with a bar for each phase. Raises RunError if it cannot be written."""
        write_plan_page(self.planned.plan, Path(path))


def plan_cluster_config(config: Config, *, train: bool = False, server: str | None = None) -> ClusterMemoryPlan:
    """Return the plan of a run with this config on the cluster that `memory.devices` declares.

    Models on GPUs are served; without GPUs each node searches inside one process. Raises ConfigError for training
    without GPUs, or with a critic that is a model of its own.
    """
    cluster = parse_cluster(str(config.memory.devices))
    served = bool(cluster.gpus)
    if train and not served:
        raise ConfigError(
            f"devices {cluster}: training on a cluster is planned for nodes with GPUs; add them, or plan one node"
        )
    if train and config.train.critic_model is not None:
        raise ConfigError(
            f"train.critic {config.train.critic_model}: a critic of its own is not planned for a cluster; take head"
        )
    search = job_of(config, served=served, server=server or engine_of(config))
    learning = job_of(config, train=True, served=True) if train else None
    bandwidths = Bandwidths(*map(parse_bytes, (config.memory.link_bandwidth, config.memory.network_bandwidth)))
    return ClusterMemoryPlan(search, learning, cluster, bandwidths, plan_cluster(search, learning, cluster, bandwidths))
