"""Seccomp: a process may compute, read files and write to one descriptor; any other system call fails with EPERM."""

import ctypes
import errno
import os
import platform

from palmette.score.walls import kernel

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

# Number on x86_64 and on aarch64; None where a newer call has taken the place.
_ALLOWED: dict[str, tuple[int | None, int | None]] = {
    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226),
    "madvise": (28, 233), "futex": (202, 98), "membarrier": (324, 283), "set_robust_list": (273, 99),
    "rseq": (334, 293), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132), "restart_syscall": (219, 128), "exit": (60, 93), "exit_group": (231, 94),
    "read": (0, 63), "pread64": (17, 67), "lseek": (8, 62), "close": (3, 57), "fstat": (5, 80), "stat": (4, None),
    "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291), "access": (21, None), "faccessat": (269, 48),
    "faccessat2": (439, 439), "readlink": (89, None), "readlinkat": (267, 78), "getdents64": (217, 61),
    "getcwd": (79, 17), "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174),
    "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getrandom": (318, 278), "uname": (63, 160),
    "sysinfo": (99, 179), "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getrusage": (98, 165),
    "times": (100, 153), "time": (201, None), "gettimeofday": (96, 169), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
}  # fmt: skip
_WRITE, _OPENAT = (1, 64), (257, 56)
_READING_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_NONBLOCK

# Instructions of the classic Berkeley packet filter, and where a call's number and arguments stand.
_LOAD, _AND, _IF_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_NUMBER, _ARCHITECTURE, _FIRST, _THIRD = 0, 4, 16, 32
_ALLOW, _END_PROCESS, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def enter(writable: int) -> None:
    """Refuse all but `_ALLOWED`, opening files to read, and writing to the descriptor `writable`, for good.

    No process or thread can be started, no signal sent, no socket, file or memory of others opened for writing. Raises
    OSError on a kernel without seccomp and on other processors.
    """
    steps = _steps(writable)
    kernel.filter_calls(_Program(len(steps), (_Instruction * len(steps))(*steps)))


def _steps(writable: int) -> list[_Instruction]:
    if platform.machine() not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no table of system calls for {platform.machine()}")
    column, architecture = _ARCHITECTURES[platform.machine()]
    steps = [
        _Instruction(_LOAD, 0, 0, _ARCHITECTURE),
        _Instruction(_IF_EQUAL, 1, 0, architecture),
        _Instruction(_RETURN, 0, 0, _END_PROCESS),
        _Instruction(_LOAD, 0, 0, _NUMBER),
        _Instruction(_IF_EQUAL, 0, 4, _WRITE[column]),  # written to the one descriptor
        _Instruction(_LOAD, 0, 0, _FIRST),
        _Instruction(_IF_EQUAL, 0, 1, writable),
        _Instruction(_RETURN, 0, 0, _ALLOW),
        _Instruction(_RETURN, 0, 0, _REFUSE),
        _Instruction(_IF_EQUAL, 0, 5, _OPENAT[column]),  # opened with no flag that could change anything
        _Instruction(_LOAD, 0, 0, _THIRD),
        _Instruction(_AND, 0, 0, ~_READING_FLAGS & 0xFFFFFFFF),
        _Instruction(_IF_EQUAL, 0, 1, 0),
        _Instruction(_RETURN, 0, 0, _ALLOW),
        _Instruction(_RETURN, 0, 0, _REFUSE),
    ]
    for numbers in _ALLOWED.values():
        number = numbers[column]
        if number is not None:
            steps += [_Instruction(_IF_EQUAL, 0, 1, number), _Instruction(_RETURN, 0, 0, _ALLOW)]
    return [*steps, _Instruction(_RETURN, 0, 0, _REFUSE)]
