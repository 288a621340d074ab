"""Groups over HTTP: the list, one with its members and lag, its rebalances; resetting offsets with a preview."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millpond.admin.errors import Refused
from millpond.admin.groups import delete_groups, find_groups, list_groups, refuse_if_active
from millpond.admin.history import read_history
from millpond.admin.lag import GroupLag, LagWatch
from millpond.admin.offset_reset import PlannedOffsets, ResetPlan, Shift, Target, apply_reset, plan_agreed, plan_reset
from millpond.admin.offsets import At, Beginning, End, Since
from millpond.base.ids import TopicPartition
from millpond.console.context import ConsoleContext, context_of
from millpond.console.records import PARTITION_MAX
from millpond.console.responses import reply
from millpond.console.shapes import BadRequest, Body, Page
from millpond.console.streams import Event, EventStream, sample_events
from millpond.remote.cluster import Cluster

FRESH_SECONDS: Final = 2.0
HISTORY_ROWS: Final = 50
PARTITIONS_MAX: Final = 2_000
"""At most this many partitions of a group are shown; the largest lags first."""
OFFSET_MAX: Final = (1 << 63) - 1
TOPICS_MAX: Final = 200


def _row(lag: GroupLag) -> dict[str, Any]:
    group = lag.group
    return {
        "group": group.id,
        "state": group.state,
        "type": group.type,
        "members": len(group.members),
        "topics": sorted({each.topic for each in lag.partitions}),
        "lag": lag.lag,
        "lost": lag.lost,
        "behind_ms": lag.behind_ms,
    }


def _lags(cluster: Cluster, names: list[str]) -> list[dict[str, Any]]:
    try:
        return [_row(each) for each in LagWatch(cluster, names, sample_seconds=0).look()] if names else []
    except Refused:
        if len(names) == 1:
            # It was deleted since it was listed.
            return []
        return [row for name in names for row in _lags(cluster, [name])]


async def all_groups(request: Request) -> Response:
    pool = context_of(request).pool
    listed = await pool.recent("groups", FRESH_SECONDS, list_groups)
    page = Page(request, [each.group for each in listed])
    rows = await pool.recent(("groups", tuple(page.names)), FRESH_SECONDS, lambda cluster: _lags(cluster, page.names))
    return reply(page.shape(rows))


async def live_group(request: Request) -> EventStream:
    context = context_of(request)
    return EventStream(context.streams, _watch(context, request.path_params["group"]))


async def _watch(context: ConsoleContext, name: str) -> AsyncIterator[Event]:
    lease = context.pool.lease()
    watch: LagWatch | None = None

    def question(cluster: Cluster) -> dict[str, Any]:
        nonlocal watch
        watch = watch or LagWatch(cluster, [name], sample_seconds=0.5)
        (lag,) = watch.look()
        return _group_shape(lag)

    try:
        async for event in sample_events(lambda: context.pool.on(lease, question)):
            yield event
    finally:
        context.pool.give_back(lease)


def _group_shape(lag: GroupLag) -> dict[str, Any]:
    group = lag.group
    partitions = sorted(lag.partitions, key=lambda each: (-(each.lag or 0), each.topic, each.partition))
    return _row(lag) | {
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "read_per_second": lag.read_per_second,
        "written_per_second": lag.written_per_second,
        "catch_up_seconds": lag.catch_up_seconds,
        "uncommitted": lag.uncommitted,
        "member_list": [asdict(each) | {"partitions": list(map(list, each.partitions))} for each in group.members],
        "partitions": [
            asdict(each) | {"catch_up_seconds": each.catch_up_seconds} for each in partitions[:PARTITIONS_MAX]
        ],
        "partitions_total": len(partitions),
    }


async def history(request: Request) -> Response:
    name = request.path_params["group"]
    rebalances = await context_of(request).pool.recent(
        ("history", name), FRESH_SECONDS, lambda cluster: read_history(cluster, name, limit=HISTORY_ROWS)
    )
    # Without the broker's own JSON, which would repeat all of it.
    return reply({"rebalances": rebalances and [replace(each, written={}) for each in reversed(rebalances)]})


async def reset(request: Request) -> Response:
    """Without `steps` it is a preview. With the steps of a preview, exactly these are done, if possible."""
    body, name = await Body.read(request), request.path_params["group"]
    topics = [str(each) for each in body.list("topics")]
    if not topics:
        raise BadRequest("Name the topics to reset.")
    if len(topics) > TOPICS_MAX:
        raise BadRequest(f"At most {TOPICS_MAX} topics can be reset at once: pick fewer.")
    target, agreed = _target(body), _agreed(body)
    selection = [(each, None) for each in topics]

    def work(cluster: Cluster) -> list[dict[str, Any]]:
        find_groups(cluster, [name])
        if not agreed:
            return _steps(plan_reset(cluster, name, selection, target))
        plan = plan_agreed(cluster, name, selection, agreed)
        apply_reset(cluster, plan)
        return _steps(plan)

    pool = context_of(request).pool
    steps = await (pool.change(work) if agreed else pool.ask(work))
    return reply({"steps": steps, "is_done": bool(agreed)})


def _agreed(body: Body) -> PlannedOffsets:
    """The steps of a preview by topic, each as [partition, before, after].

    Compact, because a hundred thousand partitions have to fit into a request.
    """
    agreed: dict[TopicPartition, tuple[int | None, int]] = {}
    for topic, steps in body.lists("steps").items():
        for each in steps:
            if not isinstance(each, list) or len(each) != 3:
                raise BadRequest("A step must be [partition, before, after].")
            step = Body(dict(zip(("partition", "before", "after"), each, strict=True)))
            partition = TopicPartition(topic, step.number("partition", 0, PARTITION_MAX))
            agreed[partition] = step.number_or_none("before", 0, OFFSET_MAX), step.number("after", 0, OFFSET_MAX)
    return agreed


def _steps(plan: ResetPlan) -> list[dict[str, Any]]:
    return [
        {
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "before": each.before,
            "after": each.after,
            "note": each.note,
        }
        for each in plan.steps
    ]


def _target(body: Body) -> Target:
    match body.text("to"):
        case "beginning":
            return Beginning()
        case "end":
            return End()
        case "offset":
            return At(body.number("offset", 0, OFFSET_MAX))
        case "time":
            return Since(body.number("time_ms", 0, OFFSET_MAX))
        case "shift":
            return Shift(body.number("count", -OFFSET_MAX, OFFSET_MAX))
    raise BadRequest("to must be beginning, end, offset, time or shift.")


async def delete(request: Request) -> Response:
    body, name = await Body.read(request), request.path_params["group"]
    if body.text("confirm", "") != name:
        raise BadRequest(f"To delete {name}, confirm it by its name.")

    def work(cluster: Cluster) -> None:
        (group,) = find_groups(cluster, [name])
        refuse_if_active(group, "to delete it")
        delete_groups(cluster, [name])

    await context_of(request).pool.change(work)
    return reply({"group": name})


ROUTES: Final = [
    Route("/api/groups", all_groups),
    Route("/api/groups/{group:path}/history", history),
    Route("/api/groups/{group:path}/reset", reset, methods=["POST"]),
    Route("/api/groups/{group:path}", delete, methods=["DELETE"]),
    Route("/api/live/groups/{group:path}", live_group),
]
