"""What cannot be trained, told before anything is loaded."""

from pathlib import Path

from palmette import registry
from palmette.errors import ConfigError, RunError
from palmette.run.boards import check_boards
from palmette.run.folder import has_begun, recorded_values
from palmette.settings import Config, PolicySettings, PrmSettings, SftSettings, TrainSettings
from palmette.tasks.load import FILE_SOURCE, source_of
from palmette.tasks.task import COLUMNS, Task
from palmette.train.algorithms.algorithm import Algorithm, make_algorithm
from palmette.train.rewards.rewards import check_reward_files
from palmette.units import count_of, one_line
from palmette.zoo.folder import adapter_rank
from palmette.zoo.resolve import check_model_name


def algorithm_of(config: Config) -> Algorithm:
    """Return the algorithm that the config names, with its settings."""
    part = registry.find("algorithm", config.train.algorithm)
    own = getattr(part, "Settings", None)
    fields = own.model_fields if own is not None else {}
    return make_algorithm(part, {key: value for key, value in config.train.options.items() if key in fields})


def credit_of(config: Config) -> str:
    """Return how credit is given: to responses where branches are independent, else to steps by SPO's values."""
    if config.train.credit != "auto":
        return config.train.credit
    return "flat" if config.search.build_strategy().independent else "spo"


def check_training(config: Config) -> None:
    """Raise ConfigError for a config with which no policy can be trained."""
    check_reward_files(config.train.rewards)
    train, policy = config.train, config.policy
    algorithm = algorithm_of(config)
    credit = credit_of(config)
    check_policy(policy, train, may_be_served=True)
    if policy.temperature == 0:
        raise ConfigError(
            "policy.temperature is 0: all responses to a question would be the same, and none better than another. "
            "Sample at 1"
        )
    if config.search.width < algorithm.least_group and credit == "flat":
        raise ConfigError(
            f"search.width is {config.search.width}: {train.algorithm} compares the responses to one question with "
            f"each other and needs {algorithm.least_group} or more, 8 say"
        )
    if credit != "flat":
        if algorithm.critic:
            raise ConfigError(f"train.credit is {credit}: {train.algorithm} has a critic of its own, set it to flat")
        if train.uses_reference and algorithm.settings.kl_in == "reward":
            raise ConfigError(
                f"train.kl_in is reward: with train.credit {credit} rewards are those of leaves, set it to loss"
            )
    if train.critic_model is not None:
        if not algorithm.critic:
            raise ConfigError(
                f"train.critic is {train.critic}: {train.algorithm} has no critic. Set train.algorithm to ppo, or "
                f"leave train.critic out"
            )
        check_model_name(train.critic, "policy")
    if train.uses_reference and train.reference == "none" and train.method == "full":
        raise ConfigError("train.kl_weight asks for a reference policy, and train.reference is none: set it to host")
    if "score" in train.rewards and not config.has_scores():
        raise ConfigError("train.rewards names score, and there is no reward model: set reward.model")
    if "gym" in train.rewards and not config.task.name.startswith("rg:"):
        raise ConfigError(f"train.rewards names gym, and the task is {config.task.name}: take an rg:NAME, or judge")
    check_boards(train.log_to)
    _check_workers(config)
    _check_ranks(config)


def _check_workers(config: Config) -> None:
    """Raise ConfigError for rollouts that workers cannot write."""
    scale, policy = config.scale, config.policy
    if scale.address is not None and scale.workers is None and scale.ranks is None:
        raise ConfigError(
            "scale.address is set, and nothing would run there: set scale.workers for rollouts, scale.ranks for the "
            "learner, or leave it out"
        )
    if scale.workers is not None and policy.is_served:
        raise ConfigError(
            f"scale.workers is {scale.workers}, and policy.backend is {policy.backend}: its servers write the "
            f"rollouts. Leave scale.workers out, or set policy.backend to local"
        )


