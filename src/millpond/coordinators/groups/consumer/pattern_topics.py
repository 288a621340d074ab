"""The topics that patterns match: computed once for all groups of a shard, and updated as topics change.

Many groups share a pattern, and a new topic concerns few of them. So each pattern is matched against all names once,
and then only against those that have changed: not at each change, as there may be many patterns, but on demand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from millpond.coordinators.groups.consumer.topic_changes import TopicChanges
from millpond.coordinators.patterns import BadPattern, Machine, compiled
from millpond.metadata.image import Image

PATTERNS_KEPT: Final = 1000

ADMITTED_STEPS_MAX: Final = 500
WALKED_STEPS_MAX: Final = 50_000
"""The work limit for matching all topics; normal patterns take some thousand steps."""

STEPS_AT_ONCE: Final = 50
"""Walking this many steps of a machine costs as much as building one of them."""


@dataclass(slots=True)
class _Kept:
    topics: tuple[str, ...]
    known_from: int
    """The change up to which it was first matched. Which earlier changes matched is unknown."""
    seen: int
    """The latest change that it was matched with."""
    matched: int
    """The latest change that may include a matching topic."""


class PatternTopics:
    """`image` is read, never changed. Its owner reports changed topics through `on_changed`."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.changes = TopicChanges()
        self.work = 0
        """The total work so far, in steps built: each takes a few microseconds."""
        self._kept: dict[str, _Kept] = {}
        self._version = image.topics_version

    def admit(self, pattern: str) -> None:
        """Accept a member's pattern; BadPattern if it is invalid or too expensive.

        One that was written before is never refused, whatever it costs.
        """
        if len(compiled(pattern).steps) > ADMITTED_STEPS_MAX:
            raise BadPattern("the pattern has too many repetitions")
        self.of(pattern, WALKED_STEPS_MAX)

    def of(self, pattern: str, walked_steps_max: int | None = None) -> tuple[str, ...]:
        """The matching names in order, without internal topics."""
        kept = self._up_to_date(pattern)
        if kept is None:
            topics = self._matched(pattern, walked_steps_max)
            if len(self._kept) >= PATTERNS_KEPT:
                self._kept.clear()
            count = self.changes.count
            kept = self._kept[pattern] = _Kept(topics, known_from=count, seen=count, matched=count)
        return kept.topics

    def has_changed(self, pattern: str, since: int) -> bool:
        """Whether a topic that it matches, or may have matched, was created, deleted or extended after this
        change."""
        kept = self._up_to_date(pattern)
        if kept is not None and kept.known_from <= since:
            return kept.matched > since
        names = self.changes.since(since)
        return names is None or bool(self._matching(pattern, names))

    def on_changed(self, names: Iterable[str]) -> None:
        """These topics were created, deleted or extended since the last call, and no others."""
        self.changes.note(names)
        self._version = self.image.topics_version

    def forget_changes(self) -> None:
        """All groups have seen the changes: a pattern that was not used since has no members."""
        self._kept = {pattern: kept for pattern, kept in self._kept.items() if kept.seen == self.changes.count}
        self.changes.forget()

    def _up_to_date(self, pattern: str) -> _Kept | None:
        """The cached matches, with all changes applied."""
        if self._version != self.image.topics_version:
            # The image changed without a report: nothing cached can be trusted.
            self._kept.clear()
            self._version = self.image.topics_version
        kept = self._kept.get(pattern)
        if kept is None or kept.seen == self.changes.count:
            return kept
        names = self.changes.since(kept.seen)
        if names is None:
            del self._kept[pattern]
            return None
        matching = self._matching(pattern, names)
        if matching:
            kept.topics = self._with(kept.topics, matching)
            kept.matched = self.changes.count
        kept.seen = self.changes.count
        return kept

    def _with(self, matches: tuple[str, ...], names: Iterable[str]) -> tuple[str, ...]:
        """Apply created, deleted or unchanged names."""
        topics = list(matches)
        for name in names:
            topic = self.image.topics.get(name)
            index = bisect_left(topics, name)
            is_there = index < len(topics) and topics[index] == name
            if is_there and topic is None:
                del topics[index]
            elif not is_there and topic is not None and not topic.is_internal:
                topics.insert(index, name)
        return tuple(topics) if topics != list(matches) else matches

    # Matching.

    def _matched(self, pattern: str, walked_steps_max: int | None) -> tuple[str, ...]:
        machine = self._machine(pattern, self.image.topics)
        began_at = machine.steps_walked
        names = []
        for topic in self.image.topics.values():
            if not topic.is_internal and machine.matches(topic.name):
                names.append(topic.name)
            if walked_steps_max is not None and machine.steps_walked - began_at > walked_steps_max:
                raise BadPattern("matching it takes too long: use fewer or narrower repetitions")
        return tuple(sorted(names))

    def _matching(self, pattern: str, names: Collection[str]) -> list[str]:
        return list(filter(self._machine(pattern, names).matches, names))

    def _machine(self, pattern: str, names: Collection[str]) -> Machine:
        """A machine for these names, and the most work it may take: the actual work depends on what was cached
        before."""
        machine = compiled(pattern)
        steps = len(machine.steps)
        self.work += len(pattern) + steps + len(names) + steps * sum(map(len, names)) // STEPS_AT_ONCE
        return machine
