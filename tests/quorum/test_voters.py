"""Voters that change: when they may, from when on they count, and who goes by which."""

from __future__ import annotations

from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.ids import EpochEnd
from millpond.quorum.events import Appended, Asked, NewVoters, Time
from millpond.quorum.messages import EndQuorumEpoch, Fetch, FetchResponse, ReplicaKey, Vote
from millpond.quorum.ports import Election
from millpond.quorum.ready import Ask, Durable
from millpond.quorum.replica import Replica
from millpond.quorum.roles import Candidate, Resigned, Unattached
from millpond.quorum.voters import Voter, VoterEndPoint, next_voters, wanted_count
from millpond.sim.machines.memory_log import MemoryLog

NOBODY = UUID(int=0)


class Least:
    def below(self, bound: int) -> int:
        return 0


def key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, NOBODY)


def voters(*node_ids: int) -> tuple[Voter, ...]:
    return tuple(Voter(each, NOBODY) for each in node_ids)


class SingleReplica:
    """Node 1, which founded its quorum and leads it; others come as they fetch."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.now_ms = 0
        self.replica = Replica(key(1), [key(1)], self.log, Election(), Least(), 0)
        self._request_ids = 0
        self.sent: list[object] = []
        self.step(Time())
        self.sync()
        assert self.replica.is_leader

    def step(self, event: object) -> None:
        ready = self.replica.step(event, self.now_ms)  # type: ignore[arg-type]
        self.sent = [each.request if isinstance(each, Ask) else each.response for each in ready.send]

    def sync(self) -> None:
        self.log.synced(self.log.mark())
        self.step(Durable(self.replica.version))

    def fetch(self, node_id: int, offset: int | None = None, *, is_new: bool = False) -> None:
        """A replica comes for what lies behind the offset: by default it has everything."""
        end = self.log.end_offset if offset is None else offset
        self._request_ids += 1
        last = 0 if end == 0 else self.log.entry(end - 1).epoch
        fetch = Fetch(self.replica.epoch, key(node_id), end, last, -1, 0, is_new)
        self.step(Asked(self._request_ids, fetch))

    def change(self, *node_ids: int) -> None:
        assert self.replica.objection(voters(*node_ids), self.now_ms) is None
        self.step(NewVoters(voters(*node_ids)))

    def objection(self, *node_ids: int) -> str | None:
        return self.replica.objection(voters(*node_ids), self.now_ms)


def grown(*node_ids: int) -> SingleReplica:
    """A quorum of these, one after the other."""
    harness = SingleReplica()
    harness.sync()
    for count in range(1, len(node_ids)):
        for node_id in node_ids[1 : count + 1]:
            harness.fetch(node_id)
        harness.change(*node_ids[: count + 1])
        harness.sync()
        for node_id in node_ids[1 : count + 1]:
            harness.fetch(node_id)
    return harness


def test_a_leader_changes_no_voters_before_it_has_committed_in_its_epoch() -> None:
    harness = SingleReplica()
    harness.replica.high_watermark = 0
    harness.fetch(2)
    assert harness.objection(1, 2) == "this leader has committed nothing yet"


def test_one_comes_at_a_time_and_only_once_the_last_change_is_committed() -> None:
    harness = SingleReplica()
    harness.sync()
    harness.fetch(2)
    harness.fetch(3)
    assert harness.objection(1, 2, 3) == "only one voter at a time may be added or removed"
    harness.change(1, 2)
    assert harness.replica.voters == (key(1), key(2)), "in force from now on"
    harness.sync()
    assert harness.objection(1, 2, 3) == "the last change of voters is not committed yet"
    committed = harness.replica.high_watermark
    harness.fetch(2)
    assert harness.replica.high_watermark > committed, "by both of the new voters"
    harness.fetch(3)
    assert harness.objection(1, 2, 3) is None


@pytest.mark.parametrize(
    ("offset", "is_new", "why"),
    [(0, False, "node 2 has not caught up with the metadata"), (None, True, "node 2 has just started")],
)
def test_who_is_not_ready_does_not_vote(offset: int | None, is_new: bool, why: str) -> None:
    harness = SingleReplica()
    harness.sync()
    harness.fetch(2, offset, is_new=is_new)
    assert harness.objection(1, 2) == why


def test_no_voter_is_removed_that_the_others_need() -> None:
    harness = grown(1, 2, 3)
    harness.now_ms += 10_000
    harness.fetch(2)
    assert harness.objection(1, 2) is None
    assert harness.objection(1, 3) == "too few of the new voters are up"
    assert SingleReplica().objection() is not None


def test_a_removed_leader_does_not_count_itself_and_goes_once_that_is_committed() -> None:
    harness = grown(1, 2, 3)
    harness.fetch(2)
    harness.fetch(3)
    harness.change(2, 3)
    harness.sync()
    harness.fetch(2)
    assert harness.log.voters_offset >= harness.replica.high_watermark, "one of two is no majority"
    harness.fetch(3)
    assert harness.log.voters_offset < harness.replica.high_watermark
    assert harness.replica.is_leader, "its owner hears of the commit first"
    harness.now_ms = harness.replica.next_deadline_ms() or 0
    harness.step(Time())
    assert isinstance(harness.replica.role, Resigned)
    assert [type(each) for each in harness.sent] == [EndQuorumEpoch, EndQuorumEpoch]
    harness.now_ms += 60_000
    harness.step(Time())
    assert isinstance(harness.replica.role, Unattached), "it stands no more"


def test_who_has_the_only_record_of_its_removal_stands_until_that_is_committed() -> None:
    harness = grown(1, 2)
    harness.fetch(2)
    harness.change(2)
    harness.sync()
    again = Replica(key(1), [key(1)], harness.log, harness.replica.election, Least(), 0)
    again.step(Time(), 10_000)
    again.step(Time(), 20_000)
    vote = Vote(again.epoch, key(1), key(2), again.log.last_epoch, again.log.end_offset, True)
    assert not again.is_voter
    assert again.log.voters == voters(2)
    assert any(isinstance(each, Ask) and each.request == vote for each in again.step(Time(), 40_000).send)


def test_voters_that_are_cut_off_count_no_more() -> None:
    log = MemoryLog()
    log.append(1, 7)
    log.append_voters(2, voters(1, 2))
    replica = Replica(key(2), [key(1)], log, Election(2), Least(), 0)
    assert replica.is_voter
    replica._truncate(EpochEnd(1, 1))
    assert replica.voters == (key(1),)


def test_a_new_voter_does_not_stand_by_an_old_record_that_names_it_alone() -> None:
    log = MemoryLog()
    log.append(1, 7)
    log.append_voters(1, voters(1))
    replica = Replica(key(1), (), log, Election(1, is_new=True), Least(), 0, contacts=[2])
    for now_ms in range(0, 10_000, 100):
        replica.step(Time(), now_ms)
    assert isinstance(replica.role, Unattached)
    assert not isinstance(replica.role, Candidate)


def test_a_replica_without_voters_asks_its_contacts() -> None:
    replica = Replica(key(4), (), MemoryLog(), Election(is_new=True), Least(), 0, contacts=[2, 3])
    replica.step(Time(), 0)
    sent = replica.step(Durable(replica.version), 0).send + replica.step(Time(), 500).send
    asked = [each for each in sent if isinstance(each, Ask)]
    assert asked
    assert asked[0].node_id == 2
    fetch = asked[0].request
    assert isinstance(fetch, Fetch)
    assert fetch.is_new, "it may have been wiped"


def test_an_observer_stops_being_new_once_its_leader_is_confirmed() -> None:
    harness = SingleReplica()
    harness.sync()
    harness.fetch(2, 0, is_new=True)
    response = harness.sent[-1]
    assert isinstance(response, FetchResponse)
    assert response.error is ErrorCode.NONE
    assert response.is_confirmed, "a majority of one follows itself"
    harness.log.append(harness.replica.epoch, 5)
    harness.step(Appended())


@pytest.mark.parametrize(
    ("nodes", "count_max", "count"),
    [(1, 5, 1), (2, 5, 1), (3, 5, 3), (4, 5, 3), (5, 5, 5), (9, 5, 5), (9, 4, 3), (9, 1, 1), (9, 9, 9)],
)
def test_an_odd_number_votes(nodes: int, count_max: int, count: int) -> None:
    assert wanted_count(nodes, count_max) == count


def test_voters_are_chosen_step_by_step() -> None:
    able = {each.node_id: each for each in voters(1, 2, 3, 4)}
    assert next_voters(voters(1), able, set(), 3) == voters(1, 2)
    assert next_voters(voters(1, 2), able, set(), 3) == voters(1, 2, 3)
    assert next_voters(voters(1, 2, 3), able, set(), 3) is None
    # Who is away keeps its vote.
    assert next_voters(voters(1, 2, 9), able, set(), 3) is None
    # Who is drained goes once another votes in its place.
    assert next_voters(voters(1, 2, 3), able, {3}, 3) == voters(1, 2, 3, 4)
    assert next_voters(voters(1, 2, 3, 4), able, {3}, 3) == voters(1, 2, 4)
    # And not before: those who could may be away for a moment.
    few = {each: able[each] for each in (1, 2, 3)}
    assert next_voters(voters(1, 2, 3), few, {3}, 3) is None
    assert next_voters(voters(1, 2, 3), few, {3}, 1) == voters(1, 2)
    # Where a node has another disk, or another address, that is written down.
    moved = {**able, 2: Voter(2, UUID(int=9), (VoterEndPoint("PLAINTEXT", "h", 1),))}
    assert next_voters(voters(1, 2), moved, set(), 1) == (*voters(1), moved[2])
