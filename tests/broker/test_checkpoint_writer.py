"""A worker writes checkpoints, and one write serves all pending requests, including one for many partitions."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m

START = "log-start-offset-checkpoint"


def delete_records(topic: str, *indexes: int, offset: int = -1, timeout_ms: int = 1000) -> m.DeleteRecordsRequest:
    kind = m.DeleteRecordsRequest
    partitions = [kind.DeleteRecordsPartition(partition_index=index, offset=offset) for index in indexes]
    return kind(topics=[kind.DeleteRecordsTopic(name=topic, partitions=partitions)], timeout_ms=timeout_ms)


def written(server: Any) -> int:
    """How often the file of start offsets was replaced."""
    return sum(" rename " in line and line.endswith(START) for line in server.disk.trace)


def filled(server: Any, make_batch: Any, count: int) -> None:
    server.create("pond", count)
    for index in range(count):
        server.broker.partitions.get("pond", index).append(make_batch(b"a", b"b"), zstd=True)
    server.run(1000)


def test_many_partitions_need_one_checkpoint(server: Any, make_batch: Any) -> None:
    filled(server, make_batch, 20)
    before = written(server)
    reply = server.connect().ask(delete_records("pond", *range(20)), 2)
    results = reply.topics[0].partitions
    assert [(each.error_code, each.low_watermark) for each in results] == [(0, 2)] * 20
    assert written(server) == before + 1
    assert b"pond 19 2" in server.disk.read(f"{server.broker.store.folder}/{START}")


def test_nothing_is_answered_before_it_is_written(server: Any, make_batch: Any) -> None:
    filled(server, make_batch, 1)
    caller = server.connect()
    before = written(server)
    caller.send(delete_records("pond", 0), 2)
    assert not caller.link.received, "the loop does not wait for the disk"
    assert written(server) == before
    while not caller.link.received:
        server.run(1)
    assert written(server) == before + 1


@pytest.mark.parametrize("timeout_ms", [-1, 0, 1])
def test_the_timeout_does_not_bound_the_write(server: Any, make_batch: Any, timeout_ms: int) -> None:
    """The response waits for the write: a power cut could undo an earlier one."""
    filled(server, make_batch, 1)
    before = written(server)
    caller = server.connect()
    caller.send(delete_records("pond", 0, timeout_ms=timeout_ms), 2)
    while not caller.link.received:
        server.run(1)
    assert written(server) == before + 1
    (result,) = caller.replies()[0].topics[0].partitions
    assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 2)


def test_requests_during_a_checkpoint_wait_for_the_next_one(server: Any, make_batch: Any) -> None:
    filled(server, make_batch, 3)
    before = written(server)
    callers = [server.connect() for _ in range(3)]
    for index, caller in enumerate(callers):
        caller.send(delete_records("pond", index), 2)
    server.run(1000)
    assert [caller.replies()[0].topics[0].partitions[0].low_watermark for caller in callers] == [2, 2, 2]
    assert written(server) == before + 2


def test_a_disk_that_fails_is_told_and_tried_again(server: Any, make_batch: Any) -> None:
    filled(server, make_batch, 1)
    caller = server.connect()
    server.disk.fail_syncs(START)
    (topic,) = caller.ask(delete_records("pond", 0), 2).topics
    assert topic.partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    (topic,) = caller.ask(delete_records("pond", 0), 2).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].low_watermark) == (0, 2)


def test_a_topic_that_is_made_again_while_one_is_written_waits_for_the_next(server: Any, make_batch: Any) -> None:
    """The old topic's offsets would mislead recovery of the new one."""
    filled(server, make_batch, 1)
    server.broker.checkpoints.write()
    server.run(100)
    old = server.broker.partitions.get("pond", 0)
    server.broker.checkpoints.write()
    server.delete("pond")
    server.create("pond")
    server.run(3000)
    fresh = server.broker.partitions.get("pond", 0)
    assert fresh is not None
    assert fresh is not old
    server.node.kill()
    assert server.node.start(), server.node.journal_lines
    assert server.broker.partitions.get("pond", 0).log.end_offset == 0
