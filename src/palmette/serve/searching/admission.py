"""Who may search now: a tree is let in when the KV tokens that it may hold, by the plan, are free."""

import asyncio
import math
from collections import deque
from dataclasses import dataclass
from time import monotonic

from palmette.serve.bounds import Bounds
from palmette.serve.refusals import ApiError

_FIRST_SECONDS, _LONGEST_RETRY = 2.0, 120
_RESTART_SECONDS = 10
"""When to come again to a gateway that is being stopped: what stops it may start it again."""
_WEIGHT = 0.2
"""Of the newest search in the mean of how long searches take."""


@dataclass(eq=False)
class Place:
    """What a search was let in with: KV tokens that no other one may take, since a moment of the monotonic clock."""

    kv_tokens: int
    since: float


class Admission:
    """Counts KV tokens and searches. `kv_tokens` is what all trees may hold together, None without a limit.

    Requests wait in line: a large one is not overtaken for ever by small ones. Used by the event loop's thread alone.
    """

    def __init__(self, kv_tokens: int | None, bounds: Bounds) -> None:
        self.kv_tokens = kv_tokens
        self._bounds = bounds
        self._places: set[Place] = set()
        self._line: deque[tuple[int, asyncio.Future[Place]]] = deque()
        self._returning: deque[float] = deque(maxlen=max(1, bounds.waiting))
        self._mean_seconds = _FIRST_SECONDS
        self._is_closed = False

    @property
    def taken_tokens(self) -> int:
        """KV tokens that searches under way were let in with."""
        return sum(place.kv_tokens for place in self._places)

    @property
    def searches(self) -> int:
        """Searches under way."""
        return len(self._places)

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._line)

    async def enter(self, kv_tokens: int) -> Place:
        """Return a place for a tree of at most so many KV tokens, which has to be left again; waits in line for it.

        Raises ApiError 429, with the seconds after which a place should be free, where the line is full or the wait is
        too long; 503 once nobody is let in any more.
        """
        if self._is_closed:
            raise _stopping()
        if not self._line and self._fits(kv_tokens):
            return self._take(kv_tokens)
        if len(self._line) >= self._bounds.waiting:
            raise self._busy(kv_tokens)
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        entry = (kv_tokens, future)
        self._line.append(entry)
        try:
            return await asyncio.wait_for(asyncio.shield(future), self._bounds.wait_seconds)
        except (asyncio.TimeoutError, asyncio.CancelledError) as error:
            if future.done() and future.exception() is None:  # Let in at the very moment.
                if isinstance(error, asyncio.TimeoutError):
                    return future.result()
                self._places.discard(future.result())
            elif not future.done():
                self._line.remove(entry)
            self._let_in()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise self._busy(kv_tokens) from None

    def close(self) -> None:
        """Let nobody in any more; those in line are told so."""
        self._is_closed = True
        while self._line:
            _, future = self._line.popleft()
            future.set_exception(_stopping())

    def leave(self, place: Place) -> None:
        """Free a place, after the search has ended and its KV is free."""
        if place not in self._places:
            return
        self._places.remove(place)
        self._mean_seconds += _WEIGHT * (monotonic() - place.since - self._mean_seconds)
        self._let_in()

    def _let_in(self) -> None:
        while self._line and self._fits(self._line[0][0]):
            kv_tokens, future = self._line.popleft()
            future.set_result(self._take(kv_tokens))

    def _fits(self, kv_tokens: int) -> bool:
        free = self.kv_tokens is None or self.taken_tokens + kv_tokens <= self.kv_tokens
        return free and len(self._places) < self._bounds.searches

    def _take(self, kv_tokens: int) -> Place:
        place = Place(kv_tokens, monotonic())
        self._places.add(place)
        return place

    def _busy(self, kv_tokens: int) -> ApiError:
        """Say when to come again: those in line go first, about as many at a time as search now.

        So do those who were told to come again before: else all who are refused together would come back together.
        """
        now = monotonic()
        while self._returning and self._returning[0] < now:
            self._returning.popleft()
        turns = 1 + (len(self._line) + len(self._returning)) / max(1, len(self._places))
        seconds = min(_LONGEST_RETRY, max(1, math.ceil(self._mean_seconds * turns)))
        self._returning.append(now + seconds)
        taken = f"{self.taken_tokens} of {self.kv_tokens}" if self.kv_tokens is not None else "no limited number of"
        return ApiError(
            429,
            f"no room now: this tree may hold {kv_tokens} KV tokens; {taken} KV tokens are taken by "
            f"{len(self._places)} searches, at most {self._bounds.searches} at a time. Try again in {seconds} s, or "
            f"ask for a lower reasoning_effort",
            None,
            "rate_limit_exceeded",
            seconds,
        )


def _stopping() -> ApiError:
    return ApiError(503, "the gateway is being stopped", None, "unavailable", _RESTART_SECONDS)
