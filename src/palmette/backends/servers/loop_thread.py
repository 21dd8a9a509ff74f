"""An event loop in a thread of its own: thousands of requests wait in it while the caller does something else."""

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from threading import Thread, current_thread
from typing import Any, TypeVar

from palmette.backends.servers.client import Client

T = TypeVar("T")


class LoopThread:
    """Runs coroutines. `clients` are closed with it."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients
        self._loop = asyncio.new_event_loop()
        self._is_closed = False
        self._thread = Thread(target=_run, args=(self._loop,), name="palmette servers", daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine; cancelling the future that is returned cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result."""
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while waiting.
            raise

    def close(self) -> None:
        """Cancel what is running, close all connections, end the thread. Safe to call twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self.begin(self._end())
        if current_thread() is not self._thread:  # Garbage is collected in any thread.
            self._thread.join()

    async def _end(self) -> None:
        try:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.gather(*(client.close() for client in self._clients), return_exceptions=True)
        finally:
            self._loop.stop()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    # As asyncio.run does at its end: transports that are closing, and threads that look up hosts, come to their end.
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
