"""Models that are trained on rows: a policy that imitates answers, a process reward model that scores steps."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from pathlib import Path
from typing import Any

import torch
from torch import nn

from palmette.errors import BackendError
from palmette.run.trained_model import TrainedModel
from palmette.settings import Config
from palmette.train.checkpoints.store import Checkpoint
from palmette.train.model_parts import body_of
from palmette.train.supervised.losses import answer_losses, label_losses
from palmette.zoo.foreign import as_backend_error, quiet
from palmette.zoo.load import load_policy, load_reward

ADAPTER = "adapter"
"""The folder of a reward model's checkpoint that holds its adapter, which the model beside it has merged."""


class ImitatingPolicy(TrainedModel):
    """A policy that learns answers at temperature 1, whatever it will be sampled at."""

    def __init__(self, config: Config, checkpoint: Checkpoint | None) -> None:
        super().__init__(config, checkpoint)
        self._make_learner(policy_loss=answer_losses)


class RewardModel(TrainedModel):
    """A process reward model: the body of a causal language model with a scalar head, trained on labels of steps.

    It is saved as a token classifier with one label, which `reward.model` loads; the adapter of LoRA is merged into it
    and also saved beside it.
    """

    def __init__(self, config: Config, checkpoint: Checkpoint | None) -> None:
        super().__init__(config, checkpoint)
        embedding, output = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        if output is not None and output.weight is not embedding.weight:
            output.requires_grad_(False)  # No loss reaches it, and a classifier has none.
        self.value_head = self._new_value_head()
        self._make_learner(policy_loss=label_losses)

    def _load(self) -> tuple[Any, Any]:
        """Return the base model and its tokenizer, with full training its body as in the checkpoint."""
        policy = self._config.policy
        model, tokenizer = load_policy(policy.model, dtype=policy.dtype, device=policy.device)
        if self._checkpoint is not None and self._config.train.method == "full":
            trained, _ = load_reward(str(self._checkpoint.folder), dtype=policy.dtype, device=policy.device)
            body_of(model).load_state_dict(body_of(trained).state_dict())
        return model, tokenizer

    def _adapter_folder(self, folder: Path) -> Path:
        return folder / ADAPTER

    def save(self, folder: Path) -> None:
        """Write the reward model as a Hugging Face folder with the tokenizer."""
        assert self.value_head is not None
        with quiet():
            save_classifier(self.trained, self.value_head.linear, folder)
            if self._config.train.method == "lora":
                self.trained.save_pretrained(folder / ADAPTER)
        self.tokenizer.save_pretrained(folder)


def save_classifier(model: Any, head: nn.Linear, folder: Path) -> None:
    """Write a token classifier with one label: the model's body, adapters merged into copies, and this head.

    Raises BackendError for a family of models that has no token classifier with a plain linear head.
    """
    from transformers import AutoModelForTokenClassification

    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = type(inner.config).from_dict({**inner.config.to_dict(), "num_labels": 1})
    name = f"a {config.model_type} cannot be saved as a reward model"
    with as_backend_error(name), torch.device("meta"):
        make: Any = AutoModelForTokenClassification
        classifier = make.from_config(config, dtype=inner.dtype)
    prefix = classifier.base_model_prefix
    heads = [
        own
        for own, module in classifier.named_modules()
        if isinstance(module, nn.Linear) and not own.startswith(f"{prefix}.") and module.out_features == 1
    ]
    if len(heads) != 1 or prefix != inner.base_model_prefix:
        raise BackendError(f"{name}: its token classifier has no head that is one linear layer")
    tensors = {f"{prefix}.{own}": tensor for own, tensor in merged_weights(body_of(model)).items()}
    tensors[f"{heads[0]}.weight"] = head.weight.detach().to(inner.dtype)
    if classifier.get_submodule(heads[0]).bias is not None:
        tensors[f"{heads[0]}.bias"] = head.bias.detach().to(inner.dtype)
    classifier.save_pretrained(folder, state_dict=tensors)


@torch.no_grad()
def merged_weights(body: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights of a body by the names that they have without LoRA, with its adapters added.

    The body is not changed: merging into it and taking that back would leave rounding errors in what is trained on.
    """
    found: dict[str, torch.Tensor] = {}
    for name, tensor in body.state_dict().items():
        if ".lora_" in name:
            continue
        own = name.replace(".base_layer.", ".")
        if ".base_layer." in name and name.endswith(".weight"):
            layer: Any = body.get_submodule(name.rpartition(".base_layer.")[0])
            tensor = tensor + sum(layer.get_delta_weight(adapter).to(tensor.dtype) for adapter in layer.active_adapters)
        found[own] = tensor.detach()
    return found
