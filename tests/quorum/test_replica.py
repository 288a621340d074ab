"""One replica, event by event: what goes in, what comes out, and what waits for the disk."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.ids import EpochEnd
from millpond.quorum.events import Answered, Appended, Asked, Stop, Time
from millpond.quorum.messages import (
    NO_LEADER,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    EpochResponse,
    Fetch,
    FetchResponse,
    FetchSnapshot,
    FetchSnapshotResponse,
    ReplicaKey,
    Request,
    Response,
    SnapshotId,
    Vote,
    VoteResponse,
)
from millpond.quorum.ports import Election
from millpond.quorum.ready import Ask, Durable, Ready, Reply
from millpond.quorum.replica import QuorumBroken, Replica
from millpond.quorum.roles import Candidate, Follower, Prospective, Resigned, Unattached
from millpond.sim.machines.memory_log import MemoryLog

ONE, TWO, THREE = (ReplicaKey(number, UUID(int=number)) for number in (1, 2, 3))
STRANGER = ReplicaKey(3, UUID(int=33))
NONE = ErrorCode.NONE


class Least:
    """No chance at all: every delay is as short as it can be."""

    def below(self, bound: int) -> int:
        return 0


class Most:
    """Every delay is as long, and every choice as late, as it can be."""

    def below(self, bound: int) -> int:
        return bound - 1


class ReplicaHarness:
    """Drives one replica and remembers what it said."""

    def __init__(
        self,
        me: ReplicaKey = ONE,
        voters: tuple[ReplicaKey, ...] = (ONE, TWO, THREE),
        election: Election | None = None,
        entries: tuple[int, ...] = (),
    ) -> None:
        self.log = MemoryLog()
        for epoch in entries:
            self.log.append(epoch, epoch * 100)
        self.log.synced(self.log.mark())
        self.now_ms = 0
        self.replica = Replica(me, voters, self.log, election or Election(), Least(), 0)
        self.ready = Ready(0)
        self._request_ids = 0

    def sent(self) -> list[Request | Response]:
        return [each.request if isinstance(each, Ask) else each.response for each in self.ready.send]

    def ask(self, request: Request) -> list[Request | Response]:
        """A request comes in; what leaves at once."""
        self._request_ids += 1
        self.ready = self.replica.step(Asked(self._request_ids, request), self.now_ms)
        return self.sent()

    def sync(self) -> list[Request | Response]:
        """The disk has everything; what leaves now."""
        self.log.synced(self.log.mark())
        self.ready = self.replica.step(Durable(self.replica.version), self.now_ms)
        return self.sent()

    def answer(self, ask: Ask, response: Response | None) -> list[Request | Response]:
        self.ready = self.replica.step(Answered(ask, response), self.now_ms)
        return self.sent()

    def wait(self, ms: int) -> list[Request | Response]:
        self.now_ms += ms
        self.ready = self.replica.step(Time(), self.now_ms)
        return self.sent()

    def asks(self) -> list[Ask]:
        return [each for each in self.ready.send if isinstance(each, Ask)]

    def grant_all(self, asks: list[Ask]) -> None:
        for each in asks:
            if self.replica.is_leader:
                return
            self.answer(each, VoteResponse(NONE, self.replica.epoch, NO_LEADER, granted=True))

    def lead(self) -> ReplicaHarness:
        """Through both rounds of an election."""
        self.wait(1000)
        self.grant_all(self.asks()[:1])
        assert isinstance(self.replica.role, Candidate)
        self.sync()
        self.grant_all(self.asks()[:1])
        assert self.replica.is_leader
        self.sync()
        return self

    def follow(self, leader_id: int, epoch: int) -> Ask:
        """Become a follower; the fetch that is under way."""
        self.ask(BeginQuorumEpoch(epoch, leader_id, self.replica.me))
        self.sync()
        return self.asks()[0]


def vote(epoch: int, *, of: ReplicaKey = TWO, last: int = 0, end: int = 0, pre: bool = False) -> Vote:
    return Vote(epoch, of, ONE, last, end, pre)


# Votes.


def test_a_vote_leaves_only_when_it_is_durable() -> None:
    harness = ReplicaHarness()
    assert harness.ask(vote(5)) == []
    assert harness.ready.save == Election(5, NO_LEADER, TWO)
    assert harness.sync() == [VoteResponse(NONE, 5, NO_LEADER, granted=True)]


def test_an_epoch_is_remembered_even_when_the_vote_is_refused() -> None:
    harness = ReplicaHarness(entries=(3,), election=Election(3))
    assert harness.ask(vote(5, last=2, end=9)) == []
    assert harness.ready.save == Election(5)
    assert harness.sync() == [VoteResponse(NONE, 5, NO_LEADER, granted=False)]


def test_one_vote_an_epoch_also_after_a_restart() -> None:
    harness = ReplicaHarness(election=Election(5, NO_LEADER, THREE))
    assert harness.ask(vote(5, of=TWO)) == [VoteResponse(NONE, 5, NO_LEADER, granted=False)]
    assert harness.ask(vote(5, of=THREE)) == [VoteResponse(NONE, 5, NO_LEADER, granted=True)]


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (vote(4), ErrorCode.FENCED_LEADER_EPOCH),
        (vote(9, last=9), ErrorCode.INVALID_REQUEST),
        (vote(9, of=STRANGER), ErrorCode.INCONSISTENT_VOTER_SET),
        (Vote(9, TWO, ReplicaKey(1, UUID(int=77)), 0, 0, False), ErrorCode.INVALID_VOTER_KEY),
    ],
)
def test_a_vote_that_makes_no_sense_is_refused_and_changes_nothing(asked: Vote, error: ErrorCode) -> None:
    harness = ReplicaHarness(election=Election(5))
    assert harness.ask(asked) == [VoteResponse(error, 5, NO_LEADER)]
    assert harness.ready.save is None
    assert harness.replica.epoch == 5


def test_a_pre_vote_promises_nothing() -> None:
    harness = ReplicaHarness(election=Election(5))
    assert harness.ask(vote(5, pre=True)) == [VoteResponse(NONE, 5, NO_LEADER, granted=True)]
    assert harness.ready.save is None
    assert harness.ask(vote(5, of=THREE, pre=True)) == [VoteResponse(NONE, 5, NO_LEADER, granted=True)]


def test_who_has_a_leader_refuses_a_pre_vote_once_it_has_fetched() -> None:
    harness = ReplicaHarness(election=Election(5))
    fetch = harness.follow(2, 5)
    assert harness.ask(vote(5, of=THREE, pre=True)) == [VoteResponse(NONE, 5, 2, granted=True)]
    harness.answer(fetch, FetchResponse(NONE, 5, 2, 0))
    assert harness.ask(vote(5, of=THREE, pre=True)) == [VoteResponse(NONE, 5, 2, granted=False)]
    assert harness.ask(vote(5, of=THREE)) == [VoteResponse(NONE, 5, 2, granted=False)]


# Standing for election.


def test_who_has_not_heard_its_leader_for_long_lets_others_find_out() -> None:
    harness = ReplicaHarness()
    fetch = harness.follow(THREE.node_id, 5)
    harness.answer(fetch, FetchResponse(NONE, 5, THREE.node_id))
    harness.wait(1300)
    assert harness.ask(vote(5, pre=True)) == [VoteResponse(NONE, 5, THREE.node_id, granted=False)]
    harness.wait(100)
    assert isinstance(harness.replica.role, Follower)
    assert harness.ask(vote(5, pre=True)) == [VoteResponse(NONE, 5, THREE.node_id, granted=True)]
    assert harness.replica.leader_id == THREE.node_id, "that promises nothing"


def test_who_stood_still_itself_gives_its_leader_that_time() -> None:
    harness = ReplicaHarness()
    harness.follow(THREE.node_id, 5)
    harness.now_ms += 5000
    harness.ready = harness.replica.step(Time(late_ms=3001), harness.now_ms)
    assert isinstance(harness.replica.role, Prospective), "not for ever"
    harness = ReplicaHarness()
    harness.follow(THREE.node_id, 5)
    harness.now_ms += 2500
    harness.ready = harness.replica.step(Time(late_ms=600), harness.now_ms)
    assert isinstance(harness.replica.role, Follower)
    harness.wait(100)
    assert isinstance(harness.replica.role, Prospective)


def test_a_leader_that_answers_late_is_followed_again_at_once() -> None:
    harness = ReplicaHarness()
    harness.follow(THREE.node_id, 5)
    harness.wait(2000)
    assert isinstance(harness.replica.role, Prospective)
    harness.replica._chance = Most()
    harness.wait(100)
    (look,) = harness.asks()
    assert look.node_id == THREE.node_id
    harness.answer(look, FetchResponse(NONE, 5, THREE.node_id))
    assert isinstance(harness.replica.role, Follower)


def test_a_candidate_that_meets_a_rival_does_not_wait_for_one_who_may_be_gone() -> None:
    harness = ReplicaHarness()
    harness.wait(1000)
    harness.grant_all(harness.asks()[:1])
    harness.sync()
    asked = harness.asks()
    harness.answer(asked[0], VoteResponse(NONE, harness.replica.epoch, NO_LEADER, granted=False))
    assert isinstance(harness.replica.role, Candidate)
    harness.wait(100)
    assert isinstance(harness.replica.role, Prospective), "the next round"


def test_a_candidate_asks_first_and_raises_the_epoch_only_with_a_majority_behind_it() -> None:
    harness = ReplicaHarness(election=Election(5))
    harness.wait(1000)
    assert [each.request for each in harness.asks()] == [
        Vote(5, ONE, TWO, 0, 0, pre_vote=True),
        Vote(5, ONE, THREE, 0, 0, pre_vote=True),
    ]
    harness.answer(harness.asks()[0], VoteResponse(NONE, 5, NO_LEADER, granted=True))
    assert harness.replica.epoch == 6
    assert harness.sent() == [], "the call for votes waits until the own vote is durable"
    assert [type(each) for each in harness.sync()] == [Vote, Vote]


def test_the_own_vote_counts_once_it_is_durable() -> None:
    harness = ReplicaHarness(voters=(ONE,))
    harness.wait(0)
    assert isinstance(harness.replica.role, Candidate)
    harness.sync()
    assert harness.replica.is_leader
    assert harness.replica.high_watermark == -1, "its first record is not durable yet"
    harness.sync()
    assert harness.replica.high_watermark == 1


def test_a_late_vote_of_another_round_does_not_count() -> None:
    harness = ReplicaHarness(election=Election(5))
    harness.wait(1000)
    late = harness.asks()[1]
    harness.answer(harness.asks()[0], VoteResponse(NONE, 5, NO_LEADER, granted=True))
    harness.sync()
    harness.answer(late, VoteResponse(NONE, 5, NO_LEADER, granted=True))
    assert isinstance(harness.replica.role, Candidate)


def test_who_may_have_led_an_epoch_never_leads_it_again() -> None:
    for election in (Election(5, 1, ONE), Election(5, NO_LEADER, ONE)):
        harness = ReplicaHarness(election=election)
        assert isinstance(harness.replica.role, Resigned)
        harness.lead()
        assert harness.replica.epoch == 6


def test_an_observer_never_stands_but_votes_for_a_candidate_that_knows_it_as_a_voter() -> None:
    harness = ReplicaHarness(me=STRANGER, election=Election(5))
    harness.wait(60_000)
    assert isinstance(harness.replica.role, Unattached)
    assert [type(each) for each in harness.sent()] == [Fetch], "it looks for a leader"
    asked = Vote(6, TWO, STRANGER, 0, 0, False)
    harness.ask(asked)
    # The record that makes it a voter may be one that it has not read yet.
    assert harness.sync()[-1] == VoteResponse(NONE, 6, NO_LEADER, granted=True)
    assert harness.replica.election.voted == TWO


def test_a_lost_leader_is_missed_after_a_while() -> None:
    harness = ReplicaHarness()
    harness.follow(2, 3)
    harness.wait(1999)
    assert isinstance(harness.replica.role, Follower)
    harness.wait(1)
    assert isinstance(harness.replica.role, Prospective)


# Leading.


def test_nothing_is_committed_before_a_record_of_the_own_epoch_is() -> None:
    harness = ReplicaHarness(entries=(1, 1, 1), election=Election(1)).lead()
    assert harness.replica.log.end_offset == 4
    harness.ask(Fetch(2, TWO, 3, 1, -1, 0))
    assert harness.replica.high_watermark == -1
    harness.ask(Fetch(2, TWO, 4, 2, -1, 0))
    assert harness.replica.high_watermark == 4


def test_a_fetch_is_an_acknowledgement_and_the_leader_counts_only_what_it_has_synced() -> None:
    harness = ReplicaHarness().lead()
    harness.ask(Fetch(1, TWO, 1, 1, -1, 0))
    assert harness.replica.high_watermark == 1
    harness.log.append(1, 7)
    harness.replica.step(Appended(), harness.now_ms)
    harness.ask(Fetch(1, TWO, 2, 1, -1, 0))
    assert harness.replica.high_watermark == 1
    harness.sync()
    assert harness.replica.high_watermark == 2


def test_a_pending_fetch_is_answered_by_the_next_record() -> None:
    harness = ReplicaHarness().lead()
    harness.ask(Fetch(1, TWO, 1, 1, -1, 0))
    assert harness.ask(Fetch(1, TWO, 1, 1, 1, 500)) == []
    harness.log.append(1, 7)
    harness.ready = harness.replica.step(Appended(), harness.now_ms)
    (response,) = harness.sent()
    assert isinstance(response, FetchResponse)
    assert response.records is not None


def test_the_fetch_of_a_wiped_disk_does_not_count() -> None:
    harness = ReplicaHarness().lead()
    harness.ask(Fetch(1, STRANGER, 1, 1, -1, 0))
    assert harness.replica.high_watermark == -1


def confirmed(harness: ReplicaHarness, replica: ReplicaKey) -> bool:
    """Whether the leader tells this new voter, which has everything, that it may trust what it has."""
    end = harness.log.end_offset
    (response,) = harness.ask(Fetch(1, replica, end, 1, -1, 0, is_new=True))
    assert isinstance(response, FetchResponse)
    return response.is_confirmed


def fetch_twice(harness: ReplicaHarness, replica: ReplicaKey) -> None:
    for _ in range(3):
        harness.now_ms += 10
        harness.ask(Fetch(1, replica, harness.log.end_offset, 1, -1, 0))


@pytest.mark.parametrize(("replica", "is_confirmed"), [(THREE, True), (STRANGER, False)])
def test_a_second_process_with_the_id_of_a_voter_stays_new(replica: ReplicaKey, is_confirmed: bool) -> None:
    harness = ReplicaHarness().lead()
    assert not confirmed(harness, replica)
    fetch_twice(harness, TWO)
    assert confirmed(harness, replica) is is_confirmed


def test_an_observer_with_a_distinct_id_is_confirmed() -> None:
    harness = ReplicaHarness().lead()
    four = ReplicaKey(4, UUID(int=4))
    confirmed(harness, four)
    fetch_twice(harness, TWO)
    assert confirmed(harness, four)


def test_a_leader_that_only_a_second_process_follows_resigns() -> None:
    harness = ReplicaHarness().lead()
    for _ in range(100):
        harness.now_ms += 100
        harness.ask(Fetch(1, STRANGER, 1, 1, -1, 0))
        harness.wait(0)
    assert not harness.replica.is_leader


def test_what_a_replaced_process_had_fetched_does_not_count_for_its_successor() -> None:
    harness = ReplicaHarness().lead()
    harness.ask(Fetch(1, THREE, 1, 1, -1, 0))
    assert harness.replica.high_watermark == 1
    harness.log.append(1, 7)
    harness.replica.step(Appended(), harness.now_ms)
    harness.ask(Fetch(1, THREE, 2, 1, -1, 0))
    harness.replica.forget_progress(THREE)
    harness.sync()
    assert harness.replica.high_watermark == 1, "the leader alone has the record for certain"
    harness.ask(Fetch(1, THREE, 2, 1, -1, 0))
    assert harness.replica.high_watermark == 2


@pytest.mark.parametrize(
    ("epoch", "error"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_a_fetch_of_another_epoch_is_answered_with_the_leader(epoch: int, error: ErrorCode) -> None:
    harness = ReplicaHarness().lead()
    assert harness.ask(Fetch(epoch, TWO, 0, 0, -1, 0)) == [FetchResponse(error, 1, 1)]


def test_a_diverging_log_gets_the_diverging_epoch() -> None:
    harness = ReplicaHarness(entries=(1, 1, 3), election=Election(3)).lead()
    (response,) = harness.ask(Fetch(4, TWO, 5, 2, -1, 0))
    assert isinstance(response, FetchResponse)
    assert response.diverging == EpochEnd(1, 2)


def test_a_leader_without_a_majority_resigns_and_says_so() -> None:
    harness = ReplicaHarness().lead()
    harness.ask(Fetch(1, TWO, 1, 1, -1, 0))
    assert harness.ask(Fetch(1, TWO, 1, 1, 1, 60_000)) == []
    harness.wait(3001)
    assert isinstance(harness.replica.role, Resigned)
    assert FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, 1, NO_LEADER) in harness.sent()


def test_a_planned_hand_over_names_the_best_successor_first() -> None:
    harness = ReplicaHarness().lead()
    harness.ask(Fetch(1, THREE, 1, 1, -1, 0))
    harness.ready = harness.replica.step(Stop(), harness.now_ms)
    assert harness.sent()[0] == EndQuorumEpoch(1, 1, (THREE, TWO))


def test_the_first_successor_stands_at_once() -> None:
    harness = ReplicaHarness()
    harness.follow(2, 3)
    harness.ask(EndQuorumEpoch(3, 2, (ONE, THREE)))
    harness.wait(0)
    assert isinstance(harness.replica.role, Prospective)


def test_a_successor_does_not_go_back_to_the_leader_that_resigned_because_others_have_not_heard_of_it() -> None:
    harness = ReplicaHarness()
    harness.follow(2, 3)
    harness.ask(EndQuorumEpoch(3, 2, (ONE, THREE)))
    harness.wait(0)
    to_two, to_three = harness.asks()
    harness.answer(to_three, VoteResponse(ErrorCode.NONE, 3, 2, granted=False))
    assert isinstance(harness.replica.role, Prospective)
    harness.answer(to_two, VoteResponse(ErrorCode.NONE, 3, NO_LEADER, granted=True))
    assert isinstance(harness.replica.role, Candidate)


@pytest.mark.parametrize(("answered_id", "is_given_up"), [(NO_LEADER, True), (2, False)])
def test_a_leader_that_reports_its_resignation_is_given_up_at_once(answered_id: int, is_given_up: bool) -> None:
    """Its own farewell may be lost, or on its way."""
    harness = ReplicaHarness()
    fetch = harness.follow(2, 3)
    harness.answer(fetch, FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, 3, answered_id))
    harness.wait(50)
    assert isinstance(harness.replica.role, Prospective) is is_given_up
    assert harness.replica.leader_id == (NO_LEADER if is_given_up else 2)


def test_two_leaders_in_one_epoch_stop_the_process_of_who_is_answered_so() -> None:
    harness = ReplicaHarness().lead()
    begin = next(each for each in harness.asks() if isinstance(each.request, BeginQuorumEpoch))
    with pytest.raises(QuorumBroken, match="two leaders"):
        harness.answer(begin, EpochResponse(ErrorCode.INVALID_REQUEST, 1, 2))


def test_a_second_leader_of_an_epoch_is_refused_without_stopping_the_replica() -> None:
    harness = ReplicaHarness().lead()
    assert harness.ask(BeginQuorumEpoch(1, 2, ONE)) == [EpochResponse(ErrorCode.INVALID_REQUEST, 1, 1)]
    assert harness.replica.is_leader
    follower = ReplicaHarness()
    follower.follow(2, 3)
    assert follower.ask(BeginQuorumEpoch(3, 3, ONE)) == [EpochResponse(ErrorCode.INVALID_REQUEST, 3, 2)]
    assert (follower.replica.epoch, follower.replica.leader_id) == (3, 2)


# Following.


def entries(*epochs: int) -> bytes:
    log = MemoryLog()
    for epoch in epochs:
        log.append(epoch, epoch * 100)
    return log.read(0)


def test_the_next_fetch_waits_until_what_the_last_one_brought_is_durable() -> None:
    harness = ReplicaHarness()
    fetch = harness.follow(2, 3)
    assert harness.answer(fetch, FetchResponse(NONE, 3, 2, 0, records=entries(3, 3))) == []
    (sent,) = harness.sync()
    assert isinstance(sent, Fetch)
    assert sent.offset == 2


def test_an_answer_that_comes_twice_counts_once() -> None:
    harness = ReplicaHarness()
    fetch = harness.follow(2, 3)
    response = FetchResponse(NONE, 3, 2, 0, records=entries(3, 3))
    harness.answer(fetch, response)
    harness.answer(fetch, response)
    assert harness.log.end_offset == 2


def test_a_follower_never_calls_committed_what_it_does_not_have() -> None:
    harness = ReplicaHarness()
    fetch = harness.follow(2, 3)
    harness.answer(fetch, FetchResponse(NONE, 3, 2, 9, records=entries(3, 3)))
    assert harness.replica.high_watermark == 2


def test_a_follower_drops_what_the_leader_never_had() -> None:
    harness = ReplicaHarness(entries=(1, 1, 2, 2), election=Election(2))
    fetch = harness.follow(2, 4)
    harness.answer(fetch, FetchResponse(NONE, 4, 2, diverging=EpochEnd(1, 5)))
    assert harness.log.end_offset == 2


def test_a_follower_stops_rather_than_drop_what_is_committed() -> None:
    harness = ReplicaHarness()
    fetch = harness.follow(2, 3)
    harness.answer(fetch, FetchResponse(NONE, 3, 2, 2, records=entries(3, 3)))
    harness.sync()
    with pytest.raises(QuorumBroken, match="the high watermark is 2"):
        harness.answer(harness.asks()[0], FetchResponse(NONE, 3, 2, diverging=EpochEnd(3, 1)))


def test_a_snapshot_comes_in_pieces_and_replaces_the_log() -> None:
    harness = ReplicaHarness(entries=(1,), election=Election(1))
    fetch = harness.follow(2, 4)
    snapshot = SnapshotId(3, 2)
    harness.answer(fetch, FetchResponse(NONE, 4, 2, snapshot=snapshot))
    data = entries(1, 2, 2)
    for position in range(0, len(data), 20):
        (ask,) = harness.asks()
        assert ask.request == FetchSnapshot(4, ONE, snapshot, position)
        piece = data[position : position + 20]
        harness.answer(ask, FetchSnapshotResponse(NONE, 4, 2, len(data), position, piece))
    assert (harness.log.start_offset, harness.log.end_offset, harness.replica.high_watermark) == (3, 3, 3)
    (sent,) = harness.sync()
    assert sent == Fetch(4, ONE, 3, 2, 3, 500)


def test_a_missing_snapshot_is_fetched_from_the_start_again() -> None:
    harness = ReplicaHarness()
    fetch = harness.follow(2, 4)
    harness.answer(fetch, FetchResponse(NONE, 4, 2, snapshot=SnapshotId(3, 2)))
    harness.answer(harness.asks()[0], FetchSnapshotResponse(ErrorCode.SNAPSHOT_NOT_FOUND, 4, 2))
    assert [type(each) for each in harness.wait(100)] == [Fetch]


def test_a_lost_request_is_sent_again() -> None:
    harness = ReplicaHarness()
    fetch = harness.follow(2, 3)
    assert harness.answer(fetch, None) == []
    assert [type(each) for each in harness.wait(100)] == [Fetch]


def test_a_begin_quorum_epoch_of_an_older_epoch_gets_the_newer_one() -> None:
    harness = ReplicaHarness(election=Election(5))
    assert harness.ask(BeginQuorumEpoch(4, 2, ONE)) == [EpochResponse(ErrorCode.FENCED_LEADER_EPOCH, 5, NO_LEADER)]


def test_a_reply_names_its_request() -> None:
    harness = ReplicaHarness(election=Election(5))
    harness.ask(vote(5, pre=True))
    assert harness.ready.send == [Reply(1, VoteResponse(NONE, 5, NO_LEADER, granted=True))]


# New voters.

NEW = Election(is_new=True)


def new_vote(epoch: int, *, of: ReplicaKey = TWO, last: int = 0, end: int = 0, pre: bool = False) -> Vote:
    return Vote(epoch, of, ONE, last, end, pre, is_new=True)


def test_a_new_voter_votes_for_new_ones_alone() -> None:
    harness = ReplicaHarness(election=NEW)
    assert harness.ask(vote(0, pre=True)) == [VoteResponse(NONE, 0, NO_LEADER, granted=False)]
    assert harness.ask(new_vote(0, pre=True)) == [VoteResponse(NONE, 0, NO_LEADER, granted=True)]
    harness.ask(vote(5, last=4, end=9))
    assert harness.sync() == [VoteResponse(NONE, 5, NO_LEADER, granted=False)]
    harness.ask(new_vote(6))
    assert harness.sync() == [VoteResponse(NONE, 6, NO_LEADER, granted=True)]
    assert harness.replica.election == Election(6, NO_LEADER, TWO, is_new=True, is_founder=True)


def test_a_new_candidate_needs_all() -> None:
    harness = ReplicaHarness(election=NEW)
    harness.wait(1000)
    asks = harness.asks()
    assert all(each.request.is_new for each in asks if isinstance(each.request, Vote))
    harness.grant_all(asks[:1])
    assert isinstance(harness.replica.role, Prospective), "a majority is not enough"
    harness.grant_all(asks[1:2])
    harness.sync()
    asks = harness.asks()
    harness.grant_all(asks[:1])
    assert isinstance(harness.replica.role, Candidate)
    harness.grant_all(asks[1:2])
    assert harness.replica.is_leader


def test_one_refusal_ends_a_new_candidacy() -> None:
    harness = ReplicaHarness(election=NEW)
    harness.wait(1000)
    harness.answer(harness.asks()[0], VoteResponse(NONE, 0, NO_LEADER, granted=False))
    assert isinstance(harness.replica.role, Unattached)


def test_of_two_founders_who_ask_at_once_the_higher_gives_way() -> None:
    lower = ReplicaHarness(election=NEW)
    lower.wait(1000)
    assert lower.ask(new_vote(0, pre=True)) == [VoteResponse(NONE, 0, NO_LEADER, granted=False)]
    assert lower.ask(new_vote(0, pre=True, end=1)) == [VoteResponse(NONE, 0, NO_LEADER, granted=True)], "it has more"
    higher = ReplicaHarness(THREE, election=NEW)
    higher.wait(1000)
    asked = Vote(0, TWO, THREE, 0, 0, True, is_new=True)
    assert higher.ask(asked) == [VoteResponse(NONE, 0, NO_LEADER, granted=True)]


def test_a_new_leader_is_new_until_it_has_committed() -> None:
    harness = ReplicaHarness(election=NEW)
    harness.wait(1000)
    harness.grant_all(harness.asks()[:2])
    harness.sync()
    harness.grant_all(harness.asks()[:2])
    harness.sync()
    assert harness.replica.is_new
    harness.ask(Fetch(1, TWO, 1, 1, -1, 500))
    assert not harness.replica.is_new
    assert harness.ready.save == Election(1, 1, ONE)


def test_who_voted_for_the_first_leader_is_new_no_more() -> None:
    harness = ReplicaHarness(election=NEW)
    harness.ask(new_vote(1))
    harness.sync()
    harness.follow(2, 1)
    assert harness.replica.election == Election(1, 2, TWO)


@pytest.mark.parametrize(
    "heard",
    [
        pytest.param(vote(2, of=TWO, last=1, end=1), id="the leader itself has records of its epoch"),
        pytest.param(new_vote(3, last=1, end=1), id="one that is new has records"),
        pytest.param(vote(3, of=THREE), id="another is new no more"),
    ],
)
def test_a_founder_stops_being_new_when_it_learns_of_a_leader(heard: Vote) -> None:
    """The first leader was gone before it could say so. Without this nobody would ever be elected."""
    harness = ReplicaHarness(election=NEW)
    harness.ask(new_vote(1))
    harness.sync()
    harness.ask(new_vote(2, of=THREE))
    harness.sync()
    assert harness.replica.election == Election(2, NO_LEADER, THREE, is_new=True, is_founder=True)
    harness.ask(replace(heard, epoch=3))
    assert harness.sync() == [VoteResponse(NONE, 3, NO_LEADER, granted=True)]
    assert harness.replica.election == Election(3, NO_LEADER, heard.candidate)


def test_a_founder_stops_being_new_under_a_leader_that_it_has_not_voted_for() -> None:
    harness = ReplicaHarness(election=NEW)
    harness.ask(new_vote(1))
    harness.sync()
    harness.follow(3, 4)
    assert harness.replica.election == Election(4, 3)


@pytest.mark.parametrize("heard", [vote(7, last=4, end=9, pre=True), new_vote(7, last=4, end=9, pre=True)])
def test_a_vote_for_one_that_has_records_makes_no_founder(heard: Vote) -> None:
    """There was a leader before, and this voter may have been one of those that followed it."""
    harness = ReplicaHarness(election=NEW)
    harness.ask(new_vote(6, last=4, end=9))
    harness.sync()
    harness.ask(heard)
    assert harness.replica.election == Election(7, NO_LEADER, None, is_new=True)


def test_one_that_stands_with_an_empty_log_is_a_founder() -> None:
    harness = ReplicaHarness(election=NEW)
    harness.wait(1000)
    harness.grant_all(harness.asks()[:2])
    assert harness.ready.save == Election(1, NO_LEADER, ONE, is_new=True, is_founder=True)


def test_what_a_new_voter_has_does_not_count() -> None:
    harness = ReplicaHarness().lead()
    harness.ask(Fetch(1, TWO, 1, 1, -1, 500, is_new=True))
    harness.ask(Fetch(1, THREE, 1, 1, -1, 500, is_new=True))
    assert harness.replica.high_watermark == -1
    harness.ask(Fetch(1, TWO, 1, 1, -1, 500))
    assert harness.replica.high_watermark == 1


def test_a_leader_with_new_voters_alone_resigns() -> None:
    harness = ReplicaHarness().lead()
    for _ in range(4):
        harness.ask(Fetch(1, TWO, 1, 1, -1, 500, is_new=True))
        harness.wait(1000)
    assert isinstance(harness.replica.role, Resigned)


def test_a_new_voter_is_confirmed_once_a_majority_of_the_others_has_fetched_again() -> None:
    harness = ReplicaHarness().lead()
    harness.ask(Fetch(1, TWO, 1, 1, -1, 0))
    came = Fetch(1, THREE, 0, 0, 1, 0, is_new=True)
    for has_come in range(2):
        harness.now_ms += 10
        (response,) = harness.ask(came)
        assert isinstance(response, FetchResponse)
        assert not response.is_confirmed, has_come
        harness.now_ms += 10
        harness.ask(Fetch(1, TWO, 1, 1, 1, 0))
    (response,) = harness.ask(came)
    assert isinstance(response, FetchResponse)
    assert response.is_confirmed


@pytest.mark.parametrize(("high_watermark", "is_new"), [(2, False), (3, True)])
def test_a_voter_stops_being_new_with_everything_that_a_confirmed_leader_has_committed(
    high_watermark: int, is_new: bool
) -> None:
    harness = ReplicaHarness(election=NEW)
    fetch = harness.follow(2, 4)
    assert isinstance(fetch.request, Fetch)
    assert fetch.request.is_new
    harness.answer(fetch, FetchResponse(NONE, 4, 2, 2, records=entries(4, 4)))
    harness.sync()
    assert harness.replica.is_new
    (ask,) = harness.asks()
    harness.answer(ask, FetchResponse(NONE, 4, 2, high_watermark, is_confirmed=True))
    assert harness.replica.is_new is is_new
    assert (harness.ready.save is None) is is_new


# A leader that is gone.


def test_a_leader_whose_connection_breaks_and_is_refused_is_given_up_soon() -> None:
    harness = ReplicaHarness(election=Election(4))
    fetch = harness.follow(2, 5)
    harness.answer(fetch, FetchResponse(NONE, 5, 2, 0))
    (ask,) = harness.asks()
    harness.ready = harness.replica.step(Answered(ask, None, is_cut=True), harness.now_ms)
    (again,) = harness.asks()
    assert again.request == Fetch(5, ONE, 0, 0, 0, 0), "at once, and to be answered at once"
    assert harness.ask(vote(5, of=THREE, pre=True)) == [VoteResponse(NONE, 5, 2, granted=False)]
    harness.ready = harness.replica.step(Answered(again, None, is_cut=True), harness.now_ms)
    assert harness.ask(vote(5, of=THREE, pre=True)) == [VoteResponse(NONE, 5, 2, granted=True)], "it may have more"
    assert [type(each) for each in harness.wait(1)] == [Vote, Vote]
    assert isinstance(harness.replica.role, Prospective)


def test_a_leader_that_takes_a_new_connection_is_kept() -> None:
    harness = ReplicaHarness(election=Election(4))
    fetch = harness.follow(2, 5)
    for _ in range(5):
        harness.ready = harness.replica.step(Answered(fetch, None, is_cut=True), harness.now_ms)
        (again,) = harness.asks()
        harness.answer(again, FetchResponse(NONE, 5, 2, 0))
        (fetch,) = harness.asks()
    assert isinstance(harness.replica.role, Follower)
