"""`millpond group history`: the rebalances of a group, as the brokers wrote them down, in words.

A Millpond cluster keeps a record of every finished rebalance in a topic of its own: the key is the group, the value
the rebalance as JSON.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from millpond.cli.connect import ANSWER_SECONDS, Cluster, topics_of
from millpond.cli.errors import Failed, failed
from millpond.cli.group_describe import show_partitions
from millpond.cli.offsets import Bounds, Partition, bounds_of, resolve
from millpond.cli.times import Since, show_span
from millpond.coordinators.groups.history import Why

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

Rebalance = Mapping[str, Any]
Cause = Mapping[str, Any]

BATCH_RECORDS: Final = 2000
CAUSES_SHOWN_MAX: Final = 10
MOVES_SHOWN_MAX: Final = 20
NOBODY: Final = "nobody"

_UUID: Final = re.compile(r"-([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


def read_history(
    cluster: Cluster, topic: str, group: str, limit: int, since_ms: int | None
) -> list[Rebalance] | None:
    """The last rebalances of the group, oldest first; None when the cluster keeps no such history."""
    admin = cluster.admin()
    known = topics_of(admin)
    if topic not in known:
        return None
    bounds = bounds_of(admin, [(topic, index) for index in known[topic].partitions])
    starts = {each: bound.start for each, bound in bounds.items()}
    if since_ms is not None:
        starts = resolve(admin, bounds, Since(since_ms))
    found: deque[tuple[int, Rebalance]] = deque(maxlen=limit)
    for message in _between(cluster, starts, bounds):
        rebalance = _rebalance(message, group)
        if rebalance is not None:
            found.append((rebalance["started_ms"], rebalance))
    return [rebalance for _, rebalance in sorted(found, key=lambda each: each[0])]


def print_history(group: str, rebalances: Sequence[Rebalance]) -> None:
    count = len(rebalances)
    click.secho(f"{group}: the last {count} rebalances" if count > 1 else f"{group}: one rebalance", bold=True)
    clients: dict[str, Cause] = {}
    for rebalance in rebalances:
        # Who was heard of once is known by name from then on.
        clients |= {cause["member_id"]: cause for cause in rebalance["causes"]}
        click.echo()
        click.echo("\n".join(explain(rebalance, clients)))


def explain(rebalance: Rebalance, clients: Mapping[str, Cause]) -> Iterable[str]:
    """What happened, line by line: when and at what cost, why, what moved."""
    members = rebalance["members"]
    facts = [f"generation {rebalance['generation']}"] if rebalance["generation"] is not None else []
    facts += [f"{members} member{'' if members == 1 else 's'}" if members else "nobody left"]
    facts += [f"{rebalance['protocol']}"] if rebalance.get("protocol") else []
    paused_ms = rebalance["paused_ms"]
    facts += ["not finished" if paused_ms is None else f"paused {show_span(paused_ms)}" if paused_ms else "no pause"]
    yield click.style(_moment(rebalance["started_ms"]), bold=True) + "  " + ", ".join(facts)
    causes, rejoined = _parted(rebalance["causes"])
    for cause in causes[:CAUSES_SHOWN_MAX]:
        yield "  " + _because(cause)
    if len(causes) > CAUSES_SHOWN_MAX:
        yield f"  and {len(causes) - CAUSES_SHOWN_MAX} more causes"
    if rejoined:
        yield f"  {rejoined} member{'' if rejoined == 1 else 's'} rejoined"
    moved = _moved(rebalance["moves"])
    for (before, after), partitions in list(moved.items())[:MOVES_SHOWN_MAX]:
        yield f"  {show_partitions(partitions)}: {_named(before, clients)} → {_named(after, clients)}"
    shown = sum(len(partitions) for partitions in list(moved.values())[:MOVES_SHOWN_MAX])
    if rebalance["moves_total"] > shown:
        yield f"  and {rebalance['moves_total'] - shown:,} more partitions moved"
    elif not moved and members:
        yield "  nothing moved"


def short(member_id: str) -> str:
    """A member's id without most of the randomness in it, still enough to tell two apart."""
    return _plain(_UUID.sub(r"-\1", member_id))


