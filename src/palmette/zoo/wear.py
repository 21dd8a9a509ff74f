"""The adapter of a loaded model exchanged for another, without reading the model again."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from palmette.errors import BackendError
from palmette.zoo.adapter import put_on
from palmette.zoo.quiet import quiet


def wear(model: Any, adapter: str | None) -> Any:
    """Return the model wearing this adapter, frozen, in place of any it wears; None takes it off.

    The base model's weights stay where they are. Raises as `put_on` does, and BackendError where the adapter in use
    cannot be taken off.
    """
    with quiet():
        base = _bare(model)
        if adapter is None:
            return base
        name = base.name_or_path or base.config.model_type
        return put_on(base, adapter, base_names=[name], device=str(base.device)).eval()


def _bare(model: Any) -> Any:
    if getattr(model, "_hf_peft_config_loaded", False):
        raise BackendError("the model's adapters were loaded by its own load_adapter: exchange them there")
    if not hasattr(model, "get_base_model"):
        return model
    if any(getattr(module, "merged_adapters", None) for module in model.modules()):
        raise BackendError("the model's adapter is merged into its weights: call unmerge_adapter first")
    if not hasattr(model, "unload"):
        raise BackendError("the model's adapter is of a kind that cannot be taken off: load the model again")
    return model.unload()


@contextmanager
def undone_on_error(model: nn.Module) -> Iterator[None]:
    """Put every module back as it was where the block raises. Values written into tensors stay written."""
    before = [(module, {key: _own_copy(value) for key, value in vars(module).items()}) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    except BaseException:
        for module, attributes in before:
            vars(module).clear()
            vars(module).update(attributes)
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        raise


def _own_copy(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | list | set) else value
