"""Work queues over HTTP: the list, one with its partitions and holders, its next jobs, purging it.

A queue is a topic as one share group reads it. The handlers of records and of letters send and redrive. A purge takes
two requests: a count first, and then exactly that.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millpond.admin.excerpts import cut_record
from millpond.admin.queues.dead import count_dead_letters, dead_letter_topics
from millpond.admin.queues.find import read_queue
from millpond.admin.queues.jobs import Job as QueuedJob
from millpond.admin.queues.jobs import peek
from millpond.admin.queues.purge import QueuePurge, apply_purge, plan_purge
from millpond.admin.queues.queue import Queue, QueueName
from millpond.admin.queues.settings import queue_settings
from millpond.admin.queues.watch import Queues, QueueWatch
from millpond.console.cluster_pool import FAULTS
from millpond.console.context import ConsoleContext, context_of
from millpond.console.jobs import Job
from millpond.console.records import PREVIEW
from millpond.console.responses import encoded, reply, reply_encoded
from millpond.console.shapes import BadRequest, Body, number
from millpond.console.streams import Event, EventStream, sample_events
from millpond.remote.cluster import Cluster

ROWS_MAX: Final = 1_000
"""At most this many queues are listed."""
PARTITIONS_MAX: Final = 2_000
"""At most this many partitions of a queue are shown; those with most unfinished records first."""
HOLDERS_MAX: Final = 200
SAMPLE_SECONDS: Final = 0.5
DEAD_SECONDS: Final = 3.0
"""How long dead letters are counted; then the page shows what was found."""
DEAD_FRESH_SECONDS: Final = 15.0
SETTINGS_FRESH_SECONDS: Final = 5.0
JOBS: Final = 25
JOBS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class DeadCount:
    """The dead letters of one queue that wait."""

    group: str
    topic: str
    letters: str
    """The topic that has them."""
    dead: int | None
    """None: the topic holds something else, or cannot be read."""
    is_exact: bool


async def live_queues(request: Request) -> EventStream:
    context = context_of(request)
    return EventStream(context.streams, _watch(context, None, _list_shape))


async def live_queue(request: Request) -> EventStream:
    context, name = context_of(request), _name(request)
    return EventStream(context.streams, _watch(context, name, lambda found: _queue_shape(found.queues[0])))


async def _watch(
    context: ConsoleContext, name: QueueName | None, shape: Callable[[Queues], dict[str, Any]]
) -> AsyncIterator[Event]:
    """Samples of one queue, or of all, each followed by the dead letters, which take longer to count."""
    lease = context.pool.lease()
    watch: QueueWatch | None = None
    names: tuple[QueueName, ...] = ()

    def question(cluster: Cluster) -> dict[str, Any]:
        nonlocal watch, names
        groups = None if name is None else [name.group]
        watch = watch or QueueWatch(cluster, groups, sample_seconds=SAMPLE_SECONDS, dead_seconds=0)
        found = watch.look() if name is None else Queues((read_queue(watch, name),))
        names = tuple(each.name for each in found.queues[:ROWS_MAX])
        return shape(found)

    try:
        async for event in sample_events(lambda: context.pool.on(lease, question)):
            yield event
            if event.name == "look" and names:
                with contextlib.suppress(*FAULTS):
                    yield Event("dead", await _dead(context, names))
    finally:
        context.pool.give_back(lease)


async def _dead(context: ConsoleContext, names: tuple[QueueName, ...]) -> list[DeadCount]:
    def count(cluster: Cluster) -> list[DeadCount]:
        topics = dead_letter_topics(cluster, sorted({each.group for each in names}))
        counts = count_dead_letters(cluster, topics.values(), DEAD_SECONDS)
        found = []
        for each in names:
            topic = topics.get(each.group)
            if topic is not None:
                counted = counts.get(topic)
                dead = None if counted is None else counted.by_queue[each]
                found.append(DeadCount(*each, topic, dead, counted is not None and counted.is_whole))
        return found

    return await context.pool.recent(("dead", names), DEAD_FRESH_SECONDS, count, is_long=True)


def _list_shape(found: Queues) -> dict[str, Any]:
    return {
        "queues": [_row(each) for each in found.queues[:ROWS_MAX]],
        "queues_total": len(found.queues),
        "groups_left_out": found.groups_left_out,
    }


def _row(queue: Queue) -> dict[str, Any]:
    return {
        "group": queue.name.group,
        "topic": queue.name.topic,
        "state": queue.state,
        "members": len(queue.group.members),
        "partitions_total": len(queue.partitions),
        "not_started": len(queue.not_started),
        "waiting": queue.waiting,
        "out": queue.out,
        "holders_total": len(queue.holders),
        "delayed": queue.delayed,
        "archiving": queue.archiving,
        "oldest_age_ms": queue.oldest_age_ms,
        "next_due_ms": queue.next_due_ms,
        "rates": queue.rates,
    }


def _queue_shape(queue: Queue) -> dict[str, Any]:
    partitions = sorted(queue.partitions, key=lambda each: (-(each.unfinished or 0), each.partition))
    return _row(queue) | {
        "coordinator": queue.group.coordinator,
        "totals": queue.totals,
        "holders": queue.holders[:HOLDERS_MAX],
        "partitions": [
            asdict(each) | {"totals": None, "unfinished": each.unfinished} for each in partitions[:PARTITIONS_MAX]
        ],
    }


async def jobs(request: Request) -> Response:
    """The next unfinished records, read from the log: no member loses one by that."""
    name, limit = _name(request), number(request, "limit", JOBS, 1, JOBS_MAX)

    def look(cluster: Cluster) -> bytes:
        found = peek(cluster, name, limit)
        return encoded(
            {
                "jobs": [_job_row(each) for each in found.jobs],
                "not_started": len(found.not_started),
                "is_whole": found.is_whole,
            }
        )

    return reply_encoded(await context_of(request).pool.ask(look, is_long=True))


def _job_row(job: QueuedJob) -> dict[str, Any]:
    return {
        "record": cut_record(job.partition, job.record, PREVIEW),
        "state": job.state,
        "deliveries": job.deliveries,
        "deliver_at_ms": job.deliver_at_ms,
        "priority": job.priority,
    }


async def settings(request: Request) -> Response:
    group = _name(request).group
    return reply(
        await context_of(request).pool.recent(
            ("queue settings", group), SETTINGS_FRESH_SECONDS, lambda cluster: queue_settings(cluster, group)
        )
    )


async def purge(request: Request) -> Response:
    """Without `agreed` a count; with the task of a count, exactly the counted records are skipped."""
    body, name, context = await Body.read(request), _name(request), context_of(request)
    if body.has("agreed"):
        plan = context.jobs.agreed(body.text("agreed"), QueuePurge)
        if plan.name != name:
            raise BadRequest(f"That count was for {plan.name}.")
        await context.pool.change(lambda cluster: apply_purge(cluster, plan))
        return reply({"records": plan.records})

    def work(job: Job) -> None:
        with context.pool.client() as cluster:
            plan = plan_purge(cluster, name)
            job.plan, job.result = plan, {"records": plan.records}

    job = context.jobs.start("counts", f"Count of {name}", work, is_only_shown=True)
    return reply(job.shape(), 202)


def _name(request: Request) -> QueueName:
    return QueueName(request.path_params["group"], request.path_params["topic"])


ROUTES: Final = [
    Route("/api/live/queues", live_queues),
    Route("/api/live/queues/{group:path}/{topic}", live_queue),
    Route("/api/queues/{group:path}/{topic}/jobs", jobs),
    Route("/api/queues/{group:path}/{topic}/settings", settings),
    Route("/api/queues/{group:path}/{topic}/purge", purge, methods=["POST"]),
]
