"""Weights mapped from their file: read ahead when a layer is next, dropped from memory when it is done.

Linux only. A page that was never written to is read from the file again when it is touched.
"""

import ctypes
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from palmette.errors import BackendError

_DONTNEED, _WILLNEED, _POPULATE_READ = 4, 3, 22
_PAGE_BYTES = 4096
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(.*)$")


class MappedWeights:
    """A mover for a model on the CPU whose weights lie in mapped safetensors, as `zoo.load` leaves them.

    Raises BackendError where they do not, or where one was written to: dropping its page would undo that.
    """

    def __init__(self, model: nn.Module) -> None:
        files = _file_mappings()
        for name, weight in model.named_parameters():
            first, last = _range(weight)
            inside = [dirty for start, stop, dirty in files if start <= first and last <= stop]
            if not inside:
                raise BackendError(
                    f"cannot stream {name}: it is not mapped from a safetensors file. "
                    "Load the model on the CPU in the dtype of its file"
                )
            if inside[0]:
                raise BackendError(f"cannot stream {name}: {inside[0]} bytes of its file's mapping were written to")
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise
        self._madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def begin(self, layer: nn.Module) -> None:
        """Read the layer's pages. Before Linux 5.14 they are only asked for."""
        for first, last in _ranges(layer.parameters(), grow=True):
            if self._madvise(first, last - first, _POPULATE_READ):
                self._madvise(first, last - first, _WILLNEED)

    def finish(self, layer: nn.Module) -> None:
        """Return at once: a page that is not there yet is read when it is touched."""

    def drop(self, layer: nn.Module) -> None:
        """Drop the layer's pages, but for those that it shares with a neighbor."""
        for first, last in _ranges(layer.parameters(), grow=False):
            if last > first:
                self._madvise(first, last - first, _DONTNEED)


def _range(weight: torch.Tensor) -> tuple[int, int]:
    return weight.data_ptr(), weight.data_ptr() + weight.numel() * weight.element_size()


def _ranges(weights: Iterable[torch.Tensor], *, grow: bool) -> list[tuple[int, int]]:
    """Return whole pages: all that weights touch, or only those that lie inside one stretch of them."""
    stretches: list[tuple[int, int]] = []
    for first, last in sorted(map(_range, weights)):
        if stretches and first <= stretches[-1][1]:
            stretches[-1] = stretches[-1][0], max(last, stretches[-1][1])
        else:
            stretches.append((first, last))
    up = _PAGE_BYTES - 1
    if grow:
        return [(first & ~up, (last + up) & ~up) for first, last in stretches]
    return [((first + up) & ~up, last & ~up) for first, last in stretches]


def _file_mappings() -> list[tuple[int, int, int]]:
    """Return each mapping of a safetensors file: first address, last, and how many of its bytes were written to."""
    found: list[tuple[int, int, int]] = []
    path = Path("/proc/self/smaps")
    if not path.exists():
        raise BackendError("cannot stream from mapped files: this system does not tell what it maps (no /proc)")
    in_file = False
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if match := _MAPPING.match(line):
            in_file = match[4].endswith(".safetensors")
            if in_file:
                found.append((int(match[1], 16), int(match[2], 16), 0))
        elif in_file and line.startswith("Anonymous:"):  # Private pages that were written to are the file's no more.
            start, stop, _ = found[-1]
            found[-1] = start, stop, int(line.split()[1]) * 1024
    return found
