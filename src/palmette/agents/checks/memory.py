"""Checks of what a run may hold and where it holds it."""

from palmette import registry
from palmette.agents.checks.verdict import Verdict, broken, kept, value_of
from palmette.agents.subject import Subject
from palmette.errors import BackendError, ConfigError
from palmette.report.memory_plan import plan_config
from palmette.settings import EmbedderSettings
from palmette.units import format_bytes, parse_bytes


def at_most(subject: Subject, key: str, most: float | str) -> Verdict | None:
    """A number, or an amount of memory, is not above a limit."""
    if subject.config is None:
        return None
    value = value_of(subject.config, key)
    if value is None:
        return None
    is_above = parse_bytes(value) > parse_bytes(most) if isinstance(most, str) else value > most
    if is_above:
        return broken(f"{key} is {value}, above {most}", f"{key} {most}")
    return kept(f"{key} is {value}, not above {most}")


def embedder_beside_reward(subject: Subject) -> Verdict | None:
    """The embedder is on the reward model's device."""
    config = subject.config
    if config is None or config.reward.model is None or "clusters" not in config.search.build_strategy().uses:
        return None
    embedder, reward = config.embedder.device, config.reward.device
    if embedder in ("auto", reward):
        return kept(f"the embedder is on the reward model's device ({reward})")
    return broken(f"embedder.device is {embedder}, reward.device is {reward}", f"embedder.device {reward}")


def no_idle_embedder(subject: Subject) -> Verdict | None:
    """No embedder but the default, which is loaded where it is needed alone, is chosen where no step is embedded."""
    if subject.config is None:
        return None
    model, uses = subject.config.embedder.model, "clusters" in subject.config.search.build_strategy().uses
    if model != EmbedderSettings().model and not uses:
        strategy = subject.config.search.strategy
        return broken(f"embedder.model is {model}, and {strategy} embeds no step with these settings: leave it out")
    return kept("the embedder is used" if uses else "no embedder is loaded")


def reward_fraction(subject: Subject, most: float) -> Verdict | None:
    """A reward server beside an embedder leaves memory for it outside its fraction."""
    for command in subject.commands:
        if command.server is None or not {"is-embedding", "runner"} & set(command.flags):
            continue
        told = command.flags.get("mem-fraction-static") or command.flags.get("gpu-memory-utilization") or "0.9"
        flag = "mem-fraction-static" if command.server == "sglang" else "gpu-memory-utilization"
        try:
            fraction = float(told)
        except ValueError:
            return broken(f"--{flag} {told} is no number", f"--{flag} {most}")
        if fraction > most:
            return broken(f"the reward server takes --{flag} {fraction}, above {most}", f"--{flag} {most}")
        return kept(f"the reward server takes {fraction} of its device")
    return None


def reference_off_device(subject: Subject) -> Verdict | None:
    """The frozen reference is in host memory, or there is none; with LoRA the base is the reference."""
    offload = subject.foreign.get("actor_rollout_ref.ref.fsdp_config.param_offload")
    if offload is not None:
        key = "actor_rollout_ref.ref.fsdp_config.param_offload"
        return (
            kept(f"{key} is true")
            if offload
            else broken(f"{key} is false: the reference stays on the GPU", f"{key} true")
        )
    config = subject.training
    if config is None:
        return None
    method, reference = config.train.method, config.train.reference
    if method == "lora" and reference == "host":
        return broken(
            "train.reference is host, and with LoRA the base is the reference already", "train.reference auto"
        )
    if method == "full" and config.train.uses_reference and reference == "none":
        return broken("train.kl_weight is above 0, and train.reference is none", "train.reference host")
    return kept(f"train.reference is {reference}: it is never resident on the device that trains")


def fits(subject: Subject) -> Verdict | None:
    """Every phase fits the devices, by the plan."""
    config = subject.config
    if config is None or registry.is_own("backend", config.policy.model) or config.policy.is_served:
        return None
    try:
        plan = plan_config(config, train=subject.trains)
    except (ConfigError, BackendError):
        return None  # No shape is known: nothing can be said.
    if plan.fits:
        return kept(f"the plan fits: at most {format_bytes(plan.peak_bytes)} on a device")
    return broken(plan.refusal or "the plan does not fit", plan.suggestions[0] if plan.suggestions else None)


def checkpoints_activations(subject: Subject) -> Verdict | None:
    """Gradient checkpointing is on where an update would not fit without it."""
    config = subject.training
    if config is None:
        return None
    if config.train.gradient_checkpointing:
        return kept("train.gradient_checkpointing is on")
    found = fits(subject)
    if found is not None and not found.kept:
        return broken(f"train.gradient_checkpointing is off, and {found.said}", "train.gradient_checkpointing true")
    return kept("train.gradient_checkpointing is off, and the update fits")


def mapped_blocks(subject: Subject, most: int) -> Verdict | None:
    """No variable keeps the C heap from returning large blocks."""
    for command in subject.commands:
        told = command.environment
        if told.get("MALLOC_MMAP_MAX_") == "0":
            return broken("MALLOC_MMAP_MAX_ is 0: no block is mapped, and the heap keeps what is freed")
        threshold = told.get("MALLOC_MMAP_THRESHOLD_", "")
        if threshold.isdecimal() and int(threshold) > most:
            return broken(f"MALLOC_MMAP_THRESHOLD_ is {threshold}, above {most}", f"MALLOC_MMAP_THRESHOLD_={most}")
    return kept("large blocks may be mapped") if subject.commands else None
