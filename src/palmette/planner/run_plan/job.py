"""A run's config turned into a job: its models by their shapes, what its search and its updates need."""

import math
from typing import Literal

from palmette import registry
from palmette.engine.limits import SORTED_LOGITS
from palmette.errors import ConfigError
from palmette.planner.job import Job, Model, SearchNeeds, UpdateNeeds
from palmette.planner.models.find_shape import adapter_bytes, find_shape
from palmette.planner.servers import ENGINES
from palmette.profiles.find import read_profile
from palmette.settings import LIKELIHOODS, LORA_TARGETS, Config, PolicySettings, RewardSettings
from palmette.units import parse_bytes

_ALL_LOGITS = 2**40
"""More than any vocabulary has."""

_TURN_TOKENS = 16
"""What a chat template adds to a step that is a turn of its own; Llama 3.1's adds 11 tokens."""


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
