"""Out-of-memory retry: runs work in pieces, halves a piece that ran out of memory, remembers the sizes that fit."""

import traceback
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from palmette.errors import BudgetError
from palmette.events import OomRetry
from palmette.memory.batch_limit import BatchLimit, next_item_count
from palmette.memory.device import DeviceMemory, held_bytes, read_device
from palmette.memory.meter import Meter
from palmette.memory.oom import is_out_of_memory, out_of_memory_message, over_limit_message
from palmette.memory.reclaim import LEAST_BYTES, reclaim
from palmette.units import describe_error

Item = TypeVar("Item")
Result = TypeVar("Result")


class RunPieces(Protocol):
    """Works on all items of a sequence, piece by piece, and returns one result for each piece, as `Guard.run` does."""

    def __call__(
        self,
        items: Sequence[Item],
        work: Callable[[Sequence[Item]], Result],
        *,
        cost: Callable[[Item], int] = lambda item: 1,
        group: Callable[[Item], Hashable] | None = None,
    ) -> list[Result]:
        """Return what `work` returns for each piece, in order; see `Guard.run` for `cost` and `group`.

        Work that raised an out-of-memory error may be called again: it has had no effect.
        """


ADVICE = "`palmette plan` names settings that fit"


def run_whole(
    items: Sequence[Item],
    work: Callable[[Sequence[Item]], Result],
    *,
    cost: Callable[[Item], int] = lambda item: 1,
    group: Callable[[Item], Hashable] | None = None,
) -> list[Result]:
    """Work on all items in one piece, without an out-of-memory retry."""
    return [work(items)]


@runtime_checkable
class GivesUpCache(Protocol):
    """A backend or a scorer whose KV cache can be freed when memory runs out."""

    def give_up_cache(self) -> bool:
        """Free the KV cache, which can be computed again; return whether it held any memory worth freeing."""


