"""Dead letters over HTTP: topics of them, what they have in common, each with its cause; redrive and purge."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millpond.admin.dead_letters.letters import Filter, Letter, LetterId
from millpond.admin.dead_letters.purge import PurgePlan, apply_purge, plan_purge
from millpond.admin.dead_letters.redrive import (
    Edit,
    LetterFate,
    Redrive,
    RedriveOrder,
    RedrivePlan,
    plan_redrive,
)
from millpond.admin.dead_letters.topics import count_letters, last_letters, list_letter_topics
from millpond.admin.errors import Refused
from millpond.client.dead_letters import own_headers
from millpond.console.jobs import Job
from millpond.console.records import HEADERS_MAX, OFFSET_MAX, PARTITION_MAX, cut, text_as_bytes
from millpond.console.responses import reply
from millpond.console.room import room_of
from millpond.console.shapes import BadRequest, Body, number, words
from millpond.remote.cluster import Cluster

FRESH_SECONDS: Final = 5.0
ROWS: Final = 50
ROWS_MAX: Final = 500
VALUE_BYTES: Final = 16 << 10
NAMES_MAX: Final = 50
IDS_MAX: Final = 10_000
REDRIVES_MAX: Final = 1_000
RATE_MAX: Final = 1_000_000
EDITS_MAX: Final = 100


async def topics(request: Request) -> Response:
    listed, left_out = await room_of(request).desk.recent("letters", FRESH_SECONDS, list_letter_topics)
    return reply({"topics": listed, "left_out": left_out})


async def letters(request: Request) -> Response:
    topic, limit = request.path_params["topic"], number(request, "limit", ROWS, 1, ROWS_MAX)
    error, key = words(request, "error"), words(request, "key")
    wanted = Filter(frozenset({error} if error else ()), frozenset({key.encode()} if key else ()))
    desk = room_of(request).desk

    def look(cluster: Cluster) -> list[dict[str, Any]]:
        last, redriven = last_letters(cluster, topic, wanted, limit)
        return [_shape(each, each.id in redriven) for each in reversed(last)]

    return reply({"letters": await desk.ask(look)})


async def counts(request: Request) -> Response:
    """What all letters have in common. Apart from the letters: of many, the last are there at once."""
    topic = request.path_params["topic"]
    counts = await room_of(request).desk.recent(
        ("counts", topic), FRESH_SECONDS, lambda cluster: count_letters(cluster, topic, Filter())
    )
    return reply(
        {
            "records": counts.records,
            "waiting": counts.waiting,
            "errors": counts.errors.most_common(NAMES_MAX),
            "origins": counts.origins.most_common(NAMES_MAX),
            "groups": counts.groups.most_common(NAMES_MAX),
            "over_time": list(counts.errors_over_time().items()),
        }
    )


def _shape(letter: Letter, is_redriven: bool) -> dict[str, Any]:
    message, facts = letter.message, letter.facts
    return {
        "id": str(letter.id),
        "partition": message.partition,
        "offset": message.offset,
        "timestamp_ms": message.timestamp_ms,
        "is_redriven": is_redriven,
        "key": cut(message.key, VALUE_BYTES),
        "value": cut(message.value, VALUE_BYTES),
        "headers": [[name, cut(value, VALUE_BYTES)] for name, value in own_headers(message.headers)[:HEADERS_MAX]],
        "cause": facts,
    }


async def redrive(request: Request) -> Response:
    """With `dry_run` only what it would do; else a job that does it."""
    body, topic = await Body.read(request), request.path_params["topic"]
    order = RedriveOrder(
        topic,
        _filter(body),
        to=body.text_or_none("to") or None,
        every_group=body.flag("every_group"),
        redrives_max=body.number_or_none("redrives_max", 1, REDRIVES_MAX) or 3,
        rate=body.number_or_none("rate", 1, RATE_MAX),
        edits=_edits(body),
    )
    room = room_of(request)
    if body.flag("dry_run"):
        return reply(_plan_shape(await room.desk.ask(lambda cluster: plan_redrive(cluster, order))))

    def work(job: Job) -> None:
        def report(sent: int) -> None:
            job.done = sent

        with room.desk.client() as cluster:
            run = Redrive(cluster, order)
            job.total = run.plan.records
            try:
                run.run(report, job.stop.is_set)
            finally:
                room.desk.forget()

    return reply(room.jobs.start("letters", f"Redrive of {topic}", work).shape(), 202)


def _edits(body: Body) -> dict[LetterId, Edit]:
    """By the names of letters: what is sent instead of them."""
    edits = {}
    for given in body.list("edits"):
        if not isinstance(given, dict):
            raise BadRequest("An edit must be an object.")
        edit = Body(given)
        key, value = (
            text_as_bytes(edit.text_or_none(name), edit.text(f"{name}_encoding", "text")) for name in ("key", "value")
        )
        headers = None
        if edit.has("headers"):
            headers = tuple((name, text.encode()) for name, text in edit.texts("headers").items())
        edits[_letter_id(edit.text("id"))] = Edit(key, value, headers)
    if len(edits) > EDITS_MAX:
        raise BadRequest(f"Correct at most {EDITS_MAX} letters at a time.")
    return edits


def _filter(body: Body) -> Filter:
    ids = [_letter_id(each) for each in body.list("ids")]
    if len(ids) > IDS_MAX:
        raise BadRequest(f"Name at most {IDS_MAX:,} letters, or all.")
    error, key = body.text_or_none("error"), body.text_or_none("key")
    wanted = Filter(frozenset({error} if error else ()), frozenset({key.encode()} if key else ()), ids=frozenset(ids))
    if body.flag("all") != wanted.is_open:
        raise BadRequest("Say which letters: all, or ids, an error or a key.")
    return wanted


def _letter_id(text: object) -> LetterId:
    partition, _, offset = str(text)[:40].partition(":")
    if (
        not (partition.isdecimal() and offset.isdecimal())
        or int(partition) > PARTITION_MAX
        or int(offset) > OFFSET_MAX
    ):
        raise BadRequest("A letter is named PARTITION:OFFSET.")
    return LetterId(int(partition), int(offset))


def _plan_shape(plan: RedrivePlan) -> dict[str, Any]:
    return {
        "records": plan.records,
        "targets": plan.targets,
        "groups": plan.groups,
        "done": plan.fates[LetterFate.DONE],
        "held": plan.fates[LetterFate.HELD],
        "homeless": plan.fates[LetterFate.HOMELESS],
        "missing": len(plan.missing),
    }


async def purge(request: Request) -> Response:
    """Without `agreed` only what would go. With the number that was seen, it is done if it is still that many."""
    body, topic = await Body.read(request), request.path_params["topic"]
    mode = body.text("mode")
    if mode not in ("all", "redriven", "before"):
        raise BadRequest("mode must be all, redriven or before.")
    before_ms = body.number("before_ms", 0, OFFSET_MAX) if mode == "before" else None
    agreed = body.number_or_none("agreed", 0, OFFSET_MAX)

    def work(cluster: Cluster) -> PurgePlan:
        plan = plan_purge(cluster, topic, before_ms=before_ms, only_redriven=mode == "redriven")
        if agreed is not None:
            if plan.records != agreed:
                raise Refused(
                    f"{plan.records:,} letters would go now, not {agreed:,}: look again. Nothing was deleted"
                )
            apply_purge(cluster, plan)
        return plan

    desk = room_of(request).desk
    plan = await (desk.ask(work) if agreed is None else desk.change(work))
    return reply({"records": plan.records, "waiting": plan.waiting, "is_done": agreed is not None})


ROUTES: Final = [
    Route("/api/letters", topics),
    Route("/api/letters/{topic}", letters),
    Route("/api/letters/{topic}/counts", counts),
    Route("/api/letters/{topic}/redrive", redrive, methods=["POST"]),
    Route("/api/letters/{topic}/purge", purge, methods=["POST"]),
]
