"""How large the next piece of work may be, after the sizes that ran out of memory and those that did not."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

FIRST_PATIENCE = 4
"""Full pieces that have to succeed in a row before the limit grows."""

LONGEST_PATIENCE = 64
STALE_AFTER = 8
"""A failure is forgotten after this many times the patience at a limit that cannot grow closer to the failed size."""


@dataclass(frozen=True)
class BatchLimit:
    """The largest piece to try, in the unit that items are counted in; `limit` is None until something has failed.

    `failed` is the smallest size that failed and is still remembered, `successes` counts full pieces since the limit
    last changed, `previous` is the limit that worked before it last grew.
    """

    limit: int | None = None
    failed: int | None = None
    successes: int = 0
    patience: int = FIRST_PATIENCE
    previous: int | None = None

    def after_failure(self, size: int) -> "BatchLimit":
        """Return half of the failed size as the limit, or the previous limit if the failure came right after growing.

        In the second case the limit waits twice as long before it grows again.
        """
        failed = size if self.failed is None else min(size, self.failed)
        if self.previous is not None and self.previous < size:
            return BatchLimit(self.previous, failed, 0, min(2 * self.patience, LONGEST_PATIENCE))
        return BatchLimit(max(1, size // 2), failed, 0, self.patience)

    def after_success(self, size: int, *, full: bool) -> "BatchLimit":
        """Return the same limit, or a larger one after enough full pieces in a row.

        It doubles, but grows only halfway towards a size that failed. That size is tried again only after a long time
        without a failure, when whatever else held memory may be gone.
        """
        if self.limit is None:
            return self
        failed = None if self.failed is not None and size >= self.failed else self.failed
        if not full:
            return replace(self, failed=failed)
        same = replace(self, failed=failed, successes=self.successes + 1)
        if same.successes < self.patience:
            return same
        grown = 2 * self.limit if failed is None else min(2 * self.limit, (self.limit + failed) // 2)
        if grown > self.limit:
            return BatchLimit(grown, failed, 0, self.patience, self.limit)
        if same.successes < STALE_AFTER * self.patience:
            return same
        return BatchLimit(self.limit, None, 0, self.patience)


def next_item_count(batch_limit: BatchLimit, costs: Sequence[int], groups: Sequence[Hashable]) -> int:
    """Return how many of the first items make the next piece: at least one, and as many as the limit allows.

    A group is split only where it is the only one in the piece. A group above the limit is tried whole as long as no
    size up to its own has failed.
    """
    if batch_limit.limit is None or not costs:
        return len(costs)
    spent = taken = 0
    while taken < len(costs):
        end, cost = taken, 0
        while end < len(costs) and groups[end] == groups[taken]:
            cost += costs[end]
            end += 1
        if spent + cost > batch_limit.limit:
            if taken == 0 and (batch_limit.failed is None or cost < batch_limit.failed):
                return end
            break
        spent, taken = spent + cost, end
    return taken or _count_within(batch_limit.limit, costs)


def _count_within(limit: int, costs: Sequence[int]) -> int:
    """Return how many of the first items cost no more than the limit together; at least one."""
    spent = 0
    for count, cost in enumerate(costs):
        spent += cost
        if spent > limit:
            return max(1, count)
    return len(costs)
