"""What patterns stand for, kept up as topics come and go."""

from __future__ import annotations

import random
import re
from typing import Any
from uuid import UUID

import pytest

from millpond.coordinators.groups.consumer import pattern_topics
from millpond.coordinators.groups.consumer.pattern_topics import WALKED_STEPS_MAX, PatternTopics
from millpond.coordinators.patterns import BadPattern, compiled
from millpond.metadata.image import Image
from millpond.metadata.records import RemoveTopicRecord, TopicRecord

PATTERNS = (".*", "a.*", "[ab]1?", "nothing")


def test_internal_topics_are_never_meant_by_a_pattern(harness: Any) -> None:
    harness.create("__transaction_state", 1)
    assert PatternTopics(harness.image).of(".*") == ("a", "b")


def test_told_what_changed_it_knows_the_same_as_one_that_looks_at_everything() -> None:
    draw = random.Random(7)
    image = Image()
    kept = PatternTopics(image)
    for step in range(300):
        changed = []
        for name in draw.sample(["a", "b", "a1", "b1", "a-b", "__consumer_offsets"], draw.randrange(1, 3)):
            topic = image.topics.get(name)
            image.replay(
                TopicRecord(name, UUID(int=step * 10 + len(changed) + 1))
                if topic is None
                else RemoveTopicRecord(topic.id)
            )
            changed.append(name)
        if draw.random() < 0.9:
            kept.on_changed(changed)
        for pattern in draw.sample(PATTERNS, 2):
            assert kept.of(pattern) == PatternTopics(image).of(pattern)


def test_a_pattern_is_matched_with_all_names_only_once(monkeypatch: Any) -> None:
    image = Image()
    for number in range(500):
        image.replay(TopicRecord(f"t{number}", UUID(int=number + 1)))
    matched: list[str] = []

    class Counting:
        steps_walked = 0
        steps = ()

        def __init__(self, pattern: str) -> None:
            self.machine = compiled(pattern)

        def matches(self, name: str) -> bool:
            matched.append(name)
            return self.machine.matches(name)

    monkeypatch.setattr(pattern_topics, "compiled", Counting)
    kept = PatternTopics(image)
    for _ in range(1000):
        assert len(kept.of("t.*")) == 500
    image.replay(TopicRecord("new", UUID(int=1000)))
    kept.on_changed(["new"])
    assert len(kept.of("t.*")) == 500
    assert len(matched) == 501


@pytest.mark.parametrize("pattern", ["(.?){1000}(.?){900}", "((a|b|c)?(d|e|f|g|h)?){40}", "(.?){200}z"])
def test_a_pattern_that_takes_long_is_refused_before_it_has_taken_long(pattern: str) -> None:
    image = Image()
    draw = random.Random(3)
    for number in range(200):
        image.replay(TopicRecord("".join(draw.choices("abcdefgh", k=200)), UUID(int=number + 1)))
    patterns = PatternTopics(image)
    with pytest.raises(BadPattern):
        patterns.admit(pattern)
    assert compiled(pattern).steps_walked < 3 * WALKED_STEPS_MAX


def test_patterns_that_people_write_are_admitted_with_many_topics() -> None:
    image = Image()
    draw = random.Random(3)
    names = [f"team-{draw.randrange(50)}.{draw.choice(['orders', 'payments', 'clicks'])}.v{n}" for n in range(5_000)]
    for number, name in enumerate(names):
        image.replay(TopicRecord(name, UUID(int=number + 1)))
    patterns = PatternTopics(image)
    teams = "|".join(f"team-{each}" for each in range(50))
    for pattern in (
        ".*",
        ".*orders.*",
        "team-[0-9]+[.](orders|clicks)[.]v[0-9]{1,4}",
        f"({teams})[.].*",
        r".*\.v\d*7",
    ):
        patterns.admit(pattern)
        assert patterns.of(pattern) == tuple(sorted(each for each in names if re.fullmatch(pattern, each)))


def test_patterns_are_matched_with_what_changed_when_somebody_asks(monkeypatch: Any) -> None:
    image = Image()
    kept = PatternTopics(image)
    for pattern in PATTERNS:
        kept.of(pattern)
    made: list[str] = []
    monkeypatch.setattr(pattern_topics, "compiled", lambda pattern: made.append(pattern) or compiled(pattern))
    image.replay(TopicRecord("a1", UUID(int=1)))
    kept.on_changed(["a1"])
    assert made == []
    assert [kept.has_changed(pattern, 0) for pattern in PATTERNS] == [True, True, True, False]
    assert [kept.has_changed(pattern, 1) for pattern in PATTERNS] == [False] * 4
    assert made == list(PATTERNS)
    assert not kept.has_changed("another", 0)
    assert kept.of("a.*") == ("a1",)


def test_an_unused_pattern_is_dropped_with_the_changes() -> None:
    image = Image()
    kept = PatternTopics(image)
    for pattern in ("a.*", "b.*"):
        kept.of(pattern)
    image.replay(TopicRecord("a1", UUID(int=1)))
    kept.on_changed(["a1"])
    assert kept.of("a.*") == ("a1",)
    kept.forget_changes()
    assert list(kept._kept) == ["a.*"]
    assert kept.has_changed("b.*", 0), "nobody knows any more"
    image.replay(TopicRecord("b1", UUID(int=2)))
    kept.on_changed(["b1"])
    assert (kept.of("a.*"), kept.of("b.*")) == (("a1",), ("b1",))
    assert (kept.has_changed("a.*", 1), kept.has_changed("b.*", 1)) == (False, True)
