"""Merges a LoRA adapter into the weights of its base: a folder in transformers format, in bfloat16."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from palmette.errors import BackendError
from palmette.zoo.folder import read_json, weight_files

HEAD = "score."
"""How the tensors of a reward model's head begin, which an adapter's file may hold too."""

_PLAIN = {"peft_type": "LORA", "use_dora": False, "use_rslora": False, "bias": "none", "fan_in_fan_out": False}


def graft(adapter: Path, base: Path, folder: Path) -> None:
    """Write the base with the adapter added, the config of the adapter's folder and the tokenizer of the base.

    Raises BackendError for an adapter that is no plain LoRA, or whose tensors the base does not have.
    """
    settings = read_json(adapter / "adapter_config.json")
    other = [f"{key} {settings[key]!r}" for key, value in _PLAIN.items() if settings.get(key, value) != value]
    if other:
        raise BackendError(f"{adapter} cannot be merged: it is no plain LoRA ({', '.join(other)})")
    scale = settings["lora_alpha"] / settings["r"]
    weights = {name: tensor for path in weight_files(base) for name, tensor in load_file(path).items()}
    given = load_file(adapter / "adapter_model.safetensors")
    heads = {name: tensor for name, tensor in given.items() if name.startswith(HEAD)}
    for name in sorted(given.keys() - heads.keys()):
        if name.endswith(".lora_B.weight"):
            continue
        target = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight") + ".weight"
        upper = given.get(name.replace(".lora_A.", ".lora_B."))
        if not name.endswith(".lora_A.weight") or upper is None or target not in weights:
            raise BackendError(f"{adapter} cannot be merged: {name} does not fit {base}")
        weights[target] = weights[target].float() + scale * (upper.float() @ given[name].float())
    config = read_json(adapter / "config.json")
    if heads:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("lm_head.")} | heads
    # Tensors that were made by operations are contiguous; those of a file may share memory with it.
    merged = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    save_file(merged, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}, indent=2) + "\n", encoding="utf-8")
    for pattern in ("tokenizer*", "*.jinja", "special_tokens_map.json"):
        for path in base.glob(pattern):
            shutil.copyfile(path, folder / path.name)
