"""The evidence of a run: what is written down is what was heard and seen."""

from __future__ import annotations

from uuid import UUID

import pytest

from millpond.sim.history.records import Content, History, Promise, SentBatch, Status, TopicIdPartition
from millpond.wire.records import decode_batch, encode_batch

PLACE = TopicIdPartition("t", UUID(int=1), 0)


def batch(*tags: str) -> SentBatch:
    return SentBatch("p", PLACE, tuple(Content(tag, b"k", None, 5) for tag in tags), Promise.SURVIVES)


def test_a_record_is_known_again_by_what_travels_with_it() -> None:
    sent = batch("a", "b")
    read = decode_batch(encode_batch(sent.records()))
    assert [Content.of(record) for record in read] == list(sent.contents)


def test_a_batch_is_settled_once() -> None:
    history = History()
    sent = batch("a")
    history.settle(sent, Status.ACKNOWLEDGED, 9, 4)
    assert (sent.status, sent.base_offset, sent.settled_at_ms) == (Status.ACKNOWLEDGED, 4, 9)
    with pytest.raises(AssertionError):
        history.settle(sent, Status.UNKNOWN, 10)


def test_sightings_keep_the_last_time_of_each_content() -> None:
    history = History()
    one, other = (decode_batch(encode_batch(batch(tag).records())) for tag in ("a", "b"))
    history.see(PLACE, one, 1)
    history.see(PLACE, one, 2)
    history.see(PLACE, other, 3)
    assert [(each.content.tag, each.last_seen_ms) for each in history.seen[PLACE][0]] == [("a", 2), ("b", 3)]


def test_records_are_counted_by_what_became_of_them() -> None:
    history = History(batches=[batch("a", "b"), batch("c")])
    history.settle(history.batches[0], Status.REFUSED, 1)
    assert history.counts() == {"open": 1, "acknowledged": 0, "refused": 2, "unknown": 0}