def _check_ranks(config: Config) -> None:
    """Raise ConfigError for what ranks cannot train."""
    if config.scale.ranks is None:
        if config.scale.staleness and config.scale.workers is None:
            raise ConfigError(
                f"scale.staleness is {config.scale.staleness}: rollouts and updates take turns in one process. Set "
                f"scale.ranks, 1 say, or scale.workers for updates beside rollouts"
            )
        return
    if config.train.optimizer == "muon":
        raise ConfigError(
            f"scale.ranks is {config.scale.ranks}, and train.optimizer is muon: it needs whole matrices. Set it to "
            f"adamw, or leave scale.ranks out"
        )
    if config.train.critic_model is not None:
        raise ConfigError(
            f"scale.ranks is {config.scale.ranks}, and train.critic is {config.train.critic}: ranks train a critic "
            f"only as a head on the policy. Set train.critic to head, or leave scale.ranks out"
        )


def check_policy(policy: PolicySettings, train: TrainSettings, *, may_be_served: bool = False) -> None:
    """Raise ConfigError for a policy whose weights cannot be trained so; `may_be_served` for who rolls out."""
    if may_be_served and policy.backend in _TRAINED_ON:
        _check_served(policy, train)
    elif policy.backend != "local":
        hint = f", or its rollouts from {' or '.join(_TRAINED_ON)}" if may_be_served else ""
        raise ConfigError(f"policy.backend is {policy.backend}: training needs the policy in this process, local{hint}")
    if policy.quantize != "none":
        raise ConfigError(f"policy.quantize is {policy.quantize}: quantized weights cannot be trained, leave it out")
    if policy.adapter is not None:
        _check_adapter(policy.adapter, train)
    if train.optimizer == "muon":
        _check_muon(policy, train)


_TRAINED_ON = ("vllm", "sglang")
"""Servers that take new weights while they run."""


def _check_served(policy: PolicySettings, train: TrainSettings) -> None:
    """Raise ConfigError for rollouts that a server cannot give to training."""
    if policy.backend == "vllm" and train.method == "full":
        raise ConfigError(
            "train.method is full, and vLLM takes new weights as adapters: set train.method to lora, or policy.backend "
            "to sglang, or local"
        )


def _check_muon(policy: PolicySettings, train: TrainSettings) -> None:
    """Raise ConfigError for weights that Muon cannot change."""
    wanted = {
        "train.method": (train.method, "full"),
        "policy.dtype": (policy.dtype, "float32"),
        "train.optimizer_dtype": (train.optimizer_dtype, "float32"),
        "train.host_optimizer": (train.host_optimizer, False),
    }
    for key, (value, needed) in wanted.items():
        if value != needed:
            told = str(needed).lower()
            raise ConfigError(f"train.optimizer is muon, and {key} is {value}: set it to {told}, or take adamw")


def _check_adapter(adapter: str, train: TrainSettings) -> None:
    """Raise ConfigError for an adapter that these settings do not train on."""
    if train.method == "full":
        raise ConfigError(
            "policy.adapter: train.method is full. Set it to lora to train the adapter on, or merge the adapter into "
            "the policy first"
        )
    rank = adapter_rank(adapter)
    if rank is not None and rank != train.lora_rank:
        raise ConfigError(f"policy.adapter has rank {rank}, train.lora_rank is {train.lora_rank}: set it to {rank}")
    if train.uses_reference:
        raise ConfigError(
            "train.kl_weight: with LoRA the reference is the policy without its adapter, and policy.adapter is what "
            "training begins with. Merge it into the policy first, or set train.kl_weight to 0"
        )


