"""Loads models by name for each role: policy, reward model, embedder."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.errors import BackendError, ConfigError
from palmette.zoo.catalog import Role
from palmette.zoo.folder import check_weights, read_header, read_json, weight_files
from palmette.zoo.foreign import as_backend_error, quiet
from palmette.zoo.load_model import load_model, local_folder, tokenizer_in, usable_device

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_STORED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
# These heads generate no text. As a tied output layer needs no weights, their models would load as policies unnoticed.
_OTHER_HEADS = ("Classification", "QuestionAnswering")


def load_policy(
    name: str, *, adapter: str | None = None, dtype: str = "float32", quantize: str = "none", device: str = "cpu"
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Return a causal language model in eval mode without gradients, with its tokenizer.

    `quantize` stores linear layers in fewer bits, see `zoo.quantize`. Raises ConfigError where a setting is wrong,
    BackendError where the weights are damaged, pickled or incomplete.
    """
    return _load_causal(name, local_folder(name, "policy"), "policy", adapter, dtype, quantize, device)


def load_tokenizer(name: str) -> "tuple[PreTrainedTokenizerBase, PretrainedConfig]":
    """Return the tokenizer of a policy and the config of its model; no weight is read. Raises as `load_policy` does."""
    from transformers import AutoConfig

    folder = local_folder(name, "policy")
    read_json(folder / "config.json")
    tokenizer = tokenizer_in(folder, name, "policy")
    with quiet(), as_backend_error(f"cannot load {name} as policy"):
        return tokenizer, AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def load_tokenizer_of_served(name: str) -> "tuple[PreTrainedTokenizerBase, Any, Path]":
    """Return what is needed of a policy whose weights a server has: tokenizer, `eos_token_id`, local folder.

    The generation config names the end tokens where there is one, else the model's config. No weight is read or
    downloaded. Raises as `load_policy` does.
    """
    folder = local_folder(name, "policy", weights=False)
    config = read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    end_tokens = (read_json(generation) if generation.is_file() else config).get("eos_token_id")
    return tokenizer_in(folder, name, "policy"), end_tokens, folder


def load_tokenizer_of_reward(name: str, *, by_likelihood: bool) -> "tuple[PreTrainedTokenizerBase, Path]":
    """Return tokenizer and local folder of a reward model whose weights a server has. No weight is read or downloaded.

    Raises as `load_policy` does.
    """
    folder = local_folder(name, "reward", by_likelihood=by_likelihood, weights=False)
    return tokenizer_in(folder, name, "reward"), folder


def stored_dtypes(name: str) -> set[str]:
    """Return the dtypes in which a policy's files hold its weights, such as `float32`. Raises as `load_policy` does."""
    headers = [read_header(path) for path in weight_files(local_folder(name, "policy"))]
    return {_STORED.get(dtype, dtype) for header in headers for dtype in header.dtypes.values() if "F" in dtype}


def load_likelihood_model(
    name: str, *, adapter: str | None = None, dtype: str = "float32", quantize: str = "none", device: str = "cpu"
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Return a causal language model that scores steps by their likelihood; any policy can. As `load_policy`."""
    folder = local_folder(name, "reward", by_likelihood=True)
    return _load_causal(name, folder, "reward", adapter, dtype, quantize, device)


def _load_causal(
    name: str, folder: Path, role: Role, adapter: str | None, dtype: str, quantize: str, device: str
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    from transformers import AutoModelForCausalLM

    check_causal(name, folder, role)
    return load_model(AutoModelForCausalLM, name, folder, role, adapter, dtype, quantize, device)


def check_causal(name: str, folder: Path, role: Role) -> None:
    """Raise BackendError for a folder whose model has a head that generates no text."""
    architectures = read_json(folder / "config.json").get("architectures") or []
    if not isinstance(architectures, list):
        raise BackendError(f"{folder / 'config.json'} is damaged: architectures is no list. Download or copy it again")
    if any(part in str(architecture) for architecture in architectures for part in _OTHER_HEADS):
        hint = "" if role == "policy" else ": set reward.score to head"
        raise BackendError(f"{name} cannot serve as {role}: it is a {architectures[0]}, which generates no text{hint}")


def load_reward(
    name: str, *, adapter: str | None = None, dtype: str = "float32", quantize: str = "none", device: str = "cpu"
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Return a token classifier with one label, which is the score of a token; otherwise as `load_policy`."""
    from transformers import AutoModelForTokenClassification

    folder = local_folder(name, "reward")
    model, tokenizer = load_model(
        AutoModelForTokenClassification, name, folder, "reward", adapter, dtype, quantize, device
    )
    if model.config.num_labels != 1:
        hint = ". A model of TRL's PRMTrainer: --set reward.profile=trl" if model.config.num_labels == 2 else ""
        raise BackendError(
            f"{name} cannot serve as reward: it gives {model.config.num_labels} labels per token, not 1{hint}"
        )
    return model, tokenizer


def load_embedder(name: str, device: str = "cpu") -> "SentenceTransformer":
    """Return a sentence-transformers model in eval mode without gradients. Raises as `load_policy` does."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise BackendError(f"{name} needs sentence-transformers: pip install 'palmette[embed]'") from error
    folder = local_folder(name, "embedder")
    if not (folder / "modules.json").is_file():
        raise ConfigError(f"{folder} is no sentence-transformers folder: it has no modules.json")
    for config in sorted(folder.rglob("config.json")):
        if config.parent == folder or any(config.parent.glob("*.bin")) or any(config.parent.glob("*.safetensors")):
            check_weights(config.parent)
    device = usable_device(device)
    with quiet(), as_backend_error(f"cannot load {name} as embedder"):
        embedder = SentenceTransformer(
            str(folder),
            device=device,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True},
        )
    return embedder.eval().requires_grad_(False)
