"""Model libraries kept quiet, and their errors told as palmette's own in one line."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from palmette.errors import BackendError, PalmetteError

_LONGEST_TEXT = 200


@contextmanager
def told_as(what: str) -> Iterator[None]:
    """Turn a foreign error inside the block into BackendError `what: ...`. Our own errors pass unchanged.

    So do memory errors: whoever watches memory has to see them for what they are.
    """
    try:
        yield
    except (PalmetteError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise BackendError(f"{what}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """Return an error's type with its text, cut to one readable line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_LONGEST_TEXT]}{'...' if len(text) > _LONGEST_TEXT else ''}"


_LOGGERS = ("huggingface_hub", "sentence_transformers", "peft")


@contextmanager
def quiet() -> Iterator[None]:
    """Hide progress bars, log lines and warnings inside the block; what was set before is set again after it."""
    import transformers.utils.logging

    # Half of these functions carry no types.
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
