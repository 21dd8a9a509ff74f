"""Sends what a search finds to its client, whole or as a stream; a client that goes away ends its search."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from palmette.serve.gateway import Gateway
from palmette.serve.refusals import refusal_of
from palmette.serve.running import Running
from palmette.serve.web.requests import HEADERS, json_response
from palmette.serve.wire import DONE, KEEP_ALIVE, ChunkWriter, sse, whole_answer

KEEP_ALIVE_SECONDS = 15.0
"""Proxies cut a stream that is silent for 60 to 120 seconds."""

Result = TypeVar("Result")


async def unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return what the work returns. Cancels it and raises ClientDisconnect if the client goes away before."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, gone):
            if not each.done():
                each.cancel()
                await asyncio.wait({each})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def send_whole(gateway: Gateway, running: Running, request: Request) -> Response:
    """Return the answer when the search has ended."""
    try:
        found = await unless_gone(request, _result(running))
    finally:
        gateway.give_up(running)
    return json_response(whole_answer(running.head, found.choices, found.vendor, found.logprobs, found.usage))


async def _result(running: Running) -> Any:
    return await asyncio.shield(running.found)


class StreamedAnswer(StreamingResponse):
    """A stream whose search ends with it, however it ends."""

    def __init__(self, gateway: Gateway, running: Running) -> None:
        headers = {**HEADERS, "X-Accel-Buffering": "no"}
        super().__init__(_events(running), headers=headers, media_type="text/event-stream")
        self._gateway, self._running = gateway, running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._gateway.give_up(self._running)


async def _events(running: Running) -> AsyncIterator[bytes]:
    """Yield the chunks of an answer as the search goes on."""
    writer = ChunkWriter(running.head, running.ask.include_usage)
    sent: dict[int, int] = {}
    """How many characters of each choice's content were sent."""
    yield writer.begin(running.vendor)
    while True:
        try:
            piece = await asyncio.wait_for(running.pieces.get(), KEEP_ALIVE_SECONDS)
        except asyncio.TimeoutError:
            yield KEEP_ALIVE
            continue
        if piece is None:
            break
        if piece.choice is None:
            yield writer.reasoning(piece.text)
        else:
            sent[piece.choice] = sent.get(piece.choice, 0) + len(piece.text)
            yield writer.content(piece.choice, piece.text)
    try:
        found = running.found.result()
    except Exception as error:  # noqa: BLE001  # The status is sent already: the error is told as an event.
        yield sse(refusal_of(error).body()) + DONE
        return
    for index, choice in enumerate(found.choices):
        rest = choice.content[sent.get(index, 0) :]
        logprobs = found.logprobs[index] if found.logprobs else None
        if rest or logprobs is not None:
            yield writer.content(index, rest, logprobs)
        yield writer.finish(index, choice, found.vendor[index])
    yield writer.end(found.usage)
