"""Offload to the weight file: a layer's mapped pages are read before it computes and dropped afterwards.

Linux only. A dropped page that was never written to is read from the file again when it is accessed.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import ctypes
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from palmette.errors import BackendError
from palmette.units import count_of

_DONTNEED, _WILLNEED, _POPULATE_READ = 4, 3, 22
_PAGE_BYTES = 4096
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(.*)$")


class MappedWeights:
    """A layer loader for a model on the CPU whose weights are mapped from safetensors, as `zoo.load` leaves them.

    Raises BackendError where a weight is not mapped, or was written to: dropping its page would undo the change.
    """

    def __init__(self, model: nn.Module) -> None:
        files = _file_mappings()
        for name, weight in model.named_parameters():
            first, last = _address_range(weight)
            inside = [dirty for start, stop, dirty in files if start <= first and last <= stop]
            if not inside:
                raise BackendError(
                    f"cannot stream {name}: it is not mapped from a safetensors file. "
                    "Load the model on the CPU in the dtype of its file"
                )
            if inside[0]:
                raise BackendError(
                    f"cannot stream {name}: {count_of(inside[0], 'byte')} of its file's mapping were written to"
                )
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise
        self._madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def start(self, layer: nn.Module) -> None:
        """Read the layer's pages. Before Linux 5.14 the kernel is only advised to read them."""
        for first, last in _page_ranges(layer.parameters(), round_out=True):
            if self._madvise(first, last - first, _POPULATE_READ):
                self._madvise(first, last - first, _WILLNEED)

    def wait(self, layer: nn.Module) -> None:
        """Return at once: a page that was not read yet is read when it is accessed."""

    def unload(self, layer: nn.Module) -> None:
        """Drop the layer's pages, except those that it shares with a neighbor in the file."""
        for first, last in _page_ranges(layer.parameters(), round_out=False):
            if last > first:
                self._madvise(first, last - first, _DONTNEED)


def _address_range(weight: torch.Tensor) -> tuple[int, int]:
    return weight.data_ptr(), weight.data_ptr() + weight.numel() * weight.element_size()


def _page_ranges(weights: Iterable[torch.Tensor], *, round_out: bool) -> list[tuple[int, int]]:
    """Return the address ranges of the weights in whole pages; adjacent weights share one range.

    Ranges are rounded out to all pages that hold a part of them, or else in to the pages that lie inside.
    """
    ranges: list[tuple[int, int]] = []
    for first, last in sorted(map(_address_range, weights)):
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(last, ranges[-1][1])
        else:
            ranges.append((first, last))
    rest = _PAGE_BYTES - 1
    if round_out:
        return [(first & ~rest, (last + rest) & ~rest) for first, last in ranges]
    return [((first + rest) & ~rest, last & ~rest) for first, last in ranges]


def _file_mappings() -> list[tuple[int, int, int]]:
    """Return each mapping of a safetensors file: its first and last address, and how many bytes were written to."""
    found: list[tuple[int, int, int]] = []
    path = Path("/proc/self/smaps")
    if not path.exists():
        raise BackendError("cannot stream from mapped files: this system has no /proc/self/smaps, which lists them")
    in_file = False
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if match := _MAPPING.match(line):
            in_file = match[4].endswith(".safetensors")
            if in_file:
                found.append((int(match[1], 16), int(match[2], 16), 0))
        elif in_file and line.startswith("Anonymous:"):  # Pages that were written to are no longer the file's.
            start, stop, _ = found[-1]
            found[-1] = start, stop, int(line.split()[1]) * 1024
    return found
