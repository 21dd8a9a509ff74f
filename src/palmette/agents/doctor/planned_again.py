"""Settings for a failure of memory, planned: what of a model fits on the device that a log tells of."""

from collections.abc import Mapping

from palmette.agents.doctor.facts import bytes_of, number_of
from palmette.config import load_config
from palmette.errors import PalmetteError
from palmette.planner.models.find_shape import known_config
from palmette.report.memory_plan import MemoryPlan, plan_config
from palmette.units import format_bytes
from palmette.zoo.catalog import ENTRIES

_MIB = 2**20


def planned_again(kind: str, facts: Mapping[str, str]) -> str | None:
    """Return a setting that fits by the plan, or why none does; None where model or device are not known.

    `kind` is `serve` for a server's memory, `update` for that of training, `host` for a search on this machine.
    """
    if kind == "host":
        return "palmette plan, without flags, tells what a default run holds on this machine"
    model, size = model_of(facts.get("model", "")), bytes_of(facts.get("total") or _with_unit(facts.get("size")))
    if model is None or size is None:
        return None
    count = int(number_of(facts.get("rank_count")) or 1)
    devices = f"{count}x{size // _MIB}MiB,cpu:1024GiB"
    try:
        return _serve(model, devices, facts) if kind == "serve" else _update(model, devices, facts)
    except PalmetteError:
        return None


def model_of(name: str) -> str | None:
    """Return a model that can be planned, by its name or the end of its path; nothing is read from that path."""
    short = name.rstrip("/").rpartition("/")[2]
    if not short:
        return None
    if name in ENTRIES or known_config(name) is not None:
        return name
    return short if known_config(short) is not None else None


def _with_unit(number: str | None) -> str | None:
    return None if number is None else f"{number}GiB"


def _serve(model: str, devices: str, facts: Mapping[str, str]) -> str:
    """Halve the context until a server of the model has room for one sequence of it."""
    context = int(number_of(facts.get("context") or facts.get("wanted")) or 4096)
    asked = max(1, context)
    while context >= 256:
        prompt = min(256, context // 2)
        settings = {
            "policy.model": model, "reward.model": None, "search.strategy": "best_of_n", "search.width": 1,
            "memory.devices": devices, "memory.prompt_tokens": prompt, "search.total_tokens": context - prompt,
        }  # fmt: skip
        plan = plan_config(load_config(None, settings, given_by="plan"), server="vllm")
        if plan.fits and plan.servers:
            command = plan.servers[0].commands["vllm"]
            shorter = "" if context == asked else f" (with {asked} it does not)"
            return f"a context of {context} tokens fits{shorter}: {command}"
        context //= 2
    return (
        f"no context of {model} fits {devices.partition(',')[0]}: more GPUs, a quantized checkpoint or a smaller model"
    )


def _update(model: str, devices: str, facts: Mapping[str, str]) -> str:
    settings = {
        "policy.model": model, "reward.model": None, "memory.devices": devices,
        "policy.dtype": "bfloat16",
        "search.width": int(number_of(facts.get("group")) or 8),
        "search.total_tokens": int(number_of(facts.get("response")) or 1024),
    }  # fmt: skip
    plan = plan_config(load_config(None, settings, given_by="plan"), train=True)
    size = devices.partition(",")[0]
    if plan.fits:
        return f"GRPO of all weights of {model} in bfloat16 fits {size} here: {format_bytes(plan.peak_bytes)} at most"
    return _suggested(plan, model, size)


def _suggested(plan: MemoryPlan, model: str, size: str) -> str:
    if not plan.suggestions:
        return f"no setting of {model} fits {size}: a smaller model, or more memory"
    return f"all weights of {model} do not fit {size}; each of these does: {', or '.join(plan.suggestions)}"
