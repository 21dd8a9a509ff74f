"""What to say of a plan that does not fit: the clash in numbers, and settings that were planned again and do fit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from palmette.errors import ConfigError
from palmette.memory.devices import Device
from palmette.memory.job import Job, Model
from palmette.memory.lines import Line, Phase, Plan
from palmette.memory.plan import make_plan
from palmette.units import format_bytes

_GIB = 2**30
_SHOWN_LINES = 4
_MOST_ADVICE = 4
_LARGEST_BUDGET_GIB = 2**20

Fits = Callable[[Job, Sequence[Device]], bool]


def refusal(job: Job, devices: Sequence[Device], plan: Plan) -> str:
    """Return why a plan cannot be carried out and what would fit; every setting named was planned again."""
    device, phase = plan.misfits[0]
    assert phase.limit_bytes is not None
    lines = sorted(phase.lines, key=lambda line: line.needed_bytes, reverse=True)
    shown = ", ".join(_said(line) for line in lines[:_SHOWN_LINES])
    others = sum(line.needed_bytes for line in lines[_SHOWN_LINES:])
    rest = f", others {others / _GIB:.1f}" if others else ""
    advice = list(settings_that_fit(job, devices))[:_MOST_ADVICE]
    hint = f"Fits: {', or '.join(advice)}" if advice else "No smaller setting fits: take a smaller model"
    return (
        f"{_what(job, phase)} needs {_size(phase.needed_bytes)} of {device.device.name}, budget is "
        f"{_size(phase.limit_bytes)}{_why(device.device, phase)}: {shown}{rest}. {hint}."
    )


def settings_that_fit(job: Job, devices: Sequence[Device]) -> Iterator[str]:
    """Yield settings, each of which alone makes the plan fit."""
    yield from _smaller_search(job, devices)
    if job.update is not None:
        yield from _smaller_update(job, devices)
    yield from _smaller_weights(job, devices)
    yield from _another_placement(job, devices)
    budget = _budget(job, devices)
    if budget is not None:
        yield budget


def _smaller_search(job: Job, devices: Sequence[Device]) -> Iterator[str]:
    search = job.search
    width = _largest(search.width - 1, lambda value: _fits(replace(job, search=replace(search, width=value)), devices))
    if width is not None:
        yield f"width {width}"
    if search.kv_budget_bytes is not None:
        most = search.kv_budget_bytes // 2**20
        fits = _largest(
            most, lambda value: _fits(replace(job, search=replace(search, kv_budget_bytes=value * 2**20)), devices)
        )
        if fits is not None and fits * 2**20 >= search.path_tokens * job.policy.kv_token_bytes:
            yield f"search.kv_budget {fits}MiB"
    tokens = _largest(
        search.total_tokens - 1,
        lambda value: _fits(
            replace(job, search=replace(search, total_tokens=value, step_tokens=min(search.step_tokens, value))),
            devices,
        ),
    )
    if tokens is not None and tokens >= min(64, search.total_tokens // 2):
        yield f"search.total_tokens {tokens}"


def _smaller_update(job: Job, devices: Sequence[Device]) -> Iterator[str]:
    update = job.update
    assert update is not None
    longest = update.prompt_tokens + update.response_tokens
    tokens = _largest(
        update.micro_batch_tokens - 1,
        lambda value: _fits(replace(job, update=replace(update, micro_batch_tokens=value)), devices),
    )
    if tokens is not None and tokens >= longest:
        yield f"train.micro_batch_tokens {tokens}"
    if update.method == "full" and _fits(replace(job, update=replace(update, method="lora")), devices):
        yield "train.method lora"
    if not update.checkpointing and _fits(replace(job, update=replace(update, checkpointing=True)), devices):
        yield "train.gradient_checkpointing true"
    if update.logits != "chunked" and _fits(replace(job, update=replace(update, logits="chunked")), devices):
        yield "train.logits chunked"


def _smaller_weights(job: Job, devices: Sequence[Device]) -> Iterator[str]:
    def halved(model: Model) -> Model:
        return replace(model, dtype="bfloat16")

    if job.policy.dtype == "float32" and _fits(replace(job, policy=halved(job.policy)), devices):
        yield "policy.dtype bfloat16"
    if job.reward is not None and job.reward.dtype == "float32":
        if _fits(replace(job, reward=halved(job.reward)), devices):
            yield "reward.dtype bfloat16"
        elif job.policy.dtype == "float32" and _fits(
            replace(job, policy=halved(job.policy), reward=halved(job.reward)), devices
        ):
            yield "policy.dtype and reward.dtype bfloat16"


def _another_placement(job: Job, devices: Sequence[Device]) -> Iterator[str]:
    """Try every pair of devices for policy and reward, the embedder beside the reward model."""
    names = [device.name for device in devices if device.kind == "cuda"] or [device.name for device in devices]
    for policy in names:
        for reward in names if job.reward is not None else [None]:
            moved = replace(job, policy=replace(job.policy, device=policy))
            if reward is not None and job.reward is not None:
                moved = replace(moved, reward=replace(job.reward, device=reward))
            if job.embedder is not None:
                moved = replace(moved, embedder=replace(job.embedder, device="auto"))
            if _fits(moved, devices):
                where = f"policy.device {policy}" + (f" with reward.device {reward}" if reward else "")
                yield where
                return


def _budget(job: Job, devices: Sequence[Device]) -> str | None:
    """Return the smallest size, in whole GiB, that all devices would need to have."""

    def resized(gib: int) -> list[Device]:
        return [replace(device, total_bytes=gib * _GIB, free_bytes=None) for device in devices]

    if not devices or not _fits(job, resized(_LARGEST_BUDGET_GIB)):
        return None
    low, high = 0, _LARGEST_BUDGET_GIB
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(job, resized(middle)) else (middle, high)
    gpus = sum(device.kind == "cuda" for device in devices)
    text = f"{gpus}x{high}GiB" if gpus else f"cpu:{high}GiB"
    return f'devices "{text}"'


def _largest(most: int, fits: Callable[[int], bool]) -> int | None:
    """Return the largest value from 1 to `most` that fits, None where none does; what fits, fits when smaller."""
    if most < 1 or not fits(1):
        return None
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _fits(job: Job, devices: Sequence[Device]) -> bool:
    try:
        return make_plan(job, devices).fits
    except ConfigError:
        return False


def _said(line: Line) -> str:
    note = f" ({line.note})" if line.kind == "kv" and line.note else ""
    return f"{line.holder} {line.needed_bytes / _GIB:.1f}{note}"


def _why(device: Device, phase: Phase) -> str:
    if device.total_bytes is not None and phase.limit_bytes is not None:
        if device.free_bytes is not None and device.free_bytes <= phase.limit_bytes:
            return f" (what is free of {_size(device.total_bytes)})"
        return f" ({phase.share:.0%} of {_size(device.total_bytes)})"
    return ""


def _what(job: Job, phase: Phase) -> str:
    return "an update" if phase.name == "update" else "a rollout" if job.update is not None else "search"


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB // 10 else format_bytes(count)
