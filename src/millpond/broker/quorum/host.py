"""Drives this node's quorum replica: feeds it events and time, persists its state, and exchanges its messages with
the other voters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done, end_all, failed
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Timer, Workers, World
from millpond.broker.data_folder.election_state import write_election
from millpond.broker.data_folder.identity import is_outlived
from millpond.broker.peers.peers import NodeAddresses, Peers
from millpond.broker.peers.requester import RequestLost
from millpond.broker.quorum.directories import VoterDirectories
from millpond.broker.quorum.lease import LeaseClock
from millpond.broker.quorum.log import MetadataLog
from millpond.broker.quorum.proofs import Proofs
from millpond.broker.quorum.wire import (
    decode_request,
    decode_response,
    directory_of,
    encode_request,
    encode_response,
    fault_of,
    from_stranger,
    leader_endpoint,
    refusal,
    says_other_voters,
    without_list,
)
from millpond.quorum.events import Answered, Appended, Asked, Event, Hung, NewVoters, Poll, Stop, Time
from millpond.quorum.messages import (
    BeginQuorumEpoch,
    Fetch,
    FetchResponse,
    FetchSnapshot,
    ReplicaKey,
    Request,
    Response,
    Vote,
    VoteResponse,
)
from millpond.quorum.patience import Timing
from millpond.quorum.ports import Election
from millpond.quorum.ready import Ask, Durable, Ready, Reply
from millpond.quorum.replica import Replica
from millpond.quorum.roles import Leader, ReplicaProgress
from millpond.quorum.voters import Voter
from millpond.wire import messages as m
from millpond.wire.messages import Message

T = TypeVar("T")

PERSIST_RETRY_MS: Final = 100
LATE_MS: Final = 50
"""A timer that fires this late means the loop stalled, not that the leader is gone: read what has arrived first."""

FETCH_WAIT_MS_MAX: Final = 5_000


class ReplicaState(NamedTuple):
    """The leader's view of a replica; times in ms before now, None for never."""

    replica: ReplicaKey
    end_offset: int
    fetched_ago_ms: int | None
    caught_up_ago_ms: int | None


