"""A run's config turned into a job, and that job planned on the run's devices."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from palmette import registry
from palmette.engine.limits import SORTED_LOGITS
from palmette.errors import BackendError, BudgetError, ConfigError
from palmette.planner.advice import refusal
from palmette.planner.devices import Device, detect_devices, detect_gpus, host_of, parse_devices, written_size
from palmette.planner.job import Job, Model, SearchNeeds, UpdateNeeds
from palmette.planner.lines import HEAP, HEAP_SHARE, LEARNING, Phase, Plan
from palmette.planner.models.find_shape import adapter_bytes, find_shape
from palmette.planner.plan import plan_job
from palmette.planner.runnable import run_remarks
from palmette.planner.servers import ENGINES
from palmette.profiles.find import read_profile
from palmette.settings import LIKELIHOODS, LORA_TARGETS, Config, PolicySettings, RewardSettings
from palmette.units import parse_bytes
from palmette.zoo.catalog import ENTRIES

_ALL_LOGITS = 2**40
"""More than any vocabulary has."""

_TURN_TOKENS = 16
"""What a chat template adds to a step that is a turn of its own; Llama 3.1's adds 11 tokens."""

_METER_PHASES = {"generate": "expand", "score": "score", "embed": "embed"}
"""What the meter of a search calls the phases of a plan."""


def devices_of(config: Config) -> tuple[Device, ...]:
    """Return the devices that the config declares, or those of this machine."""
    return detect_devices() if config.memory.devices is None else parse_devices(config.memory.devices)


def job_of(
    config: Config, *, train: bool = False, served: bool = True, server: str = "sglang", may_build: bool = True
) -> Job:
    """Return the job of a search with this config, or of training with it.

    A served model is planned in the dtype that its weights were published in, unless the config names another. Raises
    ConfigError or BackendError for a model whose shape is not known.
    """
    if server not in ENGINES:
        raise ConfigError(f"server {server!r}: choose {' or '.join(ENGINES)}")
    settings, memory = config.search, config.memory
    width, questions = _branching(config, train=train)
    search = SearchNeeds(
        width=width,
        questions=questions,
        prompt_tokens=memory.prompt_tokens,
        step_tokens=min(settings.step_tokens, settings.total_tokens),
        total_tokens=settings.total_tokens,
        depth=settings.depth,
        first_step_tokens=min(settings.first_step_tokens, settings.step_tokens, settings.total_tokens),
        policy_rows=config.policy.batch_rows,
        reward_rows=config.reward.batch_rows,
        embed_rows=config.embedder.batch_rows,
        drafts=config.policy.drafts == "auto",
        scales_logits=config.policy.temperature not in (0, 1),
        filters_logits=config.policy.temperature > 0 and (config.policy.min_p > 0 or _sorted_logits(config.policy) > 0),
        sorted_logits=_sorted_logits(config.policy),
        by_likelihood=config.reward.score in LIKELIHOODS,
        tag_tokens=_tag_tokens(config.reward),
        kv_budget_bytes=_bytes(settings.kv_budget),
        reward_kv_budget_bytes=_bytes(config.reward.kv_budget),
        kv_holds=memory.kv_holds,
    )
    return Job(
        policy=_model(config.policy, served, may_build),
        reward=None if config.reward.model is None else _model(config.reward, served, may_build),
        embedder=_embedder(config),
        search=search,
        update=_update(config) if train else None,
        critic=_critic(config, may_build) if train else None,
        small_reward=_small_reward(config.reward, served, may_build),
        inference_share=memory.inference_share,
        training_share=memory.training_share,
        any_embed_device=memory.any_embed_device,
        served=served,
        server=server,
    )


def _tag_tokens(reward: RewardSettings) -> int:
    """Return how many tokens the profile of the reward model adds to each step, at most."""
    if reward.score != "profile" or reward.profile is None:
        return 0
    profile = read_profile(reward.profile)
    return _TURN_TOKENS if profile.layout == "turns" else 1 + len(profile.between)


def _branching(config: Config, *, train: bool) -> tuple[int, int]:
    """Return the width of a search and its questions in flight; in training the most of rollouts and evaluations."""
    in_flight, training = config.search.questions_in_flight, config.train
    if not train:
        return config.search.width, min(in_flight, config.task.questions)
    if config.policy.is_served:
        return 1, 1  # Rollouts and evaluations hold nothing here.
    rollout = config.search.width, min(in_flight, training.questions)
    if not training.eval_every:
        return rollout
    evaluation = training.eval_width, min(in_flight, training.eval_questions)
    if math.prod(evaluation) <= math.prod(rollout) and evaluation[1] <= rollout[1]:
        return rollout
    # KV grows with branches, and with questions by their prompts.
    return max(rollout[0], evaluation[0]), max(rollout[1], evaluation[1])


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
            path = entry.weights_path()
            folder = "the folder of its weights" if path is None else str(path.parent)
            yield f"a server cannot load {model.name}, a name of palmette's zoo: give it {folder} instead"


