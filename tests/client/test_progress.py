"""Only a run without gaps may be committed, in whatever order records finish."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millpond import Send
from millpond.client.progress import Progress


def test_a_gap_holds_back_what_is_behind_it() -> None:
    progress = Progress()
    for offset in (10, 11, 15):
        progress.begin(offset)
    progress.finish(11, [Send("b")])
    assert progress.take() == (None, [])
    progress.finish(10, [Send("a")])
    assert progress.take() == (12, [Send("a"), Send("b")])
    assert progress.take() == (None, [])
    assert len(progress) == 1
    progress.finish(15, [])
    assert progress.take() == (16, [])


@given(st.lists(st.integers(0, 1000), unique=True, min_size=1, max_size=40).map(sorted), st.data())
def test_in_any_order_nothing_unfinished_is_ever_passed(offsets: list[int], data: st.DataObject) -> None:
    progress = Progress()
    for offset in offsets:
        progress.begin(offset)
    finished: set[int] = set()
    sent: list[str] = []
    for offset in data.draw(st.permutations(offsets)):
        progress.finish(offset, [Send(str(offset))])
        finished.add(offset)
        at, outgoing = progress.take()
        sent += [each.topic for each in outgoing]
        if at is not None:
            assert all(each in finished for each in offsets if each < at)
    assert at == offsets[-1] + 1
    assert sent == [str(offset) for offset in offsets]
    assert len(progress) == 0
