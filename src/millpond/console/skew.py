"""Hot partitions over HTTP: the skew of every topic, its causes and remedies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millpond.admin.excerpts import cut
from millpond.admin.skew import EVEN, SkewAnalysis, SkewFacts, topic_balances
from millpond.console.cluster_pool import FAULTS
from millpond.console.context import KEY_SEARCHES_MAX, ConsoleContext, context_of
from millpond.console.records import OFFSET_MAX
from millpond.console.responses import reply
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
    listed = await context_of(request).pool.recent("balances", FRESH_SECONDS, topic_balances)
    by_name = {each.topic: each for each in listed}
    page = Page(request, list(by_name))
    return reply(page.shape([by_name[name] for name in page.names]) | {"even": EVEN})


async def live_skew(request: Request) -> EventStream:
    context, topic = context_of(request), request.path_params["topic"]
    since_ms = number(request, "since_ms", -1, 0, OFFSET_MAX)
    records = number(request, "records", RECORDS, 100, RECORDS_MAX)
    return EventStream(context.streams, looks_for_keys(context, topic, None if since_ms < 0 else since_ms, records))


async def looks_for_keys(
    context: ConsoleContext, topic: str, since_ms: int | None, records: int
) -> AsyncGenerator[Event, None]:
    """Starts one search, if the limit allows it."""
    if context.key_searches.locked():
        why = f"{KEY_SEARCHES_MAX} searches for hot keys are already running: try again when one is done."
        yield Event("failure", {"error": why})
        return
    async with context.key_searches, contextlib.aclosing(_steps(context, topic, since_ms, records)) as steps:
        async for event in steps:
            yield event


async def _steps(
    context: ConsoleContext, topic: str, since_ms: int | None, records: int
) -> AsyncGenerator[Event, None]:
    loop = asyncio.get_running_loop()
    lease, began = context.pool.lease(), loop.time()

    def begin(cluster: Cluster) -> SkewAnalysis:
        return SkewAnalysis(cluster, topic, since_ms, records)

    try:
        analysis = await context.pool.on(lease, begin)

        def step(_: Cluster) -> None:
            analysis.run_for(STEP_SECONDS)

        while not analysis.is_done and loop.time() - began < SECONDS_MAX:
            await context.pool.on(lease, step)
            yield Event("progress", {"scanned": analysis.scanned, "total": analysis.total})
        yield Event(
            "report", await context.pool.on(lease, lambda _: _shape(analysis.facts(), is_whole=analysis.is_done))
        )
    except FAULTS as fault:
        yield Event("failure", {"error": sentence(fault)})
    finally:
        context.pool.give_back(lease)


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
            asdict(each) | {"key": cut(each.key, KEY_BYTES), "share": report.share(each)} for each in report.hottest
        ],
        "predictions": [
            {"key": each.key, "partitions": each.partitions, "imbalance": each.imbalance}
            for each in report.predictions
        ],
    }


ROUTES: Final = [Route("/api/skew", balances), Route("/api/live/skew/{topic}", live_skew)]
