"""What training on rows needs of a config, told before anything is loaded; the config as it is planned and recorded."""

from typing import Literal

from palmette.config import load_config
from palmette.errors import ConfigError
from palmette.run.boards import check_boards
from palmette.run.training_checks import check_policy, without_reward
from palmette.settings import Config, DataSettings, PrmSettings, SearchSettings, SftSettings

Table = Literal["sft", "prm"]
"""What is trained: `sft` a policy on answers, `prm` a process reward model on labels of steps. Named like its table."""

_LEARNING_RATES: dict[Table, float] = {"sft": 2e-5, "prm": 1e-5}
"""Learning rates of a config that names none: those of TRL's SFTTrainer and PRMTrainer."""


def data_of(config: Config, table: Table) -> DataSettings:
    """Return the table of settings that says which rows are trained on."""
    return config.sft if table == "sft" else config.prm


def row_config(config: Config, table: Table) -> Config:
    """Return the config of training on rows: without a reward model and rows for anything else.

    A learning rate that is not set is the one that TRL has for this kind of training. Where steps are labeled by
    rollouts, the search is `shepherd`, wide enough for completions from `search.depth` steps unless the config names
    the strategy, and with it the width, itself.
    """
    if table == "prm" and config.prm.questions is not None and config.search.strategy != "shepherd":
        config = load_config(config, {"search.strategy": "shepherd"})
        width = 1 + config.search.options["completions"] * config.search.depth
        config = load_config(config, {"search.width": width})
    train = config.train
    if "learning_rate" not in train.model_fields_set:
        train = train.model_copy(update={"learning_rate": _LEARNING_RATES[table]})
    other = {"prm": PrmSettings()} if table == "sft" else {"sft": SftSettings()}
    return without_reward(config).model_copy(update={"train": train, **other})


def check_rows_config(config: Config, table: Table) -> None:
    """Raise ConfigError for a config with which nothing can be trained on rows."""
    check_policy(config.policy, config.train)
    check_boards(config.train.log_to)
    if config.scale.ranks is not None:
        raise ConfigError("scale.ranks is for palmette train: on rows a model is trained in one process, leave it out")
    if table == "sft":
        if config.sft.data is None:
            raise ConfigError("sft.data is not set: name a JSONL or parquet file of rows (--data)")
        return
    if config.prm.data is None and config.prm.questions is None:
        raise ConfigError(
            "neither prm.data nor prm.questions is set: name a file of labeled steps (--data), or how many questions "
            "of the task are to be solved and labeled (--questions)"
        )
    if config.prm.data is not None and config.prm.questions is not None:
        raise ConfigError("prm.data and prm.questions are both set: train on a file, or on labels made by rollouts")


def planned_config(config: Config, table: Table, longest_tokens: int) -> Config:
    """Return a config whose plan is that of training on rows of at most so many tokens: updates, and no search.

    The planner takes an update as responses to questions: here a row is a question with one response.
    """
    batch = max(data_of(config, table).batch_tokens, longest_tokens)
    search = SearchSettings(width=1, total_tokens=1, step_tokens=1, first_step_tokens=1, questions_in_flight=1)
    return config.model_copy(
        update={
            "search": search,
            "memory": config.memory.model_copy(update={"prompt_tokens": max(1, longest_tokens - 1)}),
            "train": config.train.model_copy(update={"questions": -(-batch // longest_tokens), "options": {}}),
        }
    )
