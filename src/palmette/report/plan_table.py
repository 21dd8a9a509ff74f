"""Shows a memory plan as terminal tables, lines of text or JSON values."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from palmette.planner.lines import DevicePlan, Line, Phase, Plan
from palmette.report.table import plain_table
from palmette.units import format_bytes

_HOLDER, _PHASE, _BASIS, _NOTE = 24, 11, 10, 26
"""The least width, in characters, of the columns for a holder, a phase, the basis of a number and a readable note."""


def plan_tables(plan: Plan, columns: int) -> Iterator[Table]:
    """Yield one table for each device: a row for each holder of bytes, a column for each phase.

    What the bytes are made of is in a column of its own, or below the table if `columns`, the width of the terminal in
    characters, leaves too little space.
    """
    for device in plan.devices:
        yield _device_table(device, columns - _HOLDER - _BASIS - _PHASE * len(device.phases) >= _NOTE)


def _device_table(plan: DevicePlan, with_notes: bool) -> Table:
    table = plain_table("holder", *(phase.name for phase in plan.phases))
    table.add_column("basis", justify="left", no_wrap=True)
    if with_notes:
        table.add_column("made of", justify="left")
    roles = ", ".join(plan.roles) or "host"
    peak = plan.peak
    table.title = (
        f"{plan.device}: {roles}. Peak {format_bytes(peak.bytes)} in {peak.name}, most of it {peak.largest.holder}"
    )
    for holder, line in holders(plan).items():
        _row(table, holder, [_cell(phase, holder) for phase in plan.phases], line.basis, line.note)
    if not with_notes:
        notes = [f"{holder}: {line.note}" for holder, line in holders(plan).items() if line.note]
        table.caption, table.caption_justify = "; ".join(notes), "left"
    table.add_section()
    _row(table, "total", [format_bytes(phase.bytes) for phase in plan.phases], style="bold")
    if plan.device.total_bytes is None:
        _row(table, "limit", ["?" for _ in plan.phases], note="size not declared: counted, not checked")
        return table
    shares = " and ".join(dict.fromkeys(f"{phase.share:.0%}" for phase in plan.phases))
    free = plan.device.free_bytes
    by_free = free is not None and all(phase.limit_bytes == free for phase in plan.phases)
    note = "free on the device now" if by_free else f"{shares} of the device"
    _row(table, "limit", [format_bytes(phase.limit_bytes or 0) for phase in plan.phases], note=note)
    spare = [plan.device.total_bytes - phase.bytes for phase in plan.phases]
    _row(table, "left over", [format_bytes(size) if size > 0 else "none" for size in spare], note="of the device")
    return table


def _row(
    table: Table, holder: str, cells: list[str], basis: str = "", note: str = "", style: str | None = None
) -> None:
    """Add a row; the note is left out if the table has no column for it."""
    values = [holder, *cells, basis, note]
    table.add_row(*values[: len(table.columns)], style=style)


def holders(plan: DevicePlan) -> dict[str, Line]:
    """Return for each holder its line in the phase in which it is largest, in the order of the phases, margin last."""
    found: dict[str, Line] = {}
    for phase in plan.phases:
        for line in phase.lines:
            if line.holder not in found or line.bytes > found[line.holder].bytes:
                found[line.holder] = line
    margin = found.pop("margin", None)
    return {**found, "margin": margin} if margin else found


def _cell(phase: Phase, holder: str) -> str:
    size = sum(line.bytes for line in phase.lines if line.holder == holder)
    return format_bytes(size) if size else ""


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield the rules that applied, the start commands in their order (if the plan fits), and the remarks."""
    if plan.rules:
        yield "rules"
    for rule in plan.rules:
        yield f"  {rule.id}: {rule.decision}, because {rule.reason} [{rule.source}]"
    for server in plan.servers if plan.fits else ():
        tokens = ", ".join(f"{count:,} with {engine}" for engine, count in server.kv_tokens.items())
        yield f"{server.order}. {server.role} server on {server.device}; KV tokens: {tokens}"
        for command in server.commands.values():
            yield f"  {command}"
    for remark in plan.remarks:
        yield f"note: {remark}"


def plan_values(plan: Plan, refusal: str | None = None, suggestions: Sequence[str] = ()) -> dict[str, Any]:
    """Return the plan as JSON values, sizes in bytes, with why it does not fit and settings that would fit."""
    return {
        "mode": plan.mode,
        "fits": plan.fits,
        "refusal": refusal,
        "suggestions": list(suggestions),
        "devices": [_device_values(device) for device in plan.devices],
        "servers": [vars(server) for server in plan.servers] if plan.fits else [],
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
                        "basis": line.basis,
                        "note": line.note,
                    }
                    for line in phase.lines
                ],
            }
            for phase in plan.phases
        ],
    }
