"""The topics that patterns stand for: worked out once for all groups of a shard, and kept up as topics come and go.

Many groups share a pattern, and a topic that comes concerns few of them. So each pattern is matched against all names
once, and from then on only against those that have changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import Final

from millpond.coordinators.patterns import BadPattern, compiled
from millpond.metadata.image import Image

PATTERNS_KEPT: Final = 1000

ADMITTED_STEPS_MAX: Final = 500
WALKED_STEPS_MAX: Final = 50_000
"""How much may be worked out to match all topics; what people write takes some thousand."""


class PatternTopics:
    """`image` is read, never changed. Whoever changes it says which topics through `on_changed`."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self._topics: dict[str, tuple[str, ...]] = {}
        self._version = image.topics_version

    def admit(self, pattern: str) -> None:
        """Take a pattern that a member brings; BadPattern if it is wrong, or keeps everybody waiting for too long.

        One that was written down before is never refused, whatever it costs.
        """
        if len(compiled(pattern).steps) > ADMITTED_STEPS_MAX:
            raise BadPattern("the pattern repeats too much")
        self.of(pattern, WALKED_STEPS_MAX)

    def of(self, pattern: str, walked_steps_max: int | None = None) -> tuple[str, ...]:
        """The names in order; topics that the brokers themselves write are never meant."""
        if self._version != self.image.topics_version:
            # Nobody has told which topics changed: nothing that is kept can be trusted.
            self._topics.clear()
            self._version = self.image.topics_version
        known = self._topics.get(pattern)
        if known is None:
            known = self._matched(pattern, walked_steps_max)
            if len(self._topics) >= PATTERNS_KEPT:
                self._topics.clear()
            self._topics[pattern] = known
        return known

    def _matched(self, pattern: str, walked_steps_max: int | None) -> tuple[str, ...]:
        machine = compiled(pattern)
        began_at = machine.steps_walked
        names = []
        for topic in self.image.topics.values():
            if not topic.is_internal and machine.matches(topic.name):
                names.append(topic.name)
            if walked_steps_max is not None and machine.steps_walked - began_at > walked_steps_max:
                raise BadPattern("to match it takes too long; repeat less, or less freely")
        return tuple(sorted(names))

    def on_changed(self, names: Collection[str]) -> None:
        """These topics came, went or grew since the last call, and no others."""
        for pattern, known in self._topics.items():
            machine = compiled(pattern)
            topics = list(known)
            for name in names:
                if not machine.matches(name):
                    continue
                topic = self.image.topics.get(name)
                index = bisect_left(topics, name)
                is_there = index < len(topics) and topics[index] == name
                if is_there and topic is None:
                    del topics[index]
                elif not is_there and topic is not None and not topic.is_internal:
                    topics.insert(index, name)
            if len(topics) != len(known) or tuple(topics) != known:
                self._topics[pattern] = tuple(topics)
        self._version = self.image.topics_version
