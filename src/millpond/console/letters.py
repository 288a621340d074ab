"""Dead letters over HTTP: topics, statistics, single letters with their cause; redrive and purge.

A redrive and a purge take two requests. The first is a dry run, which may have to read every letter, so it is a long
task. The second names that task as `agreed`: then exactly what it has shown is done, without letters that arrived
since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millpond.admin.dead_letters.letters import Filter, Letter, LetterId, Progress
from millpond.admin.dead_letters.purge import PurgePlan, apply_purge, plan_purge
from millpond.admin.dead_letters.redrive import (
    UNCHANGED,
    Edit,
    LetterFate,
    Redrive,
    RedriveOrder,
    RedrivePlan,
    Unedited,
    plan_redrive,
)
from millpond.admin.dead_letters.tally import OTHERS
from millpond.admin.dead_letters.topics import Rank, count_letters, last_letters, list_letter_topics
from millpond.admin.errors import Leaderless, Refused
from millpond.admin.excerpts import cut, cut_headers, cut_text
from millpond.client.dead_letters import own_headers
from millpond.console.cluster_pool import READ_SECONDS
from millpond.console.context import ConsoleContext, context_of
from millpond.console.jobs import Job
from millpond.console.records import OFFSET_MAX, PARTITION_MAX, PREVIEW, WHOLE, text_as_bytes
from millpond.console.responses import encoded, reply, reply_encoded
from millpond.console.shapes import BadRequest, Body, number, words
from millpond.remote.cluster import Cluster

FRESH_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 15.0
"""How long letters are searched for a page; then it shows what was found."""
ROWS: Final = 50
ROWS_MAX: Final = 500
CAUSE_SIGNS: Final = 300
"""Limit of characters of each text of a cause, in a list."""
CAUSE_SIGNS_WHOLE: Final = 64 << 10
NAMES_MAX: Final = 50
NAMES_OVER_TIME: Final = 10
SPANS_MAX: Final = 200
IDS_MAX: Final = 10_000
REDRIVES_MAX: Final = 1_000
RATE_MAX: Final = 1_000_000
EDITS_MAX: Final = 100


async def topics(request: Request) -> Response:
    listed, left_out = await context_of(request).pool.recent(
        "letters", FRESH_SECONDS, lambda cluster: list_letter_topics(cluster, LOOK_SECONDS), is_long=True
    )
    return reply({"topics": listed, "left_out": left_out})


async def letters(request: Request) -> Response:
    topic, limit = request.path_params["topic"], number(request, "limit", ROWS, 1, ROWS_MAX)
    selection, before = _selection(words(request, "error"), words(request, "key")), _before(words(request, "before"))
    # The newest letters are at the end; those that match a filter, and older ones, may be anywhere.
    is_long = before is not None or not selection.is_open

    def look(cluster: Cluster) -> bytes:
        seconds = LOOK_SECONDS if is_long else READ_SECONDS
        last = last_letters(cluster, topic, selection, limit, _row, before=before, seconds=seconds)
        return encoded(replace(last, letters=last.letters[::-1]))

    return reply_encoded(await context_of(request).pool.ask(look, is_long=is_long))


def _before(text: str) -> Rank | None:
    """The letter whose predecessors are requested, as WHEN:PARTITION:OFFSET."""
    if not text:
        return None
    parts = text.split(":")
    if len(parts) != 3 or not all(each.removeprefix("-").isdecimal() and len(each) <= 20 for each in parts):
        raise BadRequest("before must be WHEN:PARTITION:OFFSET, as a letter has them.")
    return Rank(*map(int, parts))


async def letter(request: Request) -> Response:
    topic, index, offset = (request.path_params[each] for each in ("topic", "index", "offset"))
    if index > PARTITION_MAX or offset > OFFSET_MAX:
        raise BadRequest("The partition or offset is out of range.")
    selection = Filter(ids=frozenset({LetterId(index, offset)}))

    def look(cluster: Cluster) -> bytes:
        last = last_letters(cluster, topic, selection, 1, _whole, seconds=READ_SECONDS)
        if index in last.leaderless:
            raise Leaderless(f"{topic}[{index}] has no leader now: its letters cannot be read until it has one")
        if not last.letters and not last.is_whole:
            raise Refused(f"The letter {index}:{offset} of {topic} could not be read in time: try again")
        if not last.letters:
            raise Refused(f"There is no letter {index}:{offset} in {topic}: it was deleted, or is not a letter")
        return encoded({**last.letters[0], "topic_id": last.topic_id})

    return reply_encoded(await context_of(request).pool.ask(look))


async def counts(request: Request) -> Response:
    """Statistics of all letters. Separate from the letters, because the newest letters are available at once."""
    topic = request.path_params["topic"]

    def look(cluster: Cluster) -> bytes:
        counts = count_letters(cluster, topic, Filter(), seconds=LOOK_SECONDS)
        errors = counts.errors.most_common(NAMES_MAX)
        return encoded(
            {
                "records": counts.records,
                "waiting": counts.waiting,
                "errors": errors,
                "origins": counts.origins.most_common(NAMES_MAX),
                "groups": counts.groups.most_common(NAMES_MAX),
                "over_time": _over_time(counts.errors_over_time(), {name for name, _ in errors[:NAMES_OVER_TIME]}),
                "leaderless": counts.leaderless,
                "looked": counts.looked,
                "total": counts.total,
                "is_whole": counts.is_whole,
            }
        )

    return reply_encoded(await context_of(request).pool.recent(("counts", topic), FRESH_SECONDS, look, is_long=True))


def _over_time(spans: Mapping[int, Counter[str]], named: set[str]) -> list[tuple[int, Counter[str]]]:
    """Counts per span for the named errors; all others are combined. Timestamps can be arbitrary, so only the last
    spans are returned.
    """
    shown = []
    for moment, errors in list(spans.items())[-SPANS_MAX:]:
        few: Counter[str] = Counter()
        for name, count in errors.items():
            few[name if name in named else OTHERS] += count
        shown.append((moment, few))
    return shown


def _row(letter: Letter, is_redriven: bool | None) -> dict[str, Any]:
    """A letter in a list."""
    message = letter.message
    return {
        "id": str(letter.id),
        "partition": message.partition,
        "offset": message.offset,
        "timestamp_ms": message.timestamp_ms,
        "is_redriven": is_redriven,
        "key": cut(message.key, PREVIEW.data_bytes),
        "cause": _cause(letter, CAUSE_SIGNS),
    }


def _whole(letter: Letter, is_redriven: bool | None) -> dict[str, Any]:
    """A single letter, opened."""
    message, own = letter.message, own_headers(letter.message.headers)
    return _row(letter, is_redriven) | {
        "key": cut(message.key, WHOLE.data_bytes),
        "value": cut(message.value, WHOLE.data_bytes),
        "headers": cut_headers(own, WHOLE).shown,
        "headers_total": len(own),
        "cause": _cause(letter, CAUSE_SIGNS_WHOLE),
    }


def _cause(letter: Letter, signs: int) -> dict[str, Any] | None:
    """The cause in its headers, which may contain anything."""
    facts = letter.facts
    if facts is None:
        return None
    return {
        "origin": replace(facts.origin, topic=cut_text(facts.origin.topic, CAUSE_SIGNS)),
        "attempts": facts.attempts,
        "error_type": cut_text(facts.error_type, CAUSE_SIGNS),
        "error_message": cut_text(facts.error_message, signs),
        "error_traceback": cut_text(facts.error_traceback, signs) if signs > CAUSE_SIGNS else "",
        "group": cut_text(facts.group, CAUSE_SIGNS),
        "redriven": facts.redriven,
    }


async def redrive(request: Request) -> Response:
    """Without `agreed` a dry run; with the task of a dry run, a task that does exactly that."""
    body, topic, context = await Body.read(request), request.path_params["topic"], context_of(request)
    if body.has("agreed"):
        plan = context.jobs.agreed(body.text("agreed"), RedrivePlan)
        return reply(_start_redrive(context, topic, plan).shape(), 202)
    order = RedriveOrder(
        topic,
        _filter(body),
        to=body.text_or_none("to") or None,
        every_group=body.flag("every_group"),
        redrives_max=body.number_or_none("redrives_max", 1, REDRIVES_MAX) or 3,
        rate=body.number_or_none("rate", 1, RATE_MAX),
        edits=_edits(body),
        topic_id=_topic_id(body.text_or_none("topic_id")),
    )

    def work(job: Job) -> None:
        with context.pool.client() as cluster:
            plan = plan_redrive(cluster, order, _progress(job))
            job.plan, job.result = plan, _plan_shape(plan)

    job = context.jobs.start("counts", f"Dry run of a redrive of {topic}", work, is_only_shown=True)
    return reply(job.shape(), 202)


def _start_redrive(context: ConsoleContext, topic: str, plan: RedrivePlan) -> Job:
    if plan.order.topic != topic:
        raise BadRequest(f"That dry run was for {plan.order.topic}.")
    what = f"Redrive of {topic}"
    if any(each.what == what for each in context.jobs.running("letters")):
        raise Refused(f"Letters of {topic} are already being redriven by this console: wait for that, or stop it")

    def work(job: Job) -> None:
        def report(sent: int) -> None:
            job.done = sent

        job.total = plan.records
        with context.pool.client() as cluster:
            try:
                Redrive(cluster, plan.order, agreed=plan).run(report, job.stop.is_set)
            finally:
                context.pool.forget()

    return context.jobs.start("letters", what, work)


def _progress(job: Job) -> Progress:
    def report_progress(looked: int, total: int) -> None:
        # Until the total is known, the progress is zero.
        job.done, job.total = looked, total or None
        job.check()

    return report_progress


def _edits(body: Body) -> dict[LetterId, Edit]:
    """Edits by the ids of letters."""
    edits = {}
    for item in body.list("edits"):
        if not isinstance(item, dict):
            raise BadRequest("An edit must be an object.")
        edit = Body(item)
        key, value = _edited(edit, "key"), _edited(edit, "value")
        headers = None
        if edit.has("headers"):
            headers = tuple((name, text.encode()) for name, text in edit.texts("headers").items())
        edits[_letter_id(edit.text("id"))] = Edit(key, value, UNCHANGED if headers is None else headers)
    if len(edits) > EDITS_MAX:
        raise BadRequest(f"Correct at most {EDITS_MAX} letters at a time.")
    return edits


def _edited(edit: Body, name: str) -> bytes | Literal[Unedited.UNCHANGED] | None:
    """A missing part stays unchanged; null means no value."""
    if not edit.names(name):
        return UNCHANGED
    return text_as_bytes(edit.text_or_none(name), edit.text(f"{name}_encoding", "text"))


def _filter(body: Body) -> Filter:
    ids = [_letter_id(each) for each in body.list("ids")]
    if len(ids) > IDS_MAX:
        raise BadRequest(f"Select at most {IDS_MAX:,} letters, or all.")
    selection = replace(
        _selection(body.text_or_none("error"), body.text_or_none("key"), ids),
        groups=frozenset(_one(body.text_or_none("group"))),
        origins=frozenset(_one(body.text_or_none("origin"))),
    )
    if body.flag("all") != selection.is_open:
        raise BadRequest("Select letters: all, or ids, an error, a key, a group or an origin.")
    return selection


def _one(text: str | None) -> tuple[str, ...]:
    return (text,) if text else ()


def _selection(error: str | None, key: str | None, ids: Iterable[LetterId] = ()) -> Filter:
    keys = {key.encode()} if key else ()
    return Filter(frozenset(_one(error)), frozenset(keys), ids=frozenset(ids))


def _topic_id(text: str | None) -> UUID | None:
    """The id of the topic in which the letters were seen: a recreated topic has other letters with the same ids."""
    try:
        return None if text is None else UUID(text)
    except ValueError:
        raise BadRequest("topic_id must be the id returned with the letters.") from None


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
        "targets": dict(plan.targets.most_common(NAMES_MAX)),
        "targets_total": len(plan.targets),
        "groups": dict(plan.groups.most_common(NAMES_MAX)),
        "done": plan.fates[LetterFate.DONE],
        "held": plan.fates[LetterFate.HELD],
        "no_target": plan.fates[LetterFate.NO_TARGET],
        "missing": len(plan.missing),
        "leaderless": plan.topic.leaderless,
    }


async def purge(request: Request) -> Response:
    """Without `agreed` a dry run; with the task of a dry run, exactly that is deleted."""
    body, topic, context = await Body.read(request), request.path_params["topic"], context_of(request)
    if body.has("agreed"):
        plan = context.jobs.agreed(body.text("agreed"), PurgePlan)
        if plan.topic != topic:
            raise BadRequest(f"That dry run was for {plan.topic}.")
        await context.pool.change(lambda cluster: apply_purge(cluster, plan))
        return reply(_purge_shape(plan))
    mode = body.text("mode")
    if mode not in ("all", "redriven", "before"):
        raise BadRequest("mode must be all, redriven or before.")
    before_ms = body.number("before_ms", 0, OFFSET_MAX) if mode == "before" else None
    only_redriven = mode == "redriven"

    def work(job: Job) -> None:
        with context.pool.client() as cluster:
            plan = plan_purge(
                cluster, topic, before_ms=before_ms, only_redriven=only_redriven, progress=_progress(job)
            )
            job.plan, job.result = plan, _purge_shape(plan)

    job = context.jobs.start("counts", f"Count of letters of {topic}", work, is_only_shown=True)
    return reply(job.shape(), 202)


def _purge_shape(plan: PurgePlan) -> dict[str, Any]:
    return {"records": plan.records, "waiting": plan.waiting, "leaderless": plan.leaderless}


ROUTES: Final = [
    Route("/api/letters", topics),
    Route("/api/letters/{topic}", letters),
    Route("/api/letters/{topic}/counts", counts),
    Route("/api/letters/{topic}/{index:int}/{offset:int}", letter),
    Route("/api/letters/{topic}/redrive", redrive, methods=["POST"]),
    Route("/api/letters/{topic}/purge", purge, methods=["POST"]),
]
