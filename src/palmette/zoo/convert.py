"""Converts a GGUF file to a transformers folder with safetensors."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import copy
import errno
import os
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from tokenizers import pre_tokenizers

from palmette.errors import BackendError
from palmette.zoo.catalog import Entry
from palmette.zoo.foreign import as_backend_error, quiet

_END_OF_TURN = "<|im_end|>"
_PROBE = f"<|im_start|>user\nIs 12 + 30 = 42?\n\n1.  na\u00efve \u6f22\u5b57{_END_OF_TURN}"


def convert(entry: Entry, gguf: Path, folder: Path) -> None:
    """Write weights and tokenizer into `folder`. Holds about 1.2 GiB at its peak for 135 M parameters.

    Raises BackendError where this release of transformers reads the GGUF differently from the one tested, OSError
    where the folder cannot be written.
    """
    # The dequantizing loop draws a progress bar that no setting of transformers disables: stderr is discarded.
    with quiet(), open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        with as_backend_error(f"cannot read {gguf}"):
            model, tokenizer = _read(gguf)
        _check(entry, model, tokenizer)
        try:
            _without_gguf_config(model).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        except SafetensorError as error:
            # safetensors has the errno only in its message; for an OSError the cache gives advice.
            raise OSError(errno.ENOSPC if "os error 28" in str(error) else errno.EIO, str(error)) from error


def _read(gguf: Path) -> tuple[Any, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    gguf_config = getattr(transformers, "GgufConfig", None)
    # Releases that can compute with GGUF blocks keep them unless told to dequantize; earlier ones lack the setting.
    dense = {"quantization_config": gguf_config(dequantize=True)} if gguf_config is not None else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, **dense
    )
    _split_digits(tokenizer, model.config.max_position_embeddings)
    return model, tokenizer


def _without_gguf_config(model: Any) -> Any:
    """Return a model with the same weights whose config does not mention GGUF: otherwise it cannot be saved."""
    config = copy.deepcopy(model.config)
    for attribute in ("quantization_config", "_model_name_or_path"):
        if hasattr(config, attribute):
            delattr(config, attribute)
    with torch.device("meta"):  # The weights are assigned below, not copied.
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain


def _split_digits(tokenizer: Any, context_tokens: int) -> None:
    """Let the tokenizer split numbers into digits before anything else, as SmolLM2 was trained.

    transformers ignores the GGUF's `tokenizer.ggml.pre = smollm`. Without it a blank line before a digit, as in every
    numbered list, becomes two tokens instead of one.
    """
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = context_tokens


def _check(entry: Entry, model: Any, tokenizer: Any) -> None:
    """Raise BackendError where this release of transformers reads the GGUF differently from the one tested."""
    faults = []
    if sum(tensor.numel() for tensor in model.parameters()) != entry.parameters:
        faults.append("the parameter count")
    if {tensor.dtype for tensor in model.parameters()} != {torch.float32}:
        faults.append("the float32 weights")
    if model.get_input_embeddings().weight is not model.get_output_embeddings().weight:
        faults.append("the tied embedding")
    if tokenizer.eos_token != _END_OF_TURN or not tokenizer.chat_template:
        faults.append("the chat template")
    if tokenizer.decode(tokenizer.encode(_PROBE)) != _PROBE:
        faults.append("the tokenizer")
    if faults:
        lost = ", ".join(faults)
        raise BackendError(
            f"transformers {transformers.__version__} loses {lost} of {entry.name}; 5.19.0 is known to work"
        )
