"""Tensors of a checkpoint in files of several ranks, by torch.distributed.checkpoint as safetensors; never a pickle.

They can be read by any number of ranks, and by one process without any.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from palmette.errors import RunError
from palmette.units import describe_error

FOLDER = "shards"
"""The folder of a checkpoint that holds them."""


def write_shards(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors, DTensors or the same on all ranks. All ranks have to call it; folder is one that they share."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    save(_with_a_dimension(tensors), storage_writer=writer)


def read_shards(folder: Path, into: Mapping[str, torch.Tensor]) -> None:
    """Overwrite tensors by those that were saved under their names. All ranks have to call it.

    Raises RunError where names or shapes are not those of the files.
    """
    reader = HuggingFaceStorageReader(str(folder))
    sizes = {name: saved.size for name, saved in _saved(reader).items()}
    wanted = _with_a_dimension(into)
    for name in sorted(wanted.keys() ^ sizes.keys()):
        problem = "missing" if name in wanted else "not known here"
        raise RunError(f"{folder}: of another model, or of another way to train it: {name} is {problem}")
    for name, tensor in wanted.items():
        if tensor.shape != sizes[name]:
            raise RunError(f"{folder}: of another model: {name} is {list(sizes[name])}, not {list(tensor.shape)}")
    try:
        load(wanted, storage_reader=reader)
    except CheckpointException as error:
        raise RunError(f"{folder}: cannot be read: {describe_error(error)}") from error


def read_part(path: Path, into: Mapping[str, torch.Tensor], *, part: int, parts: int) -> None:
    """Overwrite tensors by those that a learner in one process has saved to a file; DTensors by their part of these.

    Raises RunError where names or shapes are not those of the file.
    """
    with safe_open(path, framework="pt") as file:
        for name in sorted(into.keys() ^ set(file.keys())):
            problem = "missing" if name in into else "not known here"
            raise RunError(f"{path}: of another model, or of another way to train it: {name} is {problem}")
        for name, tensor in into.items():
            whole = file.get_tensor(name)
            if whole.shape != tensor.shape:
                raise RunError(f"{path}: of another model: {name} is {list(whole.shape)}, not {list(tensor.shape)}")
            if isinstance(tensor, DTensor):
                rows = -(-len(whole) // parts)  # As FSDP2 cuts: all parts as long as the first, but for the last ones.
                tensor.to_local().copy_(whole[part * rows : (part + 1) * rows])
            else:
                tensor.copy_(whole)


def read_whole(folder: Path) -> dict[str, torch.Tensor]:
    """Return all tensors whole, in a process that is no rank."""
    reader = HuggingFaceStorageReader(str(folder))
    found = {name: torch.empty(saved.size, dtype=saved.properties.dtype) for name, saved in _saved(reader).items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # It is meant to be, here.
        load(found, storage_reader=reader, no_dist=True)
    return {name: tensor.view(()) if name.endswith(".step") else tensor for name, tensor in found.items()}


def _saved(reader: HuggingFaceStorageReader) -> dict[str, TensorStorageMetadata]:
    described = reader.read_metadata().state_dict_metadata
    return {name: saved for name, saved in described.items() if isinstance(saved, TensorStorageMetadata)}


def _with_a_dimension(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors, single numbers as views of one element: slices of safetensors have a dimension."""
    return {name: tensor.view(1) if tensor.dim() == 0 else tensor for name, tensor in tensors.items()}
