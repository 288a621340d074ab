"""Statistics of a cluster's dead-letter topics and of the letters in one of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappush, heapreplace
from typing import Final, Generic, TypeVar
from uuid import UUID

from millpond.admin.dead_letters.letters import Filter, Letter, LetterTopic, find_letter_topics
from millpond.admin.dead_letters.redriven import Redriven, try_read_redriven
from millpond.admin.dead_letters.tally import UNKNOWN, Tally
from millpond.admin.dead_letters.walk import BackwardWalk
from millpond.admin.errors import NotDeadLetters
from millpond.base.named_tuple import NamedTuple
from millpond.remote.cluster import Cluster

OFFSETS_READ_MAX: Final = 100_000
"""A topic with more offsets than this is not read for counting; its size is estimated from the offsets."""
SPANS_MAX: Final = 24
ROWS_MAX: Final = 100
"""With more spans than this, empty ones are left out."""
MOMENTS_MAX: Final = 50_000
"""With more (error, span) pairs than this, the spans get longer."""
WAITING_SECONDS_MAX: Final = 3.0
COUNT_WINDOW: Final = 10_000
MARKERS: Final = 100
"""About this many of the last offsets may hold no letter."""

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
    waiting: int | None
    """Letters not yet redriven; None if unknown."""
    oldest_ms: int | None
    newest_ms: int | None
    """Milliseconds since the epoch."""
    leaderless: int
    """Partitions without a leader, which are not counted."""


@dataclass(slots=True)
class LetterCounts:
    """What the letters of a topic have in common."""

    records: int = 0
    redriven: int | None = 0
    """None: unknown, because the marks topic has no leader."""
    leaderless: tuple[int, ...] = ()
    """Partitions without a leader, whose letters are not counted."""
    looked: int = 0
    total: int = 0
    """Offsets read, and the total."""
    is_whole: bool = True
    """False: time ran out before the oldest letters were read."""
    errors: Tally = field(default_factory=Tally)
    origins: Tally = field(default_factory=Tally)
    groups: Tally = field(default_factory=Tally)
    seconds: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Counts by error and by the second of the letter's timestamp, or the start of its span."""
    span_ms: int = _SPANS_MS[0]
    """The length of a span: one second, or longer if the letters cover many."""

    @property
    def waiting(self) -> int | None:
        return None if self.redriven is None else self.records - self.redriven

    def add(self, letter: Letter, is_redriven: bool | None) -> None:
        facts = letter.facts
        self.records += 1
        if self.redriven is not None:
            self.redriven += bool(is_redriven)
        error = self.errors.note((facts.error_type if facts else "") or UNKNOWN)
        self.origins.note((facts.origin.topic if facts else "") or UNKNOWN)
        self.groups.note(facts.group if facts else UNKNOWN)
        if letter.message.timestamp_ms >= 0:
            self._note_moment(error, letter.message.timestamp_ms)

    def _note_moment(self, error: str, moment_ms: int) -> None:
        """Count the letter, lengthening the spans when there are too many of them."""
        while (key := (error, _begins(moment_ms, self.span_ms) // 1000)) not in self.seconds:
            if len(self.seconds) < MOMENTS_MAX:
                break
            longer = next((each for each in _SPANS_MS if each > self.span_ms), None)
            if longer is None:
                # The timestamps span more years than can be shown.
                return
            self.span_ms = longer
            seconds: Counter[tuple[str, int]] = Counter()
            for (name, second), count in self.seconds.items():
                seconds[name, _begins(second * 1000, longer) // 1000] += count
            self.seconds = seconds
        self.seconds[key] += 1

    def over_time(self) -> dict[int, int]:
        """Counts by the start of each span (epoch ms), all of one length; with few spans, empty ones too."""
        return {begins_ms: errors.total() for begins_ms, errors in self.errors_over_time().items()}

    def errors_over_time(self) -> dict[int, Counter[str]]:
        """Like `over_time`, broken down by error."""
        if not self.seconds:
            return {}
        moments = [second for _, second in self.seconds]
        first, last = min(moments) * 1000, max(moments) * 1000
        fitting = (each for each in _SPANS_MS if (last - first) // each < SPANS_MAX - 1)
        step = max(self.span_ms, next(fitting, _SPANS_MS[-1]))
        begins = range(first // step * step, last + 1, step)
        # Timestamps can be arbitrary: filling the gap from 1970 to a bogus year could exhaust memory.
        counts: dict[int, Counter[str]] = {each: Counter() for each in (begins if len(begins) <= ROWS_MAX else ())}
        for (error, second), count in sorted(self.seconds.items(), key=lambda each: each[0][1]):
            counts.setdefault(second * 1000 // step * step, Counter())[error] += count
        return counts


def _begins(moment_ms: int, span_ms: int) -> int:
    return moment_ms // span_ms * span_ms


def _time_limit(seconds: float | None) -> Callable[[], bool]:
    """A function that returns whether this much time has passed since now."""
    deadline = None if seconds is None else time.monotonic() + seconds
    return lambda: deadline is not None and time.monotonic() > deadline


def list_letter_topics(cluster: Cluster, seconds: float | None = None) -> tuple[list[LetterTopicFacts], int]:
    """The dead-letter topics, and how many partitions of other topics were not checked.

    When time runs out, the remaining counts are estimated from offsets.
    """
    is_up = _time_limit(seconds)
    topics, left_out = find_letter_topics(cluster, is_up)
    facts: list[LetterTopicFacts] = []
    for topic in topics:
        try:
            facts.append(_facts(topic, is_up))
        except NotDeadLetters:
            # Its first and last records were letters, but not all are. One topic must not hide all others.
            continue
    return facts, left_out


def waiting_letters(cluster: Cluster, seconds: float = WAITING_SECONDS_MAX) -> dict[str, int]:
    """Letters not yet redriven or purged, by topic; an estimate where they cannot be counted in time.

    Topics are recognised by name or contents; those without such letters are left out.
    """
    facts, _ = list_letter_topics(cluster, seconds)
    counts = {each.topic: each.records if each.waiting is None else each.waiting for each in facts}
    return {topic: count for topic, count in counts.items() if count}


@dataclass(frozen=True, slots=True)
class LastLetters(Generic[T]):
    topic_id: UUID
    letters: list[T]
    """The oldest first."""
    leaderless: tuple[int, ...]
    """Partitions without a leader, which were not read."""
    looked: int
    total: int
    """Offsets read, and the total that could match."""
    is_whole: bool
    """False: time ran out, and older letters may be missing."""
    is_held_back: bool
    """No letter was found, but an open transaction holds back records."""


class Rank(NamedTuple):
    """Orders letters across partitions by timestamp."""

    timestamp_ms: int
    partition: int
    offset: int


def rank_of(letter: Letter) -> Rank:
    return Rank(letter.message.timestamp_ms, letter.message.partition, letter.message.offset)


class _Newest(Generic[T]):
    """Keeps the newest of the letters added, each converted by `kept`; never holds more than the limit."""

    def __init__(self, limit: int, convert: Callable[[Letter, bool | None], T]) -> None:
        self._limit = limit
        self._convert = convert
        self._heap: list[tuple[int, int, int, T]] = []

    def add(self, letter: Letter, is_redriven: bool | None) -> None:
        rank = rank_of(letter)
        if len(self._heap) < self._limit:
            heappush(self._heap, (*rank, self._convert(letter, is_redriven)))
        elif rank > self._heap[0][:3]:
            heapreplace(self._heap, (*rank, self._convert(letter, is_redriven)))

    def oldest_first(self) -> list[T]:
        return [each[3] for each in sorted(self._heap, key=lambda each: each[:3])]


def last_letters(
    cluster: Cluster,
    name: str,
    selection: Filter,
    limit: int,
    convert: Callable[[Letter, bool | None], T],
    *,
    before: Rank | None = None,
    seconds: float | None = None,
) -> LastLetters[T]:
    """The latest matching letters, each converted by `kept(letter, was_redriven)`.

    With `before`, the latest of those that precede it.
    """
    is_up = _time_limit(seconds)
    topic = LetterTopic.find(cluster, name, is_up)
    redriven = try_read_redriven(topic, is_up)
    walk = BackwardWalk(topic, topic.narrowed(selection), window=limit + MARKERS, is_up=is_up)
    newest, fitting = _Newest(limit, convert), Counter[int]()
    for letter in walk.letters(lambda partition: fitting[partition] >= limit):
        if selection.takes(letter) and (before is None or rank_of(letter) < before):
            fitting[letter.message.partition] += 1
            newest.add(letter, redriven.says(letter.id))
    letters = newest.oldest_first()
    is_held_back = not letters and walk.is_whole and topic.is_held_back()
    return LastLetters(
        topic.info.topic_id, letters, topic.leaderless, walk.looked, walk.total, walk.is_whole, is_held_back
    )


def count_letters(cluster: Cluster, name: str, selection: Filter, *, seconds: float | None = None) -> LetterCounts:
    is_up = _time_limit(seconds)
    topic = LetterTopic.find(cluster, name, is_up)
    redriven = try_read_redriven(topic, is_up)
    counts = LetterCounts(redriven=0 if redriven.is_known else None, leaderless=topic.leaderless)
    walk = BackwardWalk(topic, topic.narrowed(selection), window=COUNT_WINDOW, is_up=is_up)
    for letter in walk.letters():
        if selection.takes(letter):
            counts.add(letter, redriven.says(letter.id))
    counts.looked, counts.total, counts.is_whole = walk.looked, walk.total, walk.is_whole
    return counts


def _facts(topic: LetterTopic, is_up: Callable[[], bool]) -> LetterTopicFacts:
    redriven = try_read_redriven(topic, is_up)
    offsets = sum(bound.end - bound.start for bound in topic.bounds.values())
    letters = None if offsets > OFFSETS_READ_MAX else _moments(topic, redriven, is_up)
    is_counted = letters is not None
    if letters is None:
        # For a large topic only the first and last letters are read, for their timestamps.
        letters = [] if is_up() else [(moment, False) for moment in topic.edges(is_up)]
    waiting = sum(not is_done for _, is_done in letters) if is_counted else max(0, offsets - len(redriven))
    times = [moment for moment, _ in letters if moment >= 0]
    return LetterTopicFacts(
        topic.name,
        len(topic.info.partitions),
        len(letters) if is_counted else offsets,
        not is_counted or bool(topic.leaderless),
        waiting if redriven.is_known else None,
        min(times, default=None),
        max(times, default=None),
        len(topic.leaderless),
    )


def _moments(topic: LetterTopic, redriven: Redriven, is_up: Callable[[], bool]) -> list[tuple[int, bool]] | None:
    """Timestamp and redriven flag of every letter; None if time ran out first."""
    moments = []
    for letter in topic.letters(topic.bounds, is_up=is_up):
        if is_up():
            return None
        moments.append((letter.message.timestamp_ms, letter.id in redriven))
    # Time may have run out in a stretch without letters.
    return None if is_up() else moments
