"""Pipelines over HTTP: current and past Spark queries on this machine, from the files that runs leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route

from millpond.console.context import context_of
from millpond.console.streams import EventStream, sample_events
from millpond.remote.cluster import Cluster
from millpond.spark.pipelines.status import find_statuses

FRESH_SECONDS: Final = 1.0
PIPELINES_MAX: Final = 200


def look_at_pipelines(home: Path) -> dict[str, Any]:
    statuses = [status for _, status in find_statuses(home)]
    statuses.sort(key=lambda each: (not each.is_running, -each.snapshot.at_ms))
    return {
        "home": str(home.absolute()),
        "pipelines": [
            {"condition": each.condition, **each.snapshot.as_object()} for each in statuses[:PIPELINES_MAX]
        ],
        "left_out": max(0, len(statuses) - PIPELINES_MAX),
    }


async def live_pipelines(request: Request) -> EventStream:
    context = context_of(request)

    def look(_: Cluster) -> dict[str, Any]:
        return look_at_pipelines(context.pipelines)

    return EventStream(context.streams, sample_events(lambda: context.pool.recent("pipelines", FRESH_SECONDS, look)))


ROUTES: Final = [Route("/api/live/pipelines", live_pipelines)]
