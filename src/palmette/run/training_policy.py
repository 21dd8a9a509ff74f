"""The policy of reinforcement learning: its learner, who generates for it, its reference and its critic."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.backends.local import LocalBackend, make_backend
from palmette.backends.servers.backend import ServedBackend
from palmette.errors import ConfigError
from palmette.memory.guard import RunPieces
from palmette.memory.offload import LayerLoader, streamed
from palmette.memory.offload_copies import HostCopies
from palmette.memory.offload_pages import MappedWeights
from palmette.run.critic import Critic
from palmette.run.parts import load_backend
from palmette.run.published_weights import PublishedWeights
from palmette.run.trained_model import TrainedModel
from palmette.run.training_checks import algorithm_of
from palmette.settings import Config
from palmette.train.checkpoints.store import Checkpoint
from palmette.train.samples import Sample
from palmette.train.update.reference import response_logprobs
from palmette.units import parse_bytes
from palmette.zoo.load import load_policy, stored_dtypes

if TYPE_CHECKING:
    import torch


class TrainedPolicy(TrainedModel):
    """A policy that generates and learns with the same weights: no second copy exists, nothing is transferred.

    Unless it is on servers: then these generate, and get new weights by way of `folder`.
    """

    def __init__(self, config: Config, checkpoint: Checkpoint | None, folder: Path, run: str) -> None:
        super().__init__(config, checkpoint)
        if config.train.uses_reference and config.train.method == "full" and self.model.device.type == "cpu":
            _check_reference(config)
        self.published: PublishedWeights | None = None
        self.backend = self._make_backend(folder, run)
        self._reference: Any = None
        algorithm = algorithm_of(config)
        loss = algorithm.loss()
        self.critic: Critic | None = None
        if config.train.critic_model is not None:
            self.critic = Critic(config, checkpoint, vocabulary=self.tokenizer.get_vocab(), value_clip=loss.value_clip)
        elif algorithm.critic:
            self.value_head = self._new_value_head()
        self._make_learner(loss=loss, policy_loss=algorithm.token_losses, temperature=config.policy.temperature)

    def _make_backend(self, folder: Path, run: str) -> LocalBackend | ServedBackend:
        settings = self._config.policy
        if not settings.is_served:
            kv_budget = self._config.search.kv_budget
            kv_bytes = None if kv_budget is None else parse_bytes(kv_budget)
            return make_backend(self.model, self.tokenizer, settings, kv_bytes)
        # The adapter that training begins with is in the learner, and goes to the servers with the first weights.
        backend = load_backend(settings.model_copy(update={"adapter": None}))
        assert isinstance(backend, ServedBackend)
        if backend.logprob_temperature != settings.temperature:
            backend.close()
            raise ConfigError(
                f"policy.temperature is {settings.temperature:g}, and the server's log-probabilities are those at "
                f"{backend.logprob_temperature:g}: start vLLM with --logprobs-mode processed_logprobs, or set it to 1"
            )
        is_adapter = self._config.train.method == "lora"
        self.published = PublishedWeights(backend, self.save_weights, folder, run, is_adapter=is_adapter)
        return backend

    def free_cache(self) -> None:
        """Free the KV cache that generating has left in this process."""
        if isinstance(self.backend, LocalBackend):
            self.backend.free_cache()

    def close(self) -> None:
        """Take the weights off the servers, if they are there, and end the connections."""
        if self.published is not None:
            self.published.close()

    def logprobs(self, samples: Sequence[Sample], run_pieces: RunPieces) -> list[tuple[float, ...]]:
        """Return log-probabilities under the policy as it is."""
        return response_logprobs(
            self.trained,
            samples,
            micro_batch_tokens=self.most_tokens(samples),
            sharing=self._config.train.sharing,
            run_pieces=run_pieces,
        )

    def values(self, samples: Sequence[Sample], run_pieces: RunPieces) -> list[tuple[float, ...]]:
        """Return what the critic expects before each response token."""
        if self.critic is not None:
            return self.critic.values(samples, run_pieces)
        return super().values(samples, run_pieces)

    def state_dict(self) -> "dict[str, torch.Tensor]":
        """Return optimizer state and value head, and those of a critic that is a model of its own."""
        own = super().state_dict()
        return own if self.critic is None else {**own, **self.critic.state_dict()}

    def save(self, folder: Path) -> None:
        """Write the policy as a Hugging Face folder, and such a critic into a folder in it."""
        super().save(folder)
        if self.critic is not None:
            self.critic.save(folder)

    def reference_logprobs(self, samples: Sequence[Sample], run_pieces: RunPieces) -> list[tuple[float, ...]]:
        """Return log-probabilities under the policy as it was before training.

        With LoRA that is the base without its adapter. Otherwise a frozen copy is kept off the device and read layer by
        layer: from its own file on a CPU, from host memory for a GPU.
        """
        read = partial(
            response_logprobs,
            samples=samples,
            micro_batch_tokens=self.most_tokens(samples),
            sharing=self._config.train.sharing,
            run_pieces=run_pieces,
        )
        if self._config.train.method == "lora":
            with self.trained.disable_adapter():
                return read(self.trained)
        if self._reference is None:
            self._reference = load_policy(self._config.policy.model, dtype=self._config.policy.dtype, device="cpu")[0]
            self._reference.requires_grad_(False)
        with streamed(self._reference, self._loader()):
            return read(self._reference)

    def _loader(self) -> LayerLoader:
        if self.model.device.type == "cpu":
            return MappedWeights(self._reference)
        return HostCopies(self._reference, self.model.device)


def _check_reference(config: Config) -> None:
    """Raise ConfigError for a reference that would not be the file's own pages: it would take memory as a whole."""
    policy = config.policy
    other = stored_dtypes(policy.model) - {policy.dtype}
    if other:
        stored = ", ".join(sorted(other))
        raise ConfigError(
            f"train.kl_weight is {config.train.options['kl_weight']:g}: the reference is {policy.model} as it was "
            f"before training, read layer by layer from its file, which holds {stored}, and policy.dtype is "
            f"{policy.dtype}. Set policy.dtype to {stored}, train.method to lora, or train.kl_weight to 0"
        )
