"""The accept queue: whose turn it is, and which connection is dropped when it is full."""

from __future__ import annotations

from random import Random

import pytest

from millpond.node.accept_queue import AcceptQueue
from support.seeds import seeds


def test_each_address_has_its_turn() -> None:
    door: AcceptQueue[str] = AcceptQueue(100)
    for number in range(3):
        door.put("many", f"many-{number}")
    door.put("one", "one-0")
    door.put("two", "two-0")
    door.put("two", "two-1")
    order = [door.next() for _ in range(6)]
    assert order == ["many-0", "one-0", "two-0", "many-1", "two-1", "many-2"]
    assert door.next() is None


def test_of_one_address_all_are_kept_and_in_order() -> None:
    door: AcceptQueue[int] = AcceptQueue(2_000)
    assert [door.put("burst", number) for number in range(2_000)] == [None] * 2_000
    assert [door.next() for _ in range(2_000)] == list(range(2_000))


def test_addresses_take_turns_however_many_connections_wait() -> None:
    door: AcceptQueue[str] = AcceptQueue(1_000)
    for number in range(5_000):
        door.put("flood", str(number))
    door.next()
    assert door.put("flood", "last but one") is None
    assert door.put("guest", "guest") == "last but one", "the crowd makes room"
    assert "guest" in (door.next(), door.next())
    assert door.next() == "2", "those who have waited longest keep their place"


def test_where_there_is_no_room_the_crowd_turns_its_own_away() -> None:
    door: AcceptQueue[str] = AcceptQueue(10)
    for number in range(10):
        door.put("flood", f"flood-{number}")
    assert door.put("flood", "one more") == "one more"
    assert door.put("guest", "guest") == "flood-9"
    assert len(door) == 10
    assert sorted(door.take_all()) == sorted([*(f"flood-{number}" for number in range(9)), "guest"])
    assert (len(door), door.next()) == (0, None)


def test_beside_a_burst_an_address_with_two_connections_keeps_both() -> None:
    door: AcceptQueue[str] = AcceptQueue(100)
    for number in range(50):
        door.put("flood", f"flood-{number}")
    for number in range(49):
        door.put(f"single-{number}", "")
    assert door.put("guest", "first") is None
    assert door.put("guest", "second") == "flood-49"


@pytest.mark.parametrize("seed", seeds(range(20)))
def test_whatever_comes_who_goes_is_of_those_with_the_most(seed: int) -> None:
    random = Random(seed)
    most = random.randint(1, 30)
    door: AcceptQueue[tuple[str, int]] = AcceptQueue(most)
    waiting: dict[str, list[int]] = {}
    since_turn: dict[str, int] = {}
    for number in range(2_000):
        address = random.choice("aaaaaabbbcd") if random.random() < 0.8 else f"guest-{number}"
        if random.random() < 0.6:
            waiting.setdefault(address, []).append(number)
            since_turn.setdefault(address, 0)
            gone = door.put(address, (address, number))
            if sum(map(len, waiting.values())) > most:
                assert gone is not None
                assert len(waiting[gone[0]]) == max(map(len, waiting.values()))
                assert gone[1] == waiting[gone[0]].pop()
            else:
                assert gone is None
        elif (taken := door.next()) is not None:
            assert taken[1] == waiting[taken[0]].pop(0)
            since_turn = {each: turns + 1 for each, turns in since_turn.items()}
            assert since_turn[taken[0]] <= most + 1, "no address waits for more than one turn of each other"
            since_turn[taken[0]] = 0
        waiting = {each: numbers for each, numbers in waiting.items() if numbers}
        since_turn = {each: turns for each, turns in since_turn.items() if each in waiting}
        assert len(door) == sum(map(len, waiting.values()))
    assert len(door.take_all()) == sum(map(len, waiting.values()))
