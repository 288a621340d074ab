"""Transactions request by request: what is written, what each isolation level reads, and what is rejected."""

from __future__ import annotations

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m
from support.raw import batch, produce_request
from support.raw_transactions import (
    NODE_SETTINGS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    RawProducer,
    ask_to_add,
    committed_values,
    end_offset,
    fetch,
    find_coordinator,
    producers_of,
    wait_for_state,
    write_marker,
)

SETTINGS = NODE_SETTINGS

both_versions = pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])


# What each isolation level reads.


@both_versions
def test_readers_of_committed_records_stop_before_the_first_open_transaction(raw, made, v2):
    producer = RawProducer(raw, made, v2=v2).begin_session()
    raw.produce(made, 0, batch(b"before"))
    producer.send(made, 0, b"inside", b"too")
    raw.produce(made, 0, batch(b"behind"))
    assert fetch(raw, made).last_stable_offset == 1
    assert fetch(raw, made).high_watermark == 4
    assert (end_offset(raw, made, READ_COMMITTED), end_offset(raw, made, READ_UNCOMMITTED)) == (1, 4)
    assert committed_values(raw, made) == [b"before"]
    assert not fetch(raw, made, 1).records
    assert fetch(raw, made, 1, isolation=READ_UNCOMMITTED).records
    producer.commit()
    wait_for_state(raw, made, "CompleteCommit")
    # The marker takes an offset as well.
    assert (end_offset(raw, made, READ_COMMITTED), end_offset(raw, made, READ_UNCOMMITTED)) == (5, 5)
    assert committed_values(raw, made) == [b"before", b"inside", b"too", b"behind"]


@both_versions
def test_a_reply_lists_the_aborted_transactions_that_begin_in_it(raw, made, v2):
    kept, dropped = (RawProducer(raw, f"{made}-{name}", v2=v2).begin_session() for name in ("kept", "dropped"))
    kept.send(made, 0, b"a")
    first = dropped.send(made, 0, b"x")
    kept.send(made, 0, b"b")
    dropped.send(made, 0, b"y")
    dropped_id = dropped.id
    dropped.abort()
    wait_for_state(raw, dropped.name, "CompleteAbort")
    # Decided, but after a transaction that is still open.
    assert fetch(raw, made).last_stable_offset == 0
    kept.commit()
    wait_for_state(raw, kept.name, "CompleteCommit")
    reply = fetch(raw, made)
    assert [(each.producer_id, each.first_offset) for each in reply.aborted_transactions] == [(dropped_id, first)]
    assert not fetch(raw, made, isolation=READ_UNCOMMITTED).aborted_transactions
    assert committed_values(raw, made) == [b"a", b"b"]
    # After the end of both there is no aborted transaction to return.
    assert not fetch(raw, made, reply.last_stable_offset).aborted_transactions


# Which producers may write.


@both_versions
def test_a_second_producer_of_the_same_id_fences_the_first(raw, made, v2):
    first = RawProducer(raw, made, v2=v2).begin_session()
    first.send(made, 0, b"of a zombie")
    second = RawProducer(raw, made, v2=v2).begin_session()
    assert second.id == first.id
    assert second.epoch > first.epoch
    assert first.produce(made, 0, first.batch(made, 0, b"again")).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert first.produce(made, 1, first.batch(made, 1, b"elsewhere")).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert {code for _, code in ask_to_add(first, [(made, [1])])} == {ErrorCode.PRODUCER_FENCED}
    assert first.ask_to_end(True).error_code == ErrorCode.PRODUCER_FENCED
    find_coordinator(raw, made)
    assert first.commit_offset(made, made, 1) in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    second.send(made, 0, b"of its successor")
    second.commit()
    wait_for_state(raw, made, "CompleteCommit")
    assert committed_values(raw, made) == [b"of its successor"]
    assert committed_values(raw, made, 1) == []


def test_a_producer_raises_its_own_epoch_by_showing_the_one_it_has(raw, made):
    producer = RawProducer(raw, made).begin_session()
    zombie = producer.twin()
    known, epoch = producer.id, producer.epoch
    producer.begin_session(producer_id=known, producer_epoch=epoch)
    assert (producer.id, producer.epoch) == (known, epoch + 1)
    # The response may have been lost: a retry with the old epoch gets the same result.
    producer.begin_session(producer_id=known, producer_epoch=epoch)
    assert producer.epoch == epoch + 1
    producer.send(made, 0, b"x")
    assert zombie.ask_for_id(producer_id=known, producer_epoch=epoch).error_code == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_beyond_the_limit_is_refused(raw, topic, timeout_ms):
    reply = RawProducer(raw, topic, timeout_ms=timeout_ms).ask_for_id()
    assert reply.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert reply.producer_id == -1


