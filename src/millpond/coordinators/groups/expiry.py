"""What is forgotten with time: offsets that nobody uses, groups that have none, topics that are no more."""

from __future__ import annotations

from millpond.coordinators.groups.group import Group, Turn
from millpond.coordinators.groups.offsets import Committed, Offsets
from millpond.coordinators.groups.records import OffsetKey, offset_record


def expire_offsets(turn: Turn, group: Group, offsets: Offsets) -> bool:
    """Forget what has outlived its retention; True when the group then has no offset left."""
    has_some_left = bool(offsets.pending_of_group(group.group_id))
    for key, committed in list(offsets.of_group(group.group_id)):
        if _is_expired(turn, group, offsets, key, committed):
            turn.record(offset_record(key, None))
        else:
            has_some_left = True
    return not has_some_left


def _is_expired(turn: Turn, group: Group, offsets: Offsets, key: OffsetKey, committed: Committed) -> bool:
    since_ms = group.retained_since_ms(committed)
    if since_ms is None or group.is_subscribed_to(key.topic) or offsets.is_pending(key):
        return False
    if committed.keep_ms >= 0:
        return turn.now_ms - committed.since_ms >= committed.keep_ms
    return turn.now_ms - since_ms >= turn.settings.offsets_retention_ms


def forget_group(turn: Turn, group: Group, offsets: Offsets) -> None:
    """Leave nothing of it in the log."""
    for key in offsets.keys_to_forget(group.group_id):
        turn.record(offset_record(key, None))
    turn.record(*group.tombstones())


def forget_topics(turn: Turn, offsets: Offsets, topics: frozenset[str]) -> None:
    """A topic of the same name that comes later begins at its own beginning."""
    for key in offsets.keys_of_topics(topics):
        turn.record(offset_record(key, None))
