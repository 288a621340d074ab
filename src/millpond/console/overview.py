"""The overview: health, rates and concerns of the cluster. Sampled only while a page shows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from millpond import __version__
from millpond.admin.cluster_rates import ClusterSample, RateWindow, sample_cluster
from millpond.admin.concerns import Concern, find_concerns
from millpond.admin.dead_letters.topics import waiting_letters
from millpond.admin.health import Health
from millpond.console.context import ConsoleContext, context_of
from millpond.console.streams import EventStream, sample_events

FRESH_SECONDS: Final = 1.5
LETTERS_SECONDS: Final = 10.0
HISTORY_LOOKS: Final = 150
HISTORY_SECONDS_MAX: Final = 600.0
ROWS_MAX: Final = 8


class Overview:
    """Keeps the last samples, for rates and their curve."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context
        self._window = RateWindow()
        self._history: deque[tuple[float, float, int]] = deque(maxlen=HISTORY_LOOKS)

    async def overview(self) -> dict[str, Any]:
        sample = await self._context.pool.recent("overview", FRESH_SECONDS, sample_cluster)
        if self._window.last is None or sample.at_seconds > self._window.last.at_seconds:
            self._add(sample)
        # Dead letters are counted by reading them, so less often than the rest.
        letters = await self._context.pool.recent("waiting letters", LETTERS_SECONDS, waiting_letters)
        return self._shape(sample, letters)

    def _add(self, sample: ClusterSample) -> None:
        self._window.add(sample)
        if self._window.rates is not None:
            self._history.append((sample.at_seconds, self._window.rates.written_in_all, sample.lag))
        while self._history and sample.at_seconds - self._history[0][0] > HISTORY_SECONDS_MAX:
            self._history.popleft()

    def _shape(self, sample: ClusterSample, letters: Mapping[str, int]) -> dict[str, Any]:
        health, rates = sample.health, self._window.rates
        latest = sorted(health.groups, key=lambda each: (-each.lag, each.group.id))[:ROWS_MAX]
        written = {} if rates is None else rates.written
        return {
            "cluster_id": health.nodes.cluster_id,
            "concerns": [_concern(each) for each in find_concerns(health, letters=letters)],
            "topics": len(sample.topics),
            "partitions": sample.partitions,
            "records_per_second": None if rates is None else rates.written_in_all,
            "history": [{"ago": sample.at_seconds - at, "rate": rate, "lag": lag} for at, rate, lag in self._history],
            "busiest": [
                {"topic": name, "rate": rate}
                for name, rate in sorted(written.items(), key=lambda each: (-each[1], each[0]))[:ROWS_MAX]
                if rate > 0
            ],
            "groups": len(health.groups) + health.groups_left_out,
            "lag": sample.lag,
            "latest": [
                {
                    "group": each.group.id,
                    "state": each.group.state,
                    "members": len(each.group.members),
                    "lag": each.lag,
                    "behind_ms": each.behind_ms,
                }
                for each in latest
            ],
            "nodes": [node_shape(health, node.node_id) for node in health.nodes.nodes],
        }


def node_shape(health: Health, node_id: int) -> dict[str, Any]:
    (node,) = (each for each in health.nodes.nodes if each.node_id == node_id)
    return {
        "node_id": node.node_id,
        "address": node.address,
        "rack": node.rack,
        "is_controller": node.is_controller,
        # As in `millpond status`: internal topics are left out.
        "leads": node.without_internal.leads,
        "replicas": node.without_internal.replicas,
        "in_sync": node.without_internal.in_sync,
        "behind": len(node.behind),
        "disks": [each for each in health.disks if each.node_id == node_id],
    }


def _concern(concern: Concern) -> dict[str, Any]:
    return {"kind": type(concern).__name__, "facts": concern}


async def about(request: Request) -> Response:
    context = context_of(request)
    return JSONResponse(
        {
            "version": __version__,
            "bootstrap": context.bootstrap,
            "is_read_only": context.rules.is_read_only,
            "has_login": context.rules.login is not None,
            "streams": context.streams.open_count,
            "streams_refused": context.streams.refused_count,
            "refused": dict(context.refused),
        }
    )


def routes(context: ConsoleContext) -> list[Route]:
    overview = Overview(context)

    async def live(request: Request) -> EventStream:
        return EventStream(context.streams, sample_events(overview.overview))

    return [Route("/api/about", about), Route("/api/live/overview", live)]
