"""Why a plan does not fit, in numbers, with settings that were planned again and do fit."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from palmette.errors import ConfigError
from palmette.planner.devices import Device, parse_devices, written_size
from palmette.planner.job import Job, Model
from palmette.planner.lines import BudgetFault, Line, Phase, Plan
from palmette.planner.plan import plan_job
from palmette.planner.search_sizes import kv_note
from palmette.units import format_bytes

_MIB, _GIB = 2**20, 2**30
_MOST_GIB = 2**20
_SHOWN_LINES = 4
_MOST_SUGGESTIONS = 4
_TRIED_DEVICES = 4
"""A model that fits none of the largest devices hardly fits a smaller one: trying all pairs of 1,024 takes hours."""

_SHORTEST_BRANCH_TOKENS = 64
"""Shorter branches are not suggested: hardly any solution ends within them."""


def refusal(job: Job, devices: Sequence[Device], plan: Plan) -> str:
    """Return why a plan does not fit and which settings would; each of them was planned again, alone."""
    return refusal_of(job, plan, suggestions(job, devices))


def refusal_of(job: Job, plan: Plan, advice: Sequence[str]) -> str:
    """Return why a plan does not fit, followed by the advice."""
    hint = f"Fits: {', or '.join(advice)}" if advice else "No smaller setting fits: take a smaller model"
    return f"{reason(job, plan)}. {hint}."


def suggestions(job: Job, devices: Sequence[Device]) -> list[str]:
    """Return the first few settings of which each alone makes the plan fit."""
    return list(islice(settings_that_fit(job, devices), _MOST_SUGGESTIONS))


def reason(job: Job, plan: Plan) -> str:
    """Return why a plan does not fit: a KV budget that is too small, a phase above its limit, or a server's KV."""
    if plan.budget_faults:
        return plan.budget_faults[0].reason
    device, phase = plan.misfits[0]
    assert phase.limit_bytes is not None
    what, where = _activity(job, phase), device.device.name
    if phase.demanded_bytes <= phase.limit_bytes:
        line = phase.short_lines[0]
        return (
            f"{what} needs {format_bytes(line.needed_bytes)} of {line.holder} on {where}, and {job.server}'s memory "
            f"fraction, rounded down to 0.01, leaves {format_bytes(line.bytes)} ({line.note})"
        )
    needed = phase.needed_bytes if phase.needed_bytes > phase.limit_bytes else phase.bytes
    lines = sorted(phase.lines, key=lambda line: line.needed_bytes, reverse=True)
    shown = ", ".join(_describe(job, line) for line in lines[:_SHOWN_LINES])
    others = sum(line.needed_bytes for line in lines[_SHOWN_LINES:])
    rest = f", others {others / _GIB:.1f}" if others else ""
    return (
        f"{what} needs {_size(needed)} of {where}, budget is "
        f"{_size(phase.limit_bytes)}{_limit_reason(device.device, phase)}: {shown}{rest}"
    )


def settings_that_fit(job: Job, devices: Sequence[Device]) -> Iterator[str]:
    """Yield settings, each of which alone makes the plan fit. ` with ` joins settings that have to be set together."""
    faults = plan_job(job, devices).budget_faults
    if faults:
        yield from _larger_kv_budgets(job, devices, faults)
        return
    yield from _smaller_search(job, devices)
    if job.update is not None:
        yield from _smaller_update(job, devices)
    yield from _half_precision(job, devices)
    # Quantized weights are not advised: a model is loaded whole first, and that moment is not planned.
    yield from _another_placement(job, devices)
    larger = least_devices(devices, lambda others: _fits(job, others))
    if larger is not None:
        yield f'devices "{larger}"'


