"""Weights on their way from ranks to whoever generates: one block of bytes with a version and a checksum."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from palmette.errors import RunError

_ALIGNED = 64
"""Every tensor begins at a multiple of so many bytes, so that it can be read where it lies, in any dtype."""


@dataclass(frozen=True)
class Parcel:
    """The trained weights after so many updates. `layout` has name, dtype, shape and first byte of each tensor.

    `content` is a tensor of bytes, or a numpy array of them: by shared memory on one machine, from Ray's object store
    across machines.
    """

    version: int
    checksum: int
    layout: tuple[tuple[str, str, tuple[int, ...], int], ...]
    content: Any


def pack(tensors: Mapping[str, torch.Tensor], version: int) -> Parcel:
    """Copy tensors of host memory into a parcel."""
    layout, end = [], 0
    for name, tensor in tensors.items():
        layout.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), end))
        end += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
    content = torch.zeros(end, dtype=torch.uint8)
    for (_, _, _, first), tensor in zip(layout, tensors.values(), strict=True):
        content[first : first + tensor.nbytes] = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return Parcel(version, _checksum(content), tuple(layout), content)


@torch.no_grad()
def unpack(parcel: Parcel, into: Mapping[str, torch.Tensor], version: int) -> None:
    """Write the weights of a parcel into a model's. Raises RunError, with nothing written, if they are not these.

    They are not if the version or the checksum is wrong, or names, shapes or dtypes are those of another model.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # Ray's memory. It is only read.
        content = torch.as_tensor(parcel.content)
    if parcel.version != version:
        raise RunError(f"the ranks sent the weights after update {parcel.version}, expected were those after {version}")
    if _checksum(content) != parcel.checksum:
        raise RunError(f"the weights after update {version} were damaged on their way from the ranks: wrong checksum")
    if [name for name, *_ in parcel.layout] != list(into):
        raise RunError(f"the ranks sent {len(parcel.layout)} weights, the policy has {len(into)}, or others by name")
    for name, dtype, shape, _ in parcel.layout:
        own = into[name]
        if (dtype, shape) != (str(own.dtype).removeprefix("torch."), tuple(own.shape)):
            raise RunError(f"the ranks sent {name} as {list(shape)} in {dtype}, the policy has {list(own.shape)}")
    for name, _, _, first in parcel.layout:
        own = into[name]
        own.copy_(content[first : first + own.nbytes].view(own.dtype).view(own.shape))


def _checksum(content: torch.Tensor) -> int:
    return zlib.crc32(content.numpy().data)
