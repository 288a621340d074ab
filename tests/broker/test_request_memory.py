"""Large requests share a budget; over it they are read one at a time, oldest first."""

from __future__ import annotations

from millpond.broker.serving.request_memory import RequestMemory


class Peer:
    def __init__(self) -> None:
        self.stalled = False

    def set_stalled(self, stalled: bool) -> None:
        self.stalled = stalled


def test_within_the_budget_nobody_is_stalled() -> None:
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
    # Still over the budget, but somebody has to go on: the oldest that is left.
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
