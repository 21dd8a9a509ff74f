"""A run's job planned on its devices, with servers where there are GPUs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from palmette import registry
from palmette.planner.devices import Device
from palmette.planner.job import Job
from palmette.planner.lines import Plan
from palmette.planner.plan import plan_job
from palmette.planner.run_plan.in_process import devices_of
from palmette.planner.run_plan.job import job_of
from palmette.planner.runnable import run_remarks
from palmette.planner.servers import ENGINES
from palmette.settings import Config
from palmette.zoo.cache import cache_root
from palmette.zoo.catalog import ENTRIES


def engine_of(config: Config) -> str:
    """Return the engine whose servers run the models: the backend of the policy, else of the reward model."""
    return next((name for name in (config.policy.backend, config.reward.backend) if name in ENGINES), ENGINES[0])


def served_roles(config: Config) -> tuple[str, ...]:
    """Return the roles whose models are on servers that palmette can start, by their backends."""
    policy, reward = config.policy.backend in ENGINES, config.reward.backend in ENGINES and config.reward.model
    return tuple(role for role, is_served in (("policy", policy), ("reward", reward)) if is_served)


def plan_run(
    config: Config,
    *,
    train: bool = False,
    server: str | None = None,
    predicted: Mapping[str, int] | None = None,
    devices: Sequence[Device] | None = None,
) -> tuple[Job, Plan]:
    """Return a run's job and its plan: a search with servers where there are GPUs, all else inside one process.

    Without GPUs servers are planned for the roles whose backend is one. `server` is the engine whose KV is planned, by
    default the policy's backend. `predicted` bytes of an update, by the kind of line, replace the formulas.
    """
    devices = devices_of(config) if devices is None else devices
    has_gpus = any(device.kind == "cuda" for device in devices) and config.policy.device != "cpu"
    served = has_gpus and not train  # Rollouts and updates of training share one copy of the weights.
    job = job_of(config, train=train, served=served, server=server or engine_of(config))
    job = replace(job, predicted=dict(predicted or {}), host_roles=() if has_gpus or train else served_roles(config))
    plan = _told_of_own_parts(plan_job(job, devices), config)
    remarks = [*plan.remarks, *run_remarks(job), *(_zoo_remarks(job, plan) if plan.fits else ())]
    return job, replace(plan, remarks=tuple(remarks))


def _told_of_own_parts(plan: Plan, config: Config) -> Plan:
    """Return the plan with a remark for each part of the user's own: nobody knows how many bytes it holds."""
    own = []
    if registry.is_own("scorer", config.reward.score):
        own.append(f"scorer {registry.lasting(config.reward.score)}")
    if "clusters" in config.search.build_strategy().uses and registry.is_own("embedder", config.embedder.model):
        own.append(f"embedder {registry.lasting(config.embedder.model)}")
        plan = replace(plan, rules=tuple(rule for rule in plan.rules if rule.id != "no-embedder"))
    remarks = [f"the {part} is your own code: what it holds is not counted" for part in own]
    return replace(plan, remarks=(*plan.remarks, *remarks))


def _zoo_remarks(job: Job, plan: Plan) -> Iterator[str]:
    """Yield a remark for each server whose command names a model of the zoo, which no server can find."""
    for server in plan.servers:
        model = job.policy if server.role == "policy" or job.reward is None else job.reward
        entry = ENTRIES.get(model.name)
        if entry is not None:
            path = cache_root() / entry.name / "config.json" if entry.is_built else entry.weights_path()
            folder = "the folder of its weights" if path is None else str(path.parent)
            yield f"a server cannot load {model.name}, a name of palmette's zoo: give it {folder} instead"
