"""Best-of-N: `width` solutions side by side that never meet after the prompt."""

from palmette.search.strategy import Allocation, Frontier


def allocate(frontier: Frontier, width: int, room: int | None) -> Allocation:
    """Give the prompt `width` children, every later leaf one."""
    if frontier.leaves == (0,):
        return {0: width}
    return dict.fromkeys(frontier.leaves[:width], 1)
