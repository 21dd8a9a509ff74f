"""Other libraries: their output silenced, and their errors raised as BackendError in one line."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from palmette.errors import BackendError, PalmetteError
from palmette.units import describe_error

_LOGGERS = ("huggingface_hub", "sentence_transformers", "peft")


@contextmanager
def as_backend_error(what: str) -> Iterator[None]:
    """Raise any error of another library inside the block as BackendError `what: ...`.

    palmette's own errors pass unchanged, and out-of-memory errors too, so that the guard around the work sees them.
    """
    try:
        yield
    except (PalmetteError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise BackendError(f"{what}: {describe_error(error)}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Hide progress bars, log lines and warnings inside the block; restore all settings after it."""
    import transformers.utils.logging

    # Half of these functions have no type annotations.
    transformers_logging: Any = transformers.utils.logging
    verbosity = transformers_logging.get_verbosity()
    had_bars = transformers_logging.is_progress_bar_enabled()
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if had_bars:
            transformers_logging.enable_progress_bar()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
