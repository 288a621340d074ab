from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import MalformedMessage
from millpond.coordinators.groups.consumer.embedded import (
    assignment_bytes,
    owned_partitions,
    partitions_of,
    subscription_of,
)
from millpond.wire import messages as m

SUBSCRIPTION = m.ConsumerProtocolSubscription


def test_an_assignment_there_and_back_in_the_version_of_the_subscription(harness: Any) -> None:
    partitions = harness.parts(a=[0, 2], b=[1])
    for version in range(4):
        data = assignment_bytes(partitions, bytes([0, version]), harness.image)
        assert data[:2] == bytes([0, version])
        assert partitions_of(data, harness.image) == partitions
    assert assignment_bytes(partitions, b"\0\x09", harness.image)[:2] == b"\0\3", (
        "of a later version, the last we know"
    )


def test_no_assignment_yet(harness: Any) -> None:
    assert partitions_of(b"", harness.image) == frozenset()


def test_deleted_topics_are_left_out(harness: Any) -> None:
    data = assignment_bytes(harness.parts(a=[0], b=[1]), b"\0\0", harness.image)
    left = harness.parts(b=[1])
    harness.delete("a")
    assert partitions_of(data, harness.image) == left
    assert (
        partitions_of(assignment_bytes(partitions_of(data, harness.image), b"\0\0", harness.image), harness.image)
        == left
    )


def test_what_a_subscription_says_to_own(harness: Any) -> None:
    owned = [SUBSCRIPTION.TopicPartition(topic="a", partitions=[1]), SUBSCRIPTION.TopicPartition(topic="gone")]
    data = b"\0\1" + SUBSCRIPTION(topics=["a"], owned_partitions=owned).encode(1)
    assert owned_partitions(subscription_of(data), harness.image) == harness.parts(a=[1])
    eager = b"\0\0" + SUBSCRIPTION(topics=["a"]).encode(0)
    assert owned_partitions(subscription_of(eager), harness.image) == frozenset()


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\x7f\xff\xff\xff"])
def test_bytes_that_are_no_subscription(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        subscription_of(data)
