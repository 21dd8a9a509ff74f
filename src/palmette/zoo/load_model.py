"""Loads the model in a folder with its tokenizer, adapter and quantization, or raises one clear error.

Weights are read from safetensors only, and code that comes with a model is never run. On the CPU, weights already in
the wanted dtype are mapped from their file: pages are read when accessed, writes stay private to the process.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from palmette.errors import BackendError, ConfigError
from palmette.units import count_of, describe_error
from palmette.zoo.adapter import load_adapter
from palmette.zoo.catalog import Role
from palmette.zoo.folder import check_weights, read_json
from palmette.zoo.foreign import as_backend_error, quiet
from palmette.zoo.quantize import KINDS, quantize_linear
from palmette.zoo.resolve import check_model_name, fetch, is_hub_id, resolve

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def local_folder(name: str, role: Role, *, by_likelihood: bool = False, weights: bool = True) -> Path:
    """Return the folder of a model, downloaded if need be, without its `weights` if they are not wanted.

    Raises ConfigError where there is no such model.
    """
    check_model_name(name, role, by_likelihood=by_likelihood)
    resolved = resolve(name)
    if is_hub_id(resolved):
        with quiet():
            resolved = fetch(resolved, weights=weights)
    return Path(resolved)


def tokenizer_in(folder: Path, name: str, role: Role) -> "PreTrainedTokenizerBase":
    """Return the tokenizer in a folder. Raises BackendError where there is none, or it cannot be read."""
    from transformers import AutoTokenizer

    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise BackendError(f"{folder} has no tokenizer: copy the tokenizer.json of its base model there")
    with quiet(), as_backend_error(f"cannot load {name} as {role}"):
        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    # Prompts that are too long are refused or left out with a count; transformers would warn of the first one.
    found.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return found


def load_model(
    auto_class: Any,
    name: str,
    folder: Path,
    role: Role,
    adapter: str | None,
    dtype: str,
    quantize: str,
    device: str,
    *,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    give_head: Callable[[Any], None] | None = None,
    without: tuple[str, ...] = (),
    **options: Any,
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Return the model of a folder by a class of transformers, with its tokenizer. Raises as `load_policy` does.

    `give_head` gives the model another head, whose weights begin with one of `without`: they may be missing.
    """
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype '{dtype}' is unknown: use one of {', '.join(_DTYPES)}")
    device = usable_device(device)
    _check_quantize(quantize, device)
    read_json(folder / "config.json")
    check_weights(folder)
    tokenizer = tokenizer or tokenizer_in(folder, name, role)
    with quiet(), as_backend_error(f"cannot load {name} as {role}"):
        model, found = auto_class.from_pretrained(
            folder,
            dtype=_DTYPES[dtype],
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            **options,
        )
        _refuse_random_weights(name, role, sorted(key for key in found["missing_keys"] if not key.startswith(without)))
        rows = model.get_input_embeddings().num_embeddings
        if len(tokenizer) > rows:
            tokens = count_of(len(tokenizer), "token")
            raise BackendError(f"{name} cannot serve as {role}: its tokenizer has {tokens}, the model {rows:,}")
        if give_head is not None:
            give_head(model)
        model = model.to(device)
        if quantize != "none":
            quantize_linear(model, quantize)
        if adapter is not None:
            model = load_adapter(model, adapter, base_names=[name, str(folder)], device=device)
    return model.eval().requires_grad_(False), tokenizer


def _check_quantize(quantize: str, device: str) -> None:
    if quantize not in ("none", *KINDS):
        raise ConfigError(f"quantize '{quantize}' is unknown: use one of none, {', '.join(KINDS)}")
    if quantize != "none" and torch.device(device).type != "cpu":
        raise ConfigError(f"quantize '{quantize}' is for the CPU, not for '{device}': set it to 'none' there")


def _refuse_random_weights(name: str, role: Role, missing: list[str]) -> None:
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        hint = ". To score with a language model: --set reward.score=likelihood" if role == "reward" else ""
        raise BackendError(
            f"{name} cannot serve as {role}: its weights lack {shown}, which would start from random numbers{hint}"
        )


def usable_device(device: str) -> str:
    """Return the device; for `auto` the first CUDA device, or the CPU where there is none.

    Raises ConfigError, before any weight is read, where torch cannot put a tensor there.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        raise ConfigError(f"device '{device}' cannot be used ({describe_error(error)}): use 'cpu'") from error
    return device
