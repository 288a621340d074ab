"""A request whose records are written and not yet committed does not hold its frame, which has up to 100 MiB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millpond.wire import messages as m
from millpond.wire.frames import _is_free

RECORD_BYTES = 200_000


def produce(records: memoryview, partitions: int, acks: int = -1) -> m.ProduceRequest:
    data = [m.ProduceRequest.PartitionProduceData(index=index, records=records) for index in range(partitions)]
    topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=data)
    return m.ProduceRequest(transactional_id=None, acks=acks, timeout_ms=5_000, topic_data=[topic])


@pytest.mark.parametrize("partitions", [1, 2], ids=["the short path", "the general path"])
def test_a_pending_acknowledgement_does_not_hold_its_frame(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview], partitions: int
) -> None:
    """With one replica the acknowledgement waits for a sync; the next frame reuses the buffer meanwhile."""
    server = make_server()
    log = server.create("pond", partitions).log
    producer = server.connect()
    # The first request to an API always takes the general path.
    producer.send(produce(make_batch(b"first"), partitions, acks=1), 9)
    server.run(1_000)
    assert len(producer.replies()) == 1
    producer.send(produce(make_batch(b"x" * RECORD_BYTES), partitions), 9)
    while log.end_offset == 1:
        server.run(1)
    assert not producer.replies()
    (room,) = server.broker.connections._spare_room._spares
    assert _is_free(room)
    server.run(1_000)
    assert len(producer.replies()) == 1
