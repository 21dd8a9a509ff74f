"""Counts a model that no formula describes: transformers builds it without weights, in a process of its own.

`python -m palmette.planner.models.on_meta` reads the values of a config.json and writes what it counted as JSON.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from palmette.errors import BackendError
from palmette.planner.models.shape import Linear, ModelShape, dtype_of
from palmette.planner.models.stored import read_stored
from palmette.planner.models.tensors import KvLayers

COUNTED = "built by transformers on the meta device"
_MOST_SECONDS = 600


def count_on_meta(name: str, values: Mapping[str, Any]) -> ModelShape:
    """Return the shape of a model that transformers can build; takes some 10 seconds and no memory for its weights.

    Raises BackendError where transformers cannot build it either.
    """
    try:
        found = json.loads(_counted(json.dumps(values)))
    except ValueError as error:
        raise BackendError(
            f"the memory of {name} cannot be planned: there is no formula for its model_type "
            f"{values.get('model_type')!r}, and transformers cannot build it here: {error}"
        ) from error
    return ModelShape(
        name=name,
        dtype=dtype_of(values),
        parts=found.pop("parts"),
        kv=tuple(KvLayers(*own) for own in found.pop("kv")),
        linear=tuple(Linear(*own) for own in found.pop("linear")),
        stored=read_stored(values),
        counted=COUNTED,
        **found,
    )


@cache
def _counted(text: str) -> str:
    """Return what the other process wrote. Raises ValueError with its last words where it failed."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "palmette.planner.models.on_meta"],
            input=text, capture_output=True, text=True, check=False, timeout=_MOST_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(str(error)) from error
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or ["it ended without a word"])[-1][:300])
    return done.stdout


def _count(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a shape, counted on a model without weights and on the KV cache of one of its tokens."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    values = dict(values)
    values.pop("quantization_config", None)  # Weights are counted as numbers first.
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    text = config.get_text_config()
    builder: Any = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    with torch.device("meta"):
        model = builder.from_config(config, dtype=torch.bfloat16)
    parts, linear = {"embedding": 0, "attention": 0, "mlp": 0, "norms": 0, "head": 0, "vision": 0}, []
    head = model.get_output_embeddings()
    ids = {id(weight): "head" for weight in (head.parameters() if head is not None else ())}
    ids |= {id(weight): "embedding" for weight in model.get_input_embeddings().parameters()}
    for name, weight in model.named_parameters():
        part = ids.get(id(weight)) or _part(name)
        parts[part] += weight.numel()
        if part in ("attention", "mlp") and weight.dim() in (2, 3) and not name.endswith("bias"):
            *experts, outputs, inputs = weight.shape
            linear.append((name.removesuffix(".weight"), 1, inputs, outputs, experts[0] if experts else 0))
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        for tensors in (model._parameters, *(module._parameters for module in model.modules())):
            for key, weight in tensors.items():
                if weight is not None:
                    tensors[key] = torch.nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype), False)
        for module in model.modules():
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[key] = torch.zeros(buffer.shape, dtype=buffer.dtype)
        cache = model(torch.ones(1, 1, dtype=torch.long), use_cache=True).past_key_values
    kv = [
        (1, layer.keys.numel() + layer.values.numel(), getattr(layer, "sliding_window", None))
        for layer in cache.layers
        if getattr(layer, "keys", None) is not None
    ]
    if not kv:
        raise ValueError(f"a {config.model_type} has no KV cache of keys and values")
    heads = int(text.num_attention_heads)
    return {
        "family": config.model_type,
        "layers": int(text.num_hidden_layers),
        "hidden": int(text.hidden_size),
        "heads": heads,
        "kv_heads": int(getattr(text, "num_key_value_heads", None) or heads),
        "head_width": int(getattr(text, "head_dim", None) or text.hidden_size // heads),
        "intermediate": _widest(linear, int(text.hidden_size), text),
        "vocabulary": int(text.vocab_size),
        "positions": getattr(text, "max_position_embeddings", None),
        "tied": parts["head"] == 0,
        "outputs": int(text.vocab_size),
        "parts": {kind: count for kind, count in parts.items() if count},
        "kv": kv,
        "linear": linear,
    }


def _part(name: str) -> str:
    if any(word in name for word in ("vision", "visual", "image", "multi_modal", "audio")):
        return "vision"
    if "norm" in name or ".ln" in name:
        return "norms"
    return "attention" if "attn" in name or "attention" in name else "mlp"


def _widest(linear: list[tuple[str, int, int, int, int]], hidden: int, text: Any) -> int:
    """Return the width of the feed-forward that a token passes; of experts, as many as it is sent to."""
    active = int(getattr(text, "num_experts_per_tok", None) or 1)
    dense = [outputs for name, _, inputs, outputs, experts in linear if not experts and "mlp" in name]
    sparse = [outputs // 2 * active for _, _, inputs, outputs, experts in linear if experts and inputs == hidden]
    return max([*dense, *sparse, int(getattr(text, "intermediate_size", None) or hidden)])


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    print(json.dumps(_count(json.load(sys.stdin))))
