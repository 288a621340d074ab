"""The dead-letter topics of a cluster in numbers, and what the letters of one have in common."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappush, heapreplace
from typing import Final, Generic, TypeVar

from millpond.admin.dead_letters.letters import Filter, Letter, LetterTopic, find_letter_topics
from millpond.admin.dead_letters.redriven import Redriven, redriven_as_known
from millpond.admin.dead_letters.walk import BackwardWalk
from millpond.admin.errors import NotDeadLetters, Refused
from millpond.admin.excerpts import cut_text
from millpond.remote.cluster import Cluster

OFFSETS_READ_MAX: Final = 100_000
"""A topic with more than that is not read to be counted: its offsets say about how many records it has."""
SPANS_MAX: Final = 24
ROWS_MAX: Final = 100
"""With more spans than that, empty ones are left out."""
UNKNOWN: Final = "(no headers)"
NAME_SIGNS_MAX: Final = 200
"""Of an error, a topic or a group, as letters name them: anything may stand in a header."""
COUNT_WINDOW: Final = 10_000
MARKERS: Final = 100
"""About so many of the last offsets may have no letter."""

T = TypeVar("T")

_SPANS_MS: Final = tuple(
    1000 * seconds
    for seconds in (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
)


@dataclass(frozen=True, slots=True)
class LetterTopicFacts:
    topic: str
    partitions: int
    records: int
    is_estimate: bool
    waiting: int
    """Letters that have not been redriven."""
    oldest_ms: int | None
    newest_ms: int | None
    """Times since 1970."""
    leaderless: int
    """Partitions that nobody leads, and that are not counted."""


@dataclass(slots=True)
class LetterCounts:
    """What the letters of a topic have in common."""

    records: int = 0
    redriven: int | None = 0
    """None: not known, because nobody leads the topic that says so."""
    leaderless: tuple[int, ...] = ()
    """Partitions that nobody leads; their letters are not among these."""
    looked: int = 0
    total: int = 0
    """Offsets that were looked at, of all there are."""
    is_whole: bool = True
    """False: time was up, and the oldest letters are not among these."""
    errors: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    seconds: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By the error, and the second in which the letter was written."""

    @property
    def waiting(self) -> int | None:
        return None if self.redriven is None else self.records - self.redriven

    def add(self, letter: Letter, is_redriven: bool | None) -> None:
        facts = letter.facts
        self.records += 1
        if self.redriven is not None:
            self.redriven += bool(is_redriven)
        error = _name(facts.error_type) if facts else UNKNOWN
        self.errors[error] += 1
        self.origins[_name(facts.origin.topic) if facts else UNKNOWN] += 1
        self.groups[_name(facts.group) if facts else UNKNOWN] += 1
        if letter.message.timestamp_ms >= 0:
            self.seconds[error, letter.message.timestamp_ms // 1000] += 1

    def over_time(self) -> dict[int, int]:
        """Counts by when a span began (milliseconds since 1970), in spans of one length; empty ones too if few."""
        return {begins_ms: errors.total() for begins_ms, errors in self.errors_over_time().items()}

    def errors_over_time(self) -> dict[int, Counter[str]]:
        """The same, each by its errors."""
        if not self.seconds:
            return {}
        moments = [second for _, second in self.seconds]
        first, last = min(moments) * 1000, max(moments) * 1000
        step = next((each for each in _SPANS_MS if (last - first) // each < SPANS_MAX - 1), _SPANS_MS[-1])
        begins = range(first // step * step, last + 1, step)
        # A stamp can be any number: from 1970 to the year of one may be more spans than memory.
        counts: dict[int, Counter[str]] = {each: Counter() for each in (begins if len(begins) <= ROWS_MAX else ())}
        for (error, second), count in sorted(self.seconds.items(), key=lambda each: each[0][1]):
            counts.setdefault(second * 1000 // step * step, Counter())[error] += count
        return counts


def _name(text: str) -> str:
    return cut_text(text, NAME_SIGNS_MAX)


def list_letter_topics(cluster: Cluster, seconds: float | None = None) -> tuple[list[LetterTopicFacts], int]:
    """The dead-letter topics, and how many partitions of other topics were too many to look into.

    When the time is up, what is left to be counted is told by its offsets.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    topics, left_out = find_letter_topics(cluster)
    facts: list[LetterTopicFacts] = []
    for topic in topics:
        try:
            facts.append(_facts(topic, lambda: deadline is not None and time.monotonic() > deadline))
        except NotDeadLetters:
            # It began and ended like one. What is in one topic must not hide all others.
            continue
    return facts, left_out


@dataclass(frozen=True, slots=True)
class LastLetters(Generic[T]):
    letters: list[T]
    """The oldest first."""
    leaderless: tuple[int, ...]
    """Partitions that nobody leads, and that were not looked into."""
    looked: int
    total: int
    """Offsets that were looked at, of all that could have such a letter."""
    is_whole: bool
    """False: time was up, and older ones may be missing."""


class _Newest(Generic[T]):
    """The newest of all that were added, as `kept` makes them; no more are held."""

    def __init__(self, limit: int, kept: Callable[[Letter, bool | None], T]) -> None:
        self._limit = limit
        self._kept = kept
        self._heap: list[tuple[int, int, int, T]] = []

    def add(self, letter: Letter, is_redriven: bool | None) -> None:
        rank = (letter.message.timestamp_ms, letter.message.partition, letter.message.offset)
        if len(self._heap) < self._limit:
            heappush(self._heap, (*rank, self._kept(letter, is_redriven)))
        elif rank > self._heap[0][:3]:
            heapreplace(self._heap, (*rank, self._kept(letter, is_redriven)))

    def oldest_first(self) -> list[T]:
        return [each[3] for each in sorted(self._heap, key=lambda each: each[:3])]


def last_letters(
    cluster: Cluster,
    name: str,
    wanted: Filter,
    limit: int,
    kept: Callable[[Letter, bool | None], T],
    *,
    seconds: float | None = None,
) -> LastLetters[T]:
    """The latest letters that are meant, each as `kept` makes it of the letter and whether it was redriven."""
    topic = LetterTopic.find(cluster, name)
    redriven = redriven_as_known(topic)
    walk = BackwardWalk(topic, topic.narrowed(wanted), window=limit + MARKERS, seconds=seconds)
    newest, fitting = _Newest(limit, kept), Counter[int]()
    for letter in walk.letters(lambda partition: fitting[partition] >= limit):
        if wanted.takes(letter):
            fitting[letter.message.partition] += 1
            newest.add(letter, redriven.says(letter.id))
    return LastLetters(newest.oldest_first(), topic.leaderless, walk.looked, walk.total, walk.is_whole)


def count_letters(cluster: Cluster, name: str, wanted: Filter, *, seconds: float | None = None) -> LetterCounts:
    topic = LetterTopic.find(cluster, name)
    redriven = redriven_as_known(topic)
    counts = LetterCounts(redriven=0 if redriven.is_known else None, leaderless=topic.leaderless)
    walk = BackwardWalk(topic, topic.narrowed(wanted), window=COUNT_WINDOW, seconds=seconds)
    for letter in walk.letters():
        if wanted.takes(letter):
            counts.add(letter, redriven.says(letter.id))
    counts.looked, counts.total, counts.is_whole = walk.looked, walk.total, walk.is_whole
    return counts


def _facts(topic: LetterTopic, is_up: Callable[[], bool]) -> LetterTopicFacts:
    try:
        redriven = Redriven(is_known=False) if is_up() else redriven_as_known(topic)
    except Refused:
        # Somebody else has written into the marks: a redrive says so, a list only counts.
        redriven = Redriven()
    offsets = sum(bound.end - bound.start for bound in topic.bounds.values())
    letters = None if offsets > OFFSETS_READ_MAX else _moments(topic, redriven, is_up)
    is_counted = letters is not None
    if letters is None:
        # Of a large topic only the ends are read, for their times.
        letters = [] if is_up() else [(each.message.timestamp_ms, False) for each in topic.edges()]
    times = [moment for moment, _ in letters if moment >= 0]
    return LetterTopicFacts(
        topic.name,
        len(topic.info.partitions),
        len(letters) if is_counted else offsets,
        not is_counted or not redriven.is_known or bool(topic.leaderless),
        sum(not is_done for _, is_done in letters) if is_counted else max(0, offsets - len(redriven)),
        min(times, default=None),
        max(times, default=None),
        len(topic.leaderless),
    )


def _moments(topic: LetterTopic, redriven: Redriven, is_up: Callable[[], bool]) -> list[tuple[int, bool]] | None:
    """Of every letter its time and whether it was redriven; None when time was up before all were read."""
    moments = []
    for letter in topic.letters(topic.bounds):
        if is_up():
            return None
        moments.append((letter.message.timestamp_ms, letter.id in redriven))
    return moments
