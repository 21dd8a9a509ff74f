"""Which tensors are held, counted as they come and go: real ones, or fake ones that hold nothing.

Seen is what goes through torch's dispatcher. A kernel's own scratch memory is not.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

TEMPORARY = "activations and temporaries"
"""What is held for as long as something needs it, and is none of the kinds named below."""
WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer state"


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors made while it is entered, and of those it is shown.

    `peak_bytes` is the most that was held at once, `peak_lines` what it consisted of. Each tensor is counted in steps
    of `granule_bytes`, as an allocator hands it out.
    """

    def __init__(self, granule_bytes: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: dict[str, int] = {}
        self.held_bytes = 0
        self.peak_bytes = 0
        self.peak_lines: dict[str, int] = {}
        self._granule_bytes = granule_bytes
        self._known: dict[int, tuple[weakref.ref[Any], int, str]] = {}
        self._kind = TEMPORARY

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, then count the memory of what it returned."""
        given = func(*args, **kwargs or {})
        for part in tree_iter(given):
            if isinstance(part, torch.Tensor):
                self._count(part, self._kind)
        return given

    @contextmanager
    def making(self, kind: str) -> Iterator[None]:
        """Count all tensors made meanwhile as of this kind."""
        before, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._kind = before

    def show(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """Count tensors that were made before, or count them as another kind from now on."""
        for tensor in tensors:
            known = self._known.get(_key(tensor))
            if known is None:
                self._count(tensor, kind)
            else:
                reference, size, old_kind = known
                self._known[_key(tensor)] = reference, size, kind
                self._add(old_kind, -size)
                self._add(kind, size)

    def show_gradients(self, weights: Iterable[torch.Tensor]) -> None:
        """Count what gathers in the weights' `grad` as gradients, from the moment it is there."""

        def show(weight: torch.Tensor) -> None:
            if weight.grad is not None:
                self.show([weight.grad], GRADIENTS)

        for weight in weights:
            weight.register_post_accumulate_grad_hook(show)  # type: ignore[no-untyped-call]

    def _count(self, tensor: torch.Tensor, kind: str) -> None:
        key = _key(tensor)
        if key in self._known:
            return
        storage = tensor.untyped_storage()
        size = -(-storage.nbytes() // self._granule_bytes) * self._granule_bytes

        def gone(_: object) -> None:
            _, size, kind = self._known.pop(key)
            self._add(kind, -size)

        self._known[key] = weakref.ref(storage, gone), size, kind
        self._add(kind, size)
        if self.held_bytes > self.peak_bytes:
            self.peak_bytes = self.held_bytes
            self.peak_lines = {name: held for name, held in self.lines.items() if held}

    def _add(self, kind: str, size: int) -> None:
        self.held_bytes += size
        self.lines[kind] = self.lines.get(kind, 0) + size


def _key(tensor: torch.Tensor) -> int:
    # Views share their storage, so an address names memory better than a tensor does.
    address: int = tensor.untyped_storage()._cdata
    return address


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


def fill_with_fakes(model: nn.Module, device: torch.device, tracker: Tracker) -> None:
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