def _parted(causes: Sequence[Cause]) -> tuple[Sequence[Cause], int]:
    """What set it off and what else came in between, and how many only came along, as everybody must."""
    if not causes or causes[0]["why"] == Why.REJOINED:
        return causes, 0
    real = [cause for cause in causes if cause["why"] != Why.REJOINED]
    return real, len(causes) - len(real)


def _because(cause: Cause) -> str:
    if not cause["member_id"]:
        return _plain(cause["why"]) + _detail(cause)
    place = f" on {_plain(cause['client_host'])}" if cause.get("client_host") else ""
    return f"{_named(cause['member_id'], {cause['member_id']: cause})}{place}: {cause['why']}{_detail(cause)}"


def _detail(cause: Cause) -> str:
    return f" ({_plain(cause['detail'])})" if cause.get("detail") else ""


def _named(member_id: str | None, known: Mapping[str, Cause]) -> str:
    if member_id is None:
        return NOBODY
    cause = known.get(member_id, {})
    name, short_id = cause.get("instance_id") or cause.get("client_id") or "", short(member_id)
    # Most clients make their member id of the client id: once is enough.
    return short_id if not name or short_id.startswith(name) else f"{_plain(name)} ({short_id})"


def _moved(moves: Iterable[Mapping[str, Any]]) -> dict[tuple[str | None, str | None], list[Partition]]:
    """The partitions that went the same way, together."""
    found: dict[tuple[str | None, str | None], list[Partition]] = {}
    for move in moves:
        found.setdefault((move["before"], move["after"]), []).append((move["topic"], move["partition"]))
    return found


def _moment(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000):%Y-%m-%d %H:%M:%S}"


def _plain(text: str) -> str:
    """Clients choose these words: a terminal must not obey them."""
    return _CONTROL.sub("?", str(text))


# Reading the topic.


def _rebalance(message: Message, group: str) -> Rebalance | None:
    key, value = message.key(), message.value()
    if not isinstance(key, bytes) or not isinstance(value, bytes) or key.decode("utf-8", "replace") != group:
        return None
    try:
        told = json.loads(value)
    except ValueError:
        return None
    # What a later version writes in another way is passed over, not a reason to show nothing.
    needed = {"started_ms", "generation", "members", "paused_ms", "causes", "moves", "moves_total"}
    return told if isinstance(told, dict) and needed <= told.keys() else None


def _between(
    cluster: Cluster, starts: Mapping[Partition, int], bounds: Mapping[Partition, Bounds]
) -> Iterable[Message]:
    """Every record from the starts to the ends as they were asked for."""
    from confluent_kafka import TopicPartition

    left = {each: bounds[each].end for each, start in starts.items() if start < bounds[each].end}
    if not left:
        return
    consumer = _consumer(cluster)
    try:
        # A client that has not heard of the leaders looks for them for seconds.
        topics_of(consumer)
        consumer.assign([TopicPartition(topic, index, starts[topic, index]) for topic, index in left])
        deadline = time.monotonic() + ANSWER_SECONDS
        while left:
            messages = consumer.consume(BATCH_RECORDS, 0.1)
            if messages:
                deadline = time.monotonic() + ANSWER_SECONDS
            elif time.monotonic() > deadline:
                raise Failed("The history cannot be read: no answer came in time; is the node still running?")
            for message in messages:
                if _is_wanted(message, left):
                    yield message
    finally:
        consumer.close()


def _is_wanted(message: Message, left: dict[Partition, int]) -> bool:
    topic, index, offset, error = message.topic(), message.partition(), message.offset(), message.error()
    if topic is None or index is None:
        if error is not None and not error.retriable() and error.name() not in ("_ALL_BROKERS_DOWN", "_TRANSPORT"):
            raise failed("The history cannot be read", error)
        return False
    place = (topic, index)
    end = left.get(place)
    if end is None or offset is None:
        return False
    if error is not None:
        if error.name() != "_PARTITION_EOF":
            raise failed("The history cannot be read", error)
        del left[place]
        return False
    if offset + 1 >= end:
        del left[place]
    return offset < end


def _consumer(cluster: Cluster) -> Consumer:
    return cluster.consumer(
        # librdkafka insists on a name; no group comes into being, because nothing is subscribed or committed.
        group_id="millpond-history",
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        enable_partition_eof=True,
        auto_offset_reset="earliest",
        fetch_wait_max_ms=100,
        fetch_queue_backoff_ms=10,
        fetch_error_backoff_ms=10,
    )
