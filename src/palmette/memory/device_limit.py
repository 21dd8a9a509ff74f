"""Holds this process to its share of a GPU, by the allocator's own limit."""

import sys
from typing import Any


def hold_to(device: str, share: float) -> bool:
    """Let torch allocate no more than `share` of a CUDA device; tell whether there was one to limit.

    Nothing is limited on the CPU: there the plan and the guard keep the share.
    """
    torch: Any = sys.modules.get("torch")
    if not device.startswith("cuda") or torch is None or not torch.cuda.is_available():
        return False
    torch.cuda.set_per_process_memory_fraction(share, torch.device(device))
    return True
