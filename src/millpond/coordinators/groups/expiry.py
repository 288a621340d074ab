"""What is forgotten with time: offsets that nobody uses, and groups that have none."""

from __future__ import annotations

from enum import Enum

from millpond.coordinators.groups.group import Group, Turn
from millpond.coordinators.groups.offsets import Committed, Offsets
from millpond.coordinators.groups.records import OffsetKey, offset_record


class Expired(Enum):
    SOME = "the group keeps others"
    ALL = "the group has no offset left"
    ENOUGH = "there may be more for the next step"


def expire_offsets(turn: Turn, group: Group, offsets: Offsets, most: int) -> Expired:
    """Forget what has outlived its retention, but not more than so many offsets."""
    has_some_left = bool(offsets.pending_of_group(group.group_id))
    for key, committed in offsets.of_group(group.group_id):
        if not _is_expired(turn, group, offsets, key, committed):
            has_some_left = True
        elif most == 0:
            return Expired.ENOUGH
        else:
            most -= 1
            turn.record(offset_record(key, None))
    return Expired.SOME if has_some_left else Expired.ALL


def _is_expired(turn: Turn, group: Group, offsets: Offsets, key: OffsetKey, committed: Committed) -> bool:
    since_ms = group.retained_since_ms(committed)
    if since_ms is None:
        return False
    if committed.keep_ms >= 0:
        is_over = turn.now_ms - committed.since_ms >= committed.keep_ms
    else:
        is_over = turn.now_ms - since_ms >= turn.settings.offsets_retention_ms
    # Last: a group may have to ask all its members.
    return is_over and not group.is_subscribed_to(key.topic) and not offsets.is_pending(key)


def forget_group(turn: Turn, group: Group, offsets: Offsets) -> None:
    """Leave nothing of it in the log."""
    for key in offsets.keys_to_forget(group.group_id):
        turn.record(offset_record(key, None))
    turn.record(*group.tombstones())
