"""Checks on a local model folder and its safetensors headers, before a model library reads them."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palmette.errors import BackendError, ConfigError

# The library that writes these files refuses longer headers too; 100 MB name about a million tensors.
_LONGEST_HEADER_BYTES = 100_000_000
_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What a whole safetensors file says of itself: tensor shapes by name, with their types."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]

    @property
    def parameters(self) -> int:
        """Count floating-point numbers. Integer tensors are indices or masks; tied weights are stored once."""
        return sum(math.prod(shape) for name, shape in self.shapes.items() if "F" in self.dtypes[name])


def read_header(path: Path) -> Header:
    """Return the header of a whole file; raise BackendError when the file is missing, cut short or garbled."""
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            length_bytes = int.from_bytes(file.read(8), "little")
            if file_bytes < 8 or length_bytes > min(_LONGEST_HEADER_BYTES, file_bytes - 8):
                raise _damaged(path, f"header says {length_bytes:,} bytes, the file has {file_bytes:,}")
            text = file.read(length_bytes)
    except (OSError, ValueError) as error:
        raise BackendError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        header, data_bytes = _parse(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"its header is garbled ({error})") from error
    promised_bytes = 8 + length_bytes + data_bytes
    if promised_bytes != file_bytes:
        raise _damaged(path, f"header says {promised_bytes:,} bytes, the file has {file_bytes:,}")
    return header


def _parse(text: bytes) -> tuple[Header, int]:
    """Return the header with the bytes its tensors fill; raise on gaps, overlaps or sizes that contradict a shape."""
    tensors: dict[str, dict[str, Any]] = json.loads(text)
    tensors.pop("__metadata__", None)
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        start, stop = tensor["data_offsets"]
        bits = _BITS.get(tensor["dtype"])
        if start != end or stop < start:
            raise ValueError(f"{name} starts at {start}, not at {end}")
        if bits is not None and math.prod(tensor["shape"]) * bits != (stop - start) * 8:
            raise ValueError(f"{name} of shape {tensor['shape']} cannot fill {stop - start} bytes")
        end = stop
    shapes = {name: tuple(tensor["shape"]) for name, tensor in tensors.items()}
    return Header(shapes, {name: tensor["dtype"] for name, tensor in tensors.items()}), end


def _damaged(path: Path, why: str) -> BackendError:
    return BackendError(f"{path.parent.name}/{path.name} is damaged: {why}. Restore {path} from where it came")


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; raise ConfigError when the file is missing, BackendError when it is garbled."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(f"{path.parent} is no model folder: it has no {path.name}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BackendError(f"{path} is damaged: {error}. Restore it from where it came") from error
    if not isinstance(content, dict):
        raise BackendError(f"{path} is damaged: it holds no JSON object. Restore it from where it came")
    return content


def check_weights(folder: Path, stem: str = "model") -> None:
    """Return when the folder's weights are whole safetensors, in one file or in shards; raise BackendError if not."""
    for path in weight_files(folder, stem):
        read_header(path)


def weight_files(folder: Path, stem: str = "model") -> list[Path]:
    """Return the safetensors file that holds the folder's weights, or its shards; raise BackendError without any."""
    single = folder / f"{stem}.safetensors"
    index = folder / f"{stem}.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        placed = read_json(index).get("weight_map")
        if not isinstance(placed, dict):
            raise BackendError(f"{index} is damaged: it has no weight_map. Restore it from where it came")
        return [folder / shard for shard in sorted({str(name) for name in placed.values()})]
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    found = f"only {pickles[0]}, a pickle, which may run code when read" if pickles else "none"
    raise BackendError(
        f"{folder} needs weights in {single.name}, it has {found}. "
        f"Save the model again with save_pretrained, which writes safetensors"
    )
