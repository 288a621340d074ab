"""Requests that decode and make no sense: whatever a client sends, it ends its own connection at most.

An exception that nobody expects ends the process: each one that a request can provoke stops the node for everybody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import RemoteError
from millpond.broker.apis import APIS
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch
from support.random_messages import RandomMessages

NAMES = ("pond", "weir", "crew", "payer", "", "consumer", "range", "cleanup.policy", "compact", "retention.ms", "1")
LONGEST = "x" * 32_767
TURNS = 30


class Nonsense(RandomMessages):
    """Fields that mean something by chance, and the largest and smallest that there can be."""

    topic_ids: tuple[UUID, ...] = ()

    def _element(self, root: Any, field: Any, version: int) -> Any:
        draw = self.random
        if field.struct is None and draw.random() < 0.8:
            match field.type:
                case "string":
                    return LONGEST if draw.random() < 0.1 else draw.choice(NAMES)
                case "uuid":
                    return draw.choice((UUID(int=0), *self.topic_ids))
                case "records":
                    return encode_batch([Record(0, draw.choice((0, 1 << 62)), b"k", b"v")])
                case "int64" if draw.random() < 0.1:
                    return (1 << 63) - 1
                case "int8" | "int16" | "int32" | "int64" if draw.random() < 0.7:
                    return draw.choice((0, 0, 1, 2, -1))
        return super()._element(root, field, version)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_no_request_ends_the_node(make_desk: Callable[..., Any], api: Any) -> None:
    desk = make_desk()
    desk.create("pond", 2)
    desk.create("weir", 1, cleanup_policy="compact")
    open_coordinators(desk)
    cls = m.request_class(api.key)
    draw = Nonsense(f"nonsense {api.key}")
    draw.topic_ids = tuple(desk.broker.image.topics_by_id)
    for version in range(api.versions[0], api.versions[1] + 1):
        for _ in range(TURNS):
            caller = desk.connect()
            try:
                caller.send(draw.message(cls, version), version, is_answered=False)
            except RemoteError:
                continue
            desk.run(20)
            caller.link.end()
    desk.run(2_000)
    assert desk.connect().ask(m.DescribeClusterRequest(), 0).cluster_id


def test_an_offset_may_be_kept_for_longer_than_there_is_time(make_desk: Callable[..., Any]) -> None:
    desk = make_desk()
    desk.create("pond")
    open_coordinators(desk)
    kind = m.OffsetCommitRequest
    partition = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topic = kind.OffsetCommitRequestTopic(name="pond", partitions=[partition])
    fields = {"group_id": "crew", "generation_id_or_member_epoch": -1, "member_id": "", "topics": [topic]}
    reply = desk.connect().ask(kind(retention_time_ms=(1 << 63) - 1, **fields), 2)
    assert reply.topics[0].partitions[0].error_code == 0


def open_coordinators(desk: Any) -> None:
    caller = desk.connect()
    for key_type in (0, 1):
        caller.ask(m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=["crew"]), 4, within_ms=5_000)
    desk.run(1_000)
