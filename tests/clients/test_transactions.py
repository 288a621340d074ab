"""Transactions through three libraries: committed records are read, aborted ones are not, zombies are fenced."""

from __future__ import annotations

import time

import pytest

from support.groups import fetch_offsets
from support.raw import batch
from support.raw_transactions import (
    NODE_SETTINGS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    committed_values,
    end_offset,
    wait_for_state,
)
from support.transactions import END, READERS, WRITERS, ConfluentWriter, Fenced

SETTINGS = NODE_SETTINGS

every_writer = pytest.mark.parametrize("open_writer", WRITERS.values(), ids=WRITERS)
every_reader = pytest.mark.parametrize("read", READERS.values(), ids=READERS)


def write_end(raw, topic, partitions):
    for partition in range(partitions):
        assert not raw.produce(topic, partition, batch(END)).error_code


@pytest.mark.smoke
@every_writer
def test_committed_records_are_read_and_aborted_ones_are_not(node, raw, made, open_writer):
    other = f"{made}-other"
    raw.create_topic(other)
    writer = open_writer(node.bootstrap, made)
    for name, committed in ((b"first", True), (b"second", False), (b"third", True), (b"fourth", False)):
        writer.begin()
        for topic, partition in ((made, 0), (made, 1), (other, 0)):
            writer.send(topic, partition, name)
        writer.commit() if committed else writer.abort()
    writer.close()
    for topic, partitions in ((made, 2), (other, 1)):
        write_end(raw, topic, partitions)
        for read in READERS.values():
            for partition in range(partitions):
                assert read(node.bootstrap, topic, partition, "read_committed") == [b"first", b"third"]
                everything = read(node.bootstrap, topic, partition, "read_uncommitted")
                assert everything == [b"first", b"second", b"third", b"fourth"]


@every_reader
def test_interleaved_transactions_are_kept_apart(node, raw, made, read):
    """Many batches of several transactions in turn, more than one fetch returns."""
    writers = [ConfluentWriter(node.bootstrap, f"{made}-{number}") for number in range(3)]
    for writer in writers:
        writer.begin()
    expected = []
    for turn in range(60):
        number = turn % 3
        value = b"%d-%d-" % (number, turn) + b"x" * 40_000
        writers[number].send(made, 0, value)
        if number != 1:
            expected.append(value)
    writers[0].commit()
    writers[1].abort()
    writers[2].commit()
    write_end(raw, made, 1)
    assert read(node.bootstrap, made, 0, "read_committed") == expected
    assert len(read(node.bootstrap, made, 0, "read_uncommitted")) == 60


@every_writer
def test_an_open_transaction_holds_back_what_is_behind_it(node, raw, made, open_writer):
    writer = open_writer(node.bootstrap, made)
    writer.begin()
    writer.send(made, 0, b"open")
    write_end(raw, made, 1)
    assert (end_offset(raw, made, READ_COMMITTED), end_offset(raw, made, READ_UNCOMMITTED)) == (0, 2)
    assert READERS["confluent-kafka"](node.bootstrap, made, 0, "read_uncommitted") == [b"open"]
    assert committed_values(raw, made) == []
    writer.commit()
    writer.close()
    assert READERS["confluent-kafka"](node.bootstrap, made, 0, "read_committed") == [b"open"]


@every_writer
@pytest.mark.parametrize("committed", [True, False])
def test_offsets_are_committed_with_the_records(node, raw, made, open_writer, committed):
    writer = open_writer(node.bootstrap, made)
    writer.begin()
    writer.send(made, 0, b"x")
    writer.send_offset(made, made, 17)
    writer.commit() if committed else writer.abort()
    writer.close()
    wait_for_state(raw, made, "CompleteCommit" if committed else "CompleteAbort")
    assert fetch_offsets(raw, made) == ({(made, 0): 17} if committed else {})


@every_writer
def test_a_second_producer_of_the_same_id_fences_the_first(node, raw, made, open_writer):
    first = open_writer(node.bootstrap, made)
    first.begin()
    first.send(made, 0, b"of a zombie")
    second = open_writer(node.bootstrap, made)
    second.begin()
    second.send(made, 0, b"of its successor")
    with pytest.raises(Fenced):
        first.commit()
    second.commit()
    write_end(raw, made, 1)
    assert READERS["confluent-kafka"](node.bootstrap, made, 0, "read_committed") == [b"of its successor"]
    second.close()


@every_writer
def test_an_empty_transaction_commits(node, raw, made, open_writer):
    writer = open_writer(node.bootstrap, made)
    writer.begin()
    writer.commit()
    writer.begin()
    writer.abort()
    writer.begin()
    writer.send(made, 0, b"x")
    writer.commit()
    writer.close()
    wait_for_state(raw, made, "CompleteCommit")
    assert committed_values(raw, made) == [b"x"]


def test_a_transaction_that_takes_too_long_is_aborted(node, raw, made):
    writer = ConfluentWriter(node.bootstrap, made, transaction_timeout_ms=1500, message_timeout_ms=1500)
    began = time.monotonic()
    writer.begin()
    writer.send(made, 0, b"slow")
    write_end(raw, made, 1)
    wait_for_state(raw, made, "CompleteAbort")
    assert time.monotonic() - began > 1.4, "that was before its time"
    assert end_offset(raw, made, READ_COMMITTED) == 3
    with pytest.raises(Fenced):
        writer.commit()
    again = ConfluentWriter(node.bootstrap, made)
    again.begin()
    again.send(made, 0, b"quick")
    again.commit()
    wait_for_state(raw, made, "CompleteCommit")
    assert committed_values(raw, made) == [END, b"quick"]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd", "snappy"])
def test_compressed_transactions(node, raw, made, codec):
    writer = ConfluentWriter(node.bootstrap, made, compression_type=codec)
    for value, committed in ((b"kept" * 100, True), (b"dropped" * 100, False)):
        writer.begin()
        writer.send(made, 0, value)
        writer.commit() if committed else writer.abort()
    write_end(raw, made, 1)
    assert READERS["confluent-kafka"](node.bootstrap, made, 0, "read_committed") == [b"kept" * 100]
