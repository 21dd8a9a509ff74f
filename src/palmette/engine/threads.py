"""Sets how many threads torch uses in a forward pass while other processes need the cores."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, local

import torch

from palmette.cores import CpuUse, read_cpu_use, shares_between
from palmette.engine.thread_count import ThreadCount, next_count
from palmette.openmp import is_count_chosen

CHECK_SECONDS = 0.2
_STALE_SECONDS = 2.0
"""After a pause this long, what was read before it says nothing about now."""


class ThreadChoice:
    """Chooses a number of threads, and chooses anew by what happened since, at most every `CHECK_SECONDS`.

    `read` returns what the kernel reports, None where it reports nothing: then the number is always the most.
    """

    def __init__(self, read: Callable[[], CpuUse | None] = read_cpu_use) -> None:
        self._read = read
        self._lock = Lock()
        self._last: CpuUse | None = None
        self._now: ThreadCount | None = None
        self._next_check_seconds = 0.0

    def count(self, most: int) -> int:
        """Return how many threads to use now, from 1 to `most`."""
        if most == 1:
            return 1
        with self._lock:
            if time.monotonic() >= self._next_check_seconds:
                self._check(most)
            return most if self._now is None else min(most, self._now.count)

    def _check(self, most: int) -> None:
        before, self._last = self._last, self._read()
        self._next_check_seconds = time.monotonic() + CHECK_SECONDS
        if self._last is None:
            self._now = None
        elif before is None or self._last.moment_seconds - before.moment_seconds > _STALE_SECONDS:
            self._now = ThreadCount(most)
        else:
            self._now = next_count(self._now or ThreadCount(most), most, shares_between(before, self._last))


_choice = ThreadChoice()
_is_count_chosen = is_count_chosen(os.environ)


class _Scopes(local):
    """What the blocks below have set, for each Python thread: torch has a number of threads for each, too."""

    pinned = False
    most: int | None = None
    """The number of threads outside of `as_many_as_free`, None there."""


_scopes = _Scopes()


@contextmanager
def as_many_as_free(useful: int | None = None) -> Iterator[None]:
    """Use fewer threads inside the block while others need the cores, at most `useful`; afterwards as many as before.

    For forward passes only whose last bits decide nothing: the number of threads changes them. Does nothing where
    OMP_NUM_THREADS or MKL_NUM_THREADS is set. In `pinned_threads` the number is `useful`, whatever others do.
    """
    most = torch.get_num_threads()
    count = most if useful is None else min(most, useful)
    if _is_count_chosen or _scopes.most is not None or most == 1 or (_scopes.pinned and count == most):
        yield
        return
    if count > 1 and not _scopes.pinned:
        count = _choice.count(count)
    _scopes.most = most
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(most)
        _scopes.most = None


@contextmanager
def as_many_as_ever() -> Iterator[None]:
    """Use inside the block, which lies in `as_many_as_free`, as many threads as outside of it: bits repeat exactly."""
    most, count = _scopes.most, torch.get_num_threads()
    if most is None or most == count:
        yield
        return
    torch.set_num_threads(most)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def thread_count() -> int:
    """Return how many threads torch uses outside of `as_many_as_free`."""
    return _scopes.most or torch.get_num_threads()


@contextmanager
def pinned_threads(count: int | None = None) -> Iterator[None]:
    """Use `count` threads inside the block, by default as many as now, whatever others do.

    For work that has to repeat bit for bit, such as the rollouts of training.
    """
    before, was_pinned = torch.get_num_threads(), _scopes.pinned
    if count is not None:
        torch.set_num_threads(count)
    _scopes.pinned = True
    try:
        yield
    finally:
        _scopes.pinned = was_pinned
        if count is not None:
            torch.set_num_threads(before)
