"""PEFT adapters: loaded onto the base model they were trained for, or swapped without loading it again."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from palmette.errors import BackendError, ConfigError
from palmette.units import count_of
from palmette.zoo.folder import check_weights, read_json
from palmette.zoo.foreign import as_backend_error, quiet


def load_adapter(model: Any, adapter: str, *, base_names: list[str], device: str, trainable: bool = False) -> Any:
    """Return the model with the adapter; every tensor of the adapter is used and none is missing.

    It is frozen, or `trainable`: then in float32 if the model is in less, as a new adapter would be.

    `base_names` are the names of the base model, first the one that the user wrote; the base model that the adapter's
    config records must end like one of them. Raises ConfigError where there is no adapter, BackendError where it does
    not fit.
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
    options: dict[str, Any] = {"is_trainable": trainable, "torch_device": device, "autocast_adapter_dtype": trainable}
    with as_backend_error(misfit):
        adapted: Any = PeftModel.from_pretrained(model, str(folder), **options)
        # Only loading it again reports tensors that the model does not have: from_pretrained drops them silently.
        result = adapted.load_adapter(str(folder), "default", **options)
    for keys, problem in ((result.unexpected_keys, "the model does not have"), (result.missing_keys, "it lacks")):
        if keys:
            raise BackendError(f"{misfit}: {problem} {count_of(len(keys), 'tensor')}, such as {sorted(keys)[0]}")
    return adapted


def _check_base(folder: Path, base_names: list[str]) -> None:
    """Raise BackendError where the adapter records another base model; only the last part of its path is compared."""
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
        base = _without_adapter(model)
        if adapter is None:
            return base
        name = base.name_or_path or base.config.model_type
        return load_adapter(base, adapter, base_names=[name], device=str(base.device)).eval()


def _without_adapter(model: Any) -> Any:
    if getattr(model, "_hf_peft_config_loaded", False):
        raise BackendError("the model's adapters were loaded by its own load_adapter: swap them by its own methods")
    if not hasattr(model, "get_base_model"):
        return model
    if any(getattr(module, "merged_adapters", None) for module in model.modules()):
        raise BackendError("the model's adapter is merged into its weights: call unmerge_adapter first")
    if not hasattr(model, "unload"):
        raise BackendError("the model's adapter is of a kind that cannot be removed: load the model again")
    return model.unload()


@contextmanager
def undone_on_error(model: nn.Module) -> Iterator[None]:
    """Restore every module's attributes where the block raises. Values written into tensors are not restored."""
    before = [
        (module, {key: _shallow_copy(value) for key, value in vars(module).items()}) for module in model.modules()
    ]
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


def _shallow_copy(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | list | set) else value
