"""A critic that is a model of its own: a body with a value head, trained beside the policy by its own optimizer."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from palmette.errors import ConfigError
from palmette.memory.guard import RunPieces
from palmette.run.trained_model import TrainedModel
from palmette.settings import Config
from palmette.train.checkpoints.store import Checkpoint
from palmette.train.samples import Sample
from palmette.train.update.loss import LossSettings, no_policy_losses
from palmette.train.update.update_result import UpdateResult
from palmette.zoo.load import load_policy

CRITIC = "critic"
"""The folder of a checkpoint that holds the critic; what begins its names in the file of optimizer states."""


class Critic(TrainedModel):
    """The body of `train.critic` with a value head. It reads the policy's tokens, so it needs the policy's tokenizer.

    It is trained in full or by LoRA as the policy is, at `train.critic_learning_rate`. Raises ConfigError for a model
    with other tokens than the policy's `vocabulary`.
    """

    def __init__(
        self, config: Config, checkpoint: Checkpoint | None, *, vocabulary: Mapping[str, int], value_clip: float | None
    ) -> None:
        self._vocabulary = vocabulary
        train = config.train.model_copy(update={"learning_rate": config.train.critic_learning_rate})
        super().__init__(config.model_copy(update={"train": train}), checkpoint)
        embedding, output = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        if output is not None and output.weight is not embedding.weight:
            output.requires_grad_(False)  # No loss reaches it.
        self.value_head = self._new_value_head()
        self._make_learner(
            policy_loss=no_policy_losses,
            loss=LossSettings(value_weight=1.0, value_clip=value_clip),
            temperature=config.policy.temperature,
            values_only=True,
        )

    def _load(self) -> tuple[Any, Any]:
        """Return the model and its tokenizer, with full training the model of the checkpoint."""
        policy, name = self._config.policy, self._config.train.critic
        is_whole = self._config.train.method == "full" and self._checkpoint is not None
        source = str(self._checkpoint.folder / CRITIC) if is_whole and self._checkpoint is not None else name
        model, tokenizer = load_policy(source, dtype=policy.dtype, device=policy.device)
        if tokenizer.get_vocab() != self._vocabulary:
            raise ConfigError(
                f"train.critic is {name}: its tokens are not those of the policy {policy.model}, which it has to read. "
                f"Name a model with the policy's tokenizer, or head"
            )
        return model, tokenizer

    def _adapter_folder(self, folder: Path) -> Path:
        return folder / CRITIC

    def _saved_state(self, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
        tensors = checkpoint.tensors()
        return {name.removeprefix(f"{CRITIC}."): tensors[name] for name in tensors if name.startswith(f"{CRITIC}.")}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return its optimizer state and its value head, under names that the policy's have not."""
        return {f"{CRITIC}.{name}": tensor for name, tensor in super().state_dict().items()}

    def save(self, folder: Path) -> None:
        """Write it into a folder of its own in that of the checkpoint."""
        super().save(folder / CRITIC)

    def update(self, samples: Sequence[Sample], share: float, run_pieces: RunPieces) -> UpdateResult:
        """Make one optimizer step on the value loss, at this share of its highest learning rate."""
        bare = [replace(sample, old_logprobs=None, reference_logprobs=None) for sample in samples]
        return self.learner.update(
            bare,
            micro_batch_tokens=self.most_tokens(samples),
            run_pieces=run_pieces,
            learning_rate=share * self._config.train.learning_rate,
        )
