from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.permissions import permitted

from millpond.base.errors import ErrorCode, Refused
from millpond.log import producers
from millpond.log.markers import Marker
from millpond.log.producers import ProducerFacts, ProducerStates, WrittenBefore
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
        verification = permitted(self.states, batch.producer_id, batch.producer_epoch, batch.base_sequence, self.end)
        seen = self.states.check([batch], verification)
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


def test_what_was_written_before_the_last_five_batches_is_known_to_be_written():
    log = Log()
    for sequence in range(4, 24, 2):
        log.send(sequence, 2)
    with pytest.raises(WrittenBefore) as written:
        log.send(6, 2)
    assert (written.value.code, written.value.end_offset) == (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 10)
    assert log.refusal(4, 10) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    for sequence, count in ((2, 2), (3, 2), (12, 3), (14, 1), (26, 2)):
        assert log.refusal(sequence, count) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "not all of it was"
    assert log.refusal(6, 2, transactional=True) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.send(24) == 20
    log.send(0, epoch=1)
    assert log.refusal(6, 2, epoch=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "another epoch"


def test_what_was_written_before_a_gap_says_nothing():
    """A follower takes what compaction has left."""
    states = ProducerStates()
    for number, sequence in enumerate([0, 1, 5, 6, 7, 8, 9, 10]):
        states.note(header(sequence), number, now_ms=5)
    with pytest.raises(Refused) as refused:
        states.check([header(2)])
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    with pytest.raises(WrittenBefore):
        states.check([header(5)])


def test_batches_before_a_sequence_wraparound_are_recognised_as_duplicates():
    log = Log()
    for number in range(10):
        log.send((LAST - 3 + number) % SEQUENCE_COUNT)
    assert log.refusal(LAST) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert log.refusal(LAST - 4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


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
    assert log.states.first_open_transaction() == 1, "an emptied marker says nothing"
    log.states.note(header(-1, producer=2, control=True), 2, 10, Marker(committed=True, coordinator_epoch=0))
    assert log.states.first_open_transaction() is None
    assert log.states.expire(500, 100) == [2]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.booleans()), max_size=40))
def test_a_snapshot_brings_the_state_back(sends):
    log, following = Log(), {}
    for producer, count, transactional in sends:
        transactional = transactional or producer in log.states.open_starts
        log.send(following.get(producer, 0), count, producer=producer, transactional=transactional)
        following[producer] = following.get(producer, 0) + count
    again = Log()
    again.states = decode_snapshot(encode_snapshot(log.states))
    again.end = log.end
    for producer, sequence in following.items():
        old, new = log.states.entries[producer], again.states.entries[producer]
        assert (old.epoch, old.last_sequence, old.last_offset) == (new.epoch, new.last_sequence, new.last_offset)
        assert (old.transaction_start, old.active_ms) == (new.transaction_start, new.active_ms)
        is_open = producer in again.states.open_starts
        assert again.send(sequence, producer=producer, transactional=is_open) == again.end - 1
    assert list(again.states.open_starts.items()) == list(log.states.open_starts.items())
    assert again.states.last_offsets().keys() == following.keys()


# Transactions


def end(log, producer=1, epoch=0, committed=True, coordinator_epoch=0):
    batch = header(-1, producer=producer, epoch=epoch, control=True, transactional=True)
    ended = log.states.note(batch, log.end, log.end, Marker(committed, coordinator_epoch))
    log.end += 1
    return ended


def test_a_transaction_opens_with_its_first_batch_and_ends_with_its_marker():
    log = Log()
    log.send(0, producer=1)
    log.send(0, producer=2, transactional=True)
    log.send(1, producer=2, transactional=True)
    log.send(0, producer=3, transactional=True)
    assert list(log.states.open_starts.items()) == [(2, 1), (3, 3)]
    assert end(log, 2, committed=False) == (2, 1, 4, False, 3), "stable up to the one that is still open"
    assert end(log, 3) == (3, 3, 5, True, 6)
    assert end(log, 3) is None, "nothing to end"
    assert log.states.first_open_transaction() is None


