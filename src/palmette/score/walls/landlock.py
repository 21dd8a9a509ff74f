"""Landlock: no file can be changed and only some folders can be read; no TCP, no signals to other processes."""

import ctypes
import os
from collections.abc import Iterable

from palmette.score.walls import kernel

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_ASK_VERSION, _PATH_RULE = 1, 1
_READ = 1 << 2 | 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""How many kinds of access to files each version of Landlock knows; versions between know as many as the one before."""
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def enter(readable: Iterable[str]) -> None:
    """Allow nothing but reading below the folders `readable`, for good. Raises OSError on a kernel without Landlock."""
    version = kernel.call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    rights = max(count for since, count in _FILE_RIGHTS.items() if since <= version)
    rules = _Ruleset(
        files=(1 << rights) - 1,
        network=0b11 if version >= _NETWORK_SINCE else 0,
        scopes=0b11 if version >= _SCOPES_SINCE else 0,
    )
    # Older versions know a shorter structure, and take a longer one if the rest of it is 0.
    ruleset = kernel.call(_CREATE, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), ctypes.c_uint32(0))
    try:
        for folder in sorted({os.path.realpath(path) for path in readable if os.path.isdir(path)}):
            _allow_reading(ruleset, folder)
        kernel.call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow_reading(ruleset: int, folder: str) -> None:
    place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathRule(allowed=_READ, folder=place)
        kernel.call(_ADD, ctypes.c_int(ruleset), ctypes.c_int(_PATH_RULE), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(place)
