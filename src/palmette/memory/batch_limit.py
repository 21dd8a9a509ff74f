"""How large the next piece of work may be, from what failed before and what did not."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

FIRST_PATIENCE = 4
"""Full pieces that have to succeed in a row before the limit grows."""

LONGEST_PATIENCE = 64
STALE_AFTER = 8
"""So many times the patience at a limit that cannot come nearer to what failed, and that failure is forgotten."""


@dataclass(frozen=True)
class BatchLimit:
    """The largest piece to try, in the unit that items are counted in; None where nothing has failed yet.

    `failed` is the smallest size that failed and is still remembered, `clean` counts full pieces since the last
    change, `back` is the limit that worked before it last grew.
    """

    limit: int | None = None
    failed: int | None = None
    clean: int = 0
    patience: int = FIRST_PATIENCE
    back: int | None = None

    def after_failure(self, size: int) -> "BatchLimit":
        """Return the rung below: half of what failed. A limit that grew too far goes back, and grows slower then."""
        failed = size if self.failed is None else min(size, self.failed)
        if self.back is not None and self.back < size:
            return BatchLimit(self.back, failed, 0, min(2 * self.patience, LONGEST_PATIENCE))
        return BatchLimit(max(1, size // 2), failed, 0, self.patience)

    def after_success(self, size: int, *, full: bool) -> "BatchLimit":
        """Return the same rung, or the one above after enough full pieces in a row.

        It doubles, but below a size that failed it goes half of the way; past it only after a long time without a
        failure, since what else holds memory may be gone by then.
        """
        if self.limit is None:
            return self
        failed = None if self.failed is not None and size >= self.failed else self.failed
        if not full:
            return replace(self, failed=failed)
        here = replace(self, failed=failed, clean=self.clean + 1)
        if here.clean < self.patience:
            return here
        grown = 2 * self.limit if failed is None else min(2 * self.limit, (self.limit + failed) // 2)
        if grown > self.limit:
            return BatchLimit(grown, failed, 0, self.patience, self.limit)
        if here.clean < STALE_AFTER * self.patience:
            return here
        return BatchLimit(self.limit, None, 0, self.patience)


def first_batch(batch_limit: BatchLimit, costs: Sequence[int], groups: Sequence[Hashable]) -> int:
    """Return how many of the first items to work on next: at least one.

    Neighbors of one group stay together as long as the piece would hold another group too; a group that is larger
    than the limit is tried whole where no smaller size has failed.
    """
    if batch_limit.limit is None or not costs:
        return len(costs)
    whole = spent = taken = 0
    while taken < len(costs):
        end, cost = taken, 0
        while end < len(costs) and groups[end] == groups[taken]:
            cost += costs[end]
            end += 1
        if spent + cost > batch_limit.limit:
            if taken == 0 and (batch_limit.failed is None or cost < batch_limit.failed):
                return end
            break
        whole, spent, taken = end, spent + cost, end
    return whole or _within(batch_limit.limit, costs)


def _within(limit: int, costs: Sequence[int]) -> int:
    spent = 0
    for count, cost in enumerate(costs):
        spent += cost
        if spent > limit:
            return max(1, count)
    return len(costs)
