from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import ErrorCode, Refused
from millpond.log.producers import ProducerStates
from millpond.log.snapshots import decode_snapshot, encode_snapshot
from millpond.wire.batch import SEQUENCE_COUNT, read_header
from millpond.wire.records import Record, encode_batch

LAST = SEQUENCE_COUNT - 1


def header(sequence, count=1, epoch=0, producer=1, **fields):
    records = [Record(n, 5, b"k", b"v") for n in range(count)]
    return read_header(
        encode_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **fields)
    )


class Log:
    """Offsets and a state."""

    def __init__(self):
        self.states = ProducerStates()
        self.end = 0

    def send(self, *args, **fields):
        batch = header(*args, **fields)
        seen = self.states.check([batch])
        if seen is not None:
            return seen.first_offset
        self.states.note(batch, self.end, now_ms=self.end)
        self.end += batch.last_offset_delta + 1
        return self.end - batch.last_offset_delta - 1

    def refusal(self, *args, **fields):
        with pytest.raises(Refused) as refused:
            self.send(*args, **fields)
        return refused.value.code


def test_a_transcript():
    log = Log()
    assert log.send(0) == 0
    assert log.send(1, 3) == 1
    assert log.send(1, 3) == 1, "again"
    assert log.send(4, 2) == 4
    assert log.refusal(7) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.refusal(0, 2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "no batch ended there"
    assert log.refusal(1, epoch=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a new epoch starts at 0"
    assert log.send(0, epoch=1) == 6
    assert log.refusal(6, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.send(0, epoch=1) == 6, "again, and not what epoch 0 wrote with this sequence"
    assert log.send(1, epoch=1) == 7
    assert log.send(77, producer=2) == 8, "a producer that nobody remembers may go on where it is"


def test_sequences_wrap():
    log = Log()
    assert log.send(LAST - 1, 3) == 0
    assert log.states.entries[1].last_sequence == 0
    assert log.send(1) == 3
    assert log.send(LAST - 1, 3) == 0
    log = Log()
    log.send(LAST)
    assert log.refusal(1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.send(0) == 1


def test_an_idempotent_batch_needs_its_fields():
    log = Log()
    assert log.refusal(-1) == ErrorCode.INVALID_RECORD
    assert log.refusal(0, epoch=-1) == ErrorCode.INVALID_RECORD


def test_batches_of_one_request_follow_each_other():
    states = ProducerStates()
    assert states.check([header(0, 2), header(2), header(9, producer=3)]) is None
    with pytest.raises(Refused):
        states.check([header(0, 2), header(3)])


def test_silence_expires_a_producer_but_not_its_open_transaction():
    log = Log()
    log.send(0, producer=1)
    log.send(0, producer=2, transactional=True)
    assert log.states.first_open_transaction() == 1
    assert log.states.expire(99, 100) == []
    assert log.states.expire(500, 100) == [1]
    log.states.note(header(-1, producer=2, control=True), 2, now_ms=10)
    assert log.states.first_open_transaction() is None
    assert log.states.expire(500, 100) == [2]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.booleans()), max_size=40))
def test_a_snapshot_brings_the_state_back(sends):
    log, following = Log(), {}
    for producer, count, transactional in sends:
        log.send(following.get(producer, 0), count, producer=producer, transactional=transactional)
        following[producer] = following.get(producer, 0) + count
    again = Log()
    again.states = decode_snapshot(encode_snapshot(log.states))
    again.end = log.end
    for producer, sequence in following.items():
        old, new = log.states.entries[producer], again.states.entries[producer]
        assert (old.epoch, old.last_sequence, old.last_offset) == (new.epoch, new.last_sequence, new.last_offset)
        assert (old.transaction_start, old.active_ms) == (new.transaction_start, new.active_ms)
        assert again.send(sequence, producer=producer) == again.end - 1
    assert again.states.last_offsets().keys() == following.keys()
