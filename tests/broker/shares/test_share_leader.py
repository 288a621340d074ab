"""The leader of a share partition and its share coordinator, which may be slow, away, or refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.broker.shares.test_share_fetch import ShareServer
from tests.support.share_members import ACCEPT, RELEASE, acquired, codes, initialize, results, values

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later
from millpond.coordinators.shares.state_batches import StateBatch

AWAY = Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)


class SlowCoordinator:
    """Takes writes instead of the real one, and answers them when the test says so."""

    def __init__(self, share_state: Any) -> None:
        self.writes: list[list[StateBatch]] = []
        self._open: list[tuple[Later[None], tuple[Any, ...]]] = []
        self._write = share_state.write
        share_state.write = self.write

    def write(
        self,
        key: Any,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        batches: Sequence[StateBatch],
        complete_count: int = -1,
    ) -> Later[None]:
        assert not self._open, "one write at a time"
        self.writes.append([StateBatch(*each) for each in batches])
        result: Later[None] = Later()
        self._open.append((result, (key, state_epoch, leader_epoch, start_offset, batches, complete_count)))
        return result

    def succeed(self) -> None:
        result, given = self._open.pop()
        self._write(*given).then(result.finish, result.fail)

    def fail(self, failure: Refused) -> None:
        self._open.pop()[0].fail(failure)


@pytest.fixture
def pond(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> ShareServer:
    return ShareServer(make_server, make_batch)


@pytest.fixture
def coordinator(pond: ShareServer) -> SlowCoordinator:
    return SlowCoordinator(pond.server.broker.share_state)


def summary(batches: Sequence[StateBatch]) -> list[tuple[int, int, str, int]]:
    return [(each.first, each.last, each.state.name, each.deliveries) for each in batches]


def test_an_acknowledgement_is_answered_once_it_is_written(pond: ShareServer, coordinator: SlowCoordinator) -> None:
    pond.append(b"a", b"b")
    member = pond.member("m")
    member.fetch(0)
    member.caller.send(member.acknowledge_request((0, 0, ACCEPT)), 2)
    pond.run(5_000)
    assert member.caller.replies() == []
    coordinator.succeed()
    pond.run(100)
    (response,) = member.caller.replies()
    assert results(response) == [0]


def test_a_release_is_delivered_again_once_it_is_written(pond: ShareServer, coordinator: SlowCoordinator) -> None:
    pond.append(b"a")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    other.send_fetch(0, max_wait_ms=20_000)
    member.hang_up()
    pond.run(5_000)
    assert other.caller.replies() == []
    coordinator.succeed()
    pond.run(100)
    (response,) = other.caller.replies()
    assert acquired(response) == [(0, 0, 2)]


def test_changes_that_come_during_a_write_are_written_together(
    pond: ShareServer, coordinator: SlowCoordinator
) -> None:
    pond.append(b"a", b"b", b"c", b"d")
    member = pond.member("m")
    member.fetch(0)
    for offset, kind in ((3, ACCEPT), (1, RELEASE), (0, ACCEPT)):
        member.caller.send(member.acknowledge_request((offset, offset, kind)), 2)
        pond.run(10)
    coordinator.succeed()
    pond.run(100)
    coordinator.succeed()
    pond.run(100)
    assert [results(each) for each in member.caller.replies()] == [[0], [0], [0]]
    assert [summary(each) for each in coordinator.writes] == [
        [(3, 3, "ACKNOWLEDGED", 1)],
        [(0, 0, "ACKNOWLEDGED", 1), (1, 1, "AVAILABLE", 1)],
    ]


def test_a_write_with_an_unknown_outcome_is_repeated(pond: ShareServer, coordinator: SlowCoordinator) -> None:
    pond.append(b"a", b"b")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    member.caller.send(member.acknowledge_request((0, 0, RELEASE)), 2)
    pond.run(10)
    coordinator.fail(AWAY)
    pond.run(10)
    (response,) = member.caller.replies()
    assert results(response) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    # It may have been written or not: until that is known the record is nobody's.
    assert acquired(other.fetch(0)) == []
    assert results(member.acknowledge((0, 0, ACCEPT))) == [ErrorCode.INVALID_RECORD_STATE]
    pond.run(1_000)
    assert summary(coordinator.writes[-1]) == [(0, 0, "AVAILABLE", 1)]
    coordinator.succeed()
    pond.run(100)
    assert acquired(other.fetch()) == [(0, 0, 2)]
    # What the member still holds is unaffected.
    member.caller.send(member.acknowledge_request((1, 1, ACCEPT)), 2)
    pond.run(10)
    coordinator.succeed()
    pond.run(100)
    assert results(member.caller.replies()[0]) == [0]


def test_a_fenced_leader_loads_again(pond: ShareServer, coordinator: SlowCoordinator) -> None:
    pond.append(b"a")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    other.send_fetch(0, max_wait_ms=20_000)
    member.caller.send(member.acknowledge_request((0, 0, ACCEPT)), 2)
    pond.run(10)
    coordinator.fail(Refused(ErrorCode.FENCED_STATE_EPOCH))
    pond.run(100)
    (response,) = member.caller.replies()
    assert results(response) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    # The state that was initialised again knows nothing of the delivery.
    (response,) = other.caller.replies()
    assert acquired(response) == [(0, 0, 1)]


def test_the_start_of_a_group_is_written_before_its_first_delivery(
    pond: ShareServer, coordinator: SlowCoordinator
) -> None:
    initialize(pond.server, group="fresh")
    pond.append(b"a")
    member = pond.member("m", group="fresh")
    member.send_fetch(0, max_wait_ms=20_000)
    pond.run(100)
    coordinator.fail(AWAY)
    pond.append(b"b")
    pond.run(1_000)
    assert member.caller.replies() == []
    coordinator.succeed()
    pond.append(b"c")
    pond.run(100)
    (response,) = member.caller.replies()
    # Where the group begins was decided again, and nothing had been delivered before.
    assert acquired(response) == [(2, 2, 1)]


def test_a_stopping_node_answers_what_waits(pond: ShareServer, coordinator: SlowCoordinator) -> None:
    pond.append(b"a")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    other.send_fetch(0, 1, max_wait_ms=20_000)
    member.caller.send(member.acknowledge_request((0, 0, ACCEPT)), 2)
    pond.run(10)
    pond.server.node.stop()
    pond.server.sim.run_until(lambda: not pond.server.node.is_up, within_ms=10_000)
    (response,) = other.caller.replies()
    assert codes(response) == [(0, 0), (0, 0)]


@pytest.mark.parametrize("how", ["kill", "crash"])
def test_a_restart_keeps_what_was_written(pond: ShareServer, how: str) -> None:
    pond.append(b"a", b"b", b"c", b"d")
    member = pond.member("m")
    member.fetch(0)
    # Offset 3 stays held: the node forgets that delivery.
    assert results(member.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE), (2, 2, RELEASE))) == [0]
    assert acquired(member.fetch(max_records=1, share_acquire_mode=1)) == [(1, 1, 2)]
    assert results(member.acknowledge((1, 1, RELEASE))) == [0]
    getattr(pond.server.node, how)()
    assert pond.server.node.start()
    pond.run(100)
    again = pond.member("m")
    assert acquired(again.fetch(0)) == [(1, 1, 3), (2, 2, 2), (3, 3, 1)]


def test_acknowledgements_behind_an_unknown_outcome_do_not_wait_for_the_coordinator(
    pond: ShareServer, coordinator: SlowCoordinator
) -> None:
    pond.append(b"a", b"b")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0, max_records=1, share_acquire_mode=1)
    other.fetch(0)
    member.caller.send(member.acknowledge_request((0, 0, ACCEPT)), 2)
    pond.run(10)
    other.caller.send(other.acknowledge_request((1, 1, ACCEPT)), 2)
    pond.run(10)
    coordinator.fail(AWAY)
    pond.run(10)
    for each in (member, other):
        (response,) = each.caller.replies()
        assert results(response) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    # Both are written as soon as it is there again.
    for _ in range(2):
        pond.run(1_000)
        coordinator.succeed()
    pond.run(100)
    assert [summary(each) for each in coordinator.writes[-2:]] == [
        [(0, 0, "ACKNOWLEDGED", 1)],
        [(1, 1, "ACKNOWLEDGED", 1)],
    ]
    assert (
        pond.server.broker.contexts.data.shares().group("g").leaders[pond.pond.topic_id, 0].window.start_offset == 2
    )


def test_state_that_never_comes_is_looked_for_ever_more_rarely(
    pond: ShareServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    share_state, shares = pond.server.broker.share_state, pond.server.broker.contexts.data.shares()
    read = share_state.read

    def count(*given: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(*given)

    monkeypatch.setattr(share_state, "read", count)
    member = pond.member("m", group="nobody")
    member.send_fetch(0, 1, 2, max_wait_ms=40_000)
    pond.run(35_000)
    assert reads == 3 * 7
    # After the deadline nobody waits for it.
    pond.run(60_000)
    assert reads == 3 * 7
    assert len(shares) == 0
    initialize(pond.server, group="nobody", start_offset=0)
    pond.append(b"a")
    assert values(member.caller.replies()[0]) == []
    assert values(member.fetch()) == [b"a"]
