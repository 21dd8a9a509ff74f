"""The policy of a training run: loaded, made trainable, with its learner and its reference, saved to checkpoints."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from palmette.backends.local import make_backend
from palmette.errors import RunError
from palmette.memory.offload import LayerLoader, streamed
from palmette.memory.offload_copies import HostCopies
from palmette.memory.offload_pages import MappedWeights
from palmette.run.training_checks import algorithm_of
from palmette.settings import Config
from palmette.train.checkpoints.store import Checkpoint
from palmette.train.learner import Learner, Savings
from palmette.train.model_parts import train_all, train_lora
from palmette.train.optimizer import AdamSettings
from palmette.train.reference import response_logprobs, response_values
from palmette.train.samples import Sample
from palmette.train.value_head import ValueHead
from palmette.units import describe_error, parse_bytes
from palmette.zoo.foreign import quiet
from palmette.zoo.load import load_policy


class TrainedPolicy:
    """A policy that generates and learns with the same weights: no second copy exists, nothing is transferred.

    `checkpoint` is the folder of a checkpoint to go on from, None to start from `policy.model`.
    """

    def __init__(self, config: Config, checkpoint: Checkpoint | None) -> None:
        self._config = config
        train, policy = config.train, config.policy
        is_whole = train.method == "full" and checkpoint is not None
        options = {"dtype": policy.dtype, "device": policy.device}
        source = str(checkpoint.folder) if is_whole and checkpoint is not None else policy.model
        self.model, self.tokenizer = load_policy(source, **options)
        self.trained: Any
        if train.method == "full":
            self.trained = train_all(self.model)
        else:
            targets = None if train.lora_targets == "all" else train.lora_targets.split(",")
            with _own_generator(config.seed):
                self.trained = train_lora(self.model, rank=train.lora_rank, targets=targets)
            if checkpoint is not None:
                _load_adapter(self.trained, checkpoint.folder)
        kv_bytes = None if config.search.kv_budget is None else parse_bytes(config.search.kv_budget)
        self.backend = make_backend(self.model, self.tokenizer, policy, kv_bytes)
        self._reference: Any = None
        algorithm = algorithm_of(config)
        self.value_head = _new_value_head(self.model) if algorithm.critic else None
        self.learner = Learner(
            self.trained,
            loss=algorithm.loss(),
            policy_loss=algorithm.token_losses,
            adam=AdamSettings(
                learning_rate=train.learning_rate,
                weight_decay=train.weight_decay,
                max_norm=train.max_norm,
                state_dtype=train.optimizer_dtype,
                seed=config.seed,
            ),
            savings=Savings(checkpointing=train.gradient_checkpointing, host_optimizer=train.host_optimizer),
            temperature=policy.temperature,
            sharing=train.sharing,
            value_head=self.value_head,
        )
        if checkpoint is not None:
            self.learner.load_state_dict(checkpoint.tensors())

    def values(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Return what the critic expects before each response token."""
        assert self.value_head is not None
        return response_values(self.trained, self.value_head, samples, micro_batch_tokens=self._most_tokens(samples))

    def _most_tokens(self, samples: Sequence[Sample]) -> int:
        return max(self._config.train.micro_batch_tokens, *(sample.fed_tokens for sample in samples))

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Return log-probabilities under the policy as it was before training.

        With LoRA that is the base without its adapter. Otherwise a frozen copy is kept off the device and read layer by
        layer: from its own file on a CPU, from host memory for a GPU.
        """
        tokens = self._most_tokens(samples)
        if self._config.train.method == "lora":
            with self.trained.disable_adapter():
                return response_logprobs(self.trained, samples, micro_batch_tokens=tokens)
        if self._reference is None:
            self._reference = load_policy(self._config.policy.model, dtype=self._config.policy.dtype, device="cpu")[0]
            self._reference.requires_grad_(False)
        with streamed(self._reference, self._loader()):
            return response_logprobs(self._reference, samples, micro_batch_tokens=tokens)

    def _loader(self) -> LayerLoader:
        if self.model.device.type == "cpu":
            return MappedWeights(self._reference)
        return HostCopies(self._reference, self.model.device)

    def save(self, folder: Path) -> None:
        """Write the policy as a Hugging Face folder, or its adapter as PEFT does, with the tokenizer."""
        with quiet():
            self.trained.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def _new_value_head(model: Any) -> ValueHead:
    config = model.config.get_text_config()
    return ValueHead(config.hidden_size, dtype=model.dtype).to(model.device)


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
