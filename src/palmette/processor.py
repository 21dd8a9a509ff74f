"""Which narrow dtypes this machine's processor has no instructions for, so that products in them are slow."""

from collections.abc import Collection, Iterator
from pathlib import Path

SLOWER = {"bfloat16": "2 to 10 times", "float16": "2 to 8 times", "int8": "6 to 45 times"}
"""How much longer a product takes than in float32, from 1 to 256 rows, measured on an x86 processor with AVX2 alone."""


def lacking(cpuinfo: str) -> tuple[str, ...]:
    """Return the dtypes of `SLOWER` that an x86 processor without AVX-512 works out in detours, from /proc/cpuinfo.

    None for other processors, of which nothing was measured.
    """
    flags = {flag for line in cpuinfo.splitlines() if line.startswith("flags") for flag in line.split()}
    return tuple(SLOWER) if "sse2" in flags and "avx512f" not in flags else ()


def read_cpuinfo(root: Path = Path("/")) -> str:
    """Return what the kernel tells of the processor, nothing where it tells nothing."""
    try:
        return (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def slow_dtypes(used: Collection[str], cpuinfo: str) -> Iterator[str]:
    """Yield a line for each of these dtypes that is slow on the processor of `cpuinfo`."""
    for dtype in lacking(cpuinfo):
        if dtype in used:
            yield (
                f"this processor has no instructions for {dtype}: a model in it takes {SLOWER[dtype]} as long as in "
                "float32 (policy.dtype, policy.quantize, reward.dtype, reward.quantize)"
            )
