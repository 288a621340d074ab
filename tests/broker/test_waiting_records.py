"""Records that wait for the coordinator of their transaction take a limited amount of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millpond.base.later import Later
from millpond.broker.produce import general_path
from millpond.broker.requests.connection import WAITING_BYTES_MAX
from millpond.wire import messages as m

BATCH_BYTES = 50_000


@pytest.fixture
def permissions(monkeypatch: pytest.MonkeyPatch) -> list[Later[Any]]:
    """The questions to the coordinator, which the test answers."""
    asked: list[Later[Any]] = []

    def ask(*_: Any) -> Later[Any]:
        asked.append(Later())
        return asked[-1]

    monkeypatch.setattr(general_path, "permission_for_batch", ask)
    return asked


def produce(records: memoryview) -> m.ProduceRequest:
    data = m.ProduceRequest.PartitionProduceData(index=0, records=records)
    topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[data])
    return m.ProduceRequest(transactional_id="me", acks=1, timeout_ms=5_000, topic_data=[topic])


def test_a_connection_is_not_read_from_while_many_of_its_records_wait(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview], permissions: list[Later[Any]]
) -> None:
    """A thousand requests of 3 MiB each once waited on one connection, and no limit counted them."""
    server = make_server()
    log = server.create("pond").log
    memory = server.broker.connections._memory
    producer = server.connect()
    sent = 2 * WAITING_BYTES_MAX // BATCH_BYTES
    for _ in range(sent):
        producer.send(produce(make_batch(b"x" * BATCH_BYTES)), 9)
    server.run(100)
    waiting = len(permissions)
    assert WAITING_BYTES_MAX < waiting * BATCH_BYTES <= WAITING_BYTES_MAX + BATCH_BYTES
    assert memory.held_bytes > WAITING_BYTES_MAX
    # With less waiting the next is read, and the records keep their order.
    permissions[0].finish(None)
    server.run(100)
    assert (log.end_offset, len(permissions)) == (1, waiting + 1)
    for number in range(1, sent):
        permissions[number].finish(None)
        server.run(100)
    assert log.end_offset == sent == len(producer.replies())
    assert memory.held_bytes == 0


def test_the_records_of_a_closed_connection_no_longer_count(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview], permissions: list[Later[Any]]
) -> None:
    server = make_server()
    log = server.create("pond").log
    producer = server.connect()
    producer.send(produce(make_batch(b"x" * 2 * WAITING_BYTES_MAX)), 9)
    server.run(100)
    memory = server.broker.connections._memory
    assert memory.held_bytes > WAITING_BYTES_MAX
    producer.link.end()
    server.run(100)
    permissions[0].finish(None)
    server.run(100)
    assert (memory.held_bytes, log.end_offset) == (0, 0)


class OtherConnection:
    """A connection of the same client, in the middle of a large request."""

    def __init__(self, host: str) -> None:
        self.host = host

    def set_stalled(self, stalled: bool) -> None: ...


def test_a_connection_that_waited_for_memory_is_read_from_again(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview], permissions: list[Later[Any]]
) -> None:
    server = make_server({"queued.max.request.bytes": str(1 << 20)})
    log = server.create("pond").log
    memory = server.broker.connections._memory
    producer = server.connect()
    (connection,) = server.broker.connections
    memory.hold(OtherConnection(connection.host), 700_000)
    count = 1 + WAITING_BYTES_MAX // BATCH_BYTES
    for _ in range(count):
        producer.send(produce(make_batch(b"x" * BATCH_BYTES)), 9)
    assert memory.is_stalled(connection)
    for permission in permissions[:count]:
        permission.finish(None)
    server.run(100)
    assert (memory.held_bytes, log.end_offset) == (700_000, count)
    producer.send(produce(make_batch(b"x")), 9)
    server.run(100)
    assert len(permissions) == count + 1