@pytest.mark.parametrize("committed", [True, False])
def test_sequences_of_a_transaction_that_has_ended_are_used_up(committed):
    log = Log()
    log.send(0, 2, transactional=True)
    log.send(2, 5, transactional=True)
    assert log.send(2, 5, transactional=True) == 2, "again"
    end(log, committed=committed)
    for sequence, count in [(2, 5), (2, 4), (2, 6), (4, 5), (6, 1), (1, 2), (0, 9)]:
        assert log.refusal(sequence, count, transactional=True) == ErrorCode.UNKNOWN_PRODUCER_ID
    log.send(7, 5, transactional=True)
    assert log.send(7, 5, transactional=True) == 8, "again"
    assert log.refusal(2, 5, transactional=True) == ErrorCode.UNKNOWN_PRODUCER_ID, "also when the next one is open"
    end(log, committed=committed)
    assert log.send(0, 5, epoch=1, transactional=True) == 14, "the same records under another epoch"


def test_sequences_that_are_used_up_are_known_where_they_begin_again():
    log = Log()
    log.send(LAST - 1, 5, transactional=True)
    end(log)
    assert log.refusal(LAST, 5, transactional=True) == ErrorCode.UNKNOWN_PRODUCER_ID
    assert log.refusal(LAST - 3, 3, transactional=True) == ErrorCode.UNKNOWN_PRODUCER_ID
    assert log.refusal(2, transactional=True) == ErrorCode.UNKNOWN_PRODUCER_ID
    assert log.send(3, 5, transactional=True) == 6


def test_every_batch_must_be_verified_and_a_marker_in_between_makes_that_void():
    states = ProducerStates()
    batch = header(0, transactional=True)
    assert refused(states, batch, None) == ErrorCode.INVALID_TXN_STATE
    early = states.verification("tx", 1, 0, 0, now_ms=5)
    assert states.verification("tx", 1, 0, 0, now_ms=6) is early
    assert refused(states, batch, early) == ErrorCode.INVALID_TXN_STATE, "nobody has permitted it yet"
    states.note(header(-1, control=True), 0, 7, Marker(committed=True, coordinator_epoch=0))
    assert not states.permit(early)
    assert refused(states, batch, early) == ErrorCode.INVALID_TXN_STATE
    fresh = permitted(states, 1, 0, 0, now_ms=8)
    assert not states.is_permitted(fresh), "until it is open, the coordinator is asked each time"
    assert states.check([batch], fresh) is None
    states.note(batch, 1, 9)
    assert states.verification("tx", 1, 0, 1, now_ms=10) is fresh
    assert states.is_permitted(fresh)
    assert states.check([header(1, transactional=True)], fresh) is None
    assert refused(states, header(1, transactional=True), None) == ErrorCode.INVALID_TXN_STATE
    another = states.verification("another", 1, 0, 1, now_ms=10)
    assert not states.is_permitted(another), "an open transaction is open to its own transactional id alone"
    assert refused(states, header(1, transactional=True), another) == ErrorCode.INVALID_TXN_STATE