def check_references(config: Config, task: Task) -> str | None:
    """Return a notice with the count of questions that cannot be rewarded because they have no reference answer.

    That concerns runs whose only reward is the judge of mathematics. Raises ConfigError where no question has one:
    nothing would be learned.
    """
    judge = task.judge if config.task.judge == "auto" else config.task.judge
    if set(config.train.rewards) != {"judge"} or judge != "math":
        return None
    without = [question for question in task.questions if question.reference is None]
    if not without:
        return None
    name = one_line(task.name, 200)
    if len(without) < len(task.questions):
        return (
            f"{len(without)} of the {count_of(len(task.questions), 'question')} of {name} have no reference answer: "
            f"the judge, the only reward, gives their responses none, and nothing is learned from them"
        )
    columns = without[0].key.get(COLUMNS)
    found = f" (found {one_line(', '.join(map(str, columns)), 120)})" if isinstance(columns, dict) else ""
    raise ConfigError(
        f"no question of {name} has a reference answer, and the only reward is the judge, which compares with one: "
        f"put it into a column 'answer'{found}, or name a reward function in train.rewards"
    )


_MADE_QUESTIONS = 10_000
"""Questions that a generator makes for a run whose config does not say how many: 1 to 3 s."""

_EVERY_ROW = 10**7
"""More questions than a file holds."""


def training_config(config: Config) -> Config:
    """Return the config of reinforcement learning: without a reward model that nothing asks, without rows of files.

    What is not set is decided here, where it is known what was set: a recorded config has every key. That is how many
    questions there are, and for branches that grow independently a limit of steps that no branch reaches before its
    limit of tokens.
    """
    config = _with_questions(_with_depth(config))
    names = (config.search.strategy, config.train.eval_strategy)
    strategies = [config.search.model_copy(update={"strategy": name}).build_strategy() for name in names]
    config = config.model_copy(update={"sft": SftSettings(), "prm": PrmSettings()})
    if "score" in config.train.rewards or any("scores" in strategy.uses for strategy in strategies):
        return config
    return without_reward(config)


def _with_questions(config: Config) -> Config:
    if "questions" in config.task.model_fields_set:
        return config
    count = _EVERY_ROW if source_of(config.task.name) == FILE_SOURCE else _MADE_QUESTIONS
    return config.model_copy(update={"task": config.task.model_copy(update={"questions": count})})


def _with_depth(config: Config) -> Config:
    search = config.search
    if "depth" in search.model_fields_set or not search.build_strategy().independent:
        return config
    return config.model_copy(update={"search": search.model_copy(update={"depth": search.total_tokens})})


def without_reward(config: Config) -> Config:
    """Return the config without a reward model."""
    return config.model_copy(update={"reward": config.reward.model_copy(update={"model": None, "score": "head"})})


_MAY_CHANGE = {
    "train": {
        "updates", "checkpoint_every", "keep_checkpoints", "eval_every", "eval_questions", "eval_task", "eval_strategy",
        "eval_width", "stop_without_signal", "reward_seconds", "on_reward_error", "prompt_tokens",
        "micro_batch_tokens", "log_to",
    },
    "policy": {"address", "served_model", "answer_seconds", "return_seconds"},
    "reward": {"address", "served_model", "small_address", "small_served_model", "answer_seconds", "return_seconds"},
    "task": {"unaskable"},
    "sft": {"epochs"},
    "prm": {"epochs"},
}  # fmt: skip
"""Settings with which a run may go on that was started with others. Those that change rounding alone too.

Whether evaluations, limits of prompts and what is left out have changed the questions is told by their digest."""


def check_same_run(folder: Path, recorded: Config, config: Config) -> None:
    """Raise RunError where a run would go on with other settings than it was started with.

    Both configs are complete, as `training_config` or `row_config` returns them. A run without an update has nothing to
    go on from: it starts anew, with any settings.
    """
    if not has_begun(folder):
        return
    before, now = recorded_values(recorded), recorded_values(config)
    for table in ("policy", "reward", "task", "embedder", "search", "train", "sft", "prm"):
        for key, value in before[table].items():
            if now[table].get(key) != value and key not in _MAY_CHANGE.get(table, ()):
                was, told = (one_line(repr(shown), 80) for shown in (value, now[table].get(key)))
                raise RunError(
                    f"{folder} was started with {table}.{key} {was}, and would go on with {told}: give what it was "
                    f"started with, or another --out"
                )
    if recorded.seed != config.seed:
        raise RunError(f"{folder} was started with seed {recorded.seed}, and would go on with {config.seed}")
