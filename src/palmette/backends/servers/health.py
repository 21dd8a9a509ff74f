"""Stops waiting for a server whose engine has died: vLLM on its way out keeps the connections of its requests open."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LOOK_SECONDS = 10.0
"""How long an answer is waited for before the server's health is looked at, and how often."""


class Health:
    """`look` raises where the server is ill. All requests that wait at the same time share what it found."""

    def __init__(self, look: Callable[[], Awaitable[object]]) -> None:
        self._look = look
        self._looking = asyncio.Lock()
        self._looked_at = 0.0
        self._fault: Exception | None = None

    async def while_well(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Raises what `look` raises, with `work` given up, if the server is ill."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # Else asyncio prints it.
        try:
            while not (await asyncio.wait({task}, timeout=LOOK_SECONDS))[0]:
                await self._check()
            return task.result()
        finally:
            task.cancel()

    async def _check(self) -> None:
        async with self._looking:
            if time.monotonic() - self._looked_at >= LOOK_SECONDS / 2:
                self._fault = None
                try:
                    await self._look()
                except Exception as error:  # noqa: BLE001  # Raised below, for every request.
                    self._fault = error
                self._looked_at = time.monotonic()
            if self._fault is not None:
                raise self._fault
