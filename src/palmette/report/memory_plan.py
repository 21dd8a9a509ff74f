"""A memory plan as an object: whether the run fits, why not, what would fit; as text, HTML or JSON values."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from palmette.planner.advice import reason, refusal_of, suggestions
from palmette.planner.devices import Device
from palmette.planner.job import Job
from palmette.planner.lines import DevicePlan, Plan, Server
from palmette.planner.run_plan import devices_of, plan_run
from palmette.report.plan_bars import plan_picture, write_plan_page
from palmette.report.plan_table import plan_lines, plan_tables, plan_values
from palmette.settings import Config
from palmette.units import format_bytes, one_line

_COLUMNS = 120
_LONGEST_LINE = 10_000


@dataclass(frozen=True)
class MemoryPlan:
    """The bytes that a run would hold on each device in each phase, and which settings to change if they do not fit."""

    job: Job
    plan: Plan
    machine: tuple[Device, ...]

    @property
    def fits(self) -> bool:
        """Whether every phase fits into its device."""
        return self.plan.fits

    @property
    def devices(self) -> tuple[DevicePlan, ...]:
        """The devices that the run uses, each with its phases."""
        return self.plan.devices

    @property
    def servers(self) -> tuple[Server, ...]:
        """The servers to start, in this order; none if the models run inside the process."""
        return self.plan.servers

    @property
    def peak_bytes(self) -> int:
        """The most bytes that any device holds in any phase."""
        return self.plan.peak_bytes

    @cached_property
    def suggestions(self) -> tuple[str, ...]:
        """Changes of settings of which each alone makes the run fit, as verified by planning again; none if it fits."""
        # The predicted bytes are valid for these settings only: other settings are planned by formula.
        return () if self.fits else tuple(suggestions(replace(self.job, predicted={}), self.machine))

    @property
    def refusal(self) -> str | None:
        """Why the run does not fit and what would fit, None if it fits."""
        return None if self.fits else refusal_of(self.job, self.plan, self.suggestions)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan, the reason and the suggestions as JSON values; sizes in bytes."""
        return plan_values(self.plan, None if self.fits else reason(self.job, self.plan), self.suggestions)

    def print_to(self, console: Console) -> None:
        """Print a table for each device, the rules that were applied, the start commands and the remarks."""
        for table in plan_tables(self.plan, console.width):
            console.print(table)
        for line in plan_lines(self.plan):
            console.print(one_line(line, _LONGEST_LINE), highlight=False, markup=False, soft_wrap=True)

    def write_html(self, path: str | Path) -> None:
        """Write the plan as an HTML page with a bar for each phase. Raises RunError if it cannot be written."""
        write_plan_page(self.plan, Path(path))

    def __str__(self) -> str:
        text = StringIO()
        self.print_to(Console(file=text, width=_COLUMNS))
        return text.getvalue() + (f"{self.refusal}\n" if self.refusal else "")

    def __repr__(self) -> str:
        peaks = ", ".join(f"{device.device.name} {format_bytes(device.peak.bytes)}" for device in self.devices)
        return f"MemoryPlan(fits={self.fits}, peaks: {peaks})"

    def _repr_html_(self) -> str:
        return plan_picture(self.plan)


def plan_config(
    config: Config, *, train: bool = False, server: str | None = None, predicted: Mapping[str, int] | None = None
) -> MemoryPlan:
    """Return the plan of a run with this config. `predicted` are bytes of an update to use instead of the formulas."""
    job, planned = plan_run(config, train=train, server=server, predicted=predicted)
    return MemoryPlan(job, planned, devices_of(config))
