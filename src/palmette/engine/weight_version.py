"""Which weights a model has at the moment, told by the tensors themselves."""

import weakref
from copy import copy
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.optim.optimizer import register_optimizer_step_post_hook


def _count_fused_steps(optimizer: torch.optim.Optimizer, *_: object) -> None:
    # Every other optimizer counts its writes; a fused one leaves the counters of its parameters as they were.
    for group in optimizer.param_groups:
        if group.get("fused"):
            increment_version(group["params"])


register_optimizer_step_post_hook(_count_fused_steps)


_ADAPTER_STATE = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")
"""What PEFT keeps on each layer of which adapter counts, and how much."""


class WeightVersion:
    """Counts the different weights that a model was seen with, from 0 on.

    Seen are writes in place by optimizers, `copy_` and the like, tensors put in the place of others, adapters that are
    loaded, switched, scaled, merged or turned off. Not seen is what torch does not count, a write through `.data` or
    into tensors made in inference mode: there, say `changed`.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.number = 0
        self._tensors, self._marks = _marks(model)

    def changed(self) -> None:
        """Count one more."""
        self.number += 1

    def look(self, model: torch.nn.Module) -> bool:
        """Tell whether the weights differ from those last seen, and count one more where they do."""
        tensors, marks = _marks(model)
        same = (
            marks == self._marks
            and len(tensors) == len(self._tensors)
            and all(one is other for one, other in zip(tensors, self._tensors, strict=True))
        )
        self._tensors, self._marks = tensors, marks
        if not same:
            self.changed()
        return not same


def _marks(model: torch.nn.Module) -> "tuple[list[weakref.ref[torch.Tensor]], list[object]]":
    """Return the model's tensors, and for each its place and its count of writes, with the state of all adapters.

    Weak references: an address is given out again when a tensor is gone, a living reference is not, and it keeps no
    replaced weights in memory.
    """
    tensors: list[weakref.ref[torch.Tensor]] = []
    marks: list[object] = []
    modules = [model]
    while modules:
        module = modules.pop()
        own: dict[str, Any] = module.__dict__
        if own["_modules"]:
            modules += [child for child in own["_modules"].values() if child is not None]
        passing = own["_non_persistent_buffers_set"]  # Computed from the config, by some models anew in every pass.
        for table in (own["_parameters"], own["_buffers"]):
            for name, tensor in table.items():
                if tensor is not None and name not in passing:
                    tensors.append(weakref.ref(tensor))
                    marks += (tensor.data_ptr(), None if tensor.is_inference() else tensor._version)
        if hasattr(type(module), "active_adapters"):
            # Copies: PEFT changes these lists and tables in place.
            marks += [copy(own.get(name)) for name in _ADAPTER_STATE]
    return tensors, marks
