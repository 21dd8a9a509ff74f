"""An adapter as the zoo ships it: in bfloat16, with the config of the model that it makes of its base."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from palmette.zoo.graft import HEAD
from palmette.zoo.load import load_tokenizer


def ship(adapter: Path, base: str, folder: Path, classifier: Path | None = None) -> None:
    """Write the adapter of a policy; with the folder of a classifier, that of a reward model with its head."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = load_file(adapter / "adapter_model.safetensors")
    if classifier is None:
        config: dict[str, Any] = load_tokenizer(base)[1].to_dict()
    else:
        config = json.loads((classifier / "config.json").read_text())
        stored = load_file(classifier / "model.safetensors")
        tensors |= {name: tensor for name, tensor in stored.items() if name.startswith(HEAD)}
    small = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(small, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config.pop("_name_or_path", None)  # A folder of this machine.
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    settings = json.loads((adapter / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = base
    settings["target_modules"] = sorted(settings["target_modules"])  # PEFT writes a set, in any order.
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
