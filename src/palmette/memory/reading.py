"""What a device holds and has left at one moment."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """Bytes of one device. `held_bytes` are this process's: resident on the host, reserved by torch on a GPU.

    `used_bytes` are the allocator's own count of what is in use, `other_bytes` what other processes hold; None where
    nobody tells.
    """

    device: str
    total_bytes: int
    free_bytes: int
    held_bytes: int
    used_bytes: int | None = None
    other_bytes: int | None = None