def test_a_verification_is_for_one_transaction():
    """Offsets that a coordinator writes for a producer have no sequences that would tell."""
    states = ProducerStates()
    offsets = [header(-1, transactional=True)]
    first = permitted(states, 1, 0, -1, now_ms=5)
    states.check_trusted(offsets, first)
    states.note(offsets[0], 0, 6)
    states.check_trusted(offsets, first)
    states.note(header(-1, control=True), 1, 7, Marker(committed=False, coordinator_epoch=0))
    second = permitted(states, 1, 0, -1, now_ms=8)
    states.check_trusted(offsets, second)
    states.note(offsets[0], 2, 9)
    with pytest.raises(Refused) as late:
        states.check_trusted(offsets, first)
    assert late.value.code == ErrorCode.INVALID_TXN_STATE
    states.void_verifications()
    with pytest.raises(Refused) as moved:
        states.check_trusted(offsets, second)
    assert moved.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_verification_is_for_one_epoch():
    states = ProducerStates()
    older = states.verification("tx", 1, 0, 0, now_ms=5)
    newer = permitted(states, 1, 1, 0, now_ms=5)
    states.permit(older)
    assert refused(states, header(0, transactional=True), older) == ErrorCode.INVALID_TXN_STATE
    assert refused(states, header(0, transactional=True), newer) == ErrorCode.INVALID_TXN_STATE
    assert states.check([header(0, epoch=1, transactional=True)], newer) is None


def test_what_the_coordinator_refuses_leaves_nothing_behind():
    states = ProducerStates()
    for transactional_id, epoch, sequence in (("tx", 32767, 0), ("another", 0, 0), ("another", 32767, 0)):
        refused_one = states.verification(transactional_id, 1, epoch, sequence, now_ms=5)
        states.refuse(refused_one, is_final=True)
        assert states.verification(transactional_id, 1, epoch, sequence, now_ms=5) is not refused_one
    assert states.check([header(4, transactional=True)], permitted(states, 1, 0, 4, now_ms=6)) is None


def test_what_is_refused_for_now_or_still_asked_for_comes_before_what_follows_it():
    states = ProducerStates()
    for is_final in (False, True):
        verification = states.verification("tx", 1, 0, 2, now_ms=5)
        assert states.verification("tx", 1, 0, 4, now_ms=5) is verification
        states.refuse(verification, is_final=is_final)
        states.permit(verification)
        assert refused(states, header(4, transactional=True), verification) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        states.note(header(-1, control=True), 0, 7, Marker(committed=True, coordinator_epoch=0))
        del states.entries[1]
    assert not states._asked
    assert not states._askers


def test_the_verifications_that_are_asked_for_are_limited(monkeypatch):
    monkeypatch.setattr(producers, "ASKED_REMEMBERED", 3)
    states = ProducerStates()
    mine = permitted(states, 1, 0, 0, now_ms=5)
    first, second, *_ = [states.verification("another", 1, epoch, 0, now_ms=5) for epoch in range(1, 5)]
    states.permit(first)
    assert refused(states, header(0, epoch=1, transactional=True), first) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert states.verification("another", 1, 2, 0, now_ms=5) is second
    assert states.check([header(0, transactional=True)], mine) is None, "what is permitted stays"


def test_an_unknown_producer_begins_with_the_lowest_sequence_that_it_asked_for():
    states = ProducerStates()
    verification = permitted(states, 1, 0, 4, now_ms=5)
    states.verification("tx", 1, 0, 2, now_ms=5)
    assert refused(states, header(4, transactional=True), verification) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check([header(2, transactional=True)], verification) is None


def test_a_plain_batch_cannot_come_from_inside_a_transaction():
    log = Log()
    log.send(0, transactional=True)
    assert log.refusal(1) == ErrorCode.INVALID_TXN_STATE
    end(log)
    assert log.send(1) == 2


def test_markers_of_zombies_are_refused():
    log = Log()
    log.send(0, epoch=3, transactional=True)
    end(log, epoch=4, coordinator_epoch=8)
    states = log.states

    def fault(epoch, coordinator_epoch, raises_epoch=False):
        with pytest.raises(Refused) as refusal:
            states.check_marker(1, epoch, coordinator_epoch, 2 if raises_epoch else 0)
        return refusal.value.code

    assert fault(3, 8) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert fault(4, 7) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    states.check_marker(4, 0, 0)
    states.check_marker(1, 4, 8, 2)
    log.send(0, epoch=4, transactional=True)
    assert fault(4, 8, raises_epoch=True) == ErrorCode.INVALID_PRODUCER_EPOCH, "the last marker, come late"
    states.check_marker(1, 5, 8, 2)
    states.check_marker(1, 4, 8, 0)


