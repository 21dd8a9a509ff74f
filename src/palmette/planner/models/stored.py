"""How quantized checkpoints store their matrices, by `quantization_config`: AWQ, GPTQ, FP8, MXFP4, packed integers."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palmette.errors import BackendError

_HALF_BYTES = 2


@dataclass(frozen=True)
class Stored:
    """A quantized checkpoint: so many bits a weight, and scales for groups of inputs or for blocks."""

    method: str
    bits: int
    group: int
    """Inputs that share a scale; 0 for all of an output's."""
    zeros: bool = False
    """Whether each group also has a zero point of `bits`."""
    index: bool = False
    """Whether each input has the number of its group, in 32 bits (GPTQ)."""
    block: tuple[int, int] | None = None
    """Outputs and inputs of a block with one float32 scale (FP8)."""
    scale_bytes: int = _HALF_BYTES
    skipped: tuple[str, ...] = ()
    """Parts of names that are not quantized."""
    experts_only: bool = False

    def includes(self, name: str, *, is_expert: bool) -> bool:
        """Return whether a linear layer of this name is quantized; `{}` is in the place of its layer's number."""
        if self.experts_only and not is_expert:
            return False
        return not any(_matches(part, name) for part in self.skipped)

    def matrix_bytes(self, inputs: int, outputs: int) -> int:
        """Return the bytes of one matrix with its scales, zero points and indices."""
        size = math.ceil(inputs * outputs * self.bits / 8)
        if self.block is not None:
            return size + math.ceil(outputs / self.block[0]) * math.ceil(inputs / self.block[1]) * 4
        groups = math.ceil(inputs / self.group) if self.group else 1
        size += groups * outputs * self.scale_bytes
        size += math.ceil(groups * outputs * self.bits / 8) if self.zeros else 0
        return size + (4 * inputs if self.index else 0)


def _matches(part: str, name: str) -> bool:
    """Return whether a name that a config leaves out means this layer, or the same one in some layer."""
    if part.startswith("re:"):
        return re.match(part[3:], name.replace("{}", "0")) is not None
    return re.sub(r"\.\d+(?=\.|$)", ".{}", part).strip("*.") in name


def read_stored(values: Mapping[str, Any]) -> Stored | None:
    """Return how a checkpoint is quantized, None where it is not. Raises BackendError for a method that is not known.

    bitsandbytes quantizes when a model is loaded: 4 bits with a float32 scale for 64 weights, or 8 bits.
    """
    config = values.get("quantization_config")
    if not isinstance(config, Mapping):
        return None
    method = str(config.get("quant_method", "")).lower()
    skipped = tuple(config.get("modules_to_not_convert") or config.get("ignored_layers") or config.get("ignore") or ())
    if method in ("awq", "gptq"):
        group = max(0, int(config.get("group_size", 128)))
        bits = int(config.get("bits") or config.get("w_bit") or 4)
        return Stored(method, bits, group, zeros=True, index=method == "gptq", skipped=skipped)
    if method == "fp8":
        block = config.get("weight_block_size")
        shared = (int(block[0]), int(block[1])) if block else None
        return Stored(method, 8, 0, block=shared, scale_bytes=4, skipped=skipped)
    if method == "mxfp4":
        return Stored(method, 4, 32, scale_bytes=1, skipped=skipped, experts_only=True)
    if method == "compressed-tensors":
        weights = next(iter(config["config_groups"].values()))["weights"]
        group = int(weights.get("group_size") or 0) if weights.get("strategy") in ("group", "tensor_group") else 0
        return Stored(method, int(weights["num_bits"]), max(0, group), zeros=not weights.get("symmetric", True),
                      skipped=skipped)  # fmt: skip
    if method == "bitsandbytes":
        if config.get("load_in_8bit") or config.get("_load_in_8bit"):
            return Stored(method, 8, 0, scale_bytes=4, skipped=skipped)
        return Stored(method, 4, 64, scale_bytes=4, skipped=skipped)
    raise BackendError(
        f"its quantization_config has the method {method!r}, and sizes are known for awq, gptq, fp8, mxfp4, "
        f"compressed-tensors and bitsandbytes"
    )
