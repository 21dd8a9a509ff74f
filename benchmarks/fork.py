"""Work in a process of its own that is forked from this one: what was imported and loaded is there already."""

import os
import traceback
from collections.abc import Callable


def done_in_a_fork(work: Callable[[], None]) -> bool:
    """Do work in a fork and wait for it; return whether it was done. The traceback of an error is printed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - the fork must not go on as its parent
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return status == 0
