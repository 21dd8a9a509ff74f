"""Loads models by name, with tokenizer, adapter and quantization, or raises one clear error.

Weights are read from safetensors only, and code that comes with a model is never run. On the CPU, weights already in
the wanted dtype are mapped from their file: pages are read when accessed, writes stay private to the process.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from palmette.errors import BackendError, ConfigError
from palmette.units import count_of, describe_error
from palmette.zoo.adapter import load_adapter
from palmette.zoo.catalog import Role
from palmette.zoo.folder import check_weights, read_header, read_json, weight_files
from palmette.zoo.foreign import as_backend_error, quiet
from palmette.zoo.quantize import KINDS, quantize_linear
from palmette.zoo.resolve import check_model_name, fetch, is_hub_id, resolve

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_STORED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
# These heads generate no text. As a tied output layer needs no weights, their models would load as policies unnoticed.
_OTHER_HEADS = ("Classification", "QuestionAnswering")


def load_policy(
    name: str, *, adapter: str | None = None, dtype: str = "float32", quantize: str = "none", device: str = "cpu"
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Return a causal language model in eval mode without gradients, with its tokenizer.

    `quantize` stores linear layers in fewer bits, see `zoo.quantize`. Raises ConfigError where a setting is wrong,
    BackendError where the weights are damaged, pickled or incomplete.
    """
    return _load_causal(name, _local_folder(name, "policy"), "policy", adapter, dtype, quantize, device)


def load_tokenizer(name: str) -> "tuple[PreTrainedTokenizerBase, PretrainedConfig]":
    """Return the tokenizer of a policy and the config of its model; no weight is read. Raises as `load_policy` does."""
    from transformers import AutoConfig

    folder = _local_folder(name, "policy")
    read_json(folder / "config.json")
    tokenizer = _tokenizer_in(folder, name, "policy")
    with quiet(), as_backend_error(f"cannot load {name} as policy"):
        return tokenizer, AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def load_tokenizer_of_served(name: str) -> "tuple[PreTrainedTokenizerBase, Any, Path]":
    """Return what is needed of a policy whose weights a server has: tokenizer, `eos_token_id`, local folder.

    The generation config names the end tokens where there is one, else the model's config. No weight is read or
    downloaded. Raises as `load_policy` does.
    """
    folder = _local_folder(name, "policy", weights=False)
    config = read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    end_tokens = (read_json(generation) if generation.is_file() else config).get("eos_token_id")
    return _tokenizer_in(folder, name, "policy"), end_tokens, folder


def stored_dtypes(name: str) -> set[str]:
    """Return the dtypes in which a policy's files hold its weights, such as `float32`. Raises as `load_policy` does."""
    headers = [read_header(path) for path in weight_files(_local_folder(name, "policy"))]
    return {_STORED.get(dtype, dtype) for header in headers for dtype in header.dtypes.values() if "F" in dtype}


def _tokenizer_in(folder: Path, name: str, role: Role) -> "PreTrainedTokenizerBase":
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


def load_likelihood_model(
    name: str, *, adapter: str | None = None, dtype: str = "float32", quantize: str = "none", device: str = "cpu"
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Return a causal language model that scores steps by their likelihood; any policy can. As `load_policy`."""
    folder = _local_folder(name, "reward", by_likelihood=True)
    return _load_causal(name, folder, "reward", adapter, dtype, quantize, device)


def _load_causal(
    name: str, folder: Path, role: Role, adapter: str | None, dtype: str, quantize: str, device: str
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    from transformers import AutoModelForCausalLM

    architectures = read_json(folder / "config.json").get("architectures") or []
    if not isinstance(architectures, list):
        raise BackendError(f"{folder / 'config.json'} is damaged: architectures is no list. Download or copy it again")
    if any(part in str(architecture) for architecture in architectures for part in _OTHER_HEADS):
        hint = "" if role == "policy" else ": set reward.score to head"
        raise BackendError(f"{name} cannot serve as {role}: it is a {architectures[0]}, which generates no text{hint}")
    return _load(AutoModelForCausalLM, name, folder, role, adapter, dtype, quantize, device)


def load_reward(
    name: str, *, adapter: str | None = None, dtype: str = "float32", quantize: str = "none", device: str = "cpu"
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Return a token classifier with one label, which is the score of a token; otherwise as `load_policy`."""
    from transformers import AutoModelForTokenClassification

    folder = _local_folder(name, "reward")
    model, tokenizer = _load(AutoModelForTokenClassification, name, folder, "reward", adapter, dtype, quantize, device)
    if model.config.num_labels != 1:
        raise BackendError(f"{name} cannot serve as reward: it gives {model.config.num_labels} labels per token, not 1")
    return model, tokenizer


def load_embedder(name: str, device: str = "cpu") -> "SentenceTransformer":
    """Return a sentence-transformers model in eval mode without gradients. Raises as `load_policy` does."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise BackendError(f"{name} needs sentence-transformers: pip install 'palmette[embed]'") from error
    folder = _local_folder(name, "embedder")
    if not (folder / "modules.json").is_file():
        raise ConfigError(f"{folder} is no sentence-transformers folder: it has no modules.json")
    for config in sorted(folder.rglob("config.json")):
        if config.parent == folder or any(config.parent.glob("*.bin")) or any(config.parent.glob("*.safetensors")):
            check_weights(config.parent)
    device = _usable_device(device)
    with quiet(), as_backend_error(f"cannot load {name} as embedder"):
        embedder = SentenceTransformer(
            str(folder),
            device=device,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True},
        )
    return embedder.eval().requires_grad_(False)


def _local_folder(name: str, role: Role, *, by_likelihood: bool = False, weights: bool = True) -> Path:
    check_model_name(name, role, by_likelihood=by_likelihood)
    resolved = resolve(name)
    if is_hub_id(resolved):
        with quiet():
            resolved = fetch(resolved, weights=weights)
    return Path(resolved)


def _load(
    auto_class: Any, name: str, folder: Path, role: Role, adapter: str | None, dtype: str, quantize: str, device: str
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype '{dtype}' is unknown: use one of {', '.join(_DTYPES)}")
    device = _usable_device(device)
    _check_quantize(quantize, device)
    read_json(folder / "config.json")
    check_weights(folder)
    tokenizer = _tokenizer_in(folder, name, role)
    with quiet(), as_backend_error(f"cannot load {name} as {role}"):
        model, found = auto_class.from_pretrained(
            folder,
            dtype=_DTYPES[dtype],
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
        _refuse_random_weights(name, role, sorted(found["missing_keys"]))
        rows = model.get_input_embeddings().num_embeddings
        if len(tokenizer) > rows:
            tokens = count_of(len(tokenizer), "token")
            raise BackendError(f"{name} cannot serve as {role}: its tokenizer has {tokens}, the model {rows:,}")
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


def _usable_device(device: str) -> str:
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
