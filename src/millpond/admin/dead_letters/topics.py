"""The dead-letter topics of a cluster in numbers, and what the letters of one have in common."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from millpond.admin.dead_letters.letters import Filter, Letter, LetterTopic, find_letter_topics
from millpond.admin.dead_letters.redriven import Redriven, read_redriven
from millpond.admin.errors import NotDeadLetters, Refused
from millpond.admin.offsets import Bounds
from millpond.remote.cluster import Cluster

OFFSETS_READ_MAX: Final = 100_000
"""A topic with more than that is not read to be counted: its offsets say about how many records it has."""
SPANS_MAX: Final = 24
ROWS_MAX: Final = 100
"""With more spans than that, empty ones are left out."""
UNKNOWN: Final = "(no headers)"

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


@dataclass(slots=True)
class LetterCounts:
    """What the letters of a topic have in common."""

    records: int = 0
    waiting: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    seconds: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By the error, and the second in which the letter was written."""

    def add(self, letter: Letter, is_redriven: bool) -> None:
        facts = letter.facts
        self.records += 1
        self.waiting += not is_redriven
        error = facts.error_type if facts else UNKNOWN
        self.errors[error] += 1
        self.origins[facts.origin.topic if facts else UNKNOWN] += 1
        self.groups[facts.group if facts else UNKNOWN] += 1
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


def list_letter_topics(cluster: Cluster) -> tuple[list[LetterTopicFacts], int]:
    """The dead-letter topics, and how many partitions of other topics were too many to look into."""
    topics, left_out = find_letter_topics(cluster)
    facts: list[LetterTopicFacts] = []
    for topic in topics:
        try:
            facts.append(_facts(topic))
        except NotDeadLetters:
            # It began and ended like one. What is in one topic must not hide all others.
            continue
    return facts, left_out


def last_letters(cluster: Cluster, name: str, wanted: Filter, limit: int) -> tuple[list[Letter], Redriven]:
    """The latest letters that are meant, oldest first, and which were redriven."""
    topic = LetterTopic.find(cluster, name)
    bounds = topic.narrowed(wanted)
    if wanted.is_open:
        # Nothing is passed over but markers: the end is enough.
        reach = 100 + 4 * limit
        bounds = {each: Bounds(max(bound.start, bound.end - reach), bound.end) for each, bound in bounds.items()}
    last: dict[int, deque[Letter]] = {}
    for letter in topic.letters(bounds):
        if wanted.takes(letter):
            last.setdefault(letter.message.partition, deque(maxlen=limit)).append(letter)
    every = sorted((each for kept in last.values() for each in kept), key=lambda each: each.message.timestamp_ms)
    return every[-limit:], read_redriven(topic)


def count_letters(cluster: Cluster, name: str, wanted: Filter) -> LetterCounts:
    topic = LetterTopic.find(cluster, name)
    redriven = read_redriven(topic)
    counts = LetterCounts()
    for letter in topic.letters(topic.narrowed(wanted)):
        if wanted.takes(letter):
            counts.add(letter, letter.id in redriven)
    return counts


def _facts(topic: LetterTopic) -> LetterTopicFacts:
    try:
        redriven = read_redriven(topic)
    except Refused:
        # Somebody else has written into the marks: a redrive says so, a list only counts.
        redriven = Redriven()
    offsets = sum(bound.end - bound.start for bound in topic.bounds.values())
    is_estimate = offsets > OFFSETS_READ_MAX
    # Of a large topic only the ends are read, for their times.
    letters = [
        (each.message.timestamp_ms, each.id in redriven)
        for each in (topic.edges() if is_estimate else topic.letters(topic.bounds))
    ]
    times = [moment for moment, _ in letters if moment >= 0]
    return LetterTopicFacts(
        topic.name,
        len(topic.bounds),
        offsets if is_estimate else len(letters),
        is_estimate,
        max(0, offsets - len(redriven)) if is_estimate else sum(not is_done for _, is_done in letters),
        min(times, default=None),
        max(times, default=None),
    )
