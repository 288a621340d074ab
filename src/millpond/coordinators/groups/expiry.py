"""What expires: unused offsets, and groups without any."""

from __future__ import annotations

from enum import Enum

from millpond.coordinators.groups.group import Group, GroupStep
from millpond.coordinators.groups.offsets import Committed, Offsets
from millpond.coordinators.groups.records import offset_record


class Expired(Enum):
    SOME = "the group keeps others"
    ALL = "the group has no offset left"
    ENOUGH = "there may be more for the next step"


def expire_offsets(step: GroupStep, group: Group, offsets: Offsets, most: int) -> Expired:
    """Remove offsets past their retention, at most this many."""
    keys = list(offsets.of_group(group.group_id))
    outdated = {key for key, committed in keys if offsets.is_outdated(key.topic, committed)}
    old = [key for key, committed in keys if key in outdated or _is_old(step, group, committed)]
    # Most are recent, and determining a group's subscriptions is slow.
    read = group.subscribed_among({key.topic for key in old}) if old else frozenset()
    expired = [key for key in old if (key in outdated or key.topic not in read) and not offsets.is_pending(key)]
    step.record(*(offset_record(key, None) for key in expired[:most]))
    if len(expired) > most:
        return Expired.ENOUGH
    has_some_left = len(expired) < len(keys) or offsets.has_pending(group.group_id)
    return Expired.SOME if has_some_left else Expired.ALL


def _is_old(step: GroupStep, group: Group, committed: Committed) -> bool:
    since_ms = group.retained_since_ms(committed)
    if since_ms is None:
        return False
    if committed.keep_ms >= 0:
        return step.now_ms - committed.since_ms >= committed.keep_ms
    return step.now_ms - since_ms >= step.settings.offsets_retention_ms


def forget_group(step: GroupStep, group: Group, offsets: Offsets) -> None:
    """Delete everything of the group from the log."""
    for key in offsets.keys_to_forget(group.group_id):
        step.record(offset_record(key, None))
    step.record(*group.tombstones())