def test_an_empty_transactional_id_is_refused(raw):
    assert RawProducer(raw, "").ask_for_id().error_code == ErrorCode.INVALID_REQUEST


def test_an_old_producer_hears_of_it_in_words_that_it_knows(raw, made):
    """TRANSACTION_ABORTABLE exists since version 11 of Produce."""
    producer = RawProducer(raw, made).begin_session()
    producer.send(made, 1, b"begun")
    request = produce_request(made, 0, producer.batch(made, 0, b"x"))
    request.transactional_id = made
    reply = raw.call(request, 9).responses[0].partition_responses[0]
    assert reply.error_code == ErrorCode.INVALID_TXN_STATE
    producer.abort()


def identity(producer, sequence=0):
    return {
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "base_sequence": sequence,
        "transactional": True,
    }


def test_a_transactional_batch_needs_a_transactional_request_and_the_other_way_round(raw, made):
    producer = RawProducer(raw, made).begin_session()
    smuggled = raw.produce(made, 0, batch(b"x", **identity(producer)))
    assert smuggled.error_code == ErrorCode.INVALID_TXN_STATE
    plain = producer.produce(made, 0, batch(b"x"))
    assert plain.error_code == ErrorCode.INVALID_RECORD
    assert end_offset(raw, made, READ_UNCOMMITTED) == 0


def test_a_batch_outside_of_its_open_transaction_is_refused(raw, made):
    producer = RawProducer(raw, made).begin_session()
    producer.send(made, 0, b"inside")
    outside = batch(b"outside", **{**identity(producer, 1), "transactional": False})
    assert raw.produce(made, 0, outside).error_code == ErrorCode.INVALID_TXN_STATE
    producer.abort()


@pytest.mark.parametrize("transactional", [False, True])
def test_a_client_writes_no_control_batches(raw, made, transactional):
    producer = RawProducer(raw, made).begin_session()
    producer.send(made, 0, b"open")
    forged = batch(b"\0\0\0\0\0\0", control=True, **{**identity(producer, 1), "transactional": transactional})
    reply = producer.produce(made, 0, forged) if transactional else raw.produce(made, 0, forged)
    assert reply.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TXN_STATE)
    assert end_offset(raw, made, READ_UNCOMMITTED) == 1
    assert end_offset(raw, made, READ_COMMITTED) == 0
    producer.abort()


def test_a_stranger_cannot_use_a_transactional_id(raw, made):
    producer = RawProducer(raw, made).begin_session()
    stranger = RawProducer(raw, made)
    stranger.id, stranger.epoch = producer.id + 1000, 0
    assert {code for _, code in ask_to_add(stranger, [(made, [0])])} == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert stranger.ask_to_end(True).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    stranger.name = "never-heard-of"
    assert stranger.ask_to_end(False).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# Offsets in transactions.


def test_offsets_of_another_generation_are_refused(raw, made):
    producer = RawProducer(raw, made).begin_session()
    assert producer.add_group(made) is ErrorCode.NONE
    kind = m.TxnOffsetCommitRequest
    partition = kind.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = kind(
        transactional_id=made,
        group_id=made,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        generation_id=3,
        member_id="nobody",
        topics=[kind.TxnOffsetCommitRequestTopic(name=made, partitions=[partition])],
    )
    code = raw.call(request, 3).topics[0].partitions[0].error_code
    assert code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
    producer.abort()


# Repair.


def test_a_marker_for_an_unknown_partition_is_refused(raw):
    assert write_marker(raw, 1, 0, True, "no-such-topic") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# What operators see.


def test_producers_of_a_partition_are_described(raw, made):
    producer = RawProducer(raw, made).begin_session()
    producer.send(made, 0, b"a", b"b")
    found = producers_of(raw, made)[producer.id]
    assert (found.producer_epoch, found.last_sequence, found.current_txn_start_offset) == (producer.epoch, 1, 0)
    producer.commit()
    wait_for_state(raw, made, "CompleteCommit")
    assert producers_of(raw, made)[producer.id].current_txn_start_offset == -1
    assert producers_of(raw, made, 1) == {}