def _larger_kv_budgets(job: Job, devices: Sequence[Device], faults: Sequence[BudgetFault]) -> Iterator[str]:
    """Try KV budgets that hold the planned prompts; where the plan does not fit then, each with another setting.

    Where the budgets alone help, fewer questions in flight and shorter prompts are tried in place of them.
    """
    search, parts = job.search, []
    for fault in faults:
        mib = math.ceil(fault.needed_bytes / _MIB)
        if fault.setting == "search.kv_budget":
            search = replace(search, kv_budget_bytes=mib * _MIB)
        else:
            search = replace(search, reward_kv_budget_bytes=mib * _MIB)
        parts.append(f"{fault.setting} {mib}MiB")
    raised = replace(job, search=search)
    if not _fits(raised, devices):
        yield from (" with ".join([*parts, setting]) for setting in settings_that_fit(raised, devices))
        return
    yield " with ".join(parts)
    questions = _largest(
        search.questions - 1,
        lambda value: _fits(replace(job, search=replace(job.search, questions=value)), devices),
    )
    if questions is not None:
        yield f"search.questions_in_flight {questions}"
    tokens = _largest(search.prompt_tokens - 1, lambda value: _fits(_with_prompts(job, value), devices))
    if tokens is not None:
        yield f"memory.prompt_tokens {tokens}"


def _with_prompts(job: Job, tokens: int) -> Job:
    update = None if job.update is None else replace(job.update, prompt_tokens=tokens)
    return replace(job, search=replace(job.search, prompt_tokens=tokens), update=update)


def _with_width(job: Job, width: int) -> Job:
    """Return the job with so many branches a question, which are the responses that an update learns from."""
    update = None if job.update is None else replace(job.update, group_size=width)
    return replace(job, search=replace(job.search, width=width), update=update)


def _with_branches(job: Job, tokens: int) -> Job:
    """Return the job with branches, and so responses, of at most so many tokens."""
    update = None if job.update is None else replace(job.update, response_tokens=tokens)
    step_tokens = min(job.search.step_tokens, tokens)
    return replace(job, search=replace(job.search, total_tokens=tokens, step_tokens=step_tokens), update=update)


def _least_width(job: Job) -> int:
    """Return the smallest width to suggest: groups of one response teach most algorithms nothing."""
    return 1 if job.update is None else 2


