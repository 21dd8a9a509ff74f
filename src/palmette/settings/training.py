"""The settings of training: by reinforcement learning, and on rows."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from palmette.settings.options import SettingsWithOptions
from palmette.settings.values import LARGEST_COUNT, Characters, Settings, off_in_yaml

Board = Literal["tensorboard", "wandb"]
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear maps of a layer that LoRA may be put on."""


def _targets(text: str) -> str:
    wrong = [name for name in text.split(",") if name not in LORA_TARGETS]
    if text != "all" and wrong:
        raise ValueError(f"name 'all' or some of {','.join(LORA_TARGETS)}, with commas between")
    return text


def _list_of_names(names: Any) -> Any:
    if isinstance(names, str):
        raise ValueError(f"write a list, like [{names.strip('[]')}]")
    return tuple(names) if isinstance(names, list) else names


class TrainSettings(SettingsWithOptions):
    """How a policy is trained. Rollouts are searches.

    `search.width` is the number of responses to a question, `search.total_tokens` their longest. `options` holds the
    algorithm's own settings, which it declares; in a file they stand beside the others. `critic` is `head`, a value
    head on the policy's own body, or the name of a model. Where servers generate, `server_ratio` tells what is done
    about tokens that the learner finds more than `server_ratio_cut` times as likely as the server did.
    """

    algorithm: str = Field("grpo", min_length=1)
    credit: str = Field("auto", min_length=1)
    updates: int = Field(100, ge=1, le=LARGEST_COUNT)
    questions: int = Field(16, ge=1, le=LARGEST_COUNT)
    prompt_tokens: int | None = Field(None, ge=1, le=LARGEST_COUNT)
    mini_batches: int = Field(1, ge=1, le=65_536)
    epochs: int = Field(1, ge=1, le=65_536)
    mask_cut: bool = False
    method: Literal["full", "lora"] = "full"
    lora_rank: int = Field(16, ge=1, le=65_536)
    lora_targets: Annotated[str, AfterValidator(_targets)] = "all"
    learning_rate: float = Field(1e-6, gt=0, le=1)
    critic: str = Field("head", min_length=1)
    critic_learning_rate: float = Field(1e-5, gt=0, le=1)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_updates: int = Field(0, ge=0, le=LARGEST_COUNT)
    weight_decay: float = Field(0.0, ge=0, le=1)
    max_norm: float | None = Field(1.0, gt=0)
    optimizer: Literal["adamw", "muon"] = "adamw"
    optimizer_dtype: Literal["float32", "bfloat16"] = "float32"
    host_optimizer: bool = False
    micro_batch_tokens: int = Field(4096, ge=1, le=LARGEST_COUNT)
    gradient_checkpointing: bool = True
    sharing: Annotated[Literal["auto", "off", "packed", "depth_first"], BeforeValidator(off_in_yaml)] = "auto"
    server_ratio: Annotated[Literal["truncate", "mask", "off"], BeforeValidator(off_in_yaml)] = "truncate"
    server_ratio_cut: float = Field(2.0, ge=1, le=1000)
    reference: Literal["auto", "none", "host"] = "auto"
    rewards: dict[str, float] = Field(default_factory=lambda: {"judge": 1.0}, min_length=1)
    reward_seconds: float = Field(60.0, gt=0, le=86_400)
    on_reward_error: Literal["stop", "skip"] = "stop"
    eval_every: int = Field(0, ge=0, le=LARGEST_COUNT)
    eval_questions: int = Field(50, ge=1, le=LARGEST_COUNT)
    eval_task: str | None = Field(None, min_length=1)
    eval_strategy: str = Field("best_of_n", min_length=1)
    eval_width: int = Field(1, ge=1, le=65_536)
    checkpoint_every: int = Field(10, ge=1, le=LARGEST_COUNT)
    keep_checkpoints: int = Field(2, ge=1, le=LARGEST_COUNT)
    stop_without_signal: int = Field(10, ge=1, le=LARGEST_COUNT)
    log_to: Annotated[tuple[Board, ...], BeforeValidator(_list_of_names)] = ()

    @property
    def uses_reference(self) -> bool:
        """Whether the KL divergence from a reference policy is part of the loss or of the reward."""
        return bool(self.options.get("kl_weight", 0.0))

    @property
    def critic_model(self) -> str | None:
        """The critic where it is a model of its own."""
        return None if self.critic == "head" else self.critic


class DataSettings(Settings):
    """Rows that a model is trained on: where they are, how often they are learned from, how many at a time.

    `batch_tokens` is how large an update is at most, but for its last row. `most_tokens` null is the model's context.
    """

    data: str | None = Field(None, min_length=1)
    epochs: int = Field(1, ge=1, le=65_536)
    batch_tokens: int = Field(16_384, ge=1, le=LARGEST_COUNT)
    most_tokens: int | None = Field(None, ge=1, le=LARGEST_COUNT)
    too_long: Literal["refuse", "skip"] = "refuse"
    test_share: float = Field(0.0, ge=0, le=0.5)


class SftSettings(DataSettings):
    """What `palmette sft` trains on: rows of prompt and completion, or of messages.

    The loss of a prompt's tokens is multiplied by `prompt_weight`: 0 learns answers alone.
    """

    prompt_weight: float = Field(0.0, ge=0, le=1)


class PrmSettings(DataSettings):
    """What `palmette train-prm` trains on: rows of steps with labels, or questions whose steps are labeled first.

    With `questions` the policy solves so many questions of the task, and rollouts from each step give its label: `hard`
    is 1 if any of them is correct, `soft` the share that is.
    """

    questions: int | None = Field(None, ge=1, le=LARGEST_COUNT)
    labels: Literal["hard", "soft"] = "hard"
    separator: Characters = Field("\n", min_length=1)
