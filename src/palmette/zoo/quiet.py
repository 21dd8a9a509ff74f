"""Silence around the model libraries while they load."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