def _smaller_search(job: Job, devices: Sequence[Device]) -> Iterator[str]:
    search, token = job.search, job.policy.kv_token_bytes
    width = _largest(search.width - 1, lambda value: _fits(_with_width(job, value), devices), least=_least_width(job))
    # Where evaluations are wider than rollouts, the width of rollouts changes nothing.
    if width is not None and (job.update is None or job.update.group_size == search.width):
        yield f"width {width}"
    if search.kv_budget_bytes is not None:
        mib = _largest(
            search.kv_budget_bytes // _MIB,
            lambda value: _fits(replace(job, search=replace(search, kv_budget_bytes=value * _MIB)), devices),
            least=math.ceil(max(search.path_tokens, search.questions * search.start_tokens) * token / _MIB),
        )
        if mib is not None:
            yield f"search.kv_budget {mib}MiB"
    tokens = _largest(
        search.total_tokens - 1,
        lambda value: _fits(_with_branches(job, value), devices),
    )
    if tokens is not None and tokens >= min(_SHORTEST_BRANCH_TOKENS, search.total_tokens // 2):
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
    for setting, changed in (
        ("optimizer_dtype bfloat16", replace(update, optimizer_dtype="bfloat16")),
        ("host_optimizer true", replace(update, host_optimizer=True)),
    ):
        if changed != update and _fits(replace(job, update=changed), devices):
            yield f"train.{setting}"


def _half_precision(job: Job, devices: Sequence[Device]) -> Iterator[str]:
    def halved(model: Model) -> Model:
        return replace(model, dtype="bfloat16")

    small = None if job.small_reward is None else halved(job.small_reward)

    if job.policy.dtype == "float32" and _fits(replace(job, policy=halved(job.policy)), devices):
        yield "policy.dtype bfloat16"
    if job.reward is not None and job.reward.dtype == "float32":
        if _fits(replace(job, reward=halved(job.reward), small_reward=small), devices):
            yield "reward.dtype bfloat16"
        elif job.policy.dtype == "float32" and _fits(
            replace(job, policy=halved(job.policy), reward=halved(job.reward), small_reward=small), devices
        ):
            yield "policy.dtype and reward.dtype bfloat16"


def _another_placement(job: Job, devices: Sequence[Device]) -> Iterator[str]:
    """Try the pairs of the largest devices for policy and reward model, the embedder beside the reward model."""
    candidates = [device for device in devices if device.kind == "cuda"] or list(devices)
    largest = sorted(candidates, key=lambda device: device.limit_bytes(1) or 0, reverse=True)[:_TRIED_DEVICES]
    names = [device.name for device in candidates if device in largest]
    for policy in names:
        for reward in names if job.reward is not None else [None]:
            moved = replace(job, policy=replace(job.policy, device=policy))
            if reward is not None and job.reward is not None:
                moved = replace(moved, reward=replace(job.reward, device=reward))
            if job.embedder is not None:
                moved = replace(moved, embedder=replace(job.embedder, device="auto"))
            if _fits(moved, devices):
                yield f"policy.device {policy}" + (f" with reward.device {reward}" if reward else "")
                return


def _largest(most: int, fits: Callable[[int], bool], least: int = 1) -> int | None:
    """Return the largest value from `least` to `most` that fits, None where `least` does not.

    In this range every value below one that fits must fit, too.
    """
    if most < least or not fits(least):
        return None
    low, high = least, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _fits(job: Job, devices: Sequence[Device]) -> bool:
    try:
        return plan_job(job, devices).fits
    except ConfigError:
        return False


def _describe(job: Job, line: Line) -> str:
    """Return a line's holder and needed GiB; for a KV cache also how many tokens those are."""
    note = line.note
    if line.is_short:
        holders = {"reward KV": job.reward, "small reward KV": job.small_reward}
        model = holders.get(line.holder) or job.policy
        note = kv_note(line.needed_bytes // model.kv_token_bytes, job.search)
    return f"{line.holder} {line.needed_bytes / _GIB:.1f}" + (f" ({note})" if line.kind == "kv" and note else "")


def _limit_reason(device: Device, phase: Phase) -> str:
    """Return why the limit is what it is: a share of the device, or what is free."""
    if device.total_bytes is not None and phase.limit_bytes is not None:
        if device.free_bytes is not None and device.free_bytes <= phase.limit_bytes:
            return f" (what is free of {_size(device.total_bytes)})"
        return f" ({phase.share:.0%} of {_size(device.total_bytes)})"
    return ""


def _activity(job: Job, phase: Phase) -> str:
    return "an update" if phase.name == "update" else "a rollout" if job.update is not None else "search"


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB // 10 else format_bytes(count)


def least_devices(devices: Sequence[Device], fits: Callable[[Sequence[Device]], bool]) -> str | None:
    """Return all devices, as `--devices` takes them, with the least whole GiB that fit; None where none do.

    A larger host is tried alone first, then larger GPUs, then both. The text itself is parsed and planned, so that it
    fits as it is written.
    """
    gpus = [device for device in devices if device.kind == "cuda"]
    host = next((device for device in devices if device.kind == "cpu"), None)

    def declared(gpu_gib: int | None, host_gib: int | None) -> str:
        parts = [f"1x{written_size(gpu)}" for gpu in gpus] if gpu_gib is None else [f"{len(gpus)}x{gpu_gib}GiB"]
        if host is not None and (host_gib is not None or host.total_bytes is not None):
            parts.append(f"cpu:{written_size(host)}" if host_gib is None else f"cpu:{host_gib}GiB")
        return ",".join(parts)

    def least(written: Callable[[int], str]) -> int | None:
        return _smallest(_MOST_GIB, lambda gib: fits(parse_devices(written(gib))))

    if host is not None and (gib := least(lambda gib: declared(None, gib))) is not None:
        return declared(None, gib)
    if gpus and (gib := least(lambda gib: declared(gib, None))) is not None:
        return declared(gib, None)
    if gpus and host is not None and (each := least(lambda gib: declared(gib, _MOST_GIB))) is not None:
        return declared(each, least(lambda gib: declared(each, gib)))
    return None


def _smallest(most: int, fits: Callable[[int], bool]) -> int | None:
    """Return a value up to `most` that fits while the one below does not, None where `most` does not fit."""
    if not fits(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
