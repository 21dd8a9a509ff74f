"""PEFT adapters: put on the base model they were trained for, or swapped without reading it again."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from palmette.errors import BackendError, ConfigError
from palmette.zoo.folder import check_weights, read_json
from palmette.zoo.foreign import quiet, told_as


def load_adapter(model: Any, adapter: str, *, base_names: list[str], device: str) -> Any:
    """Return the model with the adapter on it, frozen; every tensor of the adapter has found its place.

    `base_names` are the names the base model goes by, the one the user wrote first; the adapter's own record of its
    base must end like one of them. Raise ConfigError when there is no adapter, BackendError when it does not fit.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise BackendError("an adapter needs peft, which is not installed: pip install 'palmette[adapters]'") from error
    folder = Path(adapter).expanduser()
    if not (folder / "adapter_config.json").is_file():
        raise ConfigError(f"there is no adapter at {folder.absolute()}: a PEFT adapter has an adapter_config.json")
    _check_base(folder, base_names)
    check_weights(folder, stem="adapter_model")
    misfit = f"adapter {folder} does not fit {base_names[0]}"
    options: dict[str, Any] = {"is_trainable": False, "torch_device": device, "autocast_adapter_dtype": False}
    with told_as(misfit):
        worn: Any = PeftModel.from_pretrained(model, str(folder), **options)
        # Loading again is the only way to hear of tensors without a place: from_pretrained drops them in silence.
        result = worn.load_adapter(str(folder), "default", **options)
    for keys, trouble in ((result.unexpected_keys, "the model has no place for"), (result.missing_keys, "it lacks")):
        if keys:
            raise BackendError(f"{misfit}: {trouble} {len(keys)} tensors, such as {sorted(keys)[0]}")
    return worn


def _check_base(folder: Path, base_names: list[str]) -> None:
    """Compare last parts only: the same model lies at another path on another machine."""
    recorded = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
    if not isinstance(recorded, str) or not recorded:
        return
    last_parts = {os.path.basename(os.path.normpath(base)) for base in base_names}
    if os.path.basename(os.path.normpath(recorded)) not in last_parts:
        raise BackendError(
            f"adapter {folder} was trained on '{recorded}', not on '{base_names[0]}'. If these are the same weights, "
            f"set base_model_name_or_path in its adapter_config.json to '{base_names[0]}'"
        )


def swap_adapter(model: Any, adapter: str | None) -> Any:
    """Return the model with this adapter, frozen, in place of the one it has; None removes it.

    The base model's weights stay where they are. Raises as `load_adapter` does, and BackendError where the present
    adapter cannot be removed.
    """
    with quiet():
        base = _bare(model)
        if adapter is None:
            return base
        name = base.name_or_path or base.config.model_type
        return load_adapter(base, adapter, base_names=[name], device=str(base.device)).eval()


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
