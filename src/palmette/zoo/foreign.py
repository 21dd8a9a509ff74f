"""Errors of the model libraries, told as palmette's own in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

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
