"""What is forgotten with time: offsets that nobody uses, groups that have none, topics that are no more."""

from __future__ import annotations

from millpond.coordinators.groups.group import Group, Turn
from millpond.coordinators.groups.offsets import Committed, Offsets
from millpond.coordinators.groups.records import offset_record


def expire_offsets(turn: Turn, group: Group, offsets: Offsets) -> bool:
    """Forget what has outlived its retention; True when the group then has no offset left."""
    known = list(offsets.of_group(group.group_id))
    old = [key for key, committed in known if _is_old(turn, group, committed)]
    # Most are young, and it takes long to ask what a group reads.
    read = group.subscribed_among({key.topic for key in old}) if old else frozenset()
    expired = [key for key in old if key.topic not in read and not offsets.is_pending(key)]
    turn.record(*(offset_record(key, None) for key in expired))
    return len(expired) == len(known) and not offsets.has_pending(group.group_id)


def _is_old(turn: Turn, group: Group, committed: Committed) -> bool:
    since_ms = group.retained_since_ms(committed)
    if since_ms is None:
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
