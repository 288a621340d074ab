"""The soft state of a group's decisions: topics, settings, member timers and the history."""

from __future__ import annotations

from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Entropy
from millpond.coordinators.groups.consumer.pattern_topics import PatternTopics
from millpond.coordinators.groups.consumer.rebalance_history import ConsumerGroupHistory
from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings
from millpond.coordinators.groups.consumer.watch import Watch
from millpond.coordinators.groups.memory import GroupMemory
from millpond.coordinators.shard import Sees
from millpond.metadata.image import Image, Resource
from millpond.metadata.records import ResourceType


class Sight(NamedTuple):
    """The topics that a pattern may match."""

    sees: Sees
    version: int
    """The version of the ACLs at that time."""


class Surroundings:
    def __init__(
        self,
        group_id: str,
        patterns: PatternTopics,
        settings: ConsumerGroupSettings,
        entropy: Entropy,
        history_length: int = 100,
        memory: GroupMemory | None = None,
    ) -> None:
        self.group_id = group_id
        self.memory = memory or GroupMemory()
        self.patterns = patterns
        self._settings = settings
        self.entropy = entropy
        self.watch = Watch()
        self.history = ConsumerGroupHistory(history_length, self.memory)
        self.sights: dict[str, Sight] = {}
        """By pattern: what its latest sender may see. Unused if everyone sees everything."""

    @property
    def image(self) -> Image:
        return self.patterns.image

    @property
    def settings(self) -> ConsumerGroupSettings:
        """The group settings, with the overrides of this group."""
        own = self.image.config_of(Resource(ResourceType.GROUP, self.group_id))
        return self._settings.changed_by(own) if own else self._settings
