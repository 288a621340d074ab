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
from millpond.admin.queues.settings import DEAD_LETTER_TOPIC, values_of
from millpond.remote.cluster import Cluster

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
    values = values_of(cluster, groups, [DEAD_LETTER_TOPIC])
    return {group: each[DEAD_LETTER_TOPIC] for group, each in values.items() if DEAD_LETTER_TOPIC in each}


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


def find_dead_letter_topic(cluster: Cluster, group: str) -> str:
    """The topic for the group's dead letters; refused if it has none."""
    topic = dead_letter_topics(cluster, [group]).get(group)
    if topic is None:
        raise Refused(
            f"Group {group} keeps no dead letters: name a topic for them with `millpond config set group {group} "
            f"{DEAD_LETTER_TOPIC}=…`."
        )
    if topic not in cluster.topics():
        raise Refused(f"Group {group} has no dead letters yet: {topic} is created with the first one.")
    return topic
