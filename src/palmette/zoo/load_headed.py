"""Loads published reward models: the body by transformers' own code, the head by hand from its safetensors.

Many of them come with code for their head, which is never run.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import nn

from palmette.errors import BackendError
from palmette.zoo.folder import read_header, read_json, weight_files
from palmette.zoo.load import check_causal
from palmette.zoo.load_model import load_model, local_folder, tokenizer_in

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_reward_tokenizer(name: str) -> "PreTrainedTokenizerBase":
    """Return the tokenizer of a reward model; no weight is read. Raises as `load_policy` does."""
    return tokenizer_in(local_folder(name, "reward"), name, "reward")


def is_sequence_classifier(name: str) -> bool:
    """Tell whether a model's config says that its head scores whole sequences. Raises as `load_policy` does."""
    architectures = read_json(local_folder(name, "reward") / "config.json").get("architectures")
    return isinstance(architectures, list) and any("SequenceClassification" in str(each) for each in architectures)


def load_token_reader(
    name: str,
    tokens: Sequence[int],
    *,
    adapter: str | None = None,
    dtype: str = "float32",
    quantize: str = "none",
    device: str = "cpu",
    tokenizer: "PreTrainedTokenizerBase | None" = None,
) -> "PreTrainedModel":
    """Return a causal language model whose only outputs are the logits of these tokens. Otherwise as `load_policy`."""
    from transformers import AutoModelForCausalLM

    def give_head(model: Any) -> None:
        whole = model.get_output_embeddings()
        if max(tokens) >= whole.weight.shape[0]:
            raise BackendError(f"{name} cannot serve as reward: it has no output for token {max(tokens)}")
        head = nn.Linear(whole.weight.shape[1], len(tokens), bias=whole.bias is not None, dtype=whole.weight.dtype)
        with torch.no_grad():
            head.weight.copy_(whole.weight[list(tokens)])
            if whole.bias is not None:
                head.bias.copy_(whole.bias[list(tokens)])
        model.config.tie_word_embeddings = False  # Else the embedding would be tied to this head again.
        model.set_output_embeddings(head)

    folder = local_folder(name, "reward")
    check_causal(name, folder, "reward")
    return load_model(
        AutoModelForCausalLM, name, folder, "reward", adapter, dtype, quantize, device,
        tokenizer=tokenizer, give_head=give_head,
    )[0]  # fmt: skip


def load_headed(
    name: str,
    weights: str,
    outputs: int,
    *,
    adapter: str | None = None,
    dtype: str = "float32",
    quantize: str = "none",
    device: str = "cpu",
    tokenizer: "PreTrainedTokenizerBase | None" = None,
) -> "PreTrainedModel":
    """Return a model with so many outputs for each token, by the head whose tensors' names begin with `weights`.

    The head is one linear layer, `WEIGHTS.weight`, or two with a ReLU between, `WEIGHTS.0` and `WEIGHTS.2`. Raises
    BackendError for a model without such a head, otherwise as `load_policy` does.
    """
    from transformers import AutoModelForTokenClassification

    folder = local_folder(name, "reward")
    layers = _layers(folder, name, weights, outputs)

    def give_head(model: Any) -> None:
        linear = [_linear(folder, layer, model.dtype) for layer in layers]
        head = linear[0] if len(linear) == 1 else nn.Sequential(linear[0], nn.ReLU(), linear[1])
        if linear[0].in_features != model.config.get_text_config().hidden_size:
            raise BackendError(f"{name} cannot serve as reward: {weights} does not fit the size of its hidden states")
        model.score = head

    return load_model(
        AutoModelForTokenClassification, name, folder, "reward", adapter, dtype, quantize, device,
        tokenizer=tokenizer, give_head=give_head, without=("score.",), num_labels=outputs,
    )[0]  # fmt: skip


def _layers(folder: Path, name: str, weights: str, outputs: int) -> list[str]:
    """Return the names of the head's linear layers, first to last. Raises BackendError where there is no such head."""
    shapes = {key: shape for path in weight_files(folder) for key, shape in read_header(path).shapes.items()}
    for layers in ([weights], [f"{weights}.0", f"{weights}.2"]):
        found = [shapes.get(f"{layer}.weight") for layer in layers]
        if all(shape is not None and len(shape) == 2 for shape in found):
            assert found[-1] is not None
            if found[-1][0] != outputs:
                raise BackendError(
                    f"{name} cannot serve as reward: its head {weights} gives {found[-1][0]} numbers per token, "
                    f"the profile reads {outputs}"
                )
            return layers
    raise BackendError(
        f"{name} cannot serve as reward: its weights have no {weights}.weight and no {weights}.0.weight with "
        f"{weights}.2.weight, where the profile reads its head"
    )


def _linear(folder: Path, layer: str, dtype: torch.dtype) -> nn.Linear:
    weight, bias = _tensor(folder, f"{layer}.weight"), _tensor(folder, f"{layer}.bias")
    assert weight is not None
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=dtype)
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
    return linear


def _tensor(folder: Path, name: str) -> torch.Tensor | None:
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            if name in file.keys():  # noqa: SIM118 - it is no dict
                tensor: torch.Tensor = file.get_tensor(name)
                return tensor
    return None
