"""Large requests share a memory budget; over it they are read one at a time, oldest first."""

from __future__ import annotations

from random import Random

from millpond.broker.requests.request_memory import TURN_BYTES, TURN_MS, WAITED_MS_MAX, Pace, RequestMemory


class Peer:
    _count = 0

    def __init__(self, host: str = "") -> None:
        Peer._count += 1
        self.host = host or f"host-{Peer._count}"
        """Every peer has its own host unless the test gives one."""
        self.stalled = False

    def set_stalled(self, stalled: bool) -> None:
        self.stalled = stalled


def test_no_connection_is_stalled_within_the_budget() -> None:
    memory = RequestMemory(100)
    one, two = Peer(), Peer()
    memory.hold(one, 50)
    memory.hold(two, 50)
    assert (memory.held_bytes, one.stalled, two.stalled) == (100, False, False)


def test_over_the_budget_the_oldest_goes_on_and_the_others_wait_for_room() -> None:
    memory = RequestMemory(100)
    oldest, second, third = Peer(), Peer(), Peer()
    memory.hold(oldest, 60)
    memory.hold(second, 60)
    memory.hold(third, 60)
    assert [oldest.stalled, second.stalled, third.stalled] == [False, True, True]
    memory.hold(oldest, 90)
    assert not oldest.stalled
    memory.hold(oldest, 0)
    # Still over the budget, but one request has to make progress: the oldest that is left.
    assert [second.stalled, third.stalled] == [False, True]
    memory.hold(second, 0)
    assert not third.stalled
    assert memory.held_bytes == 60


def test_a_stalled_peer_that_leaves_frees_its_share() -> None:
    memory = RequestMemory(100)
    oldest, leaver, waiter = Peer(), Peer(), Peer()
    memory.hold(oldest, 80)
    memory.hold(leaver, 80)
    memory.hold(waiter, 15)
    assert memory.is_stalled(leaver)
    assert memory.is_stalled(waiter)
    memory.hold(leaver, 0)
    assert not memory.is_stalled(waiter)
    assert memory.held_bytes == 95


def test_a_host_beyond_its_share_stalls_itself_and_no_other() -> None:
    """One client with two 100 MB requests, sent drop by drop, held up all others for a quarter of an hour."""
    memory = RequestMemory(100)
    strangers = [Peer("stranger") for _ in range(5)]
    for each in strangers:
        memory.hold(each, 60)
    assert [each.stalled for each in strangers] == [False, True, True, True, True]
    friend = Peer()
    memory.hold(friend, 20)
    assert not friend.stalled
    assert not memory.is_waited_for(friend), "it is not asked to hurry for the sake of the stranger's own"
    assert memory.is_waited_for(strangers[0])
    memory.hold(strangers[0], 0)
    # One of this host's requests is read at a time, until what it holds is within its share again.
    assert [each.stalled for each in strangers[1:]] == [False, True, True, True]
    for each in strangers[1:4]:
        memory.hold(each, 0)
    assert (strangers[4].stalled, memory.is_short) == (False, False)


def test_two_addresses_together_can_take_it_all_and_then_the_oldest_goes_on() -> None:
    memory = RequestMemory(100)
    one, other, friend = Peer(), Peer(), Peer()
    memory.hold(one, 75)
    memory.hold(other, 25)
    memory.hold(friend, 10)
    assert [one.stalled, other.stalled, friend.stalled] == [False, False, True]
    assert memory.is_waited_for(one)
    assert memory.is_waited_for(other)
    memory.hold(one, 0)
    assert not friend.stalled


def test_some_connection_always_proceeds_and_none_stalls_without_a_reason() -> None:
    random = Random(5)
    memory = RequestMemory(100)
    peers = [Peer(f"host-{each % 4}") for each in range(12)]
    held = dict.fromkeys(peers, 0)
    for _ in range(20_000):
        peer = random.choice([each for each in peers if not each.stalled or random.random() < 0.1])
        held[peer] = 0 if peer.stalled or random.random() < 0.4 else held[peer] + random.randrange(1, 60)
        memory.hold(peer, held[peer])
        # A stalled peer that holds nothing has gone, and another takes its place.
        peer.stalled = peer.stalled and bool(held[peer])
        holders = [each for each in peers if held[each]]
        by_host = {each.host: sum(held[other] for other in holders if other.host == each.host) for each in holders}
        assert memory.held_bytes == sum(held.values())
        assert not holders or any(not each.stalled for each in holders)
        is_over = sum(min(each, 75) for each in by_host.values()) > 100
        for each in peers:
            assert memory.is_stalled(each) == each.stalled
            assert not each.stalled or is_over or by_host[each.host] > 75, (held, each.host)


def test_others_do_not_wait_for_ever_for_one_who_is_just_quick_enough() -> None:
    pace = Pace(0)
    now_ms = 0
    for _ in range(WAITED_MS_MAX // TURN_MS):
        now_ms += TURN_MS + 1
        pace.arrived_bytes += TURN_BYTES
        assert not pace.is_too_slow(now_ms, others_wait=True)
    pace.arrived_bytes += TURN_BYTES
    assert pace.is_too_slow(now_ms + TURN_MS + 1, others_wait=True)
    assert not pace.is_too_slow(now_ms + TURN_MS + 2, others_wait=False)
    assert not pace.is_too_slow(now_ms + TURN_MS + 3, others_wait=True)
