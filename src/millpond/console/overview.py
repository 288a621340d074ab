"""The overview: how the cluster is, how much is written, what needs attention. Looked at only while somebody does."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from millpond import __version__
from millpond.admin.concerns import Concern, find_concerns
from millpond.admin.dead_letters.letters import INTERNAL
from millpond.admin.health import Health, look_at_health
from millpond.admin.offsets import bounds_of
from millpond.admin.topics import led_partitions
from millpond.client.dead_letters import ENDING
from millpond.console.room import Room, room_of
from millpond.console.streams import EventStream, looks
from millpond.remote.cluster import Cluster

FRESH_SECONDS: Final = 1.5
HISTORY_LOOKS: Final = 150
HISTORY_SECONDS_MAX: Final = 600.0
ROWS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at one moment."""

    at_seconds: float
    health: Health
    topics: int
    """The cluster's own are not counted."""
    partitions: int
    ends: Mapping[str, int]
    """The sum of the end offsets of each topic."""
    dead_letters: Mapping[str, int]
    """About how many records the topics hold that are named for dead letters."""


def look_at(cluster: Cluster) -> Look:
    health = look_at_health(cluster)
    topics = {name: each for name, each in cluster.topics().items() if not name.startswith(INTERNAL)}
    bounds = bounds_of(cluster, led_partitions(topics.values()))
    ends = dict.fromkeys(topics, 0)
    letters: dict[str, int] = {}
    for partition, bound in bounds.items():
        ends[partition.topic] += bound.end
        if partition.topic.endswith(ENDING) and bound.end > bound.start:
            letters[partition.topic] = letters.get(partition.topic, 0) + bound.end - bound.start
    count = sum(len(each.partitions) for each in topics.values())
    return Look(time.monotonic(), health, len(topics), count, ends, letters)


class Pulse:
    """Remembers the last looks, for rates and their curve."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._last: Look | None = None
        self._rates: dict[str, float] = {}
        self._history: deque[tuple[float, float, int]] = deque(maxlen=HISTORY_LOOKS)

    async def overview(self) -> dict[str, Any]:
        look = await self._room.desk.recent("overview", FRESH_SECONDS, look_at)
        if self._last is None or look.at_seconds > self._last.at_seconds:
            self._add(look)
        return self._shape(look)

    def _add(self, look: Look) -> None:
        before, self._last = self._last, look
        if before is not None:
            seconds = look.at_seconds - before.at_seconds
            # A topic that was made anew begins at 0 again: that is no writing.
            self._rates = {
                name: max(0, end - before.ends[name]) / seconds
                for name, end in look.ends.items()
                if name in before.ends
            }
            lag = sum(each.lag for each in look.health.groups)
            self._history.append((look.at_seconds, sum(self._rates.values()), lag))
        while self._history and look.at_seconds - self._history[0][0] > HISTORY_SECONDS_MAX:
            self._history.popleft()

    def _shape(self, look: Look) -> dict[str, Any]:
        health = look.health
        latest = sorted(health.groups, key=lambda each: (-each.lag, each.group.id))[:ROWS_MAX]
        return {
            "cluster_id": health.nodes.cluster_id,
            "concerns": [_concern(each) for each in find_concerns(health)],
            "dead_letters": look.dead_letters,
            "topics": look.topics,
            "partitions": look.partitions,
            "records_per_second": sum(self._rates.values()) if self._history else None,
            "history": [{"ago": look.at_seconds - at, "rate": rate, "lag": lag} for at, rate, lag in self._history],
            "busiest": [
                {"topic": name, "rate": rate}
                for name, rate in sorted(self._rates.items(), key=lambda each: (-each[1], each[0]))[:ROWS_MAX]
                if rate > 0
            ],
            "groups": len(health.groups) + health.groups_left_out,
            "lag": sum(each.lag for each in health.groups),
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
        "leads": node.leads,
        "replicas": node.replicas,
        "in_sync": node.in_sync,
        "disks": [each for each in health.disks if each.node_id == node_id],
    }


def _concern(concern: Concern) -> dict[str, Any]:
    return {"kind": type(concern).__name__, "facts": concern}


async def about(request: Request) -> Response:
    room = room_of(request)
    return JSONResponse(
        {
            "version": __version__,
            "bootstrap": room.bootstrap,
            "is_read_only": room.is_read_only,
            "streams": room.streams.open_count,
            "refused": dict(room.refused),
        }
    )


def routes(room: Room) -> list[Route]:
    pulse = Pulse(room)

    async def live(request: Request) -> EventStream:
        return EventStream(room.streams, looks(pulse.overview))

    return [Route("/api/about", about), Route("/api/live/overview", live)]
