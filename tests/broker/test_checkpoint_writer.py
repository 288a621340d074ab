"""A worker writes checkpoints, and one write serves all pending requests, including one for many partitions."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m

START = "log-start-offset-checkpoint"


def delete_records(topic: str, *indexes: int, offset: int = -1, timeout_ms: int = 1000) -> m.DeleteRecordsRequest:
    kind = m.DeleteRecordsRequest
    wanted = [kind.DeleteRecordsPartition(partition_index=index, offset=offset) for index in indexes]
    return kind(topics=[kind.DeleteRecordsTopic(name=topic, partitions=wanted)], timeout_ms=timeout_ms)


def written(desk: Any) -> int:
    """How often the file of start offsets was replaced."""
    return sum(" rename " in line and line.endswith(START) for line in desk.disk.trace)


def filled(desk: Any, make_batch: Any, count: int) -> None:
    desk.create("pond", count)
    for index in range(count):
        desk.broker.partitions.get("pond", index).append(make_batch(b"a", b"b"), zstd=True)
    desk.run(1000)


def test_many_partitions_need_one_checkpoint(desk: Any, make_batch: Any) -> None:
    filled(desk, make_batch, 20)
    before = written(desk)
    reply = desk.connect().ask(delete_records("pond", *range(20)), 2)
    results = reply.topics[0].partitions
    assert [(each.error_code, each.low_watermark) for each in results] == [(0, 2)] * 20
    assert written(desk) == before + 1
    assert b"pond 19 2" in desk.disk.read(f"{desk.broker.store.folder}/{START}")


def test_nothing_is_answered_before_it_is_written(desk: Any, make_batch: Any) -> None:
    filled(desk, make_batch, 1)
    caller = desk.connect()
    before = written(desk)
    caller.send(delete_records("pond", 0), 2)
    assert not caller.link.received, "the loop does not wait for the disk"
    assert written(desk) == before
    while not caller.link.received:
        desk.run(1)
    assert written(desk) == before + 1


@pytest.mark.parametrize("timeout_ms", [-1, 0, 1])
def test_the_timeout_does_not_bound_the_write(desk: Any, make_batch: Any, timeout_ms: int) -> None:
    """The response waits for the write: a power cut could undo an earlier one."""
    filled(desk, make_batch, 1)
    before = written(desk)
    caller = desk.connect()
    caller.send(delete_records("pond", 0, timeout_ms=timeout_ms), 2)
    while not caller.link.received:
        desk.run(1)
    assert written(desk) == before + 1
    (result,) = caller.replies()[0].topics[0].partitions
    assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 2)


def test_whoever_asks_while_one_is_written_is_served_by_the_next(desk: Any, make_batch: Any) -> None:
    filled(desk, make_batch, 3)
    before = written(desk)
    callers = [desk.connect() for _ in range(3)]
    for index, caller in enumerate(callers):
        caller.send(delete_records("pond", index), 2)
    desk.run(1000)
    assert [caller.replies()[0].topics[0].partitions[0].low_watermark for caller in callers] == [2, 2, 2]
    assert written(desk) == before + 2


def test_a_disk_that_fails_is_told_and_tried_again(desk: Any, make_batch: Any) -> None:
    filled(desk, make_batch, 1)
    caller = desk.connect()
    desk.disk.fail_syncs(START)
    (topic,) = caller.ask(delete_records("pond", 0), 2).topics
    assert topic.partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    (topic,) = caller.ask(delete_records("pond", 0), 2).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].low_watermark) == (0, 2)


def test_a_topic_that_is_made_again_while_one_is_written_waits_for_the_next(desk: Any, make_batch: Any) -> None:
    """The old topic's offsets would mislead recovery of the new one."""
    filled(desk, make_batch, 1)
    desk.broker.checkpoints.write()
    desk.run(100)
    old = desk.broker.partitions.get("pond", 0)
    desk.broker.checkpoints.write()
    desk.delete("pond")
    desk.create("pond")
    desk.run(3000)
    fresh = desk.broker.partitions.get("pond", 0)
    assert fresh is not None
    assert fresh is not old
    desk.node.kill()
    assert desk.node.start(), desk.node.journal_lines
    assert desk.broker.partitions.get("pond", 0).log.end_offset == 0
