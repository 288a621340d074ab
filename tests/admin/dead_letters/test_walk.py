"""Through letters from the end backwards: the newest first, no further than needed, no longer than allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.admin.dead_letters import topics
from millpond.admin.dead_letters.letters import Filter, Letter, Progress
from millpond.admin.dead_letters.redriven import Redriven
from millpond.admin.dead_letters.tally import UNKNOWN
from millpond.admin.dead_letters.topics import LetterCounts, Rank, count_letters, last_letters, rank_of
from millpond.admin.dead_letters.walk import BackwardWalk
from millpond.admin.offsets import Bounds
from millpond.base.ids import TopicPartition
from millpond.client import dead_letters
from millpond.client.message import Message


class Box:
    """A dead-letter topic: by partition, how many letters it has; the n-th of each was written in second n."""

    leaderless = ()
    info = SimpleNamespace(topic_id=UUID(int=1))

    def __init__(self, *counts: int) -> None:
        self.bounds = {TopicPartition("box", index): Bounds(0, count) for index, count in enumerate(counts)}
        self.read: list[tuple[int, int]] = []
        self.is_aborted = False
        """Whether nobody is shown any of it."""

    def is_held_back(self) -> bool:
        return False

    def narrowed(self, _: Filter) -> dict[TopicPartition, Bounds]:
        return self.bounds

    def letters(
        self, bounds: Mapping[TopicPartition, Bounds], progress: Progress, is_up: Callable[[], bool]
    ) -> Iterator[Letter]:
        for (topic, partition), (start, end) in bounds.items():
            for offset in range(start, end):
                self.read.append((partition, offset))
                if self.is_aborted:
                    progress(offset - start, end - start)
                    if is_up():
                        return
                    continue
                yield Letter(Message(topic, partition, offset, 1000 * offset, b"k%d" % (offset % 10), b"v"))


@pytest.fixture
def boxed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Looks at a box as if it were a topic of a cluster."""

    def put(box: Box) -> Box:
        monkeypatch.setattr(topics.LetterTopic, "find", lambda *_: box)
        monkeypatch.setattr(topics, "try_read_redriven", lambda *_: Redriven(is_known=False))
        return box

    return put


@given(st.lists(st.integers(0, 40), max_size=4), st.integers(1, 15))
def test_every_letter_is_met_once(counts: list[int], window: int) -> None:
    box: Any = Box(*counts)
    walk = BackwardWalk(box, box.bounds, window=window)
    met = [(each.message.partition, each.message.offset) for each in walk.letters()]
    assert sorted(met) == [(index, offset) for index, count in enumerate(counts) for offset in range(count)]
    assert (walk.looked, walk.total, walk.is_whole) == (sum(counts), sum(counts), True)


def test_the_last_letters_are_found_without_reading_all(boxed: Any) -> None:
    box = boxed(Box(100_000, 100_000))
    last = last_letters(boxed, "box", Filter(), 50, lambda letter, is_redriven: (letter.id, is_redriven))
    assert [str(letter) for letter, _ in last.letters[-2:]] == ["0:99999", "1:99999"]
    assert {is_redriven for _, is_redriven in last.letters} == {None}
    assert len(last.letters) == 50
    assert len(box.read) == 300
    selection = Filter(keys=frozenset({b"k3"}))
    rare = last_letters(boxed, "box", selection, 50, lambda letter, _: letter.message.offset)
    assert rare.letters == sorted(rare.letters)
    assert set(rare.letters) == set(range(99_753, 100_000, 10))
    assert len(box.read) < 3_000
    assert rare.is_whole


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 15))
def test_page_after_page_every_letter_is_shown_once(counts: list[int], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics.LetterTopic, "find", lambda *_: Box(*counts))
        patch.setattr(topics, "try_read_redriven", lambda *_: Redriven())
        seen: list[Rank] = []
        cluster: Any = None
        while True:
            before = seen[-1] if seen else None
            page = last_letters(cluster, "box", Filter(), limit, lambda letter, _: rank_of(letter), before=before)
            if not page.letters:
                break
            seen += page.letters[::-1]
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == len(set(seen)) == sum(counts)


