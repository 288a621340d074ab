"""The effects of requests and time on a group, as steps of a draft: subscribe, remove, bump the epoch and the
target."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.coordinators.groups.consumer.draft import Draft
from millpond.coordinators.groups.consumer.members import Member, MemberMetadata, MemberState, Partitions
from millpond.coordinators.groups.consumer.reconcile import reconciled
from millpond.coordinators.groups.consumer.state import ResolvedPattern, member_bytes, pattern_bytes
from millpond.coordinators.groups.consumer.surroundings import Surroundings
from millpond.coordinators.groups.consumer.target import (
    forget_unused_patterns,
    metadata_hash,
    preferred_assignor,
    refresh_patterns,
    subscribed_names,
    topics_meant,
    update_target,
)
from millpond.coordinators.groups.history import Why
from millpond.coordinators.groups.memory import HELD_BYTES, TARGET_BYTES
from millpond.coordinators.shard import Sees
from millpond.metadata.image import Image


def admit(group: Surroundings, draft: Draft, old: Member, metadata: MemberMetadata, sees: Sees) -> None:
    """Check a member's metadata, before any soft state has changed; Refused if there is no memory for it.

    The resulting assignment counts as well. Topics that the member may not see do not count: otherwise refusals would
    reveal which topics exist.
    """
    is_new = old.id not in draft.state.members
    if is_new or metadata != old.metadata:
        _check_memory(group, draft, old, metadata, sees)
    for member_id in draft.replaced:
        group.watch.forget(member_id)


def _check_memory(group: Surroundings, draft: Draft, old: Member, metadata: MemberMetadata, sees: Sees) -> None:
    state = draft.state
    growth_bytes = metadata.kept_bytes - old.metadata.kept_bytes
    if old.id not in state.members:
        growth_bytes += member_bytes(old)
    topics = set(metadata.topics)
    if metadata.regex and metadata.regex not in state.patterns:
        meant = tuple(filter(sees, group.patterns.of(metadata.regex)))
        growth_bytes += pattern_bytes(metadata.regex, meant)
        topics.update(meant)
    # Usually there is room for everything, and the members need not be scanned.
    if not group.memory.has_room(growth_bytes + _shared_out_bytes(topics, group.image)):
        group.memory.check(growth_bytes + _shared_out_bytes(topics - subscribed_names(state), group.image))


def _shared_out_bytes(topics: set[str], image: Image) -> int:
    existing = [image.topics[name] for name in topics if name in image.topics]
    return (TARGET_BYTES + HELD_BYTES) * sum(len(topic.partitions) for topic in existing)


def subscribe(group: Surroundings, draft: Draft, old: Member, metadata: MemberMetadata, now_ms: int) -> None:
    """Write a member's metadata; a new member or subscription bumps the group epoch."""
    is_new = old.id not in draft.state.members
    if not is_new and metadata == old.metadata:
        return
    draft.set_metadata(old.id, metadata)
    has_changed = metadata.topics != old.metadata.topics or metadata.regex != old.metadata.regex
    if metadata.regex and metadata.regex not in draft.state.patterns:
        topics = topics_meant(group, metadata.regex, None)
        draft.set_pattern(metadata.regex, ResolvedPattern(topics, 0, now_ms))
    if metadata.regex != old.metadata.regex:
        forget_unused_patterns(draft)
    if is_new or has_changed:
        why = Why.JOINED if is_new else Why.SUBSCRIPTION_CHANGED
        group.history.note_member(why, draft.state.members[old.id], now_ms)
        turn_epoch(group, draft)


def look_again(group: Surroundings, draft: Draft, now_ms: int) -> None:
    """Check for changed topics or permissions, and bump the epoch if they concern the group."""
    refresh_patterns(group, draft, now_ms)
    if metadata_hash(subscribed_names(draft.state), group.image) != draft.state.metadata_hash:
        group.history.note_topics(now_ms)
        turn_epoch(group, draft)


def turn_epoch(group: Surroundings, draft: Draft) -> None:
    topics_hash = metadata_hash(subscribed_names(draft.state), group.image)
    draft.set_epoch(draft.state.epoch + 1, topics_hash)


def ensure_target(group: Surroundings, draft: Draft, now_ms: int) -> None:
    """Compute a target for the group epoch if there is none yet."""
    if draft.state.epoch <= draft.state.assignment_epoch:
        return
    before = dict(draft.state.targets)
    update_target(draft, group.image, group.settings.assignors)
    assignor = preferred_assignor(draft.state.members.values(), group.settings.assignors)
    group.history.retargeted(before, draft.state, assignor, group.image, now_ms)


def reconcile(group: Surroundings, draft: Draft, member_id: str, owned: Partitions | None, now_ms: int) -> None:
    """Move a member towards its target as far as possible, and start a timer while it must revoke."""
    member = draft.state.members[member_id]
    current = reconciled(draft.state, member, owned)
    if current == member.current:
        return
    draft.set_current(member_id, current)
    if member.is_classic:
        return  # Those have timers while they join and sync.
    if current.state is MemberState.UNREVOKED:
        group.watch.revocation(member_id, now_ms + member.metadata.rebalance_timeout_ms)
    else:
        group.watch.revoked(member_id)


def remove_members(group: Surroundings, draft: Draft, gone: Iterable[tuple[Member, Why, str]], now_ms: int) -> None:
    """Remove members and free their partitions; `migration.go_on_without` does the rest."""
    for member, why, detail in gone:
        draft.remove_member(member.id)
        group.watch.forget(member.id)
        group.history.note_member(why, member, now_ms, detail)
    forget_unused_patterns(draft)
