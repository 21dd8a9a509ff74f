"""Draws a memory plan as HTML: one bar for each phase of each device, divided by what holds the bytes."""

from html import escape
from pathlib import Path

from palmette.errors import RunError
from palmette.planner.lines import DevicePlan, Phase, Plan
from palmette.units import format_bytes

_COLORS = {
    "weights": "#0a6cae", "kv": "#0b8a66", "gradients": "#c4560a", "optimizer": "#8a6a00", "activations": "#b3578f",
    "logits": "#6f4bb8", "embedder": "#3d8fc4", "reference": "#4f7f3a", "runtime": "#6d6d6d", "margin": "#b9beb8",
}  # fmt: skip
_LEFT, _WIDTH, _BAR, _STEP, _LETTER = 90, 760, 30, 58, 6.6
STYLE = (
    "body{margin:0;background:#fbfaf7;color:#1c231f;font:15px/1.5 system-ui,sans-serif}"
    "main{max-width:980px;margin:0 auto;padding:36px 28px}h1,h2{font-family:ui-serif,Georgia,serif;font-weight:600}"
    "h1{font-size:1.8rem;margin:0 0 4px}h2{font-size:1.2rem;margin:34px 0 2px}p,li{color:#5f6862;max-width:86ch}"
    "pre{background:#f0eee6;padding:12px;border-radius:7px;overflow-x:auto;font-size:12.5px}svg{display:block;"
    "max-width:100%;height:auto}text{font:12px system-ui,sans-serif;fill:#1c231f}.soft{fill:#5f6862}.in{fill:#fff}"
    ".key{display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;list-style:none;font-size:13.5px}"
    ".key i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}.bad{color:#b23a2a}"
    "b{color:#1c231f}"
)


def plan_section(plan: Plan) -> str:
    """Return the bars of all devices with a color key as HTML without scripts and external files."""
    kinds = dict.fromkeys(line.kind for device in plan.devices for phase in device.phases for line in phase.lines)
    key = "".join(f'<li><i style="background:{_COLORS[kind]}"></i>{escape(kind)}</li>' for kind in kinds)
    return f'<ul class="key">{key}</ul>' + "".join(_device(device) for device in plan.devices)


def _device(plan: DevicePlan) -> str:
    whole = max(plan.device.total_bytes or 0, plan.peak.bytes, 1)
    height = _STEP * len(plan.phases) + 24
    bars = "".join(_bar(phase, index, whole) for index, phase in enumerate(plan.phases))
    roles = ", ".join(plan.roles) or "host"
    peak = plan.peak
    summary = f"Peak {format_bytes(peak.bytes)} in {peak.name}; the largest line is {peak.largest.holder}."
    if not all(phase.fits for phase in plan.phases):
        summary += " It does not fit."
    total = "" if plan.device.total_bytes is None else f" of {format_bytes(plan.device.total_bytes)}"
    label = f"{plan.device.name}: {summary}"
    return (
        f"<h2>{escape(plan.device.name)}{escape(total)}: {escape(roles)}</h2><p>{escape(summary)}</p>"
        f'<svg viewBox="0 0 {_LEFT + _WIDTH + 20} {height}" role="img" aria-label="{escape(label)}">{bars}</svg>'
    )


def _bar(phase: Phase, index: int, whole: int) -> str:
    top = index * _STEP + 20
    scale = _WIDTH / whole
    parts = [f'<text x="0" y="{top + 20}">{escape(phase.name)}</text>']
    end = f"{format_bytes(phase.bytes)} planned, {format_bytes(phase.needed_bytes)} needed"
    parts.append(f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{_BAR}" fill="#e2e0d8"/>')
    left = float(_LEFT)
    for line in sorted(phase.lines, key=lambda line: list(_COLORS).index(line.kind)):
        width = line.bytes * scale
        tooltip = f"{line.holder}: {format_bytes(line.bytes)}, {line.basis}" + (f" ({line.note})" if line.note else "")
        parts.append(
            f'<rect x="{left:.2f}" y="{top}" width="{max(width - 0.6, 0.2):.2f}" height="{_BAR}" '
            f'fill="{_COLORS[line.kind]}"><title>{escape(tooltip)}</title></rect>'
        )
        texts = (f"{line.holder} {format_bytes(line.bytes)}", line.holder, format_bytes(line.bytes))
        if text := next((text for text in texts if len(text) * _LETTER < width - 8), None):
            parts.append(f'<text class="in" x="{left + 6:.2f}" y="{top + 20}">{escape(text)}</text>')
        left += width
    if phase.limit_bytes is not None:
        at = _LEFT + phase.limit_bytes * scale
        parts.append(f'<path d="M{at:.2f} {top - 5}V{top + _BAR + 5}" stroke="#b23a2a" stroke-width="1.5"/>')
        end += f"; limit {format_bytes(phase.limit_bytes)}, {phase.share:.0%}"
    parts.append(f'<text class="soft" x="{_LEFT}" y="{top + _BAR + 15}">{escape(end)}</text>')
    return "".join(parts)


def plan_page(plan: Plan) -> str:
    """Return a complete HTML page: the bars, the rules that applied, the start commands, the remarks."""
    rules = "".join(
        f"<li><b>{escape(rule.id)}</b>: {escape(f'{rule.decision}, because {rule.reason} ({rule.source})')}</li>"
        for rule in plan.rules
    )
    commands = "".join(
        f"<h2>{server.order}. {escape(server.role)} server on {escape(server.device)}</h2>"
        + "".join(f"<pre>{escape(command)}</pre>" for command in server.commands.values())
        for server in (plan.servers if plan.fits else ())
    )
    remarks = "".join(f"<p>{escape(remark)}</p>" for remark in plan.remarks)
    what = "a search" if plan.mode == "search" else "training"
    verdict = "fits" if plan.fits else '<span class="bad">does not fit</span>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>palmette plan</title>'
        f"<style>{STYLE}</style></head><body><main><h1>Memory plan of {what}: {verdict}</h1>"
        f"{plan_section(plan)}{remarks}<h2>Rules</h2><ul>{rules}</ul>{commands}</main></body></html>\n"
    )


def plan_picture(plan: Plan) -> str:
    """Return the bars as an HTML element for notebooks. Its styles apply to itself only; it has no scripts."""
    rules = (
        "{background:#fbfaf7;color:#1c231f;font:14px/1.5 system-ui,sans-serif;padding:12px 18px;border-radius:7px}",
        " h2{font-size:1.05rem;margin:14px 0 0}", " p{color:#5f6862;margin:0}", " svg{max-width:100%;height:auto}",
        " text{font:12px system-ui,sans-serif;fill:#1c231f}", " .soft{fill:#5f6862}", " .in{fill:#fff}",
        " .key{display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:6px 0;list-style:none;font-size:13px}",
        " .key i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}",
    )  # fmt: skip
    style = "".join(f".palmette-plan{rule}" for rule in rules)
    what = f"Memory plan of {'a search' if plan.mode == 'search' else 'training'}: "
    verdict = "fits" if plan.fits else "does not fit"
    return f'<div class="palmette-plan"><style>{style}</style><b>{what}{verdict}</b>{plan_section(plan)}</div>'


def write_plan_page(plan: Plan, path: Path) -> Path:
    """Write `plan_page` to `path` and return `path`. Raises RunError if it cannot be written."""
    try:
        path.write_text(plan_page(plan), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RunError(f"cannot write the plan's page {path}: {error.strerror}") from error
    return path
