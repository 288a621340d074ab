"""The marks that say which letters were redriven."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.admin.dead_letters import redriven
from millpond.admin.dead_letters.letters import LetterId
from millpond.admin.dead_letters.redriven import PAGE_OFFSETS, Redriven, read_redriven, try_read_redriven
from millpond.admin.errors import Refused
from millpond.admin.offsets import Bounds
from millpond.remote.cluster import PartitionInfo, TopicInfo
from millpond.wire.records import Record

LETTERS = st.sets(st.builds(LetterId, st.integers(0, 2), st.integers(0, 3 * PAGE_OFFSETS)), max_size=60)


@given(LETTERS, st.sets(st.builds(LetterId, st.integers(0, 2), st.integers(0, 100))))
def test_marks_come_back_as_they_were_written(some: set[LetterId], dense: set[LetterId]) -> None:
    letters = some | dense
    marks = Redriven("id")
    pages = {marks.add(letter) for letter in letters}
    assert len(marks) == len(letters)
    again, other = Redriven("id"), Redriven("another")
    for key, value in marks.written(pages):
        again.read(key, value)
        other.read(key, value)
    assert len(again) == len(letters)
    assert all(letter in again for letter in letters)
    assert len(other) == 0
    assert again == marks
    assert again != other
    neighbours = {LetterId(partition, offset + 1) for partition, offset in letters} - letters
    assert not any(letter in again for letter in neighbours)


def test_a_later_mark_replaces_an_earlier_one_and_a_tombstone_all() -> None:
    marks = Redriven("id")
    marks.read(b"0/0", b'{"topic_id":"id","redriven":[[3,5]]}')
    marks.read(b"0/0", b'{"topic_id":"id","redriven":[[3,3]]}')
    assert len(marks) == 1
    marks.read(b"0/0", None)
    assert len(marks) == 0


def test_without_the_marks_it_is_unknown_what_was_redriven() -> None:
    assert Redriven("id").says(LetterId(0, 1)) is False
    unknown = Redriven("id", is_known=False)
    assert unknown.says(LetterId(0, 1)) is None
    assert unknown != Redriven("id")


def test_marks_that_name_a_page_again_and_again_take_no_time() -> None:
    """The same thousand offsets a hundred thousand times, in one record: as many marks as would take minutes."""
    value = b'{"topic_id":"id","redriven":[%s]}' % b",".join([b"[0,999]"] * 100_000)
    began = time.monotonic()
    marks = Redriven("id")
    marks.read(b"0/0", value)
    assert len(marks) == PAGE_OFFSETS
    assert time.monotonic() - began < 5


class Spoiled:
    """A dead-letter topic beside which somebody has written something else than marks."""

    name = "spoiled.dlq"

    def __init__(self, value: bytes) -> None:
        self.info = TopicInfo(self.name, UUID(int=1), {0: PartitionInfo(1, 0)})
        self.cluster = SimpleNamespace(topics=lambda names: dict.fromkeys(names, self.info))
        self.value = value

    def read(self, *_: object, **__: object) -> Iterator[Record]:
        yield Record(0, 0, b"0/0", self.value)


@pytest.mark.parametrize("value", [b"[" * 100_000, b"nothing", b"5", b'{"redriven":[]}', b"\xff"])
def test_letters_are_listed_with_unreadable_marks(monkeypatch: pytest.MonkeyPatch, value: bytes) -> None:
    topic: Any = Spoiled(value)
    monkeypatch.setattr(redriven, "bounds_of", lambda _, expected, __: dict.fromkeys(expected, Bounds(0, 1)))
    monkeypatch.setattr(redriven, "read_records", topic.read)
    with pytest.raises(Refused, match="something else uses topic"):
        read_redriven(topic)
    assert try_read_redriven(topic).says(LetterId(0, 0)) is None
    # Nor is it known where there was no time to read them.
    monkeypatch.setattr(redriven, "read_records", lambda *_, **__: iter(()))
    assert try_read_redriven(topic, lambda: True).says(LetterId(0, 0)) is None


@pytest.mark.parametrize("offsets", ["[[0,1000000000000000]]", "[[1000,1000]]", "[[-1,3]]"])
def test_a_mark_says_something_about_its_own_page_only(offsets: str) -> None:
    """Whoever may write there could keep all commands about the letters busy for ever."""
    with pytest.raises(ValueError, match="not on page 0"):
        Redriven("id").read(b"0/0", b'{"topic_id":"id","redriven":%s}' % offsets.encode())