def test_a_look_ends_when_its_time_is_up_and_says_so(boxed: Any) -> None:
    boxed(Box(100_000, 5))
    last = last_letters(boxed, "box", Filter(keys=frozenset({b"none"})), 50, lambda letter, _: letter, seconds=-1)
    assert (last.letters, last.is_whole, last.total) == ([], False, 100_005)
    assert 0 < last.looked < 1_000
    counts = count_letters(boxed, "box", Filter(), seconds=-1)
    assert (counts.is_whole, counts.records, counts.waiting) == (False, counts.looked, None)
    assert count_letters(boxed, "box", Filter()).records == 100_005


def test_a_look_ends_in_time_where_no_letter_is_shown(boxed: Any) -> None:
    """What was aborted is passed over: no letter comes after which somebody could look at the clock."""
    box = boxed(Box(1_000))
    box.is_aborted = True
    last = last_letters(boxed, "box", Filter(), 50, lambda letter, _: letter, seconds=-1)
    assert (last.letters, last.looked, last.is_whole) == ([], 0, False)
    whole = last_letters(boxed, "box", Filter(), 50, lambda letter, _: letter)
    assert (whole.letters, whole.looked, whole.is_whole) == ([], 1_000, True)


def test_reading_letters_holds_at_most_the_limit(boxed: Any) -> None:
    boxed(Box(*[400] * 50))
    held: list[object] = []
    last = last_letters(boxed, "box", Filter(), 20, lambda letter, _: held.append(letter) or letter.id)
    assert len(last.letters) == 20
    assert {each.offset for each in last.letters} == {399}
    assert len(held) < 20 * 50, "what is too old is not even made"


def test_names_from_headers_are_shortened() -> None:
    counts = LetterCounts()
    headers = ((dead_letters.TOPIC, b"t" * 5000), (dead_letters.ERROR_TYPE, b"e" * 5000), (dead_letters.GROUP, b"g"))
    letter = Letter(Message("box", 0, 0, 0, None, None, headers))
    counts.add(letter, False)
    assert [len(name) for each in (counts.errors, counts.origins, counts.groups) for name in each] == [200, 200, 1]
    # Who asks for one by the name that is shown finds it.
    assert Filter(errors=frozenset(counts.errors)).takes(letter)


def test_letters_that_name_no_error_are_counted_under_a_name_of_ours() -> None:
    """Under an empty one they would be found by whoever asks for every error."""
    counts = LetterCounts()
    unnamed = Letter(Message("box", 0, 0, 0, None, None, ((dead_letters.TOPIC, b""),)))
    counts.add(unnamed, False)
    counts.add(Letter(Message("box", 0, 1, 0, None, None)), False)
    assert counts.errors == counts.origins == {UNKNOWN: 2}
    # Who asks for that name finds these, and no others.
    selection = Filter(errors=frozenset({UNKNOWN}))
    headers = ((dead_letters.TOPIC, b""), (dead_letters.ERROR_TYPE, b"odd."))
    named = Letter(Message("box", 0, 2, 0, None, None, headers))
    assert (selection.takes(unnamed), selection.takes(named)) == (True, False)
    assert Filter(errors=frozenset({"odd."})).takes(named)


def test_letters_of_very_many_moments_are_counted_in_longer_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MOMENTS_MAX", 100)
    counts = LetterCounts()
    for number in range(1_000):
        counts.add(Letter(Message("box", 0, number, 1000 * number, None, None)), False)
    assert (len(counts.seconds) <= 100, counts.span_ms) == (True, 15_000)
    assert sum(counts.over_time().values()) == 1_000
    # Of stamps that nobody could have meant some are not shown; all are counted.
    for number in range(1_000):
        counts.add(Letter(Message("box", 0, number, number * (10**15), None, None)), False)
    assert (len(counts.seconds) <= 100, counts.records) == (True, 2_000)
