"""Whether palmette itself can run what a plan describes today: inside this process, or by servers."""

from collections.abc import Collection

from palmette import registry
from palmette.planner.job import Job, Model
from palmette.planner.models.families import FAMILIES
from palmette.planner.servers import ENGINES
from palmette.profiles.find import profile_for, shipped_profiles


def run_remarks(job: Job, backends: Collection[str] | None = None) -> list[str]:
    """Return a remark for each role: where palmette can run its model today and in which dtype.

    `backends` are those that palmette has, for tests; None for the built-in ones.
    """
    known = registry.built_ins("backend") if backends is None else backends
    models = {"policy": job.policy, "reward": job.reward}
    return [_remark(job, role, model, known) for role, model in models.items() if model is not None]


def _remark(job: Job, role: str, model: Model, backends: Collection[str]) -> str:
    dtype = "float32" if job.served else model.dtype
    why_not = in_process_fault(model)
    inside = f"yes, in {dtype} ({role}.dtype)" if why_not is None else f"no, {why_not}"
    if job.update is not None:
        return f"palmette trains with the {role} {model.name} inside this process: {inside}"
    served = [engine for engine in ENGINES if engine in backends]
    name = profile_for(model.name) if role == "reward" else None
    if name is not None and not shipped_profiles()[name].is_servable:
        by_servers = "no, they do not load its head"
    elif served:
        by_servers = f"yes, with {' or '.join(served)} in {_served_dtype(model)}"
    else:
        by_servers = f"not yet, the commands start servers in {_served_dtype(model)} for clients of your own"
    return f"palmette runs the {role} {model.name} inside one process: {inside}; by servers: {by_servers}"


def _served_dtype(model: Model) -> str:
    dtype = model.shape.dtype if model.dtype == "float32" else model.dtype
    return dtype if model.shape.stored is None else f"{dtype} with weights in {model.shape.stored.method}"


def in_process_fault(model: Model) -> str | None:
    """Return why the engine inside this process cannot run a model, None where it can."""
    shape = model.shape
    if shape.counted:
        return f"unless loading it shows that the engine runs a {shape.family}"
    if shape.stored is not None:
        return f"its weights are stored in {shape.stored.method}"
    if "vision" in shape.parts:
        return "it is not a language model alone"
    if "RewardModel" in shape.architecture and profile_for(model.name) is None:
        return f"{shape.architecture} is no class of transformers: it needs a reward.profile"
    if not FAMILIES[shape.family].in_process:
        return f"the engine does not run a {shape.family}"
    return None
