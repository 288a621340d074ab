"""Offsets of deleted topics: gone for everybody at once, and from the log bit by bit."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millpond.coordinators.groups import deleted_topics
from millpond.coordinators.groups.deleted_topics import FORGOTTEN_NOW_MAX
from millpond.coordinators.groups.offsets import Offsets
from millpond.coordinators.groups.records import plain_offset_record
from millpond.coordinators.groups.shard import GroupShard
from millpond.coordinators.shard import Effects
from support.seeds import seeds

GROUPS = [f"g{number}" for number in range(60)]


def plain(offsets: Offsets) -> dict[str, dict[str, dict[int, int]]]:
    return {
        group_id: {topic: {index: each.offset for index, each in by.items()} for topic, by in by_topic.items()}
        for group_id, by_topic in offsets.by_group.items()
    }


@pytest.fixture
def large(coordinator: Any) -> Any:
    """So many offsets that one step cannot forget them."""
    for group in GROUPS:
        for partition in range(8):
            coordinator.commit(5, group=group, partition=partition)
    return coordinator


def delete(coordinator: Any, remove_topic: Any) -> None:
    remove_topic("t")
    coordinator.take(coordinator.shard.on_topics_deleted(["t"], coordinator.now_ms))


def left(shard: GroupShard) -> int:
    return sum(map(shard.offsets.count_of_group, GROUPS))


def test_many_are_forgotten_in_several_steps(large: Any, remove_topic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_topics.DeletedTopics.forget_some, "__defaults__", (150,))
    delete(large, remove_topic)
    assert left(large.shard) == 8 * 60 - FORGOTTEN_NOW_MAX
    while large.shard.offsets.deleted:
        before = left(large.shard)
        large.now_ms = large.shard.next_deadline_ms()
        large.take(large.shard.on_timer(large.now_ms))
        assert 0 < before - left(large.shard) <= 150
    assert large.shard.groups == large.loaded_again().groups == {}


def test_offsets_of_a_deleted_topic_are_gone_and_those_of_its_successor_stay(
    large: Any, remove_topic: Any, add_topic: Any
) -> None:
    delete(large, remove_topic)
    add_topic("t")
    assert left(large.shard) > 300
    assert {large.committed(group=group) for group in GROUPS} == {-1}
    large.commit(1, group="g59")
    assert large.committed(group="g59") == 1
    large.pass_time(100)
    assert plain(large.shard.offsets) == plain(large.loaded_again().offsets) == {"g59": {"t": {0: 1}}}
    assert large.shard.offsets.deleted == {}


def test_the_next_coordinator_goes_on(large: Any, remove_topic: Any) -> None:
    delete(large, remove_topic)
    large.fail_over()
    large.pass_time(100)
    assert large.shard.groups == large.loaded_again().groups == {}


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_that_commits_for_the_next_topic_keeps_its_offsets(
    coordinator: Any, remove_topic: Any, add_topic: Any, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    monkeypatch.setattr(deleted_topics, "FORGOTTEN_NOW_MAX", 0)
    coordinator.commit(5)
    coordinator.commit(6, partition=1)
    delete(coordinator, remove_topic)
    add_topic("t")
    coordinator.commit_in_transaction(1)
    coordinator.pass_time(5_000)
    assert plain(coordinator.shard.offsets) == {"g": {"t": {0: 5}}}
    assert (coordinator.committed(), coordinator.committed(stable=True)) == (-1, "error 88")
    coordinator.marker(7, 0, committed)
    coordinator.pass_time(1_000)
    wanted = {"g": {"t": {0: 1}}} if committed else {}
    assert plain(coordinator.shard.offsets) == plain(coordinator.loaded_again().offsets) == wanted


def test_a_transaction_under_way_leaves_nothing_to_the_next_topic(
    coordinator: Any, remove_topic: Any, add_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_topics, "FORGOTTEN_NOW_MAX", 0)
    coordinator.commit_in_transaction(3)
    delete(coordinator, remove_topic)
    add_topic("t")
    coordinator.marker(7, 0, True)
    assert coordinator.committed() == -1
    coordinator.pass_time(100)
    assert coordinator.shard.groups == coordinator.loaded_again().groups == {}


def test_the_next_coordinator_tells_old_offsets_from_new_ones(large: Any, remove_topic: Any, add_topic: Any) -> None:
    delete(large, remove_topic)
    add_topic("t")
    large.commit(1, group="g59")
    large.fail_over()
    assert {group: large.committed(group=group) for group in ("g58", "g59")} == {"g58": -1, "g59": 1}
    large.fail_over()
    large.pass_time(100)
    assert plain(large.shard.offsets) == {"g59": {"t": {0: 1}}}
    assert large.loaded_again().offsets.noted_deleted == large.shard.offsets.deleted == {}


def test_what_an_old_transaction_has_not_ended_takes_no_later_commit_along(
    coordinator: Any, remove_topic: Any, add_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_topics, "FORGOTTEN_NOW_MAX", 0)
    coordinator.commit_in_transaction(3)
    delete(coordinator, remove_topic)
    add_topic("t")
    coordinator.commit(42)
    coordinator.pass_time(5_000)
    assert (coordinator.committed(), coordinator.committed(stable=True)) == (42, "error 88")
    assert coordinator.shard.offsets.deleted == {}
    coordinator.marker(7, 0, True)
    assert coordinator.committed() == 42
    assert plain(coordinator.shard.offsets) == plain(coordinator.loaded_again().offsets) == {"g": {"t": {0: 42}}}


def test_without_much_to_forget_the_log_has_no_note(coordinator: Any, remove_topic: Any) -> None:
    coordinator.commit(5)
    delete(coordinator, remove_topic)
    assert coordinator.shard.offsets.noted_deleted == {}
    assert coordinator.loaded_again().groups == {}


class Model:
    """What readers of each key should hear: the latest commit for the topic that there is now."""

    def __init__(self) -> None:
        self.simulation = 0
        self.known: dict[tuple[str, int], tuple[int, int]] = {}
        """Each with when it was committed, and the offset."""
        self.pending: dict[int, dict[tuple[str, int], tuple[int, int, int]]] = {}
        """By producer: the life of the topic too."""

    def delete(self) -> None:
        self.simulation += 1
        self.known = {}

    def end(self, producer: int, committed: bool) -> None:
        for key, (simulation, number, offset) in self.pending.pop(producer, {}).items():
            if committed and simulation == self.simulation and number > self.known.get(key, (-1, -1))[0]:
                self.known[key] = number, offset


def walk(coordinator: Any, dice: random.Random, remove_topic: Any, add_topic: Any) -> None:
    model = Model()
    keys = [(group, 0) for group in "abcdefg"]
    for number in range(60):
        key = group, partition = dice.choice(keys)
        producer = dice.randrange(7, 10)
        match dice.choices(["commit", "send", "end", "delete", "fail", "wait"], [6, 4, 3, 1, 1, 3])[0]:
            case "commit":
                assert coordinator.commit(number, group=group, partition=partition) == 0
                model.known[key] = number, number
            case "send":
                assert coordinator.commit_in_transaction(number, producer, group=group, partition=partition) == 0
                model.pending.setdefault(producer, {})[key] = model.simulation, number, number
            case "end":
                committed = dice.random() < 0.6
                coordinator.marker(producer, 0, committed)
                model.end(producer, committed)
            case "delete":
                delete(coordinator, remove_topic)
                add_topic("t")
                model.delete()
            case "fail":
                coordinator.fail_over()
            case "wait":
                coordinator.pass_time(dice.choice([1, 2, 1_000]))
        heard = {key: coordinator.committed(key[1], group=key[0]) for key in keys}
        assert heard == {key: model.known.get(key, (-1, -1))[1] for key in keys}, f"after {number}"
    for producer in list(model.pending):
        coordinator.marker(producer, 0, False)
    coordinator.pass_time(10_000)
    left = {key: offset for key, (_, offset) in model.known.items()}
    found = {
        (group, p): each for group, by in plain(coordinator.shard.offsets).items() for p, each in by["t"].items()
    }
    assert found == left
    assert coordinator.shard.offsets.deleted == coordinator.loaded_again().offsets.noted_deleted == {}


def test_whatever_happens_readers_hear_what_was_committed_for_the_topic_that_there_is(
    make_coordinator: Any, remove_topic: Any, add_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_topics.DeletedTopics.forget_some, "__defaults__", (2,))
    for seed in seeds(range(60)):
        dice = random.Random(seed)
        monkeypatch.setattr(deleted_topics, "FORGOTTEN_NOW_MAX", dice.randrange(3))
        try:
            walk(make_coordinator(), dice, remove_topic, add_topic)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def replace_topic(remove_topic: Any, add_topic: Any) -> None:
    """Nobody is told: no coordinator is loaded meanwhile."""
    remove_topic("t")
    add_topic("t")


def test_offsets_of_a_topic_do_not_apply_to_its_successor_after_a_failover(
    coordinator: Any, remove_topic: Any, add_topic: Any
) -> None:
    coordinator.commit(5)
    coordinator.commit(6, partition=1)
    replace_topic(remove_topic, add_topic)
    coordinator.fail_over()
    assert (coordinator.committed(), coordinator.committed(partition=1)) == (-1, -1)
    assert coordinator.shard.groups == coordinator.loaded_again().groups == {}
    coordinator.commit(1)
    coordinator.fail_over()
    assert coordinator.committed() == 1


def test_a_fetch_compares_topic_ids_before_the_coordinator_learns_of_the_deletion(
    coordinator: Any, remove_topic: Any, add_topic: Any
) -> None:
    coordinator.commit(5)
    replace_topic(remove_topic, add_topic)
    assert coordinator.committed() == -1


@pytest.mark.parametrize("ends_first", [True, False])
def test_offsets_of_a_transaction_do_not_apply_to_the_successor(
    coordinator: Any, remove_topic: Any, add_topic: Any, ends_first: bool
) -> None:
    coordinator.commit_in_transaction(7)
    if ends_first:
        coordinator.marker(7, 0, True)
    replace_topic(remove_topic, add_topic)
    coordinator.fail_over()
    if not ends_first:
        coordinator.marker(7, 0, True)
    assert coordinator.committed() == -1
    coordinator.fail_over()
    assert (coordinator.committed(), coordinator.shard.offsets.pending) == (-1, {})


def test_a_pending_offset_of_the_successor_outlives_what_it_replaces(
    coordinator: Any, remove_topic: Any, add_topic: Any
) -> None:
    coordinator.commit(5)
    replace_topic(remove_topic, add_topic)
    coordinator.commit_in_transaction(2)
    coordinator.fail_over()
    assert coordinator.committed() == -1
    coordinator.marker(7, 0, True)
    coordinator.pass_time(deleted_topics.TRANSACTION_PAUSE_MS)
    assert coordinator.committed() == coordinator.loaded_again().offsets.by_group["g"]["t"][0].offset == 2


def test_offsets_without_a_topic_id_stay_what_they_were(coordinator: Any, remove_topic: Any, add_topic: Any) -> None:
    """Records of older programs do not tell which topic they are of."""
    coordinator.take(Effects(records=[plain_offset_record("g", "t", 0, 5, -1, "", 0)]))
    replace_topic(remove_topic, add_topic)
    coordinator.fail_over()
    assert coordinator.committed() == 5
