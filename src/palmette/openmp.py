"""OpenMP's settings in an environment: how waiting threads wait, and whether the user has chosen how many there are."""

from collections.abc import Mapping

_WAITS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

_SHORT_SPIN = "10000"
"""Rounds that a waiting thread of GNU's OpenMP spins before it sleeps, about as long as waking a thread takes.

Measured on two cores, ticks of SmolLM2-135M with 4, 16 and 64 rows in ms: threads that sleep at once 87, 140, 254; with
so many rounds 46, 95, 200; with 300,000, the default, 45, 95, 190. Beside others it costs nothing, because ticks then
use fewer threads (engine/threads.py).
"""


def quiet_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what to add to the environment of a process that will load torch, so that its threads soon sleep.

    Nothing where the user has chosen how they wait. GNU's OpenMP, which torch's wheels have, reads GOMP_SPINCOUNT
    first; Intel's and LLVM's read OMP_WAIT_POLICY and let a waiting thread sleep at once.
    """
    if any(name in environment for name in _WAITS):
        return {}
    return {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": _SHORT_SPIN}


def is_count_chosen(environment: Mapping[str, str]) -> bool:
    """Return whether the user has chosen the number of threads."""
    return any(name in environment for name in _COUNTS)
