"""Dead letters of queues: the topics that share groups name for them, and how many wait there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from millpond.admin.dead_letters.letters import LetterTopic
from millpond.admin.dead_letters.redriven import try_read_redriven
from millpond.admin.dead_letters.walk import BackwardWalk
from millpond.admin.errors import Refused
from millpond.admin.queues.queue import QueueName
from millpond.admin.settings import Subject, describe_configs
from millpond.remote.cluster import Cluster
from millpond.remote.errors import Unsupported

DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
GROUPS_AT_ONCE: Final = 100
COUNT_WINDOW: Final = 10_000


@dataclass(slots=True)
class DeadLetterCounts:
    """The letters of one topic that wait to be redriven or purged."""

    by_queue: Counter[QueueName] = field(default_factory=Counter)
    """By the group and topic that the letter names."""
    is_whole: bool = True
    """False: time ran out first."""


def dead_letter_topics(cluster: Cluster, groups: Sequence[str]) -> dict[str, str]:
    """The topic for dead letters, of each group that has one."""
    topics: dict[str, str] = {}
    for at in range(0, len(groups), GROUPS_AT_ONCE):
        subjects = [Subject("group", each) for each in groups[at : at + GROUPS_AT_ONCE]]

        def attempt(subjects: list[Subject] = subjects) -> dict[str, str]:
            return {
                result.resource_name: entry.value
                for result in describe_configs(cluster.any(), subjects, [DEAD_LETTER_TOPIC])
                for entry in result.configs
                if entry.name == DEAD_LETTER_TOPIC and entry.value
            }

        try:
            topics |= cluster.retrying("ask for the dead-letter topics of groups", attempt)
        except Unsupported:
            return {}
    return topics


def count_dead_letters(cluster: Cluster, names: Iterable[str], seconds: float) -> dict[str, DeadLetterCounts]:
    """Counts the letters of these topics, as far as time allows. A topic that holds something else is left out."""
    deadline = time.monotonic() + seconds
    existing = cluster.topics()
    counts: dict[str, DeadLetterCounts] = {}
    for name in sorted(set(names)):
        if name not in existing:
            # It is created with the first letter.
            counts[name] = DeadLetterCounts()
            continue
        try:
            counts[name] = _count(LetterTopic.find(cluster, name, lambda: time.monotonic() > deadline), deadline)
        except Refused:
            continue
    return counts


def _count(topic: LetterTopic, deadline: float) -> DeadLetterCounts:
    def is_up() -> bool:
        return time.monotonic() > deadline

    counts = DeadLetterCounts()
    redriven = try_read_redriven(topic, is_up)
    walk = BackwardWalk(topic, topic.bounds, window=COUNT_WINDOW, is_up=is_up)
    for letter in walk.letters():
        if letter.facts is not None and not redriven.says(letter.id):
            counts.by_queue[QueueName(letter.facts.group, letter.facts.origin.topic)] += 1
    counts.is_whole = walk.is_whole and redriven.is_known and not topic.leaderless
    return counts
