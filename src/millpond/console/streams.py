"""Server-sent events: responses that last until the client leaves, limited in number."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from millpond.console.cluster_pool import FAULTS
from millpond.console.shapes import as_json, sentence

STREAMS_MAX: Final = 64
LOOK_SECONDS: Final = 2.0
REST_FACTOR: Final = 4
"""After a slow sample the pause is this many times as long, so that watching a large cluster does not load it."""


class Event(NamedTuple):
    name: str
    data: Any


class Streams:
    """How many are open."""

    def __init__(self) -> None:
        self.open_count = 0
        self.refused_count = 0


class EventStream:
    """A response of events. Their producer is cancelled when the client disconnects or its login session ends."""

    def __init__(self, streams: Streams, events: AsyncIterator[Event]) -> None:
        self._streams = streams
        self._events = events
        self._is_open = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._streams.open_count >= STREAMS_MAX:
            self._streams.refused_count += 1
            # A refused client must not keep its connection.
            refusal = JSONResponse(
                {"error": f"{STREAMS_MAX} live views are open: close one first."}, 503, {"connection": "close"}
            )
            await refusal(scope, receive, send)
            return
        self._streams.open_count += 1
        tasks = {asyncio.create_task(self._write(send)), asyncio.create_task(until_gone(receive))}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._streams.open_count -= 1
        for task in done:
            task.result()
        if self._is_open:
            # A client that is still connected sees the end, and asks again.
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._is_open = True
        async with contextlib.aclosing(self._events) as events:  # type: ignore[type-var]
            async for event in events:
                body = f"event: {event.name}\ndata: {json.dumps(as_json(event.data))}\n\n".encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
        self._is_open = False
        await send({"type": "http.response.body", "body": b"event: end\ndata: null\n\n", "more_body": False})


async def until_gone(receive: Receive) -> None:
    """Returns when the client has disconnected, or its login session has ended."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def sample_events(
    question: Callable[[], Awaitable[Any]], seconds: float = LOOK_SECONDS
) -> AsyncIterator[Event]:
    """Repeats the result. An error of the cluster is an event, too, and the next sample may succeed."""
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        try:
            yield Event("look", await question())
        except FAULTS as fault:
            yield Event("failure", {"error": sentence(fault)})
        await asyncio.sleep(max(seconds, REST_FACTOR * (loop.time() - began)))
