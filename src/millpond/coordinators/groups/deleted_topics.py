"""Removing the offsets of deleted topics, gradually.

A later topic of the same name starts without offsets. So commits before the deletion are distinguished from later
ones by the position of their records in the log. That position is itself a record while there is something left to
remove: otherwise the next coordinator could not tell old from new. If a topic is deleted and recreated while no
coordinator is loaded, the topic id in an offset's record tells; records of older versions have none.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from millpond.coordinators.groups.group import GroupStep
from millpond.coordinators.groups.offsets import Offsets
from millpond.coordinators.groups.records import OffsetKey, deleted_topic_record, offset_record
from millpond.coordinators.groups.timers import TimerKey

DELETED: Final = "deleted"
FORGOTTEN_NOW_MAX: Final = 100
"""Offsets a shard removes at once when topics are deleted: all shards do so at the same time."""
FORGOTTEN_MAX: Final = 1_000
"""The same for each step after that."""
PAUSE_MS: Final = 1
TRANSACTION_PAUSE_MS: Final = 1_000
"""How long to wait for a transaction that has committed an offset of the new topic in place of an old one:
removing the old one would remove both."""


class DeletedTopics:
    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._groups: deque[str] = deque()
        """Groups that may have such offsets."""

    def on_deleted(self, step: GroupStep, topics: frozenset[str], last_offset: int) -> None:
        """Commits up to this record of the log belong to the deleted topics."""
        groups = self._offsets.groups_of_topics(topics)
        if groups:
            self._offsets.deleted.update(dict.fromkeys(topics, last_offset))
            self._groups.extend(groups)
            self.forget_some(step, FORGOTTEN_NOW_MAX)
            if self._groups:
                step.record(*(deleted_topic_record(topic, last_offset) for topic in sorted(topics)))

    def on_loaded(self, step: GroupStep, gone: frozenset[str], last_offset: int) -> None:
        """Continue where the previous coordinator stopped; these topics were deleted while none was loaded."""
        noted = self._offsets.noted_deleted
        self._offsets.deleted.update(noted)
        self._groups.extend(self._offsets.groups_of_topics(frozenset(noted)))
        self._groups.extend(self._offsets.outdated)
        if noted or self._groups:
            self.forget_some(step, FORGOTTEN_NOW_MAX)
        self.on_deleted(step, gone, last_offset)

    def forget_some(self, step: GroupStep, most: int = FORGOTTEN_MAX) -> None:
        """Remove some offsets now and the rest a little later, so as not to delay requests."""
        waiting: dict[str, None] = {}
        keys: dict[OffsetKey, None] = {}
        while self._groups and len(keys) < most:
            group_id = self._groups.popleft()
            for key in self._offsets.deleted_of_group(group_id):
                if self._offsets.is_pending_anew(key):
                    waiting[group_id] = None
                elif len(keys) < most:
                    keys[key] = None
                else:
                    self._groups.appendleft(group_id)
                    break
        for key in keys:
            step.record(offset_record(key, None))
        pause_ms = PAUSE_MS if self._groups else TRANSACTION_PAUSE_MS
        self._groups.extend(waiting)
        if self._groups:
            step.timers.set(TimerKey(DELETED), step.now_ms + pause_ms)
        else:
            self._offsets.deleted.clear()
            self._offsets.outdated.clear()
            step.record(*(deleted_topic_record(topic, None) for topic in self._offsets.noted_deleted))
