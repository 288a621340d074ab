"""Which topics have changed since when."""

from __future__ import annotations

import random

from millpond.coordinators.groups.consumer import topic_changes
from millpond.coordinators.groups.consumer.topic_changes import TopicChanges


def test_each_change_is_reported_to_those_who_have_not_seen_it() -> None:
    changes = TopicChanges()
    assert list(changes.since(0) or ()) == []
    changes.note(["a", "b"])
    changes.note(["c"])
    changes.note(["a"])
    assert changes.count == 3
    assert [sorted(changes.since(number) or ()) for number in range(4)] == [["a", "b", "c"], ["a", "c"], ["a"], []]
    assert changes.since(-1) is None


def test_what_is_forgotten_is_not_taken_for_nothing(monkeypatch) -> None:
    monkeypatch.setattr(topic_changes, "NAMES_KEPT", 10)
    draw = random.Random(5)
    changes, noted = TopicChanges(), []
    for _ in range(500):
        names = [f"t{draw.randrange(30)}" for _ in range(draw.randrange(6))]
        changes.note(names)
        noted.append(names)
        if draw.random() < 0.1:
            changes.forget()
        assert changes.since(changes.count) is not None
        for number in range(len(noted) + 1):
            told = changes.since(number)
            assert told is None or set(told) == {name for names in noted[number:] for name in names}
