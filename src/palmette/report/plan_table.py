"""A memory plan as terminal tables and as plain values for machines."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from palmette.memory.lines import DevicePlan, Line, Phase, Plan
from palmette.report.table import plain_table
from palmette.units import format_bytes


def plan_tables(plan: Plan) -> Iterator[Table]:
    """Yield one table for each device: a row for each holder, a column for each phase."""
    for device in plan.devices:
        yield _device_table(device)


def _device_table(plan: DevicePlan) -> Table:
    table = plain_table("holder", *(phase.name for phase in plan.phases))
    table.add_column("known by", justify="left")
    table.add_column("made of", justify="left", overflow="fold")
    roles = ", ".join(plan.roles) or "host"
    peak = plan.peak
    table.title = (
        f"{plan.device}: {roles}. Peak {format_bytes(peak.bytes)} in {peak.name}, most of it {peak.largest.holder}"
    )
    for holder, line in holders(plan).items():
        cells = [_cell(phase, holder) for phase in plan.phases]
        table.add_row(holder, *cells, line.known, line.note)
    table.add_section()
    table.add_row("in all", *(format_bytes(phase.bytes) for phase in plan.phases), "", "", style="bold")
    limits = [f"{phase.share:.0%}" for phase in plan.phases]
    allowed = ["?" if phase.limit_bytes is None else format_bytes(phase.limit_bytes) for phase in plan.phases]
    if plan.device.total_bytes is None:
        table.add_row("may take", *allowed, "", "size not declared: counted, not checked")
        return table
    table.add_row("may take", *allowed, "", f"{' and '.join(dict.fromkeys(limits))} of the device")
    spare = [plan.device.total_bytes - phase.bytes for phase in plan.phases]
    table.add_row("left over", *(format_bytes(size) if size > 0 else "none" for size in spare), "", "of the device")
    return table


def holders(plan: DevicePlan) -> dict[str, Line]:
    """Return each holder's line of the phase in which it is largest, in the order of phases."""
    found: dict[str, Line] = {}
    for phase in plan.phases:
        for line in phase.lines:
            if line.holder not in found or line.bytes > found[line.holder].bytes:
                found[line.holder] = line
    margin = found.pop("margin", None)
    return {**found, "margin": margin} if margin else found


def _cell(phase: Phase, holder: str) -> str:
    held = sum(line.bytes for line in phase.lines if line.holder == holder)
    return format_bytes(held) if held else ""


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield the rules that fired, the start commands in their order, and remarks."""
    if plan.rules:
        yield "rules"
    for rule in plan.rules:
        yield f"  {rule.id}: {rule.decision}, because {rule.reason} [{rule.source}]"
    for server in plan.servers:
        tokens = ", ".join(f"{count:,} with {engine}" for engine, count in server.kv_tokens.items())
        yield f"{server.order}. {server.role} server on {server.device}; KV tokens: {tokens}"
        for command in server.commands.values():
            yield f"  {command}"
    for remark in plan.remarks:
        yield f"note: {remark}"


def plan_values(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON values, all sizes in bytes."""
    return {
        "mode": plan.mode,
        "fits": plan.fits,
        "devices": [_device_values(device) for device in plan.devices],
        "servers": [vars(server) for server in plan.servers],
        "rules": [vars(rule) for rule in plan.rules],
        "remarks": list(plan.remarks),
    }


def _device_values(plan: DevicePlan) -> dict[str, Any]:
    return {
        "device": plan.device.name,
        "kind": plan.device.kind,
        "total_bytes": plan.device.total_bytes,
        "free_bytes": plan.device.free_bytes,
        "roles": list(plan.roles),
        "peak": {"phase": plan.peak.name, "bytes": plan.peak.bytes, "largest": plan.peak.largest.holder},
        "phases": [
            {
                "phase": phase.name,
                "bytes": phase.bytes,
                "needed_bytes": phase.needed_bytes,
                "share": phase.share,
                "limit_bytes": phase.limit_bytes,
                "fits": phase.fits,
                "lines": [
                    {
                        "holder": line.holder,
                        "kind": line.kind,
                        "bytes": line.bytes,
                        "needed_bytes": line.needed_bytes,
                        "known": line.known,
                        "note": line.note,
                    }
                    for line in phase.lines
                ],
            }
            for phase in plan.phases
        ],
    }
