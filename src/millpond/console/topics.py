"""Topics over HTTP: the list, one with its partitions and readers, its settings; create, grow, alter, delete."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millpond.admin.dead_letters.letters import INTERNAL
from millpond.admin.errors import Refused
from millpond.admin.groups import list_groups
from millpond.admin.offsets import bounds_of
from millpond.admin.retention import describe_retention
from millpond.admin.settings import Subject, change_settings, read_settings
from millpond.admin.topics import (
    alter_topic,
    delete_topics,
    describe_topics,
    find_topic,
    grow_topic,
    led_partitions,
    partition_sizes,
)
from millpond.base.ids import TopicPartition
from millpond.console.context import context_of
from millpond.console.responses import reply
from millpond.console.shapes import BadRequest, Body, Page, flag
from millpond.console.streams import EventStream, sample_events
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import committed_by_group, latest, log_ends
from millpond.remote.topics import BY_DEFAULT, create_topic

FRESH_SECONDS: Final = 1.5
HORIZON_SECONDS: Final = 10.0
GROUPS_MAX: Final = 100
"""The committed offsets of at most this many groups are requested for a topic."""
PARTITIONS_MAX: Final = 100_000
REPLICAS_MAX: Final = 1_000
SETTINGS_MAX: Final = 200


async def list_topics(request: Request) -> Response:
    context = context_of(request)
    infos = await context.pool.recent("topics", FRESH_SECONDS, lambda cluster: cluster.topics())
    with_own = flag(request, "internal")
    page = Page(request, [name for name in sorted(infos) if with_own or not name.startswith(INTERNAL)])
    shown = [infos[name] for name in page.names]

    def look(cluster: Cluster) -> list[dict[str, Any]]:
        bounds = bounds_of(cluster, led_partitions(shown))
        sizes = partition_sizes(cluster)
        rows = []
        for topic in shown:
            mine = [TopicPartition(topic.name, index) for index in topic.partitions]
            leaders = {each: topic.partitions[each.partition].leader for each in mine}
            rows.append(
                {
                    "name": topic.name,
                    "partitions": len(mine),
                    "replicas": max((len(each.replicas) for each in topic.partitions.values()), default=0),
                    "offsets": sum(bounds[each].end - bounds[each].start for each in mine if each in bounds),
                    "size_bytes": sum(sizes.get((leader, each), 0) for each, leader in leaders.items()),
                    "leaderless": sum(leader < 0 for leader in leaders.values()),
                    "behind": sum(len(each.in_sync) < len(each.replicas) for each in topic.partitions.values()),
                }
            )
        return rows

    rows = await context.pool.recent(("topics", tuple(page.names)), FRESH_SECONDS, look)
    return reply(page.shape(rows))


def _describe(cluster: Cluster, name: str) -> dict[str, Any]:
    (facts,) = describe_topics(cluster, [name])
    led = [TopicPartition(name, each.partition) for each in facts.partitions if each.leader >= 0]
    stable = latest(cluster, led, "read_committed")
    ends = log_ends(cluster, led)
    listed = list_groups(cluster)
    groups = {}
    for group in listed[:GROUPS_MAX]:
        committed = committed_by_group(cluster, group.group)
        mine = {each.partition: offset for each, offset in committed.items() if each.topic == name}
        if mine:
            groups[group.group] = mine
    return {
        "name": name,
        "at_seconds": time.monotonic(),
        "partitions": [
            {
                **asdict(each),
                "log_end": ends.get(TopicPartition(name, each.partition)),
                "last_stable": stable.get(TopicPartition(name, each.partition)),
            }
            for each in facts.partitions
        ],
        "settings": facts.settings,
        "groups": groups,
        "groups_left_out": max(0, len(listed) - GROUPS_MAX),
    }


async def live_topic(request: Request) -> EventStream:
    context, name = context_of(request), request.path_params["name"]

    async def look() -> dict[str, Any]:
        return await context.pool.recent(("topic", name), FRESH_SECONDS, lambda cluster: _describe(cluster, name))

    return EventStream(context.streams, sample_events(look))


async def settings(request: Request) -> Response:
    name = request.path_params["name"]

    return reply(await context_of(request).pool.ask(lambda cluster: read_settings(cluster, Subject("topic", name))))


async def retention(request: Request) -> Response:
    name = request.path_params["name"]
    return reply(
        await context_of(request).pool.recent(
            ("retention", name), HORIZON_SECONDS, lambda cluster: describe_retention(cluster, name)
        )
    )


async def create(request: Request) -> Response:
    body = await Body.read(request)
    name = body.text("name")
    partitions = body.number_or_none("partitions", 1, PARTITIONS_MAX)
    replicas = body.number_or_none("replicas", 1, REPLICAS_MAX)
    to_set = _texts(body, "settings")
    await context_of(request).pool.change(
        lambda cluster: create_topic(cluster, name, partitions or BY_DEFAULT, replicas or BY_DEFAULT, to_set)
    )
    return reply({"name": name}, 201)


async def alter(request: Request) -> Response:
    body, name = await Body.read(request), request.path_params["name"]
    to_set = _texts(body, "set")
    unset = [str(each) for each in body.list("unset")]
    partitions = body.number_or_none("partitions", 1, PARTITIONS_MAX)
    if not to_set and not unset and partitions is None:
        raise BadRequest("Say what to change: set, unset or partitions.")
    if body.flag("dry_run"):
        topic = Subject("topic", name)
        changes = await context_of(request).pool.ask(
            lambda cluster: change_settings(cluster, topic, to_set, unset, dry=True)
        )
        return reply({"name": name, "changes": changes})

    def apply(cluster: Cluster) -> None:
        find_topic(cluster, name)
        if to_set or unset:
            alter_topic(cluster, name, to_set, unset)
        if partitions is not None:
            grow_topic(cluster, name, partitions)

    await context_of(request).pool.change(apply)
    return reply({"name": name})


async def delete(request: Request) -> Response:
    """The name must be confirmed, so that nothing is deleted by mistake."""
    body, name = await Body.read(request), request.path_params["name"]
    if body.text("confirm", "") != name:
        raise BadRequest(f"To delete {name}, confirm it by its name.")
    if name.startswith(INTERNAL):
        raise Refused(f"{name} is an internal topic and cannot be deleted")
    await context_of(request).pool.change(lambda cluster: delete_topics(cluster, [name]))
    return reply({"name": name})


def _texts(body: Body, name: str) -> dict[str, str]:
    texts = body.texts(name)
    if len(texts) > SETTINGS_MAX:
        raise BadRequest(f"{name} may have at most {SETTINGS_MAX} entries.")
    return texts


ROUTES: Final = [
    Route("/api/topics", list_topics),
    Route("/api/topics", create, methods=["POST"]),
    Route("/api/topics/{name}", alter, methods=["PATCH"]),
    Route("/api/topics/{name}", delete, methods=["DELETE"]),
    Route("/api/topics/{name}/settings", settings),
    Route("/api/topics/{name}/retention", retention),
    Route("/api/live/topics/{name}", live_topic),
]
