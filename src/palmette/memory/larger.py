"""The least devices that something fits on, as people would declare them."""

from collections.abc import Callable, Sequence

from palmette.memory.devices import Device, parse_devices, written_size

_MOST_GIB = 2**20


def least_devices(devices: Sequence[Device], fits: Callable[[Sequence[Device]], bool]) -> str | None:
    """Return all devices with the least whole GiB that fit: the host's if that alone helps, else the GPUs', else both.

    What is asked about is the text itself, read again, so that it fits as it is written. None where nothing helps.
    """
    gpus = [device for device in devices if device.kind == "cuda"]
    host = next((device for device in devices if device.kind == "cpu"), None)

    def declared(gpu_gib: int | None, host_gib: int | None) -> str:
        parts = [f"1x{written_size(gpu)}" for gpu in gpus] if gpu_gib is None else [f"{len(gpus)}x{gpu_gib}GiB"]
        if host is not None and (host_gib is not None or host.total_bytes is not None):
            parts.append(f"cpu:{written_size(host)}" if host_gib is None else f"cpu:{host_gib}GiB")
        return ",".join(parts)

    def least(written: Callable[[int], str]) -> int | None:
        return _smallest(_MOST_GIB, lambda gib: fits(parse_devices(written(gib))))

    if host is not None and (gib := least(lambda gib: declared(None, gib))) is not None:
        return declared(None, gib)
    if gpus and (gib := least(lambda gib: declared(gib, None))) is not None:
        return declared(gib, None)
    if gpus and host is not None and (each := least(lambda gib: declared(gib, _MOST_GIB))) is not None:
        return declared(each, least(lambda gib: declared(each, gib)))
    return None


def _smallest(most: int, fits: Callable[[int], bool]) -> int | None:
    """Return a value up to `most` that fits while the one below does not, None where `most` does not fit."""
    if not fits(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
