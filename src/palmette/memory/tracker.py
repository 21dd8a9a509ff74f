"""The bytes of all tensors, counted as they are made and freed: of real tensors, or of fake ones without memory.

Only tensors that torch's dispatcher sees are counted, not the scratch memory inside a kernel.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

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
"""The kind of every tensor that is not counted as one of the kinds below."""
WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer state"

CUDA_GRANULE_BYTES = 512
"""torch's caching allocator for CUDA rounds sizes up to this."""


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors made inside its `with` block, and of those given to `track`.

    `held_bytes` is what exists now and `lines` that by kind; `peak_bytes` is the most that existed at once and
    `peak_lines` that by kind. Each tensor's size is rounded up to `granule_bytes`, as an allocator does.
    """

    def __init__(self, granule_bytes: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: dict[str, int] = {}
        self.held_bytes = 0
        self.peak_bytes = 0
        self.peak_lines: dict[str, int] = {}
        self._granule_bytes = granule_bytes
        self._storages: dict[int, tuple[weakref.ref[Any], int, str]] = {}
        self._kind = TEMPORARY

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, then count the tensors that it returned."""
        result = func(*args, **kwargs or {})
        for part in tree_iter(result):
            if isinstance(part, torch.Tensor):
                self._count(part, self._kind)
        return result

    @contextmanager
    def counting_as(self, kind: str) -> Iterator[None]:
        """Count all tensors made inside the block as this kind."""
        before, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._kind = before

    def track(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """Count tensors that were made before, or count those that are tracked already as another kind from now on."""
        for tensor in tensors:
            tracked = self._storages.get(_key(tensor))
            if tracked is None:
                self._count(tensor, kind)
            else:
                reference, size, old_kind = tracked
                self._storages[_key(tensor)] = reference, size, kind
                self._add(old_kind, -size)
                self._add(kind, size)

    def track_gradients(self, weights: Iterable[torch.Tensor]) -> None:
        """Count the weights' `grad` as gradients, from the moment that they are accumulated there."""

        def track(weight: torch.Tensor) -> None:
            if weight.grad is not None:
                self.track([weight.grad], GRADIENTS)

        for weight in weights:
            weight.register_post_accumulate_grad_hook(track)  # type: ignore[no-untyped-call]

    def _count(self, tensor: torch.Tensor, kind: str) -> None:
        key = _key(tensor)
        if key in self._storages:
            return
        storage = tensor.untyped_storage()
        size = -(-storage.nbytes() // self._granule_bytes) * self._granule_bytes

        def on_freed(_: object) -> None:
            _, size, kind = self._storages.pop(key)
            self._add(kind, -size)

        self._storages[key] = weakref.ref(storage, on_freed), size, kind
        self._add(kind, size)
        if self.held_bytes > self.peak_bytes:
            self.peak_bytes = self.held_bytes
            self.peak_lines = {kind: size for kind, size in self.lines.items() if size}

    def _add(self, kind: str, size: int) -> None:
        self.held_bytes += size
        self.lines[kind] = self.lines.get(kind, 0) + size


def _key(tensor: torch.Tensor) -> int:
    # By storage, since views share it: memory is counted once, and until its last view is gone.
    address: int = tensor.untyped_storage()._cdata
    return address


@dataclass(frozen=True)
class Prediction:
    """The most bytes that tensors hold at once, also by kind; `notes` states the assumptions made."""

    peak_bytes: int
    lines: dict[str, int]
    notes: tuple[str, ...] = ()


def predict(work: Callable[[Tracker, torch.device], object], *, device: str = "cpu") -> Prediction:
    """Run work on fake tensors; return the peak of what it would have held on real ones.

    `work` is called with the tracker and with the device to make its tensors on; it must not read any value. A `cuda`
    device needs no GPU but a torch built for CUDA; otherwise the work runs on fake CPU tensors, with sizes rounded up
    as on CUDA.
    """
    on_cuda = torch.device(device).type == "cuda"
    tracker = Tracker(CUDA_GRANULE_BYTES if on_cuda else 1)
    notes: tuple[str, ...] = ()
    if on_cuda and torch.version.cuda is None:
        device, notes = (
            "cpu",
            ("this torch is built without CUDA: its kernels are assumed to hold what the CPU's hold",),
        )
    with FakeTensorMode(), tracker:
        work(tracker, torch.device(device))
    return Prediction(tracker.peak_bytes, dict(sorted(tracker.peak_lines.items())), notes)


def fill_with_fakes(model: nn.Module, device: torch.device, tracker: Tracker) -> None:
    """Give a model on the meta device weights on another device, inside `predict` fake ones; tied weights stay tied."""
    made: dict[int, nn.Parameter] = {}
    with tracker.counting_as(WEIGHTS):
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
