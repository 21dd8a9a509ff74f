"""OpenMP's settings in an environment: how waiting threads wait, and whether the user has chosen how many there are."""

from collections.abc import Mapping

_WAITS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def quiet_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what to add to the environment of a process that will load torch, so that its threads sleep while waiting.

    Nothing where the user has chosen how they wait. Every OpenMP reads OMP_WAIT_POLICY: GNU's, which torch's wheels
    have, Intel's and LLVM's.
    """
    return {} if any(name in environment for name in _WAITS) else {"OMP_WAIT_POLICY": "PASSIVE"}


def is_count_chosen(environment: Mapping[str, str]) -> bool:
    """Return whether the user has chosen the number of threads."""
    return any(name in environment for name in _COUNTS)
