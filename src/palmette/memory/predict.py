"""The peak of work that has not run: the same code on fake tensors, which have a shape and a device but no memory."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from palmette.memory.tracker import WEIGHTS, Tracker

CUDA_GRANULE_BYTES = 512
"""CUDA's caching allocator hands out memory in steps of this."""


@dataclass(frozen=True)
class Prediction:
    """The most bytes that tensors hold at once, by kind; `notes` says what stands on an assumption."""

    peak_bytes: int
    lines: dict[str, int]
    notes: tuple[str, ...] = ()


def predict(work: Callable[[Tracker, torch.device], object], *, device: str = "cpu") -> Prediction:
    """Run work under fake tensors; return the peak of what it would have held.

    Work gets the tracker and the device to make its tensors on, and must not look at any value. A `cuda` device needs
    no GPU, but a torch built for one; without it the work runs on fake CPU tensors, in CUDA's steps.
    """
    on_cuda = torch.device(device).type == "cuda"
    tracker = Tracker(CUDA_GRANULE_BYTES if on_cuda else 1)
    notes: tuple[str, ...] = ()
    if on_cuda and torch.version.cuda is None:
        device, notes = "cpu", ("this torch knows no CUDA: kernels are taken to hold what the CPU's hold",)
    with FakeTensorMode(), tracker:
        work(tracker, torch.device(device))
    return Prediction(tracker.peak_bytes, dict(sorted(tracker.peak_lines.items())), notes)


def put_on(model: nn.Module, device: torch.device, tracker: Tracker) -> None:
    """Give a model without memory (on the meta device) weights on a device; tied weights stay one."""
    made: dict[int, nn.Parameter] = {}
    with tracker.making(WEIGHTS):
        for part in model.modules():
            for name, weight in part._parameters.items():
                if weight is not None:
                    if id(weight) not in made:
                        data = torch.empty(weight.shape, dtype=weight.dtype, device=device)
                        made[id(weight)] = nn.Parameter(data, requires_grad=weight.requires_grad)
                    part._parameters[name] = made[id(weight)]
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
