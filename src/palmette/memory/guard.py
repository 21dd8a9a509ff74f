"""Runs work that can be split, in pieces that fit: halves what runs out of memory, remembers what did not."""

import traceback
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from palmette.errors import BudgetError
from palmette.events import OomRetry
from palmette.memory.batch_limit import BatchLimit, first_batch
from palmette.memory.device import DeviceMemory, held_bytes, read_device
from palmette.memory.meter import Meter
from palmette.memory.oom import is_out_of_memory, out_of_memory_message, over_limit_message, reason_of
from palmette.memory.reclaim import LEAST_BYTES, reclaim

Item = TypeVar("Item")
Result = TypeVar("Result")

RunPieces = Callable[[Sequence[Any], Callable[[Sequence[Any]], Any]], list[Any]]
"""Works on all of a sequence piece by piece and returns what each piece gave, as `Guard.run` does."""


def run_whole(items: Sequence[Item], work: Callable[[Sequence[Item]], Result]) -> list[Result]:
    """Work on all items in one piece: a run without a guard."""
    return [work(items)]


@runtime_checkable
class GivesUpCache(Protocol):
    """A backend or a scorer whose cache can be given up when memory runs out."""

    def give_up_cache(self) -> bool:
        """Give back what can be computed again; tell whether there was any."""


class Guard:
    """Remembers, from one call to the next, which sizes of a kind of work fit.

    `reclaim` gives memory back and returns the bytes freed; `observe` reads what is held and free; `record` hears of
    every retry. `spare` gives up what can be computed again and tells whether there was any: it is asked once the
    smallest piece has failed, and after a yes all sizes are tried anew. With `limit_bytes` a piece is halved before it
    is tried where so much is held already.
    """

    def __init__(
        self,
        name: str,
        *,
        unit: str,
        reclaim: Callable[[], int],
        observe: Callable[[], DeviceMemory],
        record: Callable[[OomRetry], None] = lambda retry: None,
        spare: Callable[[], bool] = lambda: False,
        limit_bytes: int | None = None,
        planned_bytes: int | None = None,
        advice: str = "",
    ) -> None:
        self.name = name
        self.batch_limit = BatchLimit()
        self._unit = unit
        self._reclaim = reclaim
        self._observe = observe
        self._record = record
        self._spare = spare
        self._limit_bytes = limit_bytes
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
        """Work on all items in order, piece by piece; return what each piece gave.

        A piece that runs out of memory is tried again in halves, counted by `cost` (1 or more an item), with neighbors
        of one `group` kept together as long as a piece holds several groups. Its work must leave nothing behind where
        it fails; where it cannot promise that, `restart` undoes all pieces so far, and all items are worked on again.

        Raises BudgetError where one item alone does not fit. Any other error passes untouched.
        """
        costs = [cost(item) for item in items]
        groups = [group(item) for item in items] if group else list(range(len(items)))
        results: list[Result] = []
        start, tried = 0, list[int]()
        checked = self._limit_bytes is None
        while start < len(items):
            count = first_batch(self.batch_limit, costs[start:], groups[start:])
            size = sum(costs[start : start + count])
            failure: BaseException | None = None
            reason = "" if checked else self._over_limit()
            if not reason:
                try:
                    result = work(items[start : start + count])
                except BaseException as error:
                    if not is_out_of_memory(error):
                        raise
                    reason, failure = reason_of(error), error
                if failure is not None:
                    _let_go(failure)
            if reason:
                tried.append(size)
                self._step_down(size, reason, failure, tried, is_smallest=count == 1)
                checked = True  # The halved piece is tried: its size does not change what is held before it.
                if failure is not None and restart is not None:
                    restart()
                    results, start = [], 0
                continue
            limit = self.batch_limit.limit
            full = limit is not None and (size >= limit or start + count < len(items))
            self.batch_limit = self.batch_limit.after_success(size, full=full)
            results.append(result)
            start, tried = start + count, []
            checked = self._limit_bytes is None
        return results

    def _step_down(
        self, size: int, reason: str, failure: BaseException | None, tried: Sequence[int], *, is_smallest: bool
    ) -> None:
        before = self._observe()
        freed = self._reclaim()
        spared = is_smallest and self._spare()
        freed += self._reclaim() if spared else 0
        after = self._observe()
        self.batch_limit = BatchLimit() if spared else self.batch_limit.after_failure(size)
        stuck = is_smallest and not spared
        retry = OomRetry(
            guard=self.name,
            unit=self._unit,
            tried=size,
            limit=None if stuck else self.batch_limit.limit,
            reason=reason,
            freed_bytes=freed,
            free_bytes_before=before.free_bytes,
            free_bytes_after=after.free_bytes,
            held_bytes=after.held_bytes,
            spared=spared,
        )
        self._record(retry)
        if stuck:
            told = out_of_memory_message(
                self.name, self._unit, tried, after, self._planned_bytes, self._limit_bytes, self._advice
            )
            raise BudgetError(told) from failure

    def _over_limit(self) -> str:
        """Return why the next piece should be smaller, nothing where less than the limit is held."""
        assert self._limit_bytes is not None
        if self._observe().held_bytes <= self._limit_bytes:
            return ""
        self._reclaim()
        held = self._observe().held_bytes
        return over_limit_message(held, self._limit_bytes) if held > self._limit_bytes else ""


def _let_go(error: BaseException) -> None:
    """Drop the tracebacks of an error and of all behind it: their frames still hold the tensors that did not fit."""
    pending, seen = [error], set[int]()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if current.__traceback__ is not None:
            traceback.clear_frames(current.__traceback__)
        current.__traceback__ = None
        pending += [behind for behind in (current.__cause__, current.__context__) if behind is not None]
        current.__context__ = None


ADVICE = "`palmette plan` names settings that fit"


def guard_with_meter(
    meter: Meter,
    name: str,
    *,
    unit: str,
    reclaim_least: int = LEAST_BYTES,
    spare: Callable[[], bool] = lambda: False,
    limit_bytes: int | None = None,
    planned_bytes: int | None = None,
) -> Guard:
    """Return a guard that tells its retries to the meter, and gives memory back until a try frees less than said."""
    return Guard(
        name,
        unit=unit,
        reclaim=lambda: reclaim(lambda: held_bytes(meter.device), least_bytes=reclaim_least).total_bytes,
        observe=lambda: read_device(meter.device),
        record=meter.tell,
        spare=spare,
        limit_bytes=limit_bytes,
        planned_bytes=planned_bytes,
        advice=ADVICE,
    )
