"""Checks on a local model folder and its safetensors headers, before a model library reads them."""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palmette.errors import BackendError, ConfigError

# The safetensors library refuses longer headers, too; 100 MB describe about a million tensors.
_LONGEST_HEADER_BYTES = 100_000_000
_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """The header of a safetensors file: shape and dtype of each tensor, by name."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]

    @property
    def parameters(self) -> int:
        """The count of floating-point numbers. Integer tensors are indices or masks; tied weights are stored once."""
        return sum(math.prod(shape) for name, shape in self.shapes.items() if "F" in self.dtypes[name])


def read_header(path: Path) -> Header:
    """Return the header of a file. Raises BackendError where the file is missing, truncated or damaged."""
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            length_bytes = int.from_bytes(file.read(8), "little")
            if file_bytes < 8 or length_bytes > min(_LONGEST_HEADER_BYTES, file_bytes - 8):
                raise _damaged(path, f"header says {8 + length_bytes:,} bytes or more, the file has {file_bytes:,}")
            text = file.read(length_bytes)
    except (OSError, ValueError) as error:
        raise BackendError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        header, data_bytes = _parse(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"its header cannot be read ({error})") from error
    expected_bytes = 8 + length_bytes + data_bytes
    if expected_bytes != file_bytes:
        raise _damaged(path, f"header says {expected_bytes:,} bytes, the file has {file_bytes:,}")
    return header


def _parse(text: bytes) -> tuple[Header, int]:
    """Return the header and the bytes of all tensors. Raises on gaps, overlaps, and sizes that contradict a shape."""
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
    return BackendError(f"{path.parent.name}/{path.name} is damaged: {why}. Download or copy {path} again")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file. Raises ConfigError if the file is missing, BackendError if it is damaged."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(f"{path.parent} is no model folder: it has no {path.name}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BackendError(f"{path} is damaged: {error}. Download or copy it again") from error
    if not isinstance(content, dict):
        raise BackendError(f"{path} is damaged: it holds no JSON object. Download or copy it again")
    return content


def check_weights(folder: Path, stem: str = "model") -> None:
    """Raise BackendError unless the folder's weights are undamaged safetensors, in one file or in shards."""
    for path in weight_files(folder, stem):
        read_header(path)


def weight_files(folder: Path, stem: str = "model") -> list[Path]:
    """Return the safetensors file of the folder's weights, or its shards. Raises BackendError where there is none."""
    single = folder / f"{stem}.safetensors"
    index = folder / f"{stem}.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise BackendError(f"{index} is damaged: it has no weight_map. Download or copy it again")
        return [folder / shard for shard in sorted({str(name) for name in weight_map.values()})]
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    found = f"only {pickles[0]}, a pickle, which may run code when read" if pickles else "none"
    raise BackendError(
        f"{folder} needs weights in {single.name}, it has {found}. "
        f"Save the model again with save_pretrained, which writes safetensors"
    )


def adapter_rank(adapter: str) -> int | None:
    """Return the rank of a LoRA adapter, None for one that is of another kind or not there."""
    path = Path(adapter).expanduser() / "adapter_config.json"
    rank = read_json(path).get("r") if path.is_file() else None
    return rank if isinstance(rank, int) else None


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
