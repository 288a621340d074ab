"""Hot partitions over HTTP: the skew of every topic, its causes and remedies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millpond.admin.excerpts import cut
from millpond.admin.skew import EVEN, SkewFacts, SkewLook, topic_balances
from millpond.console.desk import FAULTS
from millpond.console.records import OFFSET_MAX
from millpond.console.responses import reply
from millpond.console.room import KEY_LOOKS_MAX, Room, room_of
from millpond.console.shapes import Page, number, sentence
from millpond.console.streams import Event, EventStream
from millpond.remote.cluster import Cluster

FRESH_SECONDS: Final = 5.0
RECORDS: Final = 50_000
RECORDS_MAX: Final = 500_000
STEP_SECONDS: Final = 0.4
SECONDS_MAX: Final = 60.0
KEY_BYTES: Final = 200


async def balances(request: Request) -> Response:
    listed = await room_of(request).desk.recent("balances", FRESH_SECONDS, topic_balances)
    by_name = {each.topic: each for each in listed}
    page = Page(request, list(by_name))
    return reply(page.shape([by_name[name] for name in page.names]) | {"even": EVEN})


async def live_skew(request: Request) -> EventStream:
    room, topic = room_of(request), request.path_params["topic"]
    since_ms = number(request, "since_ms", -1, 0, OFFSET_MAX)
    records = number(request, "records", RECORDS, 100, RECORDS_MAX)
    return EventStream(room.streams, looks_for_keys(room, topic, None if since_ms < 0 else since_ms, records))


async def looks_for_keys(room: Room, topic: str, since_ms: int | None, records: int) -> AsyncGenerator[Event, None]:
    """Starts one search, if the limit allows it."""
    if room.key_looks.locked():
        why = f"{KEY_LOOKS_MAX} looks for hot keys go on already: look again when one of them is done."
        yield Event("failure", {"error": why})
        return
    async with room.key_looks, contextlib.aclosing(_steps(room, topic, since_ms, records)) as steps:
        async for event in steps:
            yield event


async def _steps(room: Room, topic: str, since_ms: int | None, records: int) -> AsyncGenerator[Event, None]:
    loop = asyncio.get_running_loop()
    lease, began = room.desk.lease(), loop.time()

    def begin(cluster: Cluster) -> SkewLook:
        return SkewLook(cluster, topic, since_ms, records)

    try:
        look = await room.desk.on(lease, begin)

        def go_on(_: Cluster) -> None:
            look.go_on(STEP_SECONDS)

        while not look.is_done and loop.time() - began < SECONDS_MAX:
            await room.desk.on(lease, go_on)
            yield Event("progress", {"scanned": look.scanned, "total": look.total})
        yield Event("report", await room.desk.on(lease, lambda _: _shape(look.facts(), is_whole=look.is_done)))
    except FAULTS as fault:
        yield Event("failure", {"error": sentence(fault)})
    finally:
        room.desk.give_back(lease)


def _shape(facts: SkewFacts, *, is_whole: bool) -> dict[str, Any]:
    report = facts.report
    return {
        "records": facts.records,
        "records_read": facts.records_read,
        "is_estimate": facts.is_estimate or not is_whole,
        "loads": report.loads,
        "keys": report.keys,
        "keyless": report.keyless,
        "imbalance": report.imbalance,
        "even": EVEN,
        "cause": report.cause,
        "advice": report.advice,
        "hottest": [
            {
                "key": cut(each.key, KEY_BYTES),
                "partition": each.partition,
                "records": each.records,
                "bytes": each.bytes,
                "share": report.share(each),
            }
            for each in report.hottest
        ],
        "predictions": [
            {"key": each.key, "partitions": each.partitions, "imbalance": each.imbalance}
            for each in report.predictions
        ],
    }


ROUTES: Final = [Route("/api/skew", balances), Route("/api/live/skew/{topic}", live_skew)]
