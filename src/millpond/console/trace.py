"""The latency budget of a record over HTTP: measured as a long task, because it writes and waits."""

from __future__ import annotations

from typing import Final, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millpond.admin.trace.measurement import TraceOrder
from millpond.admin.trace.run import run_trace
from millpond.console.context import context_of
from millpond.console.jobs import Job
from millpond.console.records import PARTITION_MAX
from millpond.console.responses import reply
from millpond.console.shapes import BadRequest, Body

COUNT_MAX: Final = 1_000
SIZE_MAX: Final = 1_000_000
LINGER_MS_MAX: Final = 1_000


async def trace(request: Request) -> Response:
    body = await Body.read(request)
    acks: Literal["1", "all"]
    match body.text("acks", "all"):
        case "all":
            acks = "all"
        case "1":
            acks = "1"
        case _:
            raise BadRequest("acks must be all or 1.")
    order = TraceOrder(
        body.text_or_none("topic") or None,
        body.number_or_none("partition", 0, PARTITION_MAX) or 0,
        body.number_or_none("count", 1, COUNT_MAX) or 50,
        body.number("size", 0, SIZE_MAX) if body.has("size") else 1000,
        body.number("linger_ms", 0, LINGER_MS_MAX) if body.has("linger_ms") else 5,
        acks,
        body.flag("commit"),
    )
    context = context_of(request)

    def work(job: Job) -> None:
        job.total = order.count

        def tell(number: int) -> None:
            job.done = number
            job.check()

        with context.pool.client() as cluster:
            job.result = run_trace(cluster, context.library, order, tell)
        job.done = order.count

    return reply(context.jobs.start("trace", "Trace", work).shape(), 202)


ROUTES: Final = [Route("/api/trace", trace, methods=["POST"])]
