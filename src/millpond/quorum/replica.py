"""One replica of the metadata quorum: an event and the time go in; what to persist and what to send come out.

The log is read and written here, as seen by everyone on this node at once. That it survives is another matter: each
change of the log or of the election raises `version`, and what promises something (a vote, a fetch whose offset is an
acknowledgement) waits in the outbox until the disk has reported that version as durable.
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
    ParkedFetch,
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
"""For so many calls in a row an answer to any of them counts."""


class QuorumBroken(Exception):
    """What is committed would change. The replica must stop at once: going on would spread it."""


class Replica:
    """A voter, or an observer when `me` is none of the `voters`.

    The voters are the founders, until a record of the log says otherwise: the last one counts from the moment that it
    is written, committed or not, and one that is cut off again counts no more (`quorum/voters.py` has the rules). So
    two replicas may disagree on who votes. A vote is given to whoever asks, by observers, too, because the one that
    asks may know the later record; only the candidate counts, by its own.

    A voter whose disk is empty is *new*: it may have been wiped, and have forgotten votes and records that it had
    promised to keep. It votes only for a candidate that is new, too, and such a one needs the votes of all, so it
    leads only where nobody has more than it; the very first leader is elected so. What a new voter has fetched does
    not count. It is new no more

    - as a leader, once something of its epoch is committed;
    - when the one it voted for as a new voter turns out to have been elected, hence by all;
    - as a *founder*, which has voted for a candidate without any records: nobody had any then, so nothing was
      committed, and nothing was forgotten that counts. A founder needs only to hear that the cluster was founded: of
      a leader, or from one that has records or is new no more. Without it a first leader that dies when only some
      know of it would leave a cluster where nobody can be elected: who is new votes for new ones alone, and those
      cannot have the votes of all;
    - as a follower that has all that is committed, once a majority of the other voters has shown to the leader, since
      it came, that it follows it. Then nothing that it promised in its earlier life can still come true elsewhere.

    Once the log names the voters there is nothing to found, and a new one does not stand at all: the record that it
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
        """When another replica was last heard as the leader."""
        self._resigned: tuple[int, int] | None = None
        """An epoch and its leader, which has said itself that it leads no more."""
        if log.last_epoch > election.epoch:
            self._elect(log.last_epoch)
        # Whoever may have led an epoch never leads it again: a power cut may have taken records of it that others
        # have seen, and the same offset in the same epoch must always be the same record.
        led = election.leader_id == me.node_id or election.voted == me
        # A voter on its own has nobody to wait for.
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
        # Whoever was removed by a record that may not be committed, and that nobody else may have, is needed until it
        # is: the others would neither outvote nor outrun it. It counts the new voters, and not itself.
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
        """How long this replica leads on without a majority."""
        return self._patience.check_quorum_ms

    def answer_ms(self, request: Request) -> int:
        """How long to wait for the answer."""
        return self._patience.answer_ms(is_fetch=isinstance(request, Fetch | FetchSnapshot))

    def next_deadline_ms(self) -> int | None:
        """When `Time` should come at the latest."""
        match self.role:
            case Leader() as role:
                if self.voters == (self.me,) and not role.parked:
                    return None
                return min([role.begin_ms, *(parked.deadline_ms for parked in role.parked.values())])
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
                    self.role.parked.pop(request_id, None)
            case Time(late_ms):
                if isinstance(self.role, Follower):
                    self.role.deadline_ms += min(late_ms, self._timing.fetch_ms)
                self._on_time(now_ms)
            case Appended():
                assert isinstance(self.role, Leader), "only a leader's log is written to"
                self._log_changed()
                self._answer_parked(now_ms)
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

    # What is remembered.

    def _elect(self, epoch: int, leader_id: int = NO_LEADER, voted: ReplicaKey | None = None) -> None:
        self._remember(replace(self.election, epoch=epoch, leader_id=leader_id, voted=voted))

    def _vote_for(self, candidate: ReplicaKey, epoch: int, end_offset: int) -> None:
        """`end_offset` is the candidate's."""
        is_founder = self.election.is_founder or (self.is_new and end_offset == 0)
        self._remember(
            replace(self.election, epoch=epoch, leader_id=NO_LEADER, voted=candidate, is_founder=is_founder)
        )

    def _settle_in(self) -> None:
        """What this voter may have forgotten is of no account any more."""
        self._remember(replace(self.election, is_new=False, is_founder=False, is_restored=False))

    def _remember(self, election: Election) -> None:
        if election != self.election:
            assert election.epoch >= self.election.epoch, "an epoch never falls"
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
        """A reply names our epoch, so it waits until that is durable."""
        self._promise(Reply(request_id, response))

    # Changing roles.

    def _enter(self, role: Role, now_ms: int) -> None:
        left, self.role = self.role, role
        if isinstance(left, Leader):
            for parked in left.parked.values():
                self._reply(parked.request_id, self._refuse_fetch(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        if isinstance(role, Leader | Follower):
            self._patience.on_leader()

    def _become_unattached(self, epoch: int, now_ms: int) -> None:
        """A higher epoch is known and its leader is not. What is left of the patience stays as it is."""
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
            # A new voter's vote goes to nobody but one who needs all of them: nobody knew better.
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
            # Without room on its disk it would lead nothing: another may have some.
            role.deadline_ms = min(role.deadline_ms, now_ms + self._patience.backoff_ms())
            return
        # Not saved by itself: a vote for itself says all that matters after a restart, and there is one.
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
        """Somebody says that this is the epoch, and who leads it."""
        if epoch > self.epoch:
            # They may remember us as a leader that we have forgotten to be; that epoch is over for us.
            if leader_id in (NO_LEADER, self.me.node_id):
                self._become_unattached(epoch, now_ms)
            else:
                self._become_follower(epoch, leader_id, now_ms)
        elif epoch == self.epoch and leader_id not in (NO_LEADER, self.me.node_id, self.leader_id):
            if (epoch, leader_id) == self._resigned:
                # Whoever says so has not heard of it yet: following it again would take the time of a dead leader.
                return
            if self._contradicts(epoch, leader_id):
                raise QuorumBroken(f"epoch {epoch} has two leaders: {self.leader_id} and {leader_id}")
            self._become_follower(epoch, leader_id, now_ms)

    def _contradicts(self, epoch: int, leader_id: int) -> bool:
        """Whether another one is known to lead this epoch than the one that is said to."""
        if epoch != self.epoch or leader_id in (NO_LEADER, self.me.node_id, self.leader_id):
            return False
        if (epoch, leader_id) == self._resigned:
            return False
        return isinstance(self.role, Leader) or self.leader_id != NO_LEADER

    # Elections: asking.

    def _call_for_votes(self, tally: Tally, *, pre_vote: bool) -> None:
        """Of those who have not answered."""
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
                # A rival, most often. Whoever has not answered by now may be gone: another round is quicker.
                role.deadline_ms = min(role.deadline_ms, now_ms + self._patience.backoff_ms())

    def _judge_candidate(self, now_ms: int) -> None:
        role = self.role
        assert isinstance(role, Candidate)
        if role.tally.is_won:
            self._become_leader(role, now_ms)

    def _go_on_pre_vote(self, role: Prospective, now_ms: int) -> None:
        """Too few have answered. They may be slow: for a while what comes late still counts."""
        self._patience.on_silence()
        role.rounds += 1
        role.tally.needs_all = self.is_new
        role.tally.refused.clear()
        if role.rounds % ROUNDS_COUNTED == 0:
            role.tally.granted &= {self.me.node_id}
        role.deadline_ms = now_ms + self._patience.for_pre_vote_ms()
        self._call_for_votes(role.tally, pre_vote=True)

    def _end_pre_vote(self, role: Prospective, now_ms: int) -> None:
        """Not now. Whoever leads may still be there; else wait for another to stand, and try again."""
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
            # There was a leader, and the first one was elected by all: with the vote of this life.
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
        # The epoch goes along, so that a candidate from the past finds its way even when it only asks.
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
                # One that refuses connections was heard lately, and is gone.
                in_doubt = cuts > 1 or heard_ms is None or now_ms - heard_ms >= self._patience.doubt_ms
                return vote.pre_vote and in_doubt
            case Candidate() | Resigned():
                return vote.pre_vote
            case Unattached() | Prospective():
                return vote.pre_vote or self.election.voted in (None, vote.candidate)
            case _:
                assert_never(self.role)

    def _founds_before(self, vote: Vote) -> bool:
        """A cluster is founded by all: of two who ask at once neither can win, unless the one with less gives way."""
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
            # Anybody may say so. What a leader that we asked ourselves answers is another matter.
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
        """The first stands at once, the next ones later and later, so that they do not stand in each other's way."""
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
        for parked in [each for each in role.parked.values() if now_ms >= each.deadline_ms]:
            del role.parked[parked.request_id]
            self._send_records(parked.request_id, parked.fetch)
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
        """Without a majority that fetches, another may lead already: who cannot commit should not pretend to."""
        heard = int(self.is_voter)
        for voter in self._others:
            heard += self._is_heard(role, voter, now_ms)
        return heard <= len(self.voters) // 2

    # Voters.

    def _read_voters(self) -> None:
        """The log has changed: who votes by now?"""
        named = self.log.voters
        voters = self._founders if named is None else tuple(self.key_of(each.node_id) for each in named)
        if voters != self.voters:
            self.voters = voters
            self._others = tuple(voter for voter in voters if voter != self.me)
            self.is_voter = self.me in voters
        before = self.log.voters_before
        self._was_voter = self.me in self._founders if before is None else self._is_named(before)

    def _is_stranger(self, replica: ReplicaKey) -> bool:
        """Whether the replica has the node id of a voter, and another directory."""
        return replica not in self.voters and any(each.node_id == replica.node_id for each in self.voters)

    def _is_named(self, voters: tuple[Voter, ...]) -> bool:
        return any(each.node_id == self.me.node_id for each in voters)

    def key_of(self, node_id: int) -> ReplicaKey:
        return ReplicaKey(node_id, self.me.directory_id)

    def objection(self, voters: Sequence[Voter], now_ms: int) -> str | None:
        """Why the voters cannot be changed to these now; None where they can."""
        role = self.role
        if not isinstance(role, Leader):
            return "this node does not lead the metadata"
        known = {each.node_id for each in self.voters}
        return (
            self._change_in_doubt(role)
            or fault_of_change(known, {each.node_id for each in voters})
            or next((self._not_ready(role, each, now_ms) for each in voters if each.node_id not in known), None)
            or self._too_few(role, voters, now_ms)
        )

    def _change_in_doubt(self, role: Leader) -> str | None:
        # A change of an earlier epoch may be committed by others: with nothing of this one committed, two changes of
        # the same set of voters could have majorities that do not meet.
        if self.high_watermark <= role.epoch_start:
            return "this leader has committed nothing yet"
        return "the last change of voters is not committed yet" if self._is_changing else None

    @property
    def _is_changing(self) -> bool:
        return self.log.voters_offset >= self.high_watermark

    @property
    def _is_dismissed(self) -> bool:
        """Whether this leader is no voter any more, for good."""
        return not self.is_voter and not self._is_changing

    def _not_ready(self, role: Leader, voter: Voter, now_ms: int) -> str | None:
        progress = self._progress(role, self.key_of(voter.node_id))
        if progress.caught_up_ms is None or now_ms - progress.caught_up_ms > self._timing.fetch_ms:
            return f"node {voter.node_id} has not caught up with the metadata"
        return f"node {voter.node_id} has just begun" if progress.is_new else None

    def _too_few(self, role: Leader, voters: Sequence[Voter], now_ms: int) -> str | None:
        """A change that could not be committed would be in force all the same, and nothing could take it back."""
        keys = [self.key_of(each.node_id) for each in voters]
        # Who has not come at all may be a new one, whose vote nobody gets.
        come = [each for each in keys if self._progress(role, each).fetched_ms is not None]
        there = [each for each in keys if each == self.me or (each in come and self._is_heard(role, each, now_ms))]
        return None if len(there) > len(keys) // 2 else "too few of those who would vote are there"

    def _is_heard(self, role: Leader, replica: ReplicaKey, now_ms: int) -> bool:
        progress = self._progress(role, replica)
        since_ms = role.elected_ms if progress.fetched_ms is None else progress.fetched_ms
        return now_ms - since_ms <= self.check_quorum_ms and not progress.is_new

    def _change_voters(self, voters: tuple[Voter, ...], now_ms: int) -> None:
        assert self.objection(voters, now_ms) is None, "asked for without need"
        before = self._others
        if self.log.append_voters(self.epoch, voters):
            self._log_changed()
            self._answer_parked(now_ms)
            for voter in self._others:
                if voter not in before:
                    self._call_voter(voter)

    def _progress(self, role: Leader, replica: ReplicaKey) -> ReplicaProgress:
        progress = role.progress.get(replica)
        if progress is None:
            progress = ReplicaProgress()
            # Anybody may claim to be an observer; only so many are remembered.
            if replica in self.voters or len(role.progress) < OBSERVERS_MAX:
                role.progress[replica] = progress
        return progress

    def forget_progress(self, replica: ReplicaKey) -> None:
        """Another process is this replica from now on: it has to show itself how much it has."""
        if isinstance(self.role, Leader):
            self.role.progress.pop(replica, None)

    def _advance_high_watermark(self, now_ms: int) -> None:
        role = self.role
        assert isinstance(role, Leader)
        ends = sorted(
            self._durable_end if voter == self.me else self._progress(role, voter).end_offset for voter in self.voters
        )
        # The offset that a majority has: as many voters are at or beyond it as make one.
        offset = ends[(len(ends) - 1) // 2]
        # What earlier epochs left is committed only together with a record of this one: a majority that has it does
        # not stop a replica with a later epoch from being elected without it.
        if offset > role.epoch_start and offset > self.high_watermark:
            self.high_watermark = offset
            self._settle_in()
            self._answer_parked(now_ms)
            if self._is_dismissed:
                # Not in this very step: its owner hears first that the change is committed.
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
            role.parked[request_id] = ParkedFetch(request_id, fetch, now_ms + fetch.wait_ms)

    def _fetch_fault(self, epoch: int) -> ErrorCode:
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if isinstance(self.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _refuse_fetch(self, error: ErrorCode) -> FetchResponse:
        return FetchResponse(error, self.epoch, self.leader_id)

    def _snapshot_for(self, fetch: Fetch) -> SnapshotId | None:
        """The snapshot to begin with, for a replica whose log cannot be continued from ours."""
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
        """Whether a majority without the new voter has come, heard from us and come again since it is here."""
        role = self.role
        assert isinstance(role, Leader)
        if self._is_stranger(replica) or self._is_changing:
            # A process with the id of a voter and another directory stays new until the voter has that directory, by
            # a record that is committed: then the process with the directory before it does not count any more.
            return False
        since_ms = self._progress(role, replica).new_since_ms
        others = [self._progress(role, voter) for voter in self._others]
        confirming = sum(
            not each.is_new and each.fetched_before_ms is not None and each.fetched_before_ms > since_ms
            for each in others
        )
        return self.is_voter + confirming > len(self.voters) // 2 and self.high_watermark > role.epoch_start

    def _answer_parked(self, now_ms: int) -> None:
        role = self.role
        assert isinstance(role, Leader)
        for parked in [each for each in role.parked.values() if self._has_news(each.fetch)]:
            del role.parked[parked.request_id]
            self._send_records(parked.request_id, parked.fetch)

    def _answer_now(self, replicas: Container[ReplicaKey]) -> None:
        """Answer the fetches of these that wait for news, though there is none."""
        if isinstance(self.role, Leader):
            for parked in [each for each in self.role.parked.values() if each.fetch.replica in replicas]:
                del self.role.parked[parked.request_id]
                self._send_records(parked.request_id, parked.fetch)

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
        """Whoever is asked to serve a fetch says who leads."""
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
                        # It was late, and leads on.
                        self._become_follower(self.epoch, role.leader_id, now_ms)
                    return
                # An answer counts only while everything is still as it was when we asked.
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
        """The leader's process may be gone. One that lives takes a new connection, and answers at once."""
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
            # It led this epoch and never will again. What it says of who should come next may be lost, or on its way.
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
                f"the leader asks to drop records from {offset} on; {self.high_watermark} are committed"
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
