"""A PEFT adapter put on the base model it was trained for."""

import os
from pathlib import Path
from typing import Any

from palmette.errors import BackendError, ConfigError
from palmette.zoo.folder import check_weights, read_json
from palmette.zoo.foreign import told_as


def put_on(model: Any, adapter: str, *, base_names: list[str], device: str) -> Any:
    """Return the model wearing the adapter, frozen; every tensor of the adapter has found its place.

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
