"""A model that is trained: loaded, made trainable in full or by LoRA, with its learner, saved to checkpoints."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from palmette.errors import RunError
from palmette.memory.guard import RunPieces
from palmette.settings import Config
from palmette.train.checkpoints.store import Checkpoint
from palmette.train.half_lora import add_in_half
from palmette.train.model_parts import train_all, train_lora
from palmette.train.samples import Sample
from palmette.train.update.learner import Learner, Savings
from palmette.train.update.loss import LossSettings, PolicyLoss
from palmette.train.update.optimizer import AdamSettings
from palmette.train.update.reference import response_values
from palmette.train.update.value_head import ValueHead
from palmette.units import describe_error
from palmette.zoo.adapter import load_adapter
from palmette.zoo.foreign import quiet
from palmette.zoo.load import load_policy

if TYPE_CHECKING:
    from palmette.scale.learning.ranks_learner import RanksLearner


class LearnerSettings(NamedTuple):
    """What a learner is made with, of the settings of training."""

    adam: AdamSettings
    savings: Savings


class TrainedModel:
    """A causal language model with the weights that are trained: `trained` is the model, or the model with adapters.

    `checkpoint` is the one to go on from, None to start from `policy.model` with `policy.adapter`. A subclass calls
    `_make_learner` when it has everything else.
    """

    learner: "Learner | RanksLearner"

    def __init__(self, config: Config, checkpoint: Checkpoint | None) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self.model, self.tokenizer = self._load()
        self.trained: Any
        self.value_head: ValueHead | None = None
        train = config.train
        if train.method == "full":
            self.trained = train_all(self.model)
            return
        with _own_generator(config.seed):
            self.trained = self._with_adapter()
        if checkpoint is not None:
            _load_adapter(self.trained, self._adapter_folder(checkpoint.folder))

    def _load(self) -> tuple[Any, Any]:
        """Return the model and its tokenizer: the base, or with full training that of the checkpoint."""
        is_whole = self._config.train.method == "full" and self._checkpoint is not None
        policy = self._config.policy
        source = str(self._checkpoint.folder) if is_whole and self._checkpoint is not None else policy.model
        return load_policy(source, dtype=policy.dtype, device=policy.device)

    def _with_adapter(self) -> Any:
        """Return the model with the adapter that is trained: a new one, or `policy.adapter`."""
        train, policy = self._config.train, self._config.policy
        if policy.adapter is None:
            targets = None if train.lora_targets == "all" else train.lora_targets.split(",")
            return train_lora(self.model, rank=train.lora_rank, targets=targets)
        names = [policy.model, self.model.name_or_path]
        device = str(self.model.device)
        return add_in_half(load_adapter(self.model, policy.adapter, base_names=names, device=device, trainable=True))

    def _adapter_folder(self, folder: Path) -> Path:
        """Return where in the folder of a checkpoint the adapter is."""
        return folder

    def trained_weights(self) -> "dict[str, torch.Tensor]":
        """Return the weights that training changes, by name: all of them, or those of the adapter."""
        return {name: weight for name, weight in self.trained.named_parameters() if weight.requires_grad}

    def add_value_head(self) -> None:
        """Put a critic's head, which begins with 0 for every state, on the model's hidden states."""
        self.value_head = self._new_value_head()

    def _new_value_head(self) -> ValueHead:
        config = self.model.config.get_text_config()
        return ValueHead(config.hidden_size, dtype=self.model.dtype).to(self.model.device)

    def _make_learner(
        self,
        *,
        policy_loss: PolicyLoss,
        loss: LossSettings | None = None,
        temperature: float = 1.0,
        values_only: bool = False,
    ) -> None:
        """Make the learner, with the value head if there is one, in the state of the checkpoint."""
        settings = self.learner_settings()
        learner = Learner(
            self.trained,
            loss=loss,
            policy_loss=policy_loss,
            adam=settings.adam,
            savings=settings.savings,
            temperature=temperature,
            sharing=self._config.train.sharing,
            value_head=self.value_head,
            values_only=values_only,
        )
        if self._checkpoint is not None:
            learner.load_state_dict(self._saved_state(self._checkpoint))
        self.learner = learner

    def learner_settings(self) -> LearnerSettings:
        """Return what the config says of the learner."""
        train = self._config.train
        adam = AdamSettings(
            learning_rate=train.learning_rate,
            weight_decay=train.weight_decay,
            max_norm=train.max_norm,
            state_dtype=train.optimizer_dtype,
            seed=self._config.seed,
            matrices=train.optimizer,
        )
        return LearnerSettings(
            adam, Savings(checkpointing=train.gradient_checkpointing, host_optimizer=train.host_optimizer)
        )

    def _saved_state(self, checkpoint: Checkpoint) -> "dict[str, torch.Tensor]":
        """Return what `state_dict` had returned when the checkpoint was written."""
        return checkpoint.tensors()

    def state_dict(self) -> "dict[str, torch.Tensor]":
        """Return what the next updates depend on beside the weights that `save` writes, by name."""
        return self.learner.state_dict()

    def most_tokens(self, samples: Sequence[Sample]) -> int:
        """Return the most tokens of a forward and backward pass over these samples: a sample is never cut."""
        return max(self._config.train.micro_batch_tokens, *(sample.fed_tokens for sample in samples))

    def values(self, samples: Sequence[Sample], run_pieces: RunPieces) -> list[tuple[float, ...]]:
        """Return what its value head expects before each response token."""
        assert self.value_head is not None
        return response_values(
            self.trained,
            self.value_head,
            samples,
            micro_batch_tokens=self.most_tokens(samples),
            sharing=self._config.train.sharing,
            run_pieces=run_pieces,
        )

    def save(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder, or its adapter as PEFT does, with the tokenizer."""
        self.save_weights(folder)
        self.tokenizer.save_pretrained(folder)

    def save_weights(self, folder: Path) -> None:
        """Write the weights with their config: those of the model, or of its adapter."""
        with quiet():
            self.trained.save_pretrained(folder)


def _load_adapter(model: Any, folder: Path) -> None:
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    try:
        set_peft_model_state_dict(model, load_file(folder / "adapter_model.safetensors"))
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise RunError(f"{folder}: the adapter does not fit the policy: {describe_error(error)}") from error


@contextmanager
def _own_generator(seed: int) -> Iterator[None]:
    """Draw from a seed of the run's own inside the block: peft initializes adapters from torch's global generator."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)
