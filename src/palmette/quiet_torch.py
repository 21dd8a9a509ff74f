"""Loads torch with threads that spin only briefly while they wait. To be imported before the first import of torch.

OpenMP reads its settings once, when torch loads it. By default a waiting thread spins for milliseconds: beside another
busy process it spins away the time that the thread it waits for would need. The settings of the user win, and the
environment of this process is as before when this module is loaded.
"""

import math
import os
import sys
from collections.abc import Mapping

from palmette.cores import quota_cores

_WAITS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
SPIN_COUNT = 20_000
"""Rounds that a thread spins before it sleeps."""


def quiet_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what to add to the environment of a process that will load torch; nothing where the user has chosen.

    GOMP_SPINCOUNT is for GNU's OpenMP, which torch's wheels have; KMP_BLOCKTIME, in ms, for Intel's and LLVM's.
    """
    if any(name in environment for name in _WAITS):
        return {}
    return {"GOMP_SPINCOUNT": str(SPIN_COUNT), "KMP_BLOCKTIME": "1"}


def is_count_chosen(environment: Mapping[str, str]) -> bool:
    """Tell whether the user has chosen the number of threads."""
    return any(name in environment for name in _COUNTS)


def _load() -> None:
    added = {} if "torch" in sys.modules else quiet_settings(os.environ)
    os.environ.update(added)
    try:
        import torch
    finally:
        for name in added:
            os.environ.pop(name, None)
    quota = quota_cores()
    if quota is not None and not is_count_chosen(os.environ):
        # torch counts the machine's cores. With more threads than the quota allows, the kernel halts them all.
        torch.set_num_threads(max(1, min(torch.get_num_threads(), math.ceil(quota))))


_load()
