"""A producer that keeps using a node that does not lead first gets no leader in a response, then the current one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from broker.test_any_node import ThreeNodes
from millpond.base.errors import ErrorCode
from millpond.broker.requests.misdirected_producers import (
    PAUSE_MS_MAX,
    REMEMBERED_MAX,
    STUCK_COUNT,
    STUCK_MS,
    MisdirectedProducers,
)
from millpond.wire import messages as m

TOPIC = UUID(int=1)


def refused(misdirected: MisdirectedProducers, *times_ms: int, epoch: int = 3) -> int:
    for at_ms in times_ms:
        misdirected.note(TOPIC, 0, epoch, at_ms)
    return times_ms[-1]


def test_who_is_refused_for_long_is_lost_once() -> None:
    misdirected = MisdirectedProducers()
    now_ms = refused(misdirected, *range(0, STUCK_MS + 1, 500))
    assert not misdirected.is_stuck(TOPIC, 1, 3, now_ms)
    assert not misdirected.is_stuck(TOPIC, 0, 4, now_ms)
    assert misdirected.is_stuck(TOPIC, 0, 3, now_ms)
    assert not misdirected.is_stuck(TOPIC, 0, 3, now_ms)
    assert not misdirected


@pytest.mark.parametrize(
    "times_ms",
    [
        [0],
        [*range(0, STUCK_MS, 100)],
        [0, *[STUCK_MS] * (STUCK_COUNT - 2)],
        [*range(0, 1_000, 100), *range(1_001 + PAUSE_MS_MAX, 1_001 + PAUSE_MS_MAX + STUCK_MS, 100)],
    ],
    ids=["once", "briefly", "seldom", "after a pause"],
)
def test_who_finds_the_leader_soon_is_not(times_ms: list[int]) -> None:
    misdirected = MisdirectedProducers()
    assert not misdirected.is_stuck(TOPIC, 0, 3, refused(misdirected, *times_ms))


def test_who_has_found_it_is_not_lost_any_more() -> None:
    misdirected = MisdirectedProducers()
    now_ms = refused(misdirected, *range(0, STUCK_MS + 1, 500))
    assert not misdirected.is_stuck(TOPIC, 0, 3, now_ms + PAUSE_MS_MAX + 1)


def test_no_more_is_remembered_than_one_client_may_cost() -> None:
    misdirected = MisdirectedProducers()
    for index in range(2 * REMEMBERED_MAX):
        misdirected.note(TOPIC, index, 3, 0)
    assert len(misdirected._refused) == REMEMBERED_MAX


@pytest.mark.parametrize("version", [9, 10])
def test_a_node_that_does_not_lead_says_so_once_in_its_metadata(
    version: int, make_batch: Callable[..., memoryview]
) -> None:
    nodes = ThreeNodes()
    nodes.create("pond")

    def named() -> Any:
        wanted = m.MetadataRequest.MetadataRequestTopic(name="pond")
        (topic,) = nodes.ask(m.MetadataRequest(topics=[wanted], allow_auto_topic_creation=False), 12).topics
        return topic

    def leaders() -> list[tuple[int, int]]:
        return [(each.leader_id, each.error_code) for each in named().partitions]

    elsewhere = next(each for each in named().partitions if each.leader_id != nodes.node_id)
    leaders_before = leaders()

    def produce() -> int:
        data = m.ProduceRequest.PartitionProduceData(index=elsewhere.partition_index, records=make_batch(b"v"))
        topics = [m.ProduceRequest.TopicProduceData(name="pond", partition_data=[data])]
        reply = nodes.ask(m.ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=topics), version)
        return int(reply.responses[0].partition_responses[0].error_code)

    for _ in range(STUCK_MS // 500):
        assert produce() == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert leaders() == leaders_before
        nodes.sim.run_for(500)
    assert produce() == ErrorCode.NOT_LEADER_OR_FOLLOWER
    told = leaders()
    assert told[elsewhere.partition_index] == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    assert [each for at, each in enumerate(told) if at != elsewhere.partition_index] == [
        each for at, each in enumerate(leaders_before) if at != elsewhere.partition_index
    ]
    assert leaders() == leaders_before
