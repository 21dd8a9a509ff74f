"""Offload to host memory: a layer's weights are copied to the device before it computes.

On CUDA they are copied from pinned memory on a stream of their own, so that the copy overlaps with the layer before.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import torch
from torch import nn

from palmette.errors import BackendError


class HostCopies:
    """A layer loader for a model in host memory that computes on another device. Layers must not share weights."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        if any(weight.device.type != "cpu" for weight in model.parameters()):
            raise BackendError("cannot offload a model to host memory that is on a GPU already: load it on the CPU")
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copied: dict[nn.Module, torch.cuda.Event] = {}
        self._on_host: dict[nn.Parameter, torch.Tensor] = {}
        for weight in model.parameters():
            self._on_host[weight] = weight.data.pin_memory() if self._stream else weight.data
            weight.data = self._on_host[weight]

    @torch.no_grad()
    def start(self, layer: nn.Module) -> None:
        """Start to copy the layer's weights."""
        with torch.cuda.stream(self._stream):  # Has no effect without a stream.
            for weight in layer.parameters():
                weight.data = self._on_host[weight].to(self._device, non_blocking=True, copy=True)
            if self._stream is not None:
                self._copied[layer] = self._stream.record_event()

    def wait(self, layer: nn.Module) -> None:
        """Let the computing stream wait until the copy is complete."""
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(self._copied.pop(layer))
            for weight in layer.parameters():
                weight.data.record_stream(current)  # Keeps its memory from being reused before the layer has computed.

    def unload(self, layer: nn.Module) -> None:
        """Use the weights in host memory again, which frees the copy."""
        for weight in layer.parameters():
            weight.data = self._on_host[weight]