def test_a_marker_that_comes_again_after_its_transaction_has_ended_does_no_harm():
    """KAFKA-19999: refused, a coordinator that had not heard of its success would send it for ever."""
    log = Log()
    log.send(0, epoch=3, transactional=True)
    end(log, epoch=4, coordinator_epoch=8)
    for coordinator_epoch in (8, 9):
        log.states.check_marker(1, 4, coordinator_epoch, 2)
        end(log, epoch=4, coordinator_epoch=coordinator_epoch)
    assert log.states.first_open_transaction() is None
    log.send(0, epoch=4, transactional=True)


def test_a_coordinator_that_writes_for_a_producer_needs_its_epoch_and_its_transaction():
    log = Log()
    log.send(0, epoch=3, transactional=True)
    log.states.check_trusted([header(-1, epoch=3, transactional=True)], permitted(log.states, 1, 3, -1, 5))
    with pytest.raises(Refused) as old:
        log.states.check_trusted([header(-1, epoch=2, transactional=True)], None)
    assert old.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(Refused) as unknown:
        log.states.check_trusted([header(-1, producer=7, transactional=True)], None)
    assert unknown.value.code == ErrorCode.INVALID_TXN_STATE
    log.states.check_trusted([header(-1, producer=-1, epoch=-1)], None)


def test_what_is_stable_waits_for_the_marker_to_be_replicated():
    log = Log()
    log.send(0, producer=9)
    log.send(0, transactional=True)
    log.send(1, transactional=True)
    assert log.states.stable_offset(3) == 1
    end(log)
    log.send(1, producer=9)
    assert [log.states.stable_offset(mark) for mark in (0, 1, 2, 3)] == [0, 1, 1, 1]
    assert log.states.stable_offset(4) == 4
    assert log.states.stable_offset(5) == 5


def test_producers_are_described():
    log = Log()
    log.send(0, 3, producer=4, epoch=2, transactional=True)
    end(log, producer=5, epoch=1, coordinator_epoch=6)
    assert log.states.facts() == [ProducerFacts(4, 2, 2, 5, -1, 0), ProducerFacts(5, 1, -1, 3, 6, -1)]
    assert log.states.marker_epochs() == {5: 1}


def test_verifications_that_led_to_nothing_expire():
    states = ProducerStates()
    first, second = states.verification("tx", 1, 0, 0, now_ms=5), permitted(states, 2, 0, 0, now_ms=5)
    states.expire(50, 100)
    assert states.verification("tx", 1, 0, 0, now_ms=60) is first
    assert states.verification("tx", 2, 0, 0, now_ms=60) is second
    states.expire(105, 100)
    assert states.verification("tx", 1, 0, 0, now_ms=110) is not first
    assert states.verification("tx", 2, 0, 0, now_ms=110) is not second


def refused(states, batch, verification):
    with pytest.raises(Refused) as refusal:
        states.check([batch], verification)
    return refusal.value.code


def test_nothing_that_follows_an_unwritten_first_batch_is_taken():
    """A full disk refused the first of five in flight and took the second: the first was out of order for ever."""
    log = Log()
    log.states.note_unwritten([header(0, 2)])
    log.states.note_unwritten([header(2)])
    assert log.refusal(2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.send(5, producer=2) == 0, "another producer may begin with any sequence"
    assert log.send(0, 2) == 1
    assert log.send(2) == 3
    log.states.note_unwritten([header(7, producer=3)])
    assert log.send(9, producer=3, epoch=1) == 4, "a producer that gives up starts a new epoch"
    log.states.note_unwritten([header(-1, producer=4)])
    assert log.send(0, producer=4) == 5, "nobody sends a sequence below the first again"
