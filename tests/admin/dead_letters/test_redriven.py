"""The marks that say which letters were redriven."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.admin.dead_letters.letters import LetterId
from millpond.admin.dead_letters.redriven import PAGE_OFFSETS, Redriven

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


def test_without_the_marks_nobody_knows_what_was_redriven() -> None:
    assert Redriven("id").says(LetterId(0, 1)) is False
    unknown = Redriven("id", is_known=False)
    assert unknown.says(LetterId(0, 1)) is None
    assert unknown != Redriven("id")


@pytest.mark.parametrize("offsets", ["[[0,1000000000000000]]", "[[1000,1000]]", "[[-1,3]]"])
def test_a_mark_says_something_about_its_own_page_only(offsets: str) -> None:
    """Whoever may write there could keep all commands about the letters busy for ever."""
    with pytest.raises(ValueError, match="not on page 0"):
        Redriven("id").read(b"0/0", b'{"topic_id":"id","redriven":%s}' % offsets.encode())
