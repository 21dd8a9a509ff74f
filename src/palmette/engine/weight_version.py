"""Notices when a model's weights have changed, by its tensors, torch's version counters and PEFT's state."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import weakref
from copy import copy
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.optim.optimizer import register_optimizer_step_post_hook


def _count_fused_steps(optimizer: torch.optim.Optimizer, *_: object) -> None:
    # A fused optimizer, unlike all others, does not increment the version counters of the parameters that it writes.
    for group in optimizer.param_groups:
        if group.get("fused"):
            increment_version(group["params"])


register_optimizer_step_post_hook(_count_fused_steps)


_ADAPTER_STATE = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")
"""Attributes in which a PEFT layer stores which adapters are active, disabled or merged, and their scaling."""


class WeightVersion:
    """Counts the changes of a model's weights, from 0.

    Noticed are: writes in place (optimizers, `copy_` and the like), tensors replaced by others, and adapters that are
    loaded, switched, scaled, merged or disabled. Not noticed is what torch does not count, writes through `.data` or
    into tensors that were created in inference mode: after those, call `changed`.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.number = 0
        self._tensors, self._marks = _marks(model)

    def changed(self) -> None:
        """Count a change."""
        self.number += 1

    def look(self, model: torch.nn.Module) -> bool:
        """Return whether the weights have changed since the last call, and count a change if they have."""
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
    """Return references to the model's tensors, and a list of their addresses, version counters and adapter states.

    The references are needed because an address is reused after its tensor is freed. They are weak, so that replaced
    weights are not kept in memory.
    """
    tensors: list[weakref.ref[torch.Tensor]] = []
    marks: list[object] = []
    modules = [model]
    while modules:
        module = modules.pop()
        attributes: dict[str, Any] = module.__dict__
        if attributes["_modules"]:
            modules += [child for child in attributes["_modules"].values() if child is not None]
        # Non-persistent buffers are computed from the config, by some models anew in every forward pass.
        skipped = attributes["_non_persistent_buffers_set"]
        for table in (attributes["_parameters"], attributes["_buffers"]):
            for name, tensor in table.items():
                if tensor is not None and name not in skipped:
                    tensors.append(weakref.ref(tensor))
                    marks += (tensor.data_ptr(), None if tensor.is_inference() else tensor._version)
        if hasattr(type(module), "active_adapters"):
            # Copies: PEFT changes these lists and dicts in place.
            marks += [copy(attributes.get(name)) for name in _ADAPTER_STATE]
    return tensors, marks
