"""Loads torch with threads that soon sleep while they wait. To be imported before the first import of torch.

OpenMP reads its settings once, when torch loads it. By default a waiting thread spins for milliseconds: beside another
busy process it spins away the time that the thread it waits for would need. The settings of the user win, and the
environment of this process is as before when this module is loaded.
"""

import math
import os
import sys

from palmette.cores import quota_cores
from palmette.openmp import is_count_chosen, quiet_settings


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