class StartWorkers:
    """Workers that run jobs inline while the node starts and the loop serves no requests."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.is_inline = True

    def run(self, job: Callable[[], T]) -> Later[T]:
        if not self.is_inline:
            return self._workers.run(job)
        try:
            return done(job())
        except OSError as error:
            return failed(error)


class QuorumHost:
    """Runs one replica. Call `start` first; `on_step` is called after every event."""

    def __init__(
        self,
        world: World,
        log: MetadataLog,
        workers: Workers,
        lease_clock: LeaseClock,
        state_path: str,
        election: Election,
        me: ReplicaKey,
        founders: Sequence[ReplicaKey],
        contacts: Sequence[int],
        timing: Timing,
        peers: tuple[Peers, Peers],
        cluster_name: Callable[[], str | None],
        on_step: Callable[[], None],
        addresses: NodeAddresses,
        directories: VoterDirectories,
        directory_id: Callable[[], UUID],
    ) -> None:
        self.log: Final = log
        self.failed: OSError | None = None
        """The error that put this replica out of service until the next start."""
        self._clock = world.clock
        self._lease_clock = lease_clock
        self._disk = world.disk
        self._workers = workers
        self._state_path = state_path
        self._timing = timing
        self._peers_for_calls, self._peers_for_fetches = peers
        self._cluster_name = cluster_name
        self._on_step = on_step
        self._addresses = addresses
        self._directories = directories
        self._directory_id = directory_id
        now_ms = self._clock.monotonic_ms()
        self._replica = Replica(me, founders, log, election, world.entropy, now_ms, timing, contacts)
        self._events: deque[Event] = deque()
        self._is_stepping = False
        self._unsaved: Election | None = None
        self._durable_version = 0
        self._is_persisting = False
        self._is_held = False
        self._is_leaving = False
        self._is_closed = False
        self._timer: Timer | None = None
        self._wake_ms = 0
        self._request_ids = 0
        self._waiting: dict[int, tuple[Request, Later[Message], int, str]] = {}
        """Requests without a response yet, with the connection and listener each arrived on."""
        self._proofs = Proofs()
        self._confirmations: dict[Later[None], int] = {}
        """Callers that wait for proof that this node leads, and the time by the lease clock it has to cover."""
        self._turned_away_by: set[int] = set()
        self.is_outlived = False
        """Whether the cluster was rescued without this node, which must not continue from its old metadata."""
        self._disagree: set[int] = set()
        """Nodes that are configured with other voters than this one."""
        self.told: tuple[int, int] | None = None
        """When the last answered fetch was sent, by the lease clock, and the high watermark in its response."""
        self._refused_by: set[int] = set()
        """Voters that refused or closed the connection at the last request."""

    # State.

    @property
    def me(self) -> ReplicaKey:
        return self._replica.me

    @property
    def voters(self) -> tuple[ReplicaKey, ...]:
        return self._replica.voters

    @property
    def leader_heard_ago_ms(self) -> int | None:
        """How long ago another node was last heard from as the leader; None for never."""
        heard_ms = self._replica.leader_heard_ms
        return None if heard_ms is None else self._clock.monotonic_ms() - heard_ms

    @property
    def is_leader(self) -> bool:
        return self._replica.is_leader and self.failed is None

    @property
    def is_stranger(self) -> bool:
        """Whether most of the nodes it takes for the other voters answered that it belongs to another cluster."""
        return len(self._turned_away_by) > len(self.voters) // 2

    @property
    def is_misled(self) -> bool:
        """Whether most of the other voters are configured with a different set of voters."""
        return 2 * len(self._disagree) > max(len(self.voters) - 1, 0)

    @property
    def others_may_lead(self) -> bool:
        """Whether the other voters that accept connections could form a majority without this node.

        False is no proof that they cannot: a firewall may refuse connections on their behalf.
        """
        reachable = [each for each in self.voters if each != self.me and each.node_id not in self._refused_by]
        return len(reachable) > len(self.voters) // 2

    @property
    def is_new(self) -> bool:
        """Whether this voter started with an empty disk and does not count toward a majority yet."""
        return self._replica.is_new

    @property
    def leader_id(self) -> int:
        return self._replica.leader_id

    @property
    def epoch(self) -> int:
        return self._replica.epoch

    @property
    def epoch_start(self) -> int:
        """The offset of the leader change record of the epoch this node leads."""
        role = self._replica.role
        assert isinstance(role, Leader)
        return role.epoch_start

    @property
    def elected_ms(self) -> int:
        """When this node was elected leader."""
        role = self._replica.role
        assert isinstance(role, Leader)
        return role.elected_ms

    @property
    def high_watermark(self) -> int:
        """Everything below is committed; -1 while unknown."""
        return self._replica.high_watermark

    @property
    def is_idle(self) -> bool:
        return not self._is_persisting

    def states(self) -> list[ReplicaState]:
        """The progress of each replica; empty unless this node leads."""
        role = self._replica.role
        if not isinstance(role, Leader):
            return []
        now_ms = self._clock.monotonic_ms()

        def ago(moment_ms: int | None) -> int | None:
            return None if moment_ms is None else now_ms - moment_ms

        # Leave out former voters that have not fetched since, and a second process with the id of a voter: it is
        # neither a voter nor an observer.
        voter_ids = {voter.node_id for voter in self.voters}
        fetching = {
            replica: each
            for replica, each in role.progress.items()
            if each.fetched_ms is not None and (replica in self.voters or replica.node_id not in voter_ids)
        }
        progress_of = dict.fromkeys(self.voters, ReplicaProgress()) | fetching
        return [
            ReplicaState(self.me, self.log.end_offset, 0, 0)
            if replica == self.me
            else ReplicaState(replica, progress.end_offset, ago(progress.fetched_ms), ago(progress.caught_up_ms))
            for replica, progress in progress_of.items()
        ]

    @property
    def is_known_to_all(self) -> bool:
        """Whether every following voter knows the current high watermark."""
        role = self._replica.role
        if not isinstance(role, Leader):
            return True
        since_ms = self._clock.monotonic_ms() - 2 * self._timing.fetch_wait_ms
        return all(
            each.high_watermark >= self.high_watermark
            for each in role.progress.values()
            if each.fetched_ms is not None and each.fetched_ms > since_ms
        )

    def led_ago_ms(self) -> int | None:
        """How long ago a majority provably followed this node; None if it does not lead."""
        now_ms = self._lease_clock.now_ms()
        led_ms = self._led_ms(now_ms)
        return None if led_ms is None else now_ms - led_ms

    def _led_ms(self, now_ms: int) -> int | None:
        """The last time, by the lease clock, at which a majority provably followed this node."""
        if not isinstance(self._replica.role, Leader):
            return None
        followed = (
            now_ms if voter == self.me else self._proofs.followed_ms(voter, self.epoch) for voter in self.voters
        )
        moments = sorted((moment_ms for moment_ms in followed if moment_ms is not None), reverse=True)
        majority = len(self.voters) // 2 + 1
        return moments[majority - 1] if len(moments) >= majority else None

    def confirm_leadership(self, since_ms: int) -> Later[None]:
        """Ends once a majority provably followed this leader at `since_ms`, by the lease clock, or later.

        It fails with Refused if this node stops leading before that.
        """
        confirmed: Later[None] = Later(lambda: self._forget_confirmation(confirmed))
        self._confirmations[confirmed] = since_ms
        self._check_confirmations()
        return confirmed

    def _forget_confirmation(self, confirmed: Later[None]) -> None:
        self._confirmations.pop(confirmed, None)

    def _check_confirmations(self) -> None:
        if not self._confirmations or self._is_stepping:
            return
        role = self._replica.role
        if not isinstance(role, Leader) or not self.is_leader:
            refused = Refused(ErrorCode.NOT_CONTROLLER, "this node no longer leads the metadata")
            end_all([(each, None) for each in self._confirmations], refused)
            return
        led_ms = self._led_ms(self._lease_clock.now_ms())
        proved = [each for each, since_ms in self._confirmations.items() if led_ms is not None and since_ms <= led_ms]
        end_all([(each, None) for each in proved])
        if not self._confirmations:
            return
        since_ms = max(self._confirmations.values())
        followed = {voter: self._proofs.followed_ms(voter, self.epoch) for voter in self.voters}
        silent = frozenset(voter for voter, moment in followed.items() if moment is None or moment < since_ms)
        if any(each.fetch.replica in silent for each in role.pending_fetches.values()):
            # A follower that gets a response fetches again at once, which is the proof.
            self._step(Poll(silent))

    # Starting and stopping.

    def start(self) -> None:
        self._step(Time())

    def stop(self) -> None:
        """Hand leadership to another voter, if there is one, and stand for election no longer."""
        if not self._is_closed and self.voters != (self.me,):
            self._is_leaving = True
            self.hand_over()

    def hand_over(self) -> None:
        """Let another voter lead, if this node leads and there is one."""
        if not self._is_closed and self.voters != (self.me,):
            self._step(Stop())

    def close(self) -> None:
        """Stop all activity; a write to disk in progress may still finish."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._peers_for_calls.close()
        self._peers_for_fetches.close()

    # Writing.

    def write(self, batch: bytes) -> None:
        """Append as leader, then call `on_written`. Raises Refused, with nothing changed, if that is impossible."""
        assert not self._is_stepping, "only the replica may write to the log during a step"
        self.log.append(batch, self.epoch)

    def on_written(self) -> None:
        self._step(Appended())

    # Voters.

    @property
    def goes_by_log(self) -> bool:
        """Whether the log names the voters, so that the configured list no longer matters."""
        return self.log.voters is not None

    def objection(self, voters: Sequence[Voter]) -> str | None:
        """Why the voters cannot be changed to these; None if they can."""
        return self._replica.objection(voters, self._clock.monotonic_ms())

    def change_voters(self, voters: Sequence[Voter]) -> bool:
        """Append a new set of voters as leader; False if it cannot be written now."""
        assert not self._is_stepping, "only the replica may write to the log during a step"
        before = self.log.end_offset
        self._step(NewVoters(tuple(voters)))
        return self.log.end_offset > before

    def hold(self) -> None:
        """Persist nothing until `release`: one sync then covers everything a starting node writes."""
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        self._persist()

    # Requests of other voters.

    def answer(self, message: Any, connection: int = 0, listener: str = "") -> Later[Message] | Message:
        """The response to a voter's request, now or once what it promises is durable.

        `connection` and `listener` are those the request arrived on.
        """
        request = decode_request(message, self.me, goes_by_log=self.goes_by_log)
        if self._is_closed or self.failed is not None:
            return refusal(request, ErrorCode.BROKER_NOT_AVAILABLE)
        own_cluster = self._cluster_name()
        if own_cluster and message.cluster_id and is_outlived(message.cluster_id, by=own_cluster):
            # Checked first: a node left behind by a rescue has to learn so whatever its list of voters. The reverse
            # claim in a request is not trusted, since anyone may send it; in a response to our own request it is.
            return refusal(request, ErrorCode.REBOOTSTRAP_REQUIRED)
        fault = fault_of(request, self.me, self.voters)
        is_alone = len(self.voters) == 1 and not self.goes_by_log
        if is_alone and not isinstance(request, Fetch | FetchSnapshot):
            # A standalone node always elects itself.
            fault = ErrorCode.INCONSISTENT_VOTER_SET
        if fault is not ErrorCode.NONE:
            return refusal(request, fault)
        if own_cluster and message.cluster_id and message.cluster_id != own_cluster:
            return refusal(request, ErrorCode.INCONSISTENT_CLUSTER_ID)
        if isinstance(request, BeginQuorumEpoch):
            self._addresses.learn_leader(request.leader_id, message.leader_endpoints)
        if isinstance(request, Fetch):
            request = replace(request, wait_ms=min(request.wait_ms, FETCH_WAIT_MS_MAX))
        request = self._identify(request, message)
        if isinstance(request, Fetch | FetchSnapshot) and request.replica in self.voters:
            self._proofs.on_fetch(request.replica, connection, request.epoch)
        self._request_ids += 1
        request_id = self._request_ids
        response: Later[Message] = Later(partial(self._forget, request_id))
        self._waiting[request_id] = request, response, connection, listener
        self._step(Asked(request_id, request))
        return response

    def _identify(self, request: Request, message: Any) -> Request:
        """Accept a request as a voter's only if it comes from the data folder registered for that voter."""
        match request:
            case Vote(candidate=replica):
                directory_id = directory_of(message)
                is_voter = self._directories.is_voter(replica.node_id, directory_id, is_new=request.is_new)
            case Fetch(replica=replica) | FetchSnapshot(replica=replica) if replica in self.voters:
                directory_id = directory_of(message)
                is_new = isinstance(request, Fetch) and request.is_new
                is_voter = self._directories.is_fetching_voter(
                    replica.node_id, directory_id, request.epoch, is_new=is_new
                )
                if is_voter and self._directories.is_replaced(replica.node_id, directory_id):
                    # The progress of the previous process does not apply to this one.
                    self._proofs.forget(replica)
                    self._replica.forget_progress(replica)
            case _:
                return request
        return request if is_voter else from_stranger(request, directory_id)

    def _outlive(self) -> None:
        self.is_outlived = True
        self._on_step()

    def _forget(self, request_id: int) -> None:
        if self._waiting.pop(request_id, None) is not None:
            self._step(Hung(request_id))

    def _reply(self, reply: Reply) -> None:
        waiting = self._waiting.pop(reply.request_id, None)
        if waiting is not None:
            request, response, connection, listener = waiting
            is_served = reply.response.error is ErrorCode.NONE
            if is_served and isinstance(request, Fetch | FetchSnapshot) and request.replica in self.voters:
                self._proofs.on_answer(request.replica, connection, request.epoch, self._lease_clock.now_ms())
            # The requester may know an older set of nodes.
            address_of = self._addresses.by_listener(listener) if self.goes_by_log else lambda _: None
            answer = reply.response
            if isinstance(answer, VoteResponse) and answer.error is ErrorCode.INCONSISTENT_VOTER_SET:
                # The list of voters matches (see `answer`) but the candidate's data folder is not the registered one.
                # A wiped node that has yet to register must not conclude that its list is wrong.
                answer = replace(answer, error=ErrorCode.NONE)
            response.finish(encode_response(request, answer, address_of, self._directory_id()))

    def _ask(self, ask: Ask) -> None:
        is_fetch = isinstance(ask.request, Fetch | FetchSnapshot)
        peers = self._peers_for_fetches if is_fetch else self._peers_for_calls
        request = without_list(ask.request) if self.goes_by_log else ask.request
        message, version = encode_request(request, self._cluster_name(), self._directory_id())
        if isinstance(message, m.BeginQuorumEpochRequest) and self.goes_by_log:
            own = self._addresses.end_points(self.me.node_id)
            message.leader_endpoints = [leader_endpoint(*each) for each in own]
        timeout_ms = self._replica.answer_ms(ask.request)
        request_ms = self._lease_clock.now_ms()

        def take(response: Response | None, is_cut: bool = False) -> None:
            if not self._is_closed:
                self._step(Answered(ask, response, is_cut))
                if isinstance(response, FetchResponse):
                    self._on_fetch_response(request_ms, response)

        def lost(failure: Exception) -> None:
            if not isinstance(failure, RequestLost):
                raise failure
            if failure.is_cut:
                self._refused_by.add(ask.node_id)
            else:
                self._refused_by.discard(ask.node_id)
            take(None, failure.is_cut)

        def read(answer: Any) -> Response | None:
            self._refused_by.discard(ask.node_id)
            self._addresses.learn(answer)
            if says_other_voters(answer):
                self._disagree.add(ask.node_id)
            else:
                self._disagree.discard(ask.node_id)
            if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
                self._outlive()
            if answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID:
                self._turned_away_by.add(ask.node_id)
            else:
                self._turned_away_by.discard(ask.node_id)
            response = decode_response(answer)
            if isinstance(response, VoteResponse) and response.granted:
                is_voter = self._directories.is_voter(ask.node_id, directory_of(answer), is_new=False)
                return response if is_voter else None
            return response

        peers.ask(ask.node_id, message, version, timeout_ms).map(read).then(take, lost)

    def _on_fetch_response(self, request_ms: int, response: FetchResponse) -> None:
        """A leader does not know the high watermark before a record of its own epoch is committed."""
        epoch = self._replica.epoch
        if response.epoch == epoch and self.log.has_begun(epoch, response.high_watermark):
            self.told = request_ms, response.high_watermark

    # Events.

    def _step(self, event: Event) -> None:
        self._events.append(event)
        if self._is_stepping or self.failed is not None:
            return
        self._is_stepping = True
        try:
            while self._events:
                self._carry_out(self._replica.step(self._events.popleft(), self._clock.monotonic_ms()))
                if self.log.take_unreadable():
                    # Followers need records that this node cannot read: let one of them lead.
                    self._events.append(Stop())
        finally:
            self._is_stepping = False
        self._set_timer()
        self._on_step()
        self._check_confirmations()

    def _carry_out(self, ready: Ready) -> None:
        if ready.save is not None:
            self._unsaved = ready.save
        for message in ready.send:
            if isinstance(message, Reply):
                self._reply(message)
            else:
                self._ask(message)
        if ready.must_persist:
            self._persist()

    def _set_timer(self) -> None:
        due_ms = self._replica.next_deadline_ms()
        if due_ms is None or self._is_closed or (self._is_leaving and not self.is_leader):
            # A node that is shutting down still votes but must not be elected.
            return
        if self._timer is not None:
            # Firing early is harmless.
            if self._wake_ms <= due_ms:
                return
            self._timer.cancel()
        self._wake_ms = due_ms
        delay_ms = max(due_ms - self._clock.monotonic_ms(), 0)
        self._timer = self._clock.call_later(delay_ms, partial(self._on_timer, due_ms))

    def _on_timer(self, due_ms: int) -> None:
        if self._is_closed:
            return
        late_ms = self._clock.monotonic_ms() - due_ms
        if late_ms > LATE_MS:
            # After 1 ms the loop has polled its sockets once more.
            self._timer = self._clock.call_later(1, partial(self._on_time, late_ms))
        else:
            self._on_time()

    def _on_time(self, late_ms: int = 0) -> None:
        self._timer = None
        if not self._is_closed and not self._is_leaving:
            self._step(Time(late_ms))

    # The disk.

    def _persist(self) -> None:
        """Make the current state durable; changes made meanwhile wait for the next round."""
        if self._is_held or self._is_persisting or self.failed is not None or self.log.log.closed:
            return
        self._is_persisting = True
        version = self._replica.version
        election, self._unsaved = self._unsaved, None

        def save(_: None) -> Later[None]:
            # After the log: a won election implies that its record is there.
            if election is None:
                return done(None)
            return self._workers.run(lambda: write_election(self._disk, self._state_path, election))

        def persisted(_: None) -> None:
            self._is_persisting = False
            self._durable_version = version
            self._step(Durable(version))
            if self._replica.version > self._durable_version:
                self._persist()

        def not_persisted(error: Exception) -> None:
            if not isinstance(error, OSError):
                raise error
            self._is_persisting = False
            self._unsaved = self._unsaved or election
            if self.log.log.failed is not None or self._workers_are_inline():
                self._fail(error)
            else:
                # A full disk or too many open files: nothing was promised, so retry.
                self._clock.call_later(PERSIST_RETRY_MS, self._persist)

        self.log.persist().chain(save).then(persisted, not_persisted)

    def _workers_are_inline(self) -> bool:
        return isinstance(self._workers, StartWorkers) and self._workers.is_inline

    def _fail(self, error: OSError) -> None:
        """The log is closed for good: how much of it would survive is unknown, so promise nothing more."""
        if self.is_leader and not self._is_stepping:
            self.stop()
        self.failed = error
        waiting, self._waiting = self._waiting, {}
        for request, response, _, _ in waiting.values():
            response.finish(refusal(request, ErrorCode.KAFKA_STORAGE_ERROR))
        if not self._is_stepping:
            self._on_step()
            self._check_confirmations()
