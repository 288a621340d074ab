"""Transactions over HTTP: the open ones and what they hold back, those that hang, every id; aborting one."""

from __future__ import annotations

import time
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millpond.admin.topics import led_partitions
from millpond.admin.transactions import (
    OpenProducer,
    Transaction,
    abort_hanging,
    abort_transaction,
    hanging_producers,
    held_back,
    list_transactions,
    open_producers,
    owners,
)
from millpond.base.ids import TopicPartition
from millpond.console.context import context_of
from millpond.console.records import OFFSET_MAX, PARTITION_MAX
from millpond.console.responses import reply
from millpond.console.shapes import BadRequest, Body, Page
from millpond.console.streams import EventStream, sample_events
from millpond.remote.cluster import Cluster

FRESH_SECONDS: Final = 2.0
OPEN_MAX: Final = 200
"""At most this many open ones are shown, the oldest first."""
NAMES_MAX: Final = 50


def _shape(each: Transaction) -> dict[str, Any]:
    return {
        "id": each.id,
        "state": each.state,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "timeout_ms": each.timeout_ms,
        "age_ms": None if each.started_ms is None else max(0, time.time_ns() // 1_000_000 - each.started_ms),
        "partitions": [[part.topic, part.partition] for part in each.partitions[:NAMES_MAX]],
        "partitions_total": len(each.partitions),
    }


def _look(cluster: Cluster) -> dict[str, Any]:
    everything = list_transactions(cluster)
    opened = sorted(
        (each for each in everything if each.started_ms is not None), key=lambda each: each.started_ms or 0
    )
    producers = open_producers(cluster, led_partitions(cluster.topics().values()))
    held = held_back(cluster, producers)
    owned = owners(cluster, producers)
    first: dict[TopicPartition, OpenProducer] = {}
    for each in producers:
        # In the order of offsets: readers of committed records see nothing past the first.
        first.setdefault(each.partition, each)
    hanging = hanging_producers(cluster) if len(owned) < len(producers) else []
    return {
        "ids": len(everything),
        "open": [
            _shape(each) | {"holds_back": sum(held.get(part, 0) for part in each.partitions)}
            for each in opened[:OPEN_MAX]
        ],
        "open_total": len(opened),
        "held_back": sum(held.values()),
        "blocked": [
            {
                "partition": partition,
                "records": held.get(partition, 0),
                "producer_id": producer.producer_id,
                "transaction": owned[producer].id if producer in owned else None,
                "first_offset": producer.first_offset,
                "last_write_ms": producer.last_write_ms,
            }
            for partition, producer in sorted(first.items(), key=lambda each: -held.get(each[0], 0))[:OPEN_MAX]
        ],
        "blocked_total": len(first),
        "hanging": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "producer_id": each.producer_id,
                "first_offset": each.first_offset,
                "last_write_ms": each.last_write_ms,
                "holds_back": held.get(each.partition, 0),
            }
            for each in hanging[:OPEN_MAX]
        ],
    }


async def live_transactions(request: Request) -> EventStream:
    context = context_of(request)
    return EventStream(
        context.streams, sample_events(lambda: context.pool.recent("transactions", FRESH_SECONDS, _look))
    )


async def all_transactions(request: Request) -> Response:
    transactions = await context_of(request).pool.recent("transactional ids", FRESH_SECONDS, list_transactions)
    by_id = {each.id: each for each in transactions}
    page = Page(request, sorted(by_id))
    return reply(page.shape([_shape(by_id[name]) for name in page.names]))


async def abort(request: Request) -> Response:
    body = await Body.read(request)
    name = body.text("id")
    if body.text("confirm", "") != name:
        raise BadRequest(f"To abort {name}, confirm it by its name.")
    was = await context_of(request).pool.change(lambda cluster: abort_transaction(cluster, name))
    return reply(_shape(was))


async def abort_one_that_hangs(request: Request) -> Response:
    body = await Body.read(request)
    partition = TopicPartition(body.text("topic"), body.number("partition", 0, PARTITION_MAX))
    producer_id = body.number("producer_id", 0, OFFSET_MAX)
    await context_of(request).pool.change(lambda cluster: abort_hanging(cluster, partition, producer_id))
    return reply({"topic": partition.topic, "partition": partition.partition})


ROUTES: Final = [
    Route("/api/transactions", all_transactions),
    Route("/api/transactions/abort", abort, methods=["POST"]),
    Route("/api/transactions/abort-hanging", abort_one_that_hangs, methods=["POST"]),
    Route("/api/live/transactions", live_transactions),
]