class Guard:
    """Runs one kind of work in pieces and remembers, from one call to the next, which sizes fit.

    `reclaim` frees unused memory and returns the bytes freed. `observe` reads what is held and free. `record` is
    called with every retry. `free_caches` frees caches that can be computed again and returns whether there were any;
    it is called once the smallest piece has failed, and if it returns True, all sizes are tried again. With
    `limit_bytes` a piece is halved before it is tried where the process already holds more than that, which is
    looked at before the first piece and every `checked_every`-th one after it.
    """

    def __init__(
        self,
        name: str,
        *,
        unit: str,
        reclaim: Callable[[], int],
        observe: Callable[[], DeviceMemory],
        record: Callable[[OomRetry], None] = lambda retry: None,
        free_caches: Callable[[], bool] = lambda: False,
        limit_bytes: int | None = None,
        checked_every: int = 1,
        planned_bytes: int | None = None,
        advice: str = "",
    ) -> None:
        self.name = name
        self.batch_limit = BatchLimit()
        self._unit = unit
        self._reclaim = reclaim
        self._observe = observe
        self._record = record
        self._free_caches = free_caches
        self._limit_bytes = limit_bytes
        self._checked_every = checked_every
        self._pieces = 0
        self._planned_bytes = planned_bytes
        self._advice = advice

    def run(
        self,
        items: Sequence[Item],
        work: Callable[[Sequence[Item]], Result],
        *,
        cost: Callable[[Item], int] = lambda item: 1,
        group: Callable[[Item], Hashable] | None = None,
        restart: Callable[[], None] | None = None,
    ) -> list[Result]:
        """Work on all items in order, piece by piece; return one result for each piece.

        A piece that runs out of memory is halved and tried again. Its size is the sum of its items' `cost`, each at
        least 1. Neighbors of one `group` stay in one piece as long as the piece holds several groups. Work that fails
        must change nothing; where that cannot be promised, `restart` has to undo all pieces so far, and all items are
        worked on again.

        Raises BudgetError where one item alone does not fit. Any other error passes unchanged.
        """
        costs = [cost(item) for item in items]
        groups = [group(item) for item in items] if group else list(range(len(items)))
        results: list[Result] = []
        start, tried = 0, list[int]()
        checked = False
        while start < len(items):
            count = next_item_count(self.batch_limit, costs[start:], groups[start:])
            size = sum(costs[start : start + count])
            failure: BaseException | None = None
            reason = self._over_limit() if not checked and self._limit_is_due() else ""
            if not reason:
                try:
                    result = work(items[start : start + count])
                except BaseException as error:
                    if not is_out_of_memory(error):
                        raise
                    reason, failure = describe_error(error), error
                if failure is not None:
                    _drop_tracebacks(failure)
            if reason:
                tried.append(size)
                self._make_smaller(size, reason, failure, tried, is_smallest=count == 1)
                checked = True  # What is held does not depend on the next piece's size: it is tried unchecked.
                if failure is not None and restart is not None:
                    restart()
                    results, start = [], 0
                continue
            limit = self.batch_limit.limit
            full = limit is not None and (size >= limit or start + count < len(items))
            self.batch_limit = self.batch_limit.after_success(size, full=full)
            results.append(result)
            start, tried, checked = start + count, [], False
        return results

    def _make_smaller(
        self, size: int, reason: str, failure: BaseException | None, tried: Sequence[int], *, is_smallest: bool
    ) -> None:
        """Free memory, lower the limit and record the retry; raise BudgetError where nothing smaller is left to try."""
        before = self._observe()
        freed = self._reclaim()
        freed_caches = is_smallest and self._free_caches()
        freed += self._reclaim() if freed_caches else 0
        after = self._observe()
        self.batch_limit = BatchLimit() if freed_caches else self.batch_limit.after_failure(size)
        is_last = is_smallest and not freed_caches
        retry = OomRetry(
            guard=self.name,
            unit=self._unit,
            tried=size,
            limit=None if is_last else self.batch_limit.limit,
            reason=reason,
            freed_bytes=freed,
            free_bytes_before=before.free_bytes,
            free_bytes_after=after.free_bytes,
            held_bytes=after.held_bytes,
            spared=freed_caches,
        )
        self._record(retry)
        if is_last:
            message = out_of_memory_message(
                self.name, self._unit, tried, after, self._planned_bytes, self._limit_bytes, self._advice
            )
            raise BudgetError(message) from failure

    def _limit_is_due(self) -> bool:
        """Count a piece; return whether what is held has to be looked at before it."""
        self._pieces += 1
        return self._limit_bytes is not None and (self._pieces - 1) % self._checked_every == 0

    def _over_limit(self) -> str:
        """Return how much is held where that is above the limit even after freeing memory, otherwise an empty text."""
        assert self._limit_bytes is not None
        if self._observe().held_bytes <= self._limit_bytes:
            return ""
        self._reclaim()
        held = self._observe().held_bytes
        return over_limit_message(held, self._limit_bytes) if held > self._limit_bytes else ""


def _drop_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an error and of its causes: their frames still hold the tensors that did not fit."""
    pending, seen = [error], set[int]()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if current.__traceback__ is not None:
            traceback.clear_frames(current.__traceback__)
        current.__traceback__ = None
        pending += [cause for cause in (current.__cause__, current.__context__) if cause is not None]
        current.__context__ = None


def guard_with_meter(
    meter: Meter,
    name: str,
    *,
    unit: str,
    reclaim_least: int = LEAST_BYTES,
    free_caches: Callable[[], bool] = lambda: False,
    limit_bytes: int | None = None,
    checked_every: int = 1,
    planned_bytes: int | None = None,
) -> Guard:
    """Return a guard that reads the meter's device and records its retries with the meter.

    It frees memory up to three times in a row, as long as each time frees at least `reclaim_least` bytes.
    """
    return Guard(
        name,
        unit=unit,
        reclaim=lambda: reclaim(lambda: held_bytes(meter.device), least_bytes=reclaim_least).total_bytes,
        observe=lambda: read_device(meter.device),
        record=meter.record,
        free_caches=free_caches,
        limit_bytes=limit_bytes,
        checked_every=checked_every,
        planned_bytes=planned_bytes,
        advice=ADVICE,
    )
