"""Calls the Linux kernel where Python has no function for it; elsewhere every call raises OSError."""

import ctypes
import errno
import os
import sys
from typing import Any

_C: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

_PARENT_DEATH_SIGNAL, _DUMPABLE, _SECCOMP, _NO_NEW_PRIVILEGES = 1, 4, 22, 38
_SECCOMP_FILTER = 2
_UNSHARE_USER, _UNSHARE_NETWORK, _UNSHARE_IPC = 0x10000000, 0x40000000, 0x08000000
_CAPABILITY_VERSION = 0x20080522


def call(number: int, *arguments: Any) -> int:
    """Make a system call by its number and return its result. Raises OSError if it fails."""
    return _checked("syscall", ctypes.c_long(number), *arguments)


def gain_no_privileges() -> None:
    """Make it final that no program started from here gains privileges; walls without privileges need it."""
    _control(_NO_NEW_PRIVILEGES, 1)


def hide_memory() -> None:
    """Keep processes of the same user from reading this one's memory and descriptors."""
    _control(_DUMPABLE, 0)


def die_with_parent(signal: int) -> None:
    """Have this process ended by `signal` when the process that forked it ends."""
    _control(_PARENT_DEATH_SIGNAL, signal)


def filter_calls(program: Any) -> None:
    """Install a seccomp program, a `sock_fprog`, for good."""
    _control(_SECCOMP, _SECCOMP_FILTER, ctypes.byref(program))


def leave_network() -> None:
    """Move to namespaces without users, network and shared memory of other processes."""
    _checked("unshare", _UNSHARE_USER | _UNSHARE_NETWORK | _UNSHARE_IPC)


def drop_capabilities() -> None:
    """Give up every capability, such as root's right to open any file."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _checked("capset", header, (ctypes.c_uint32 * 6)())


def _control(option: int, *arguments: Any) -> None:
    padded = [*arguments, 0, 0, 0, 0][:4]
    _checked("prctl", option, *(ctypes.c_ulong(value) if isinstance(value, int) else value for value in padded))


def _checked(function: str, *arguments: Any) -> int:
    if _C is None:
        raise OSError(errno.ENOSYS, "not Linux")
    result: int = getattr(_C, function)(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