def refuse_what_cannot_fit(config: Config, *, train: bool = False) -> None:
    """Raise BudgetError where a search, or training, inside this process cannot fit; return for an unknown shape.

    Where the policy is on servers, what is left here is planned: reward model and embedder.
    Raises ConfigError where GPUs are declared that are not there: the search would run on a CPU that was not planned.
    """
    devices = _devices_here(config, train=train)
    gpus = [device for device in devices if device.kind == "cuda"]
    if gpus and config.policy.device == "auto" and not detect_gpus():
        host = next((device for device in devices if device.kind == "cpu"), gpus[0])
        raise ConfigError(
            f"memory.devices is {config.memory.devices}, and this machine has no GPU: a search runs where it is "
            f"started. Set memory.devices to cpu:{written_size(host)}, or use palmette plan to see what GPUs would hold"
        )
    try:
        job = job_in_process(config, train=train)
        plan = plan_job(job, devices)
    except (ConfigError, BackendError):
        return  # It may still run: not every shape is known. If it cannot, loading it says why.
    is_all_elsewhere = job.policy_elsewhere and job.reward is None and job.embedder is None
    if not plan.fits and not is_all_elsewhere:
        raise BudgetError(refusal(job, devices, plan))


def _devices_here(config: Config, *, train: bool) -> Sequence[Device]:
    """Return the devices of what runs in this process. Declared GPUs that are not there are those of servers."""
    devices = devices_of(config)
    if config.policy.is_served and not train and not detect_gpus():
        return [device for device in devices if device.kind == "cpu"] or [host_of(devices)]
    return devices


