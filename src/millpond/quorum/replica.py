"""One replica of the metadata quorum: an event and the time go in; what to persist and what to send come out.

The log is read and written here, and everyone on this node sees that at once. Durability is separate: each change of
the log or of the election state raises `version`, and messages that promise something (a vote, a fetch whose offset
is an acknowledgement) wait in the outbox until the disk has reported that version as durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import assert_never

from millpond.base.errors import ErrorCode
from millpond.base.ids import EpochEnd
from millpond.quorum.events import Answered, Appended, Asked, Event, Hung, NewVoters, Poll, Stop, Time
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
from millpond.quorum.patience import Patience, Timing
from millpond.quorum.ports import Chance, Election, QuorumLog
from millpond.quorum.ready import Ask, Durable, Outbox, Ready, Reply
from millpond.quorum.roles import (
    Candidate,
    Download,
    Follower,
    Leader,
    PendingFetch,
    Prospective,
    ReplicaProgress,
    Resigned,
    Role,
    Tally,
    Unattached,
)
from millpond.quorum.voters import Voter, fault_of_change

OBSERVERS_MAX = 1000
ROUNDS_COUNTED = 4
"""A response to any of this many calls in a row still counts."""


class QuorumBroken(Exception):
    """A committed record would change. The replica must stop at once: continuing would spread the damage."""


class Replica:
    """A voter, or an observer if `me` is not one of the `voters`.

    The voters are the founders until a record of the log names others. The last such record counts as soon as it is
    written, committed or not, and stops counting if it is truncated (`quorum/voters.py` has the rules). So two
    replicas may disagree on who votes. Any replica that is asked gives its vote, even an observer, because the
    candidate may know the later record; only the candidate counts votes, by its own record.

    A voter whose disk is empty is *new*: it may have been wiped, and have forgotten votes and records that it had
    promised to keep. It votes only for a candidate that is also new, and such a candidate needs the votes of all, so
    it leads only if no replica has more records; the very first leader is elected this way. What a new voter has
    fetched does not count. A voter stops being new

    - as a leader, once something of its epoch is committed;
    - when the candidate it voted for as a new voter turns out to have been elected, hence by all;
    - as a *founder*, which has voted for a candidate without any records: no replica had any then, so nothing was
      committed, and nothing that counts was forgotten. A founder only has to learn that the cluster was founded: from
      a leader, or from a replica that has records or is no longer new. Without this rule, a first leader that dies
      when only some know of it would leave a cluster that cannot elect a leader: new voters vote only for new
      candidates, and those cannot have the votes of all;
    - as a follower that has everything committed, once a majority of the other voters has shown the leader, since it
      joined, that they follow it. Then nothing that it promised before can still take effect elsewhere.

    Once the log names the voters there is nothing to found, and a new voter does not stand at all: the record that it
    knows may be an old one, which names it alone.
    """

    def __init__(
        self,
        me: ReplicaKey,
        founders: Sequence[ReplicaKey],
        log: QuorumLog,
        election: Election,
        chance: Chance,
        now_ms: int,
        timing: Timing | None = None,
        contacts: Sequence[int] = (),
    ) -> None:
        """`contacts` are nodes that may know who leads, for a replica that knows no voters yet."""
        self.me = me
        self._founders = tuple(founders)
        self._contacts = tuple(contacts)
        self.log = log
        self.voters: tuple[ReplicaKey, ...] = ()
        self._others: tuple[ReplicaKey, ...] = ()
        self.is_voter = self._was_voter = False
        self.high_watermark = -1
        """Everything below is committed; -1 while unknown."""
        self._read_voters()
        self.election = election
        self._timing = timing or Timing()
        self._chance = chance
        self._patience = Patience(self._timing, chance)
        self._outbox = Outbox()
        self.version = 0
        """Rises with every change that must survive."""
        self._durable = Durable(0)
        self._must_save = False
        self._must_sync = False
        self._durable_end = log.end_offset
        self._ends: deque[tuple[int, int]] = deque()
        self.leader_heard_ms: int | None = None
        """When another replica was last heard from as the leader."""
        self._resigned: tuple[int, int] | None = None
        """An epoch and its leader, which has announced its resignation."""
        if log.last_epoch > election.epoch:
            self._elect(log.last_epoch)
        # A replica that may have led an epoch never leads it again: a power cut may have taken records of it that
        # others have seen, and the same offset in the same epoch must always be the same record.
        led = election.leader_id == me.node_id or election.voted == me
        # A single voter has no one to wait for.
        deadline_ms = now_ms + (self._patience.for_election_ms() if self._others else 0)
        self.role: Role = Resigned(deadline_ms) if led and self.is_voter else Unattached(deadline_ms, now_ms)

    # Facts.

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def is_new(self) -> bool:
        return self.election.is_new

    @property
    def _may_stand(self) -> bool:
        if self.is_new and (self.log.voters is not None or self.election.is_restored):
            return False
        # A voter that was removed by an uncommitted record, which others may lack, is needed until it is committed:
        # the others would neither outvote nor overtake it. It counts the new voters, and not itself.
        return self.is_voter or (self._was_voter and self._is_changing)

    @property
    def leader_id(self) -> int:
        match self.role:
            case Leader():
                return self.me.node_id
            case Follower(leader_id=leader_id) | Prospective(leader_id=leader_id):
                return leader_id
            case _:
                return NO_LEADER

    @property
    def is_leader(self) -> bool:
        return isinstance(self.role, Leader)

    @property
    def check_quorum_ms(self) -> int:
        """How long this replica keeps leading without a majority."""
        return self._patience.check_quorum_ms

    def answer_ms(self, request: Request) -> int:
        """How long to wait for the response."""
        return self._patience.answer_ms(is_fetch=isinstance(request, Fetch | FetchSnapshot))

    def next_deadline_ms(self) -> int | None:
        """When `Time` must be sent at the latest."""
        match self.role:
            case Leader() as role:
                if self.voters == (self.me,) and not role.pending_fetches:
                    return None
                return min([role.begin_ms, *(pending.deadline_ms for pending in role.pending_fetches.values())])
            case Follower(deadline_ms=deadline_ms, retry_ms=retry_ms):
                return deadline_ms if retry_ms is None else min(deadline_ms, retry_ms)
            case Unattached(deadline_ms=deadline_ms, look_ms=look_ms) if not self._may_stand:
                return look_ms
            case Unattached(deadline_ms=deadline_ms, look_ms=look_ms):
                return min(deadline_ms, look_ms)
            case Prospective(deadline_ms=deadline_ms, look_ms=look_ms):
                return min(deadline_ms, look_ms)
            case Candidate(deadline_ms=deadline_ms, again_ms=again_ms):
                return min(deadline_ms, again_ms)
            case Resigned(deadline_ms=deadline_ms):
                return deadline_ms

    # Events.

    def step(self, event: Event, now_ms: int) -> Ready:
        match event:
            case Asked(request_id, request):
                match request:
                    case Vote():
                        self._on_vote(request_id, request, now_ms)
                    case BeginQuorumEpoch():
                        self._on_begin_epoch(request_id, request, now_ms)
                    case EndQuorumEpoch():
                        self._on_end_epoch(request_id, request, now_ms)
                    case Fetch():
                        self._on_fetch(request_id, request, now_ms)
                    case FetchSnapshot():
                        self._on_fetch_snapshot(request_id, request, now_ms)
                    case _:
                        assert_never(request)
            case Answered(ask, response, is_cut):
                self._on_answer(ask, response, is_cut, now_ms)
            case Hung(request_id):
                if isinstance(self.role, Leader):
                    self.role.pending_fetches.pop(request_id, None)
            case Time(late_ms):
                if isinstance(self.role, Follower):
                    self.role.deadline_ms += min(late_ms, self._timing.fetch_ms)
                self._on_time(now_ms)
            case Appended():
                assert isinstance(self.role, Leader), "only the leader appends to its log"
                self._log_changed()
                self._answer_pending(now_ms)
            case NewVoters(voters):
                self._change_voters(voters, now_ms)
            case Poll(replicas):
                self._answer_now(replicas)
            case Stop():
                if isinstance(self.role, Leader):
                    self._resign(now_ms)
            case Durable():
                self._on_durable(event, now_ms)
            case _:
                assert_never(event)
        return self._ready()

    def _ready(self) -> Ready:
        ready = Ready(self.version, self.election if self._must_save else None, self._must_sync, self._outbox.take())
        self._must_save = self._must_sync = False
        return ready

    def _on_durable(self, durable: Durable, now_ms: int) -> None:
        self._durable = durable
        while self._ends and self._ends[0][0] <= durable.version:
            self._durable_end = self._ends.popleft()[1]
        self._outbox.release(durable)
        match self.role:
            case Candidate() as role if durable.version >= role.vote_version:
                if self.is_voter:
                    role.tally.count(self.me.node_id, True)
                self._judge_candidate(now_ms)
            case Leader():
                self._advance_high_watermark(now_ms)
            case _:
                pass

    def _on_time(self, now_ms: int) -> None:
        match self.role:
            case Leader() as role:
                self._lead_on(role, now_ms)
            case Follower() as role:
                if now_ms >= role.deadline_ms:
                    self._become_prospective(role.leader_id, now_ms)
                elif role.retry_ms is not None and now_ms >= role.retry_ms:
                    self._fetch_again(role)
            case Unattached() as role:
                if self._may_stand and now_ms >= role.deadline_ms:
                    self._become_prospective(NO_LEADER, now_ms)
                elif now_ms >= role.look_ms:
                    role.look_ms = now_ms + self._timing.retry_ms
                    self._look_for_leader()
            case Prospective() as role:
                if now_ms >= role.deadline_ms:
                    self._go_on_pre_vote(role, now_ms)
                elif now_ms >= role.look_ms:
                    role.look_ms = now_ms + self._timing.retry_ms
                    self._look_for_leader()
            case Candidate() as role:
                if now_ms >= role.deadline_ms:
                    self._patience.on_silence()
                    self._become_prospective(NO_LEADER, now_ms)
                elif now_ms >= role.again_ms:
                    role.again_ms = now_ms + self._timing.election_ms
                    self._call_for_votes(role.tally, pre_vote=False)
            case Resigned() as role:
                if now_ms >= role.deadline_ms:
                    self._become_prospective(NO_LEADER, now_ms)
            case _:
                assert_never(self.role)

    # Durable state.

    def _elect(self, epoch: int, leader_id: int = NO_LEADER, voted: ReplicaKey | None = None) -> None:
        self._remember(replace(self.election, epoch=epoch, leader_id=leader_id, voted=voted))

    def _vote_for(self, candidate: ReplicaKey, epoch: int, end_offset: int) -> None:
        """`end_offset` is the candidate's."""
        is_founder = self.election.is_founder or (self.is_new and end_offset == 0)
        self._remember(
            replace(self.election, epoch=epoch, leader_id=NO_LEADER, voted=candidate, is_founder=is_founder)
        )

    def _settle_in(self) -> None:
        """What this voter may have forgotten no longer matters."""
        self._remember(replace(self.election, is_new=False, is_founder=False, is_restored=False))

    def _remember(self, election: Election) -> None:
        if election != self.election:
            assert election.epoch >= self.election.epoch, "epochs never decrease"
            if election.epoch > self.election.epoch:
                self._patience.on_epoch()
            self.election = election
            self.version += 1
            self._must_save = True

    def _log_changed(self) -> None:
        self._read_voters()
        self.version += 1
        self._must_sync = True
        self._ends.append((self.version, self.log.end_offset))

    def _promise(self, message: Ask | Reply) -> None:
        self._outbox.promise(message, self.version, self._durable)

    def _reply(self, request_id: int, response: Response) -> None:
        """A reply carries our epoch, so it waits until that is durable."""
        self._promise(Reply(request_id, response))

    # Changing roles.

    def _enter(self, role: Role, now_ms: int) -> None:
        left, self.role = self.role, role
        if isinstance(left, Leader):
            for pending in left.pending_fetches.values():
                self._reply(pending.request_id, self._refuse_fetch(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        if isinstance(role, Leader | Follower):
            self._patience.on_leader()

    def _become_unattached(self, epoch: int, now_ms: int) -> None:
        """A higher epoch is known and its leader is not. The remaining timeout is kept."""
        match self.role:
            case Unattached(deadline_ms=deadline_ms) | Resigned(deadline_ms=deadline_ms):
                pass
            case Follower(deadline_ms=deadline_ms) | Prospective(deadline_ms=deadline_ms):
                pass
            case _:
                deadline_ms = now_ms + self._patience.for_election_ms()
        self._elect(epoch)
        self._enter(Unattached(deadline_ms, now_ms + self._timing.retry_ms), now_ms)

    def _become_follower(self, epoch: int, leader_id: int, now_ms: int) -> None:
        voted = self.election.voted if epoch == self.election.epoch else None
        self._elect(epoch, leader_id, voted)
        if self.election.is_founder or (voted is not None and voted.node_id == leader_id):
            # A new voter's vote goes only to a candidate that needs all votes: no voter knew better.
            self._settle_in()
        role = Follower(leader_id, now_ms + self._patience.with_leader_ms())
        self._enter(role, now_ms)
        self._fetch_again(role)

    def _become_prospective(self, leader_id: int, now_ms: int) -> None:
        if not self._may_stand:
            self._enter(Unattached(now_ms, now_ms), now_ms)
            return
        tally = Tally(len(self.voters), needs_all=self.is_new)
        if self.is_voter:
            tally.count(self.me.node_id, True)
        deadline_ms = now_ms + self._patience.for_pre_vote_ms()
        self._enter(Prospective(leader_id, tally, deadline_ms, now_ms + self._timing.retry_ms), now_ms)
        if tally.is_won:
            self._become_candidate(now_ms)
        else:
            self._call_for_votes(tally, pre_vote=True)

    def _become_candidate(self, now_ms: int) -> None:
        self._vote_for(self.me, self.epoch + 1, self.log.end_offset)
        tally = Tally(len(self.voters), needs_all=self.is_new)
        deadline_ms = now_ms + self._patience.for_election_ms()
        again_ms = now_ms + 2 * self._timing.election_ms
        self._enter(Candidate(tally, self.version, deadline_ms, again_ms), now_ms)
        self._call_for_votes(tally, pre_vote=False)

    def _become_leader(self, role: Candidate, now_ms: int) -> None:
        epoch_start = self.log.end_offset
        if not self.log.append_leader_change(self.epoch, self.me.node_id):
            # With a full disk it could not lead: another replica may have space.
            role.deadline_ms = min(role.deadline_ms, now_ms + self._patience.backoff_ms())
            return
        # Not saved separately: the vote for itself is enough after a restart, and that is saved.
        self.election = replace(self.election, leader_id=self.me.node_id)
        self._enter(Leader(epoch_start, now_ms, now_ms + self._timing.fetch_ms // 2), now_ms)
        self._log_changed()
        for voter in self._others:
            self._call_voter(voter)

    def _resign(self, now_ms: int) -> None:
        role = self.role
        assert isinstance(role, Leader)
        successors = sorted(self._others, key=lambda each: -self._progress(role, each).end_offset)
        for voter in self._others:
            self._outbox.send(Ask(voter.node_id, EndQuorumEpoch(self.epoch, self.me.node_id, tuple(successors))))
        self._enter(Resigned(now_ms + self._patience.for_election_ms()), now_ms)

    def _learn(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Apply an epoch and its leader as another replica reports them."""
        if epoch > self.epoch:
            # They may remember us as a leader while we have forgotten it; that epoch is over for us.
            if leader_id in (NO_LEADER, self.me.node_id):
                self._become_unattached(epoch, now_ms)
            else:
                self._become_follower(epoch, leader_id, now_ms)
        elif epoch == self.epoch and leader_id not in (NO_LEADER, self.me.node_id, self.leader_id):
            if (epoch, leader_id) == self._resigned:
                # The sender does not know of the resignation yet: following again would wait for a dead leader.
                return
            if self._contradicts(epoch, leader_id):
                raise QuorumBroken(f"epoch {epoch} has two leaders: {self.leader_id} and {leader_id}")
            self._become_follower(epoch, leader_id, now_ms)

    def _contradicts(self, epoch: int, leader_id: int) -> bool:
        """Whether a different leader of this epoch is known."""
        if epoch != self.epoch or leader_id in (NO_LEADER, self.me.node_id, self.leader_id):
            return False
        if (epoch, leader_id) == self._resigned:
            return False
        return isinstance(self.role, Leader) or self.leader_id != NO_LEADER

    # Elections: requesting votes.

    def _call_for_votes(self, tally: Tally, *, pre_vote: bool) -> None:
        """From those who have not answered."""
        for voter in self._others:
            if voter.node_id in tally.granted or voter.node_id in tally.refused:
                continue
            vote = Vote(self.epoch, self.me, voter, self.log.last_epoch, self.log.end_offset, pre_vote, self.is_new)
            if pre_vote:
                self._outbox.send(Ask(voter.node_id, vote))
            else:
                self._promise(Ask(voter.node_id, vote))

    def _on_vote_answer(self, ask: Ask, vote: Vote, response: VoteResponse, now_ms: int) -> None:
        # The response does not say which kind of vote it is for: it counts only in the role that asked.
        if vote.epoch != self.epoch or response.epoch > self.epoch:
            return
        role = self.role
        if vote.pre_vote and isinstance(role, Prospective):
            role.tally.count(ask.node_id, response.granted)
            if role.tally.is_won:
                self._become_candidate(now_ms)
            elif role.tally.is_lost:
                self._end_pre_vote(role, now_ms)
        elif not vote.pre_vote and isinstance(role, Candidate):
            role.tally.count(ask.node_id, response.granted)
            self._judge_candidate(now_ms)
            if not response.granted and self.role is role:
                # Usually a rival. A voter that has not answered by now may be gone: another round is quicker.
                role.deadline_ms = min(role.deadline_ms, now_ms + self._patience.backoff_ms())

    def _judge_candidate(self, now_ms: int) -> None:
        role = self.role
        assert isinstance(role, Candidate)
        if role.tally.is_won:
            self._become_leader(role, now_ms)

    def _go_on_pre_vote(self, role: Prospective, now_ms: int) -> None:
        """Too few have answered. They may be slow: for a while late responses still count."""
        self._patience.on_silence()
        role.rounds += 1
        role.tally.needs_all = self.is_new
        role.tally.refused.clear()
        if role.rounds % ROUNDS_COUNTED == 0:
            role.tally.granted &= {self.me.node_id}
        role.deadline_ms = now_ms + self._patience.for_pre_vote_ms()
        self._call_for_votes(role.tally, pre_vote=True)

    def _end_pre_vote(self, role: Prospective, now_ms: int) -> None:
        """Not now. The leader may still be there; else wait for another candidate, and try again."""
        if role.leader_id != NO_LEADER:
            self._become_follower(self.epoch, role.leader_id, now_ms)
        else:
            self._enter(Unattached(now_ms + self._patience.backoff_ms(), now_ms), now_ms)

    # Elections: answering.

    def _on_vote(self, request_id: int, vote: Vote, now_ms: int) -> None:
        error = self._vote_fault(vote)
        if error is not ErrorCode.NONE:
            self._reply(request_id, VoteResponse(error, self.epoch, self.leader_id))
            return
        if self.election.is_founder and (vote.end_offset > 0 or not vote.is_new):
            # There was a leader, and the first one was elected by all: with this voter's current vote.
            self._settle_in()
        if vote.epoch > self.epoch:
            self._become_unattached(vote.epoch, now_ms)
        granted = self._grants(vote, now_ms)
        if granted and not vote.pre_vote:
            self._vote_for(vote.candidate, self.epoch, vote.end_offset)
            self._enter(Unattached(now_ms + self._patience.for_election_ms(), now_ms + self._timing.retry_ms), now_ms)
        self._reply(request_id, VoteResponse(ErrorCode.NONE, self.epoch, self.leader_id, granted))

    def _vote_fault(self, vote: Vote) -> ErrorCode:
        if vote.voter != self.me:
            return ErrorCode.INVALID_VOTER_KEY
        if any(each.node_id == vote.candidate.node_id and each != vote.candidate for each in self.voters):
            return ErrorCode.INCONSISTENT_VOTER_SET
        if vote.last_epoch > vote.epoch or (vote.last_epoch == vote.epoch and not vote.pre_vote):
            return ErrorCode.INVALID_REQUEST
        # The response carries the epoch, so that an outdated candidate catches up even with a pre-vote.
        return ErrorCode.FENCED_LEADER_EPOCH if vote.epoch < self.epoch else ErrorCode.NONE

    def _grants(self, vote: Vote, now_ms: int) -> bool:
        if (vote.last_epoch, vote.end_offset) < (self.log.last_epoch, self.log.end_offset):
            return False
        if self.is_new and (not vote.is_new or self.log.voters is not None or self.election.is_restored):
            return False
        if vote.pre_vote and self._founds_before(vote):
            return False
        match self.role:
            case Leader():
                return False
            case Follower(heard_ms=heard_ms, cuts=cuts):
                # A leader that refuses connections was heard from recently, and is gone.
                in_doubt = cuts > 1 or heard_ms is None or now_ms - heard_ms >= self._patience.doubt_ms
                return vote.pre_vote and in_doubt
            case Candidate() | Resigned():
                return vote.pre_vote
            case Unattached() | Prospective():
                return vote.pre_vote or self.election.voted in (None, vote.candidate)
            case _:
                assert_never(self.role)

    def _founds_before(self, vote: Vote) -> bool:
        """A cluster is founded by all: of two simultaneous candidates neither can win unless the lesser gives way."""
        if not self.is_new or not isinstance(self.role, Prospective | Candidate):
            return False
        mine = (self.log.last_epoch, self.log.end_offset, -self.me.node_id)
        return mine > (vote.last_epoch, vote.end_offset, -vote.candidate.node_id)

    def _on_begin_epoch(self, request_id: int, begin: BeginQuorumEpoch, now_ms: int) -> None:
        if begin.voter != self.me:
            error = ErrorCode.INVALID_VOTER_KEY
        elif begin.epoch < self.epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        elif self._contradicts(begin.epoch, begin.leader_id):
            # Anyone can claim that. The response of a leader that we asked is different.
            error = ErrorCode.INVALID_REQUEST
        else:
            error = ErrorCode.NONE
            self._learn(begin.epoch, begin.leader_id, now_ms)
        self._reply(request_id, EpochResponse(error, self.epoch, self.leader_id))

    def _on_end_epoch(self, request_id: int, end: EndQuorumEpoch, now_ms: int) -> None:
        if end.epoch < self.epoch:
            self._reply(request_id, EpochResponse(ErrorCode.FENCED_LEADER_EPOCH, self.epoch, self.leader_id))
            return
        if end.epoch > self.epoch:
            self._become_unattached(end.epoch, now_ms)
        self._resigned = (end.epoch, end.leader_id)
        if self.is_voter and isinstance(self.role, Follower | Unattached | Prospective):
            wait_ms = self._successor_wait_ms(end.successors)
            self._enter(Unattached(now_ms + wait_ms, now_ms + self._timing.retry_ms), now_ms)
        self._reply(request_id, EpochResponse(ErrorCode.NONE, self.epoch, self.leader_id))

    def _successor_wait_ms(self, successors: tuple[ReplicaKey, ...]) -> int:
        """The first stands at once, the next ones later, so that they do not compete."""
        if self.me not in successors:
            return self._patience.for_election_ms()
        rank = successors.index(self.me)
        if rank == 0:
            return 0
        return min(self._timing.backoff_ms_max, (self._timing.backoff_ms_max >> (len(successors) - 1)) << (rank - 1))

    # Leading.

    def _lead_on(self, role: Leader, now_ms: int) -> None:
        if self._has_lost_quorum(role, now_ms) or self._is_dismissed:
            self._resign(now_ms)
            return
        if self.high_watermark > role.epoch_start:
            self._patience.on_heard(now_ms)
        for pending in [each for each in role.pending_fetches.values() if now_ms >= each.deadline_ms]:
            del role.pending_fetches[pending.request_id]
            self._send_records(pending.request_id, pending.fetch)
        if now_ms >= role.begin_ms:
            interval_ms = self._timing.fetch_ms // 2
            role.begin_ms = now_ms + interval_ms
            for voter in self._others:
                fetched_ms = self._progress(role, voter).fetched_ms
                if fetched_ms is None or now_ms - fetched_ms > interval_ms:
                    self._call_voter(voter)

    def _call_voter(self, voter: ReplicaKey) -> None:
        self._promise(Ask(voter.node_id, BeginQuorumEpoch(self.epoch, self.me.node_id, voter)))

    def _has_lost_quorum(self, role: Leader, now_ms: int) -> bool:
        """Without a majority that fetches, another may lead already: a leader that cannot commit should resign."""
        recent_count = int(self.is_voter)
        for voter in self._others:
            recent_count += self._is_heard(role, voter, now_ms)
        return recent_count <= len(self.voters) // 2

    # Voters.

    def _read_voters(self) -> None:
        """Update the voters after the log has changed."""
        named = self.log.voters
        voters = self._founders if named is None else tuple(self.key_of(each.node_id) for each in named)
        if voters != self.voters:
            self.voters = voters
            self._others = tuple(voter for voter in voters if voter != self.me)
            self.is_voter = self.me in voters
        before = self.log.voters_before
        self._was_voter = self.me in self._founders if before is None else self._is_named(before)

    def _is_stranger(self, replica: ReplicaKey) -> bool:
        """Whether the replica has the node id of a voter, but another directory."""
        return replica not in self.voters and any(each.node_id == replica.node_id for each in self.voters)

    def _is_named(self, voters: tuple[Voter, ...]) -> bool:
        return any(each.node_id == self.me.node_id for each in voters)

    def key_of(self, node_id: int) -> ReplicaKey:
        return ReplicaKey(node_id, self.me.directory_id)

    def objection(self, voters: Sequence[Voter], now_ms: int) -> str | None:
        """Why the voters cannot be changed to these now; None if they can."""
        role = self.role
        if not isinstance(role, Leader):
            return "this node is not the metadata leader"
        node_ids = {each.node_id for each in self.voters}
        return (
            self._change_in_doubt(role)
            or fault_of_change(node_ids, {each.node_id for each in voters})
            or next((self._not_ready(role, each, now_ms) for each in voters if each.node_id not in node_ids), None)
            or self._too_few(role, voters, now_ms)
        )

    def _change_in_doubt(self, role: Leader) -> str | None:
        # An earlier leader's change may be committed by others: until something of this epoch is committed, two
        # changes of the same voters could have majorities that do not overlap.
        if self.high_watermark <= role.epoch_start:
            return "this leader has committed nothing yet"
        return "the last change of voters is not committed yet" if self._is_changing else None

    @property
    def _is_changing(self) -> bool:
        return self.log.voters_offset >= self.high_watermark

    @property
    def _is_dismissed(self) -> bool:
        """Whether this leader has been removed from the voters for good."""
        return not self.is_voter and not self._is_changing

    def _not_ready(self, role: Leader, voter: Voter, now_ms: int) -> str | None:
        progress = self._progress(role, self.key_of(voter.node_id))
        if progress.caught_up_ms is None or now_ms - progress.caught_up_ms > self._timing.fetch_ms:
            return f"node {voter.node_id} has not caught up with the metadata"
        return f"node {voter.node_id} has just started" if progress.is_new else None

    def _too_few(self, role: Leader, voters: Sequence[Voter], now_ms: int) -> str | None:
        """A change that cannot be committed would still be in force, and could not be reverted."""
        keys = [self.key_of(each.node_id) for each in voters]
        # A replica that has not fetched at all may be a new one, which does not vote.
        come = [each for each in keys if self._progress(role, each).fetched_ms is not None]
        there = [each for each in keys if each == self.me or (each in come and self._is_heard(role, each, now_ms))]
        return None if len(there) > len(keys) // 2 else "too few of the new voters are up"

    def _is_heard(self, role: Leader, replica: ReplicaKey, now_ms: int) -> bool:
        progress = self._progress(role, replica)
        since_ms = role.elected_ms if progress.fetched_ms is None else progress.fetched_ms
        return now_ms - since_ms <= self.check_quorum_ms and not progress.is_new

    def _change_voters(self, voters: tuple[Voter, ...], now_ms: int) -> None:
        assert self.objection(voters, now_ms) is None, "asked without need"
        before = self._others
        if self.log.append_voters(self.epoch, voters):
            self._log_changed()
            self._answer_pending(now_ms)
            for voter in self._others:
                if voter not in before:
                    self._call_voter(voter)

    def _progress(self, role: Leader, replica: ReplicaKey) -> ReplicaProgress:
        progress = role.progress.get(replica)
        if progress is None:
            progress = ReplicaProgress()
            # Anyone can claim to be an observer; only a limited number is remembered.
            if replica in self.voters or len(role.progress) < OBSERVERS_MAX:
                role.progress[replica] = progress
        return progress

    def forget_progress(self, replica: ReplicaKey) -> None:
        """Forget a replica's progress, because another process is that replica now."""
        if isinstance(self.role, Leader):
            self.role.progress.pop(replica, None)

    def _advance_high_watermark(self, now_ms: int) -> None:
        role = self.role
        assert isinstance(role, Leader)
        ends = sorted(
            self._durable_end if voter == self.me else self._progress(role, voter).end_offset for voter in self.voters
        )
        # The offset that a majority has: enough voters are at or beyond it.
        offset = ends[(len(ends) - 1) // 2]
        # Records of earlier epochs are committed only together with one of this epoch: a majority that has them does
        # not prevent the election of a replica with a later epoch that lacks them.
        if offset > role.epoch_start and offset > self.high_watermark:
            self.high_watermark = offset
            self._settle_in()
            self._answer_pending(now_ms)
            if self._is_dismissed:
                # Not in this step: its owner must learn first that the change is committed.
                role.begin_ms = now_ms

    def _on_fetch(self, request_id: int, fetch: Fetch, now_ms: int) -> None:
        role = self.role
        error = self._fetch_fault(fetch.epoch)
        if error is not ErrorCode.NONE:
            self._reply(request_id, self._refuse_fetch(error))
            return
        assert isinstance(role, Leader)
        progress = self._progress(role, fetch.replica)
        if fetch.is_new and not progress.is_new:
            progress.end_offset, progress.new_since_ms = -1, now_ms
        progress.is_new = fetch.is_new
        progress.fetched_before_ms, progress.fetched_ms = progress.fetched_ms, now_ms
        progress.high_watermark = fetch.high_watermark
        snapshot = self._snapshot_for(fetch)
        if snapshot is not None:
            self._reply(request_id, FetchResponse(ErrorCode.NONE, self.epoch, self.me.node_id, snapshot=snapshot))
            return
        diverging = self._divergence(fetch)
        if diverging is not None:
            self._reply(request_id, FetchResponse(ErrorCode.NONE, self.epoch, self.me.node_id, diverging=diverging))
            return
        if not fetch.is_new:
            progress.end_offset = max(progress.end_offset, fetch.offset)
        if fetch.offset == self.log.end_offset:
            progress.caught_up_ms = now_ms
        self._advance_high_watermark(now_ms)
        if self._has_news(fetch) or fetch.wait_ms <= 0:
            self._send_records(request_id, fetch)
        else:
            role.pending_fetches[request_id] = PendingFetch(request_id, fetch, now_ms + fetch.wait_ms)

    def _fetch_fault(self, epoch: int) -> ErrorCode:
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if isinstance(self.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _refuse_fetch(self, error: ErrorCode) -> FetchResponse:
        return FetchResponse(error, self.epoch, self.leader_id)

    def _snapshot_for(self, fetch: Fetch) -> SnapshotId | None:
        """The snapshot to start with, for a replica whose log cannot be continued from ours."""
        snapshot = self.log.latest_snapshot
        if snapshot is None:
            return None
        if fetch.offset < self.log.start_offset or (fetch.offset == 0 and self.log.start_offset > 0):
            return snapshot
        if fetch.offset > 0 and self.log.end_of(fetch.last_epoch) is None:
            return snapshot
        return None

    def _divergence(self, fetch: Fetch) -> EpochEnd | None:
        if fetch.offset == 0 or fetch.offset == self.log.start_offset == self.log.end_offset:
            return None
        mine = self.log.end_of(fetch.last_epoch)
        if mine is None:
            return EpochEnd(0, self.log.start_offset)
        if mine.epoch != fetch.last_epoch or mine.end_offset < fetch.offset:
            return mine
        return None

    def _has_news(self, fetch: Fetch) -> bool:
        return fetch.offset < self.log.end_offset or fetch.high_watermark < self.high_watermark

    def _send_records(self, request_id: int, fetch: Fetch) -> None:
        response = FetchResponse(
            ErrorCode.NONE,
            self.epoch,
            self.me.node_id,
            self.high_watermark,
            records=self.log.read(fetch.offset) or None,
            is_confirmed=fetch.is_new and self._is_confirmed_to(fetch.replica),
        )
        self._outbox.send(Reply(request_id, response))

    def _is_confirmed_to(self, replica: ReplicaKey) -> bool:
        """Whether a majority without the new voter has fetched, received a response and fetched again since it
        joined."""
        role = self.role
        assert isinstance(role, Leader)
        if self._is_stranger(replica) or self._is_changing:
            # A process with a voter's id and another directory stays new until a committed record gives the voter
            # that directory: then the process with the previous directory no longer counts.
            return False
        since_ms = self._progress(role, replica).new_since_ms
        others = [self._progress(role, voter) for voter in self._others]
        confirming = sum(
            not each.is_new and each.fetched_before_ms is not None and each.fetched_before_ms > since_ms
            for each in others
        )
        return self.is_voter + confirming > len(self.voters) // 2 and self.high_watermark > role.epoch_start

    def _answer_pending(self, now_ms: int) -> None:
        role = self.role
        assert isinstance(role, Leader)
        for pending in [each for each in role.pending_fetches.values() if self._has_news(each.fetch)]:
            del role.pending_fetches[pending.request_id]
            self._send_records(pending.request_id, pending.fetch)

    def _answer_now(self, replicas: Container[ReplicaKey]) -> None:
        """Answer the pending fetches of these replicas, even without news."""
        if isinstance(self.role, Leader):
            for pending in [each for each in self.role.pending_fetches.values() if each.fetch.replica in replicas]:
                del self.role.pending_fetches[pending.request_id]
                self._send_records(pending.request_id, pending.fetch)

    def _on_fetch_snapshot(self, request_id: int, fetch: FetchSnapshot, now_ms: int) -> None:
        role = self.role
        error = self._fetch_fault(fetch.epoch)
        size = self.log.snapshot_size(fetch.snapshot) if error is ErrorCode.NONE else None
        if error is ErrorCode.NONE and size is None:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        if error is ErrorCode.NONE and not 0 <= fetch.position < (size or 0):
            error = ErrorCode.POSITION_OUT_OF_RANGE
        if isinstance(role, Leader) and error is not ErrorCode.FENCED_LEADER_EPOCH:
            self._progress(role, fetch.replica).fetched_ms = now_ms
        if error is not ErrorCode.NONE:
            self._reply(request_id, FetchSnapshotResponse(error, self.epoch, self.leader_id))
            return
        data = self.log.read_snapshot(fetch.snapshot, fetch.position)
        response = FetchSnapshotResponse(ErrorCode.NONE, self.epoch, self.me.node_id, size or 0, fetch.position, data)
        self._reply(request_id, response)

    # Following.

    def _fetch_again(self, role: Follower, wait_ms: int | None = None) -> None:
        role.retry_ms = None
        if role.download is not None:
            role.asked = FetchSnapshot(self.epoch, self.me, role.download.snapshot, len(role.download.data))
        else:
            role.asked = self._fetch(self._timing.fetch_wait_ms if wait_ms is None else wait_ms)
        self._promise(Ask(role.leader_id, role.asked))

    def _fetch(self, wait_ms: int) -> Fetch:
        return Fetch(
            self.epoch,
            self.me,
            self.log.end_offset,
            self.log.last_epoch,
            self.high_watermark,
            wait_ms,
            self.is_new,
        )

    def _look_for_leader(self) -> None:
        """Any replica that is asked for a fetch names the leader."""
        if self._others:
            voter = self._others[self._chance.below(len(self._others))]
            self._promise(Ask(voter.node_id, self._fetch(0)))
        elif self._contacts:
            node_id = self._contacts[self._chance.below(len(self._contacts))]
            self._promise(Ask(node_id, self._fetch(0)))

    def _on_answer(self, ask: Ask, response: Response | None, is_cut: bool, now_ms: int) -> None:
        if response is not None:
            self._learn(response.epoch, response.leader_id, now_ms)
        match ask.request, response:
            case Vote() as vote, VoteResponse():
                self._on_vote_answer(ask, vote, response, now_ms)
            case (Fetch() | FetchSnapshot()) as request, _:
                role = self.role
                if isinstance(role, Prospective) and ask.node_id == role.leader_id and response is not None:
                    if response.error is ErrorCode.NONE and request.epoch == self.epoch:
                        # It was late, and still leads.
                        self._become_follower(self.epoch, role.leader_id, now_ms)
                    return
                # A response counts only if nothing has changed since the request.
                if not isinstance(role, Follower) or request is not role.asked:
                    return
                role.asked = None
                if is_cut:
                    self._on_cut(role, now_ms)
                elif response is None or response.error is not ErrorCode.NONE:
                    self._on_failed_fetch(role, response, now_ms)
                elif isinstance(response, FetchResponse):
                    self._on_fetched(role, response, now_ms)
                elif isinstance(response, FetchSnapshotResponse):
                    self._on_snapshot_bytes(role, response, now_ms)
            case _:
                pass

    def _on_cut(self, role: Follower, now_ms: int) -> None:
        """The leader's process may be gone. A live one accepts a new connection and answers at once."""
        role.cuts += 1
        if role.cuts == 1:
            self._fetch_again(role, wait_ms=0)
        else:
            role.retry_ms = now_ms + self._timing.retry_ms
            role.deadline_ms = min(role.deadline_ms, now_ms + self._chance.below(self._timing.cut_ms))

    def _on_failed_fetch(self, role: Follower, response: Response | None, now_ms: int) -> None:
        if response is not None and response.error in (
            ErrorCode.SNAPSHOT_NOT_FOUND,
            ErrorCode.POSITION_OUT_OF_RANGE,
        ):
            role.download = None
        role.retry_ms = now_ms + self._timing.retry_ms
        if (
            isinstance(response, FetchResponse)
            and response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            and (response.epoch, response.leader_id) == (self.epoch, NO_LEADER)
        ):
            # It led this epoch and never will again. Its proposal of successors may be lost or in flight.
            self._resigned = (self.epoch, role.leader_id)
            deadline_ms = now_ms + self._chance.below(self._timing.cut_ms)
            self._enter(Unattached(deadline_ms, now_ms + self._timing.retry_ms), now_ms)

    def _on_fetched(self, role: Follower, response: FetchResponse, now_ms: int) -> None:
        self._hear_leader(role, now_ms)
        if response.snapshot is not None:
            role.download = Download(response.snapshot)
        elif response.diverging is not None:
            self._truncate(response.diverging)
        else:
            if response.records is not None:
                if not self.log.append_fetched(response.records):
                    role.retry_ms = now_ms + self._timing.retry_ms
                    return
                self._log_changed()
            self._follow_high_watermark(response.high_watermark)
            if response.is_confirmed and self.high_watermark >= response.high_watermark:
                self._settle_in()
        self._fetch_again(role)

    def _hear_leader(self, role: Follower, now_ms: int) -> None:
        role.deadline_ms = now_ms + self._patience.with_leader_ms()
        role.heard_ms = self.leader_heard_ms = now_ms
        role.cuts = 0
        self._patience.on_heard(now_ms)

    def _follow_high_watermark(self, leaders: int) -> None:
        self.high_watermark = max(self.high_watermark, min(leaders, self.log.end_offset))

    def _truncate(self, diverging: EpochEnd) -> None:
        mine = self.log.end_of(diverging.epoch)
        if mine is None:
            offset = self.log.start_offset
        elif mine.epoch == diverging.epoch:
            offset = min(mine.end_offset, diverging.end_offset)
        else:
            offset = mine.end_offset
        if offset < self.high_watermark:
            raise QuorumBroken(
                f"the leader requests truncation to offset {offset}, but the high watermark is {self.high_watermark}"
            )
        self.log.truncate_to(offset)
        self._log_changed()

    def _on_snapshot_bytes(self, role: Follower, response: FetchSnapshotResponse, now_ms: int) -> None:
        download = role.download
        assert download is not None
        self._hear_leader(role, now_ms)
        download.data += response.data
        if len(download.data) >= response.size:
            role.download = None
            if not self.log.install_snapshot(download.snapshot, bytes(download.data)):
                role.retry_ms = now_ms + self._timing.retry_ms
                return
            self.high_watermark = max(self.high_watermark, download.snapshot.end_offset)
            self._log_changed()
        self._fetch_again(role)
