"""How fast new connections are accepted, by wall clock and CPU time, and how long the next one waits."""

from __future__ import annotations

from millpond.node.accept_pace import REST_SECONDS_MAX, REST_SECONDS_MIN, SHARE, AcceptPace


class Loop:
    """A loop that accepts one connection after the other, as soon as it may."""

    def __init__(self) -> None:
        self.now = self.used = 0.0
        self.pace = AcceptPace(0.0, 0.0)
        self.rests: list[float] = []

    def admit(self, count: int, each_uses: float, others_share: float = 0.0) -> None:
        """Each costs this much CPU time; the others use this much of the time between two."""
        for _ in range(count):
            self.now += each_uses
            self.used += each_uses
            rest = self.pace.rest_seconds(self.now, self.used)
            self.rests.append(rest)
            # One turn of the loop at the least.
            passed = max(rest, 0.00005)
            self.now += passed
            self.used += passed * others_share

    def share_used(self) -> float:
        return self.used / self.now


def test_a_few_at_once_do_not_wait() -> None:
    loop = Loop()
    loop.now = 10.0
    loop.admit(30, 0.0001)
    assert not any(loop.rests)


def test_those_who_come_without_end_leave_most_of_the_loop_to_others() -> None:
    for each_uses in (0.00003, 0.0001, 0.0005):
        loop = Loop()
        loop.admit(5_000, each_uses)
        assert loop.share_used() < 1.1 / SHARE, each_uses
        assert all(rest == 0.0 or REST_SECONDS_MIN <= rest <= REST_SECONDS_MAX for rest in loop.rests)


def test_what_is_too_short_to_wait_for_adds_up() -> None:
    """A rest of less than a timer can be was none at all, however many there were."""
    loop = Loop()
    loop.admit(1_000, 0.00004)
    assert any(loop.rests)


def test_a_busy_loop_lets_people_in_one_by_one() -> None:
    loop = Loop()
    loop.admit(100, 0.0002, others_share=0.9)
    assert set(loop.rests[50:]) == {REST_SECONDS_MAX}


def test_a_connection_after_a_pause_is_accepted_at_once() -> None:
    loop = Loop()
    loop.admit(1_000, 0.001)
    assert loop.rests[-1] > 0
    loop.now += 1.0
    loop.rests.clear()
    loop.admit(3, 0.0002)
    assert not any(loop.rests)
