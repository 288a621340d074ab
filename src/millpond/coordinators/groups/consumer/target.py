"""The group's subscriptions resolved against the cluster's topics, and the resulting target."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from uuid import UUID

from millpond.coordinators.groups.consumer.assignors import ASSIGNORS, Subscriber
from millpond.coordinators.groups.consumer.draft import Draft
from millpond.coordinators.groups.consumer.members import Member
from millpond.coordinators.groups.consumer.state import GroupState, ResolvedPattern
from millpond.coordinators.groups.consumer.surroundings import Surroundings
from millpond.metadata.image import Image


def subscribed_names(state: GroupState) -> set[str]:
    return set[str]().union(*state.subscriptions())


def metadata_hash(names: Iterable[str], image: Image) -> int:
    """Changes when a subscribed topic is created, deleted, recreated or extended; zero without any."""
    topics = [image.topics[name] for name in sorted(filter(image.topics.__contains__, names))]
    if not topics:
        return 0
    text = "\n".join(f"{topic.name} {topic.id} {len(topic.partitions)}" for topic in topics)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def topics_meant(group: Surroundings, pattern: str, old: ResolvedPattern | None) -> tuple[str, ...]:
    """The topics that a pattern matches. Topics that its owner may not see do not exist for it: neither an
    assignment nor an epoch reveals them."""
    topics = group.patterns.of(pattern)
    if not group.settings.hides_topics:
        return topics
    sight = group.sights.get(pattern)
    if sight is None:
        # No member has sent it since this coordinator was loaded. The first heartbeat evaluates it again.
        old_topics = frozenset(old.topics if old else ())
        return tuple(name for name in topics if name in old_topics)
    return tuple(filter(sight.sees, topics))


def refresh_patterns(group: Surroundings, draft: Draft, now_ms: int) -> None:
    """Write what each subscribed pattern matches where that has changed, and delete unused ones."""
    used = {member.metadata.regex for member in draft.state.members.values() if member.metadata.regex}
    for pattern in sorted(used):
        old = draft.state.patterns.get(pattern)
        topics = topics_meant(group, pattern, old)
        if old is None or old.topics != topics:
            draft.set_pattern(pattern, ResolvedPattern(topics, old.version + 1 if old else 0, now_ms))
    forget_unused_patterns(draft)


def forget_unused_patterns(draft: Draft) -> None:
    used = {member.metadata.regex for member in draft.state.members.values()}
    for pattern in sorted(draft.state.patterns.keys() - used):
        draft.forget_pattern(pattern)


def preferred_assignor(members: Iterable[Member], offered: tuple[str, ...]) -> str:
    """The assignor that most members request; by default, and among equals, the first offered."""
    votes = Counter(member.metadata.assignor for member in members)
    return max(offered, key=lambda name: votes[name])


def update_target(draft: Draft, image: Image, offered: tuple[str, ...]) -> None:
    """Write the target for the group epoch: members whose target has changed, then the epoch it is for."""
    state = draft.state
    existing = [image.topics[name] for name in sorted(filter(image.topics.__contains__, subscribed_names(state)))]
    topics = {topic.id: len(topic.partitions) for topic in existing}
    topic_ids = {topic.name: topic.id for topic in existing}
    # A static member keeps its place under whatever id it returns.
    ordered = sorted(state.members.values(), key=lambda member: (member.metadata.instance_id or member.id, member.id))
    ids_by_names: dict[tuple[str, ...], frozenset[UUID]] = {}
    members: dict[str, Subscriber] = {}
    for member in ordered:
        names = state.topics_of(member)
        if names not in ids_by_names:
            ids_by_names[names] = frozenset(map(topic_ids.__getitem__, filter(topic_ids.__contains__, names)))
        members[member.id] = Subscriber(ids_by_names[names], state.target(member.id))
    assign = ASSIGNORS[preferred_assignor(ordered, offered)]
    for member_id, target in assign(members, topics).items():
        if target != state.targets.get(member_id):
            draft.set_target(member_id, target)
    draft.set_assignment_epoch(draft.state.epoch)
