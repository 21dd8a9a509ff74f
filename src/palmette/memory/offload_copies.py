"""Weights kept in host memory, copied to a device for as long as a layer computes.

On CUDA, copies go from pinned memory on a stream of their own, so that they overlap with the layer before.
"""

import torch
from torch import nn

from palmette.errors import BackendError


class HostCopies:
    """A mover for a model in host memory that computes on another device. Weights shared by layers are not handled."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        if any(weight.device.type != "cpu" for weight in model.parameters()):
            raise BackendError("cannot keep a model in host memory that is on a device already: load it on the CPU")
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._arrived: dict[nn.Module, torch.cuda.Event] = {}
        self._home: dict[nn.Parameter, torch.Tensor] = {}
        for weight in model.parameters():
            self._home[weight] = weight.data.pin_memory() if self._stream else weight.data
            weight.data = self._home[weight]

    @torch.no_grad()
    def begin(self, layer: nn.Module) -> None:
        """Start to copy the layer."""
        with torch.cuda.stream(self._stream):  # Nothing changes where there is no stream.
            for weight in layer.parameters():
                weight.data = self._home[weight].to(self._device, non_blocking=True, copy=True)
            if self._stream is not None:
                self._arrived[layer] = self._stream.record_event()

    def finish(self, layer: nn.Module) -> None:
        """Let the computing stream wait until the copy has arrived."""
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(self._arrived.pop(layer))
            for weight in layer.parameters():
                weight.data.record_stream(current)  # Its memory is not used again before the layer has computed.

    def drop(self, layer: nn.Module) -> None:
        """Point the layer at its home again; the copy is freed."""
        for weight in layer.parameters():
            weight.data = self._home[weight]
