"""Records over HTTP: a page, one whole record, live tail, search with progress; and producing one."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millpond.admin.errors import Refused
from millpond.admin.excerpts import Extent, RecordExcerpt
from millpond.admin.offsets import At, Beginning, Last, Point, Since
from millpond.admin.records import After, Before, RecordSearch, RecordTail, read_page, write_record
from millpond.admin.topics import find_topic
from millpond.console.cluster_pool import FAULTS
from millpond.console.context import ConsoleContext, context_of
from millpond.console.responses import encoded, reply, reply_encoded
from millpond.console.shapes import BadRequest, Body, flag, number, sentence, words
from millpond.console.streams import Event, EventStream
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import Isolation

PREVIEW: Final = Extent(data_bytes=600, headers=20, headers_bytes=2_000)
"""Limits of each record in a list."""
WHOLE: Final = Extent(data_bytes=512 << 10, headers=200, headers_bytes=512 << 10)
"""Limits of a single record."""
HEADERS_MAX: Final = 200
"""Limit of headers of a record to write."""
ROWS: Final = 50
ROWS_MAX: Final = 200
OFFSET_MAX: Final = (1 << 63) - 1
PARTITION_MAX: Final = (1 << 31) - 1

TAIL_SECONDS: Final = 0.5
TAIL_ROWS: Final = 100

SEARCH_SECONDS_MAX: Final = 120.0
SEARCH_STEP_SECONDS: Final = 0.4
HITS_MAX: Final = 200


def _cursor(request: Request, name: str) -> dict[int, int]:
    """Where the last page began or ended in each partition, as comma-separated PARTITION:OFFSET."""
    text = request.query_params.get(name, "")
    cursor = {}
    for part in text.split(",") if text else ():
        index, _, offset = part.partition(":")
        if not (index.isdecimal() and offset.isdecimal() and len(part) <= 40 and int(offset) <= OFFSET_MAX):
            raise BadRequest(f"{name} must be PARTITION:OFFSET, separated by commas.")
        cursor[int(index)] = int(offset)
    return cursor


def _page_point(request: Request) -> Point | Before | After:
    if before := _cursor(request, "before"):
        return Before(before)
    if after := _cursor(request, "after"):
        return After(after)
    return _point(request)


def _point(request: Request) -> Point:
    """The starting point: `from` is beginning, end, an offset or -N; `since_ms` is a time."""
    if request.query_params.get("since_ms"):
        return Since(number(request, "since_ms", 0, 0, OFFSET_MAX))
    match words(request, "from", "end"):
        case "beginning":
            return Beginning()
        case "end" | "":
            return Last(ROWS)
        case _:
            at = number(request, "from", 0, -ROWS_MAX, OFFSET_MAX)
            return At(at) if at >= 0 else Last(-at)


def _index(request: Request) -> int | None:
    return None if not request.query_params.get("partition") else number(request, "partition", 0, 0, PARTITION_MAX)


def _isolation(request: Request) -> Isolation:
    return "read_committed" if flag(request, "committed") else "read_uncommitted"


async def read(request: Request) -> Response:
    topic, index, point = request.path_params["name"], _index(request), _page_point(request)
    limit, isolation = number(request, "limit", ROWS, 1, ROWS_MAX), _isolation(request)

    def read_new(cluster: Cluster) -> bytes:
        page = read_page(cluster, topic, index, point, limit, PREVIEW, isolation=isolation)
        return encoded(
            {
                "records": page.records,
                "partitions": [
                    {
                        "partition": each.partition,
                        "start": bound.start,
                        "end": bound.end,
                        "shown": page.shown.get(each),
                    }
                    for each, bound in page.bounds.items()
                ],
                "leaderless": page.leaderless,
                "is_whole": page.is_whole,
            }
        )

    return reply_encoded(await context_of(request).pool.ask(read_new))


async def partitions(request: Request) -> Response:
    """All partitions, including those without a leader."""
    topic = request.path_params["name"]
    info = await context_of(request).pool.ask(lambda cluster: find_topic(cluster, topic))
    return reply([{"partition": index, "leader": each.leader} for index, each in sorted(info.partitions.items())])


async def read_one(request: Request) -> Response:
    topic, index, offset = (request.path_params[each] for each in ("name", "index", "offset"))
    if index > PARTITION_MAX or offset > OFFSET_MAX:
        raise BadRequest("The partition or offset is out of range.")

    def read_new(cluster: Cluster) -> bytes:
        records = read_page(cluster, topic, index, At(offset), 1, WHOLE).records
        if not records or records[0].offset != offset:
            raise Refused(
                f"There is no record at {topic}[{index}]@{offset}: it was deleted or compacted, or is a marker"
            )
        return encoded(records[0])

    return reply_encoded(await context_of(request).pool.ask(read_new))


async def live_tail(request: Request) -> EventStream:
    tail = RecordTail(request.path_params["name"], _index(request), _isolation(request), TAIL_ROWS, PREVIEW)
    context = context_of(request)
    return EventStream(context.streams, _tail(context, tail))


async def _tail(context: ConsoleContext, tail: RecordTail) -> AsyncIterator[Event]:
    while True:
        try:
            yield Event("records", await context.pool.ask(tail.read_new))
        except FAULTS as fault:
            yield Event("failure", {"error": sentence(fault)})
        await asyncio.sleep(TAIL_SECONDS)


async def live_search(request: Request) -> EventStream:
    context, topic, index = context_of(request), request.path_params["name"], _index(request)
    text, isolation = words(request, "text"), _isolation(request)
    if not text:
        raise BadRequest("Say what to search for.")
    point: Point = Beginning() if words(request, "from", "") in ("", "end") else _point(request)
    if request.query_params.get("since_ms"):
        point = _point(request)
    return EventStream(context.streams, _search(context, topic, index, point, text, isolation))


async def _search(
    context: ConsoleContext, topic: str, index: int | None, point: Point, text: str, isolation: Isolation
) -> AsyncIterator[Event]:
    loop = asyncio.get_running_loop()
    lease, began, hits = context.pool.lease(), loop.time(), 0

    def begin(cluster: Cluster) -> RecordSearch:
        return RecordSearch(cluster, topic, index, point, text, PREVIEW, isolation)

    try:
        search = await context.pool.on(lease, begin)

        def step(_: Cluster) -> list[RecordExcerpt]:
            return search.run_for(SEARCH_STEP_SECONDS, HITS_MAX - hits)

        while not search.is_done and hits < HITS_MAX and loop.time() - began < SEARCH_SECONDS_MAX:
            matches = await context.pool.on(lease, step)
            hits += len(matches)
            yield Event(
                "found",
                {
                    "records": matches,
                    "leaderless": search.leaderless,
                    "scanned": search.scanned,
                    "total": search.total,
                    "is_done": search.is_done,
                },
            )
        if not search.is_done:
            yield Event("limit", {"hits": hits, "seconds": round(loop.time() - began)})
    except FAULTS as fault:
        yield Event("failure", {"error": sentence(fault)})
    finally:
        context.pool.give_back(lease)


async def produce(request: Request) -> Response:
    body, topic = await Body.read(request), request.path_params["name"]
    index = body.number_or_none("partition", 0, PARTITION_MAX)
    encoding = body.text("encoding", "text")
    key, value = (
        text_as_bytes(body.text_or_none(name), encoding if name == "value" else "text") for name in ("key", "value")
    )
    headers = tuple((name, text.encode()) for name, text in body.texts("headers").items())
    if len(headers) > HEADERS_MAX:
        raise BadRequest(f"A record may have at most {HEADERS_MAX} headers here.")
    partition, offset = await context_of(request).pool.change(
        lambda cluster: write_record(cluster, topic, index, key, value, headers)
    )
    return reply({"partition": partition, "offset": offset}, 201)


def text_as_bytes(text: str | None, encoding: str) -> bytes | None:
    """The entered text, decoded by its encoding."""
    if text is None:
        return None
    try:
        match encoding:
            case "text":
                return text.encode()
            case "hex":
                return bytes.fromhex(text)
            case "base64":
                return b64decode(text, validate=True)
    except (ValueError, NotBase64):
        raise BadRequest(f"The value is not {encoding}.") from None
    raise BadRequest(f"encoding={encoding[:20]}: give text, hex or base64.")


ROUTES: Final = [
    Route("/api/topics/{name}/records", read),
    Route("/api/topics/{name}/records", produce, methods=["POST"]),
    Route("/api/topics/{name}/partitions", partitions),
    Route("/api/topics/{name}/records/{index:int}/{offset:int}", read_one),
    Route("/api/live/topics/{name}/tail", live_tail),
    Route("/api/live/topics/{name}/search", live_search),
]
