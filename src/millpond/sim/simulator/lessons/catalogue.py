"""All lessons, in teaching order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millpond.sim.simulator.lessons import delivery, durability, groups, order, queues, retention
from millpond.sim.simulator.lessons.lesson import Lesson

THEMES: Final[Mapping[str, tuple[Lesson, ...]]] = {
    "Keys, partitions and order": order.LESSONS,
    "Consumer groups": groups.LESSONS,
    "Delivery": delivery.LESSONS,
    "Work queues": queues.LESSONS,
    "What acknowledged means": durability.LESSONS,
    "What is kept": retention.LESSONS,
}

LESSONS: Final[Mapping[str, Lesson]] = {lesson.name: lesson for theme in THEMES.values() for lesson in theme}
assert len(LESSONS) == sum(map(len, THEMES.values())), "two lessons have one name"