def job_in_process(config: Config, *, train: bool) -> Job:
    """Return the job of a search or of training inside this process, without what only `palmette plan` refuses.

    Models on servers hold nothing here. An embedder may be on any device. A KV budget is refused only where it
    cannot hold a first step whatever the prompts are: once the prompts are tokenized, the search itself compares it
    with the longest.
    """
    if config.reward.is_served:
        config = config.model_copy(update={"reward": config.reward.model_copy(update={"model": None})})
    job = job_of(config, train=train, served=False, may_build=False)
    if config.policy.is_served and not train:
        job = replace(job, policy_elsewhere=True, search=replace(job.search, kv_budget_bytes=None))
    budgets = [(job.policy, job.search.kv_budget_bytes), (job.reward, job.search.reward_kv_budget_bytes)]
    tokens = [budget // model.kv_token_bytes for model, budget in budgets if model is not None and budget is not None]
    is_hopeless = any(count <= job.search.first_step_tokens for count in tokens)
    return replace(job, any_embed_device=True, checks_kv_budgets=is_hopeless)


@dataclass(frozen=True)
class PlannedMemory:
    """Bytes planned on the policy's device for each of the meter's phases, and the limit of a declared device.

    Where the policy is on servers it is the device of the reward model, or else of the embedder.
    `returns_blocks`: freed blocks have to go back to the system at once, since there is no room for a heap that keeps
    them.
    """

    by_phase: Mapping[str, int]
    limit_bytes: int | None = None
    returns_blocks: bool = False


def planned_memory(config: Config, *, train: bool = False) -> PlannedMemory:
    """Return what a search, or training, in this process is planned to hold.

    Nothing for a model of unknown shape, and for a search with all its models on servers.
    """
    try:
        job = job_in_process(config, train=train)
        plan = plan_job(job, _devices_here(config, train=train))
    except (ConfigError, BackendError):
        return PlannedMemory({})
    here = "policy" if not job.policy_elsewhere else "reward" if job.reward is not None else "embedder"
    device = next((device for device in plan.devices if here in device.roles), None)
    if device is None:
        return PlannedMemory({})
    planned = {_METER_PHASES[phase.name]: phase.bytes for phase in device.phases if phase.name in _METER_PHASES}
    searching = [phase for phase in device.phases if phase.name not in LEARNING]
    planned["search"] = max(phase.bytes for phase in searching)
    planned |= {phase.name: phase.bytes for phase in device.phases if phase.name in LEARNING}
    planned["hand-over"] = max(map(_left_by, searching))
    update = [phase for phase in device.phases if phase.name == "update"]
    keeps = any(line.holder == HEAP for phase in update for line in phase.lines)
    # What was detected as free may change during the run: only a size that the user declared is a limit.
    limit = None if config.memory.devices is None else device.peak.limit_bytes
    return PlannedMemory(planned, limit, returns_blocks=bool(update) and not keeps)


def _left_by(phase: Phase) -> int:
    """Return what a phase of a search leaves when it ends: its KV cache, and the share of logits that a heap keeps."""
    freed = sum(line.bytes for line in phase.lines if line.kind == "activations")
    freed += math.floor((1 - HEAP_SHARE) * sum(line.bytes for line in phase.lines if line.kind == "logits"))
    return phase.bytes - freed


def kv_token_bytes(policy: PolicySettings) -> int:
    """Return the bytes of a token in the KV cache of a policy on a server. Raises as `job_of` does."""
    return _model(policy, served=True, may_build=True).kv_token_bytes


def _model(settings: PolicySettings | RewardSettings, served: bool, may_build: bool) -> Model:
    assert settings.model is not None
    if registry.is_own("backend", settings.model) and isinstance(settings, PolicySettings):
        raise ConfigError(
            f"policy.model {registry.lasting(settings.model)} is a backend of your own: what it holds is not known. "
            f"Plan with the model that it runs in its place"
        )
    shape = find_shape(settings.model, may_build=may_build)
    dtype = settings.dtype if not served or "dtype" in settings.model_fields_set else shape.dtype
    return Model(settings.model, shape, dtype, settings.device, adapter_bytes(settings.adapter), settings.quantize)


def _embedder(config: Config) -> Model | None:
    """Return the embedder where the strategy uses one whose shape can be known: not for a user's own code."""
    settings = config.embedder
    if "clusters" not in config.search.build_strategy().uses or registry.is_own("embedder", settings.model):
        return None
    return Model(settings.model, find_shape(settings.model, as_encoder=True), "float32", settings.device)


def _critic(config: Config, may_build: bool) -> Model | None:
    """Return the critic where it is a model of its own: in the policy's dtype, on the policy's device."""
    name, policy = config.train.critic_model, config.policy
    return None if name is None else Model(name, find_shape(name, may_build=may_build), policy.dtype, policy.device)


def _small_reward(reward: RewardSettings, served: bool, may_build: bool) -> Model | None:
    if reward.model is None or reward.small_model is None:
        return None
    if served:
        raise ConfigError(
            f"reward.score {reward.score!r} is not planned for servers: it runs inside one process. Plan it with "
            f"memory.devices cpu:SIZE, or reward.score 'likelihood'"
        )
    return _model(reward.model_copy(update={"model": reward.small_model, "adapter": None}), served, may_build)


def _update(config: Config) -> UpdateNeeds:
    train = config.train
    return UpdateNeeds(
        method=train.method,
        lora_rank=train.lora_rank,
        lora_targets=LORA_TARGETS if train.lora_targets == "all" else tuple(train.lora_targets.split(",")),
        optimizer_dtype=train.optimizer_dtype,
        questions=train.questions,
        group_size=config.search.width,
        prompt_tokens=config.memory.prompt_tokens,
        response_tokens=config.search.total_tokens,
        micro_batch_tokens=train.micro_batch_tokens,
        checkpointing=train.gradient_checkpointing,
        reference=reference_of(config),
        sharing=train.sharing,
        reads=_reads(config),
        host_optimizer=train.host_optimizer,
    )


def _reads(config: Config) -> tuple[Literal["reference", "values"], ...]:
    """Return the phases before an update that read its samples without gradients."""
    names: list[Literal["reference", "values"]] = ["reference"] if config.train.uses_reference else []
    if getattr(registry.find("algorithm", config.train.algorithm), "critic", False):
        names.append("values")
    return tuple(names)


def reference_of(config: Config) -> Literal["none", "host"]:
    """Return where the frozen reference policy is: nowhere without a KL divergence, or with LoRA, whose base it is."""
    train = config.train
    if train.reference != "auto":
        return train.reference
    return "host" if train.uses_reference and train.method == "full" else "none"


def _sorted_logits(policy: PolicySettings) -> int:
    """Return how many logits of a row top-k or top-p may sort: all, where the largest ones do not reach top-p."""
    if policy.temperature == 0 or (policy.top_k is None and policy.top_p == 1):
        return 0
    return _ALL_LOGITS if policy.top_k is None else max(SORTED_LOGITS, policy.top_k + 1)


def _bytes(amount: str | int | None) -> int | None:
    return None if amount is None else parse_bytes(amount)
