"""After a restart the last five batches of a producer are known, as before it."""

from __future__ import annotations

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.log import producers, recalled_batches
from millpond.log.limits import LogLimits

PRODUCER = 9


def write(harness, log, sequence, producer_id=PRODUCER, values=(b"a", b"b")):
    batch = harness.batch(*values, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    return log.append(batch, leader_epoch=0, now_ms=harness.now_ms)


def end(harness, store, how):
    if how == "clean":
        store.close()
    else:
        store.checkpoint()
        harness.disk.drop_process()


@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 500])
def test_a_batch_among_the_last_five_is_a_duplicate_after_a_restart(make_pond, how, segment_bytes):
    harness = make_pond(limits=LogLimits(segment_bytes=segment_bytes))
    store, log = harness.open()
    first_offsets = [write(harness, log, 2 * number).first_offset for number in range(8)]
    write(harness, log, 0, producer_id=PRODUCER + 1)
    harness.sync(log)
    end(harness, store, how)
    _, log = harness.open()
    for number in range(3, 8):
        appended = write(harness, log, 2 * number)
        assert (appended.duplicate, appended.first_offset) == (True, first_offsets[number])
    with pytest.raises(Refused) as refused:
        write(harness, log, 4)
    assert refused.value.code == (
        # What a snapshot knows is the last batch; what is read again is known to be written.
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER if how == "kill" else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert not write(harness, log, 16).duplicate


def test_only_what_leads_to_the_last_batch_counts(make_pond):
    """An older epoch's sequences, and those before a hole that compaction left, say nothing."""
    harness = make_pond(limits=LogLimits(segment_bytes=1 << 20))
    store, log = harness.open()
    write(harness, log, 0)
    renewed = harness.batch(b"x", producer_id=PRODUCER, producer_epoch=1, base_sequence=0)
    log.append(renewed, leader_epoch=0, now_ms=harness.now_ms)
    store.close()
    _, log = harness.open()
    assert len(log.producers.entries[PRODUCER].spans) == 1


def test_the_end_is_enough(make_pond, monkeypatch):
    """A long log is not read from its beginning."""
    monkeypatch.setattr(recalled_batches, "RECALLED_ENTRIES", 3)
    harness = make_pond(limits=LogLimits(segment_bytes=1 << 20, index_interval_bytes=0))
    store, log = harness.open()
    for number in range(20):
        write(harness, log, 2 * number)
    store.close()
    _, log = harness.open()
    spans = log.producers.entries[PRODUCER].spans
    assert [span.base_sequence for span in spans] == [34, 36, 38]


def test_a_producer_that_is_long_silent_costs_nothing(make_pond):
    harness = make_pond(limits=LogLimits(segment_bytes=1 << 20))
    store, log = harness.open()
    for number in range(3):
        write(harness, log, 2 * number)
    store.close()
    harness.now_ms += producers.RETRIED_WITHIN_MS
    _, log = harness.open()
    assert len(log.producers.entries[PRODUCER].spans) == 1


@pytest.mark.parametrize("kept", [8, 9])
def test_a_batch_among_the_last_five_is_a_duplicate_after_a_truncation_next_to_a_roll(make_pond, kept):
    """The snapshot of the roll knows one batch, and the producer sends five again after a second failover."""
    harness = make_pond(limits=LogLimits(segment_bytes=1 << 20))
    _, log = harness.open()
    offsets = []
    for number in range(10):
        if number == 8:
            log.roll()
        offsets.append(write(harness, log, 2 * number).first_offset)
    harness.cut(log, offsets[kept])
    for number in range(kept - 5, kept):
        appended = write(harness, log, 2 * number)
        assert (appended.duplicate, appended.first_offset) == (True, offsets[number])
    assert not write(harness, log, 2 * kept).duplicate


def test_batches_in_many_small_segments_are_found_again(make_pond):
    harness = make_pond(limits=LogLimits(segment_bytes=1 << 20))
    store, log = harness.open()
    offsets = []
    for number in range(8):
        offsets.append(write(harness, log, 2 * number).first_offset)
        log.roll()
    store.close()
    _, log = harness.open()
    assert [span.first_offset for span in log.producers.entries[PRODUCER].spans] == offsets[-5:]
