"""Replica fetchers: keep this node's follower replicas up to date, with one fetcher per leader node.

A fetcher has one connection and one incremental fetch session: a request names only partitions whose fetch state has
changed, and only partitions named in the response are processed. `replication.follower` decides what a partition
fetches and what it does with the response. A partition that fails, or whose log is being truncated, is set apart: it
leaves the session until it can continue, without delaying the others. When a partition joins while a fetch is pending
at the leader, the fetcher sends a second fetch, which makes the leader answer the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from itertools import islice
from typing import Final, TypeAlias
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import EpochEnd
from millpond.base.later import Later, done, gather
from millpond.base.ports import Buffer, FileRange, World
from millpond.base.values import dataclass
from millpond.broker.loop.journal import Journal
from millpond.broker.peers.peers import Peers
from millpond.broker.peers.requester import RequestLost
from millpond.broker.replication.partitions import Partition
from millpond.broker.replication.throttle import Throttle
from millpond.broker.storage.checkpoint_writer import CheckpointWriter
from millpond.broker.storage.flusher import Flusher
from millpond.log.room import DiskRoom
from millpond.log.scan import whole_batches
from millpond.log.store import LogStore
from millpond.log.truncation import Truncation
from millpond.replication.follower import Append, AskAgain, Fetched, FetchFrom, PartitionFollower, Restart, Truncate
from millpond.wire import messages as m

FETCH_VERSION: Final = 17
EPOCH_END_VERSION: Final = 4
WAIT_MS: Final = 500
PARTITION_BYTES: Final = 4 << 20
ANSWER_BYTES: Final = 10 << 20
TIMEOUT_MS: Final = 3_000
BACKOFF_MS: Final = 50
"""Minimum backoff for a leader or a partition after a failure; jitter adds up to as much again."""
FIRST_BACKOFF_MS: Final = 5
"""A partition's first retry comes sooner, and the delay doubles each time: a new leader may learn of its leadership a
moment later than its followers."""
SYNC_POLL_MS: Final = 5
"""How often to check whether a sync in progress has ended."""
TURN_BYTES: Final = 1 << 20
"""How much of a response is appended in one turn of the event loop."""
WISHES_MAX: Final = 500
"""Partitions named per request: thousands of them must not stall the event loop of either node."""
IN_FLIGHT_MAX: Final = 2
ROOM_LOOK_MS: Final = 500
"""How often a replica that waits for free disk space checks again."""
CUT_BELOW_COMMITTED: Final = (
    "the leader lacks records that were committed: they are cut off here, too, and kept in files that end with .cut"
)
"""Happens only after an unclean election made a replica leader that lacked those records."""
OUTDATED: Final = "replica starts over: the leader has dropped tombstones or markers that it never copied"
SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)

_Key: TypeAlias = tuple[UUID, int]
"""Topic ID and partition index."""


@dataclass(slots=True, eq=False)
class _Replica:
    """One follower replica."""

    partition: Partition
    follower: PartitionFollower
    asked: FetchFrom | None = None
    """What it fetches next; None while a response is being applied."""
    wish: tuple[FetchFrom, int] | None = None
    """The fetch state and log start offset that the leader's session has for it."""
    sent_in: int = -1
    """The number of the request that carried its current fetch state."""
    failures: int = 0
    """Consecutive failed fetches."""
    complaint: str = ""
    """The problem last logged for it."""
    noted_start: int = 0
    """The log start offset in the checkpoint: a crash neither brings back records before it nor loses those after."""

    @property
    def key(self) -> _Key:
        return self.partition.topic_id, self.partition.name.partition


@dataclass(slots=True)
class FetcherServices:
    """What the fetchers use from the node."""

    world: World
    node_id: int
    broker_epoch: Callable[[], int]
    peers: Peers
    """Separate connections: a fetch may be pending at the leader, and responses come in order."""
    store: LogStore
    flusher: Flusher
    checkpoints: CheckpointWriter
    journal: Journal
    throttle: Throttle = field(default_factory=Throttle)
    """For replicas under a replication throttle."""
    room: DiskRoom = field(default_factory=DiskRoom)
    cuts: set[Partition] = field(default_factory=set)
    """Partitions whose logs are being truncated."""
    on_cut: Callable[[Partition], None] = lambda _: None
    """Called when a truncation has ended."""


class ReplicaFetchers:
    def __init__(self, services: FetcherServices) -> None:
        self._services = services
        self._fetchers: dict[int, _Fetcher] = {}
        self._leaders: dict[Partition, int] = {}
        self._is_stopped = False

    def follow(self, partition: Partition) -> None:
        """Fetch from the partition's current leader, in its current leader epoch."""
        self.forget(partition)
        follower = partition.follower
        assert follower is not None, f"{partition.name.folder} follows no leader"
        if self._is_stopped:
            return
        fetcher = self._fetchers.get(follower.leader)
        if fetcher is None:
            fetcher = self._fetchers[follower.leader] = _Fetcher(self._services, follower.leader)
        self._leaders[partition] = follower.leader
        fetcher.add(partition, follower)

    def forget(self, partition: Partition) -> None:
        """Stop fetching the partition; a response still in flight is ignored."""
        leader = self._leaders.pop(partition, None)
        if leader is not None:
            self._fetchers[leader].drop(partition)

    def pause(self) -> None:
        """The disk is full: stop fetching until there is free space.

        A replica that fetches at the log end offset would look caught up to the leader, though it cannot append.
        """
        for fetcher in self._fetchers.values():
            fetcher.pause()

    def is_cutting(self, partition: Partition) -> bool:
        """Whether the log is being truncated; until that ends the partition cannot change its role."""
        return partition in self._services.cuts

    def is_idle(self) -> bool:
        """Whether no log is being truncated."""
        return not self._services.cuts

    def stop(self) -> None:
        self._is_stopped = True
        for partition in list(self._leaders):
            self.forget(partition)
        self._services.peers.close()


class _Fetcher:
    """Fetches all partitions that this node follows from one leader."""

    def __init__(self, services: FetcherServices, leader: int) -> None:
        self._services = services
        self._clock = services.world.clock
        self._leader = leader
        self._replicas: dict[_Key, _Replica] = {}
        self._news: dict[_Key, None] = {}
        """Partitions whose fetch state differs from the session's."""
        self._leaving: dict[_Key, None] = {}
        """Partitions to remove from the session."""
        self._apart: dict[_Key, None] = {}
        self._session_id = 0
        self._session_epoch = 0
        self._may_have_session = True
        """Whether the leader granted a session when last asked."""
        self._requests = 0
        self._in_flight = 0
        self._answers = 0
        """Responses that are being applied, or whose records are being synced."""
        self._is_waiting = False
        """Backing off after a failure."""
        self._is_woken = False

    # Followed partitions.

    def add(self, partition: Partition, follower: PartitionFollower) -> None:
        replica = _Replica(partition, follower, noted_start=self._services.store.noted_start(partition.name))
        self._replicas[replica.key] = replica
        self._want(replica)

    def drop(self, partition: Partition) -> None:
        replica = self._replicas.pop((partition.topic_id, partition.name.partition))
        self._apart.pop(replica.key, None)
        self._leave_session(replica)
        self._wake()

    def pause(self) -> None:
        for replica in self._replicas.values():
            if replica.asked is not None and replica.key not in self._apart:
                self._await_room(replica)

    def _await_room(self, replica: _Replica) -> None:
        self._set_apart(replica)
        self._clock.call_later(ROOM_LOOK_MS, lambda: self._want_all([replica]))

    def _want(self, replica: _Replica) -> None:
        """Fetch what comes next, unless the session has that fetch state already."""
        if self._services.room.is_short:
            self._await_room(replica)
            return
        if replica.partition.log.failed is not None:
            # A fetch offset asserts that everything before it is here, which is unknown once the log has failed.
            self._set_apart(replica)
            return
        if _owes_a_sync(replica.partition):
            # Records fetched from an earlier leader may not be synced yet.
            self._set_apart(replica)
            self._sync(replica)
            return
        if replica.partition.log.start_offset != replica.noted_start:
            # The next fetch reports our log start offset, and the leader acknowledges DeleteRecords by it. If the log
            # restarts at a lower offset, a stale checkpoint would hide the records about to arrive.
            self._set_apart(replica)
            self._note_start(replica)
            return
        if replica.partition.is_throttled and (
            held_ms := self._services.throttle.held_ms(self._clock.monotonic_ms())
        ):
            self._set_apart(replica)
            self._clock.call_later(held_ms, lambda: self._want_all([replica]))
            return
        self._apart.pop(replica.key, None)
        replica.asked = replica.follower.fetch()
        if replica.wish != (replica.asked, replica.partition.log.start_offset):
            self._news[replica.key] = None
        self._wake()

    def _sync(self, replica: _Replica) -> None:
        """Fetch again once the log is synced."""

        def failed(failure: Exception) -> None:
            if not isinstance(failure, OSError):
                raise failure
            self._want_later(replica)

        log = replica.partition.log
        synced = self._services.flusher.after_sync(log, log.end_offset, None)
        synced.then(lambda _: self._want_all([replica]), failed)

    def _leave_session(self, replica: _Replica) -> None:
        self._news.pop(replica.key, None)
        if replica.wish is not None:
            replica.wish = None
            self._leaving[replica.key] = None

    def _note_start(self, replica: _Replica) -> None:
        """Fetch again once the log start offset is in the checkpoint."""
        start_offset = replica.partition.log.start_offset

        def written(_: None) -> None:
            replica.noted_start = start_offset
            self._want_all([replica])

        def failed(failure: Exception) -> None:
            if not isinstance(failure, OSError):
                raise failure
            self._want_later(replica)

        self._services.checkpoints.write().then(written, failed)

    def _set_apart(self, replica: _Replica) -> None:
        """Stop fetching it until `_want`: otherwise the leader would answer at once, again and again."""
        self._apart[replica.key] = None
        self._leave_session(replica)

    def _is_here(self, replica: _Replica) -> bool:
        return self._replicas.get(replica.key) is replica

    # Sending fetches.

    def _wake(self) -> None:
        """Schedule one request for all partitions with a new fetch state."""
        if not self._is_woken:
            self._is_woken = True
            self._clock.call_soon(self._send_if_due)

    def _send_if_due(self) -> None:
        self._is_woken = False
        if self._answers or self._is_waiting or len(self._replicas) == len(self._apart):
            return
        if self._services.broker_epoch() < 0:
            # Leaders reject fetches from an unregistered broker.
            self._wait()
            return
        # A second fetch is only sent within a session, and only to update it: it makes the leader answer the first.
        if not self._in_flight or (self._news and self._session_epoch and self._in_flight < IN_FLIGHT_MAX):
            self._send()

    def _send(self) -> None:
        is_whole = self._session_epoch == 0
        if is_whole:
            self._leaving = {}
            self._news = {key: None for key, each in self._replicas.items() if each.asked is not None}
        number = self._requests
        services = self._services
        topics = self._topics(number)
        request = m.FetchRequest(
            replica_state=m.FetchRequest.ReplicaState(
                replica_id=services.node_id, replica_epoch=services.broker_epoch()
            ),
            # Do not wait if there is more to send, or if this request opens a session: no partition can join until it
            # is answered, so one whose leader has just moved there would wait, too.
            max_wait_ms=0 if self._news or (is_whole and self._may_have_session) else WAIT_MS,
            min_bytes=1,
            max_bytes=ANSWER_BYTES,
            isolation_level=0,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=topics,
            forgotten_topics_data=[
                m.FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in _by_topic(self._leaving).items()
            ],
            rack_id="",
        )
        self._leaving = {}
        self._requests += 1
        self._in_flight += 1
        if self._session_epoch:
            self._session_epoch = self._session_epoch % ((1 << 31) - 1) + 1
        services.peers.ask(self._leader, request, FETCH_VERSION, WAIT_MS + TIMEOUT_MS).then(
            lambda response: self._on_response(number, response, is_whole=is_whole),
            lambda failure: self._on_lost(number, failure),
        )
        if self._news:
            self._wake()

    def _topics(self, number: int) -> list[m.FetchRequest.FetchTopic]:
        """The changed fetch states, at most `WISHES_MAX` of them."""
        topics: dict[UUID, list[m.FetchRequest.FetchPartition]] = {}
        for key in list(islice(self._news, WISHES_MAX)):
            del self._news[key]
            # A partition that left and came back is in both lists: keep it in the session with its new fetch state.
            self._leaving.pop(key, None)
            replica = self._replicas[key]
            asked, start_offset = replica.asked, replica.partition.log.start_offset
            assert asked is not None, "it wants nothing"
            replica.sent_in, replica.wish = number, (asked, start_offset)
            topics.setdefault(key[0], []).append(
                m.FetchRequest.FetchPartition(
                    partition=key[1],
                    current_leader_epoch=asked.leader_epoch,
                    fetch_offset=asked.offset,
                    last_fetched_epoch=asked.last_epoch,
                    log_start_offset=start_offset,
                    partition_max_bytes=PARTITION_BYTES,
                )
            )
        return [m.FetchRequest.FetchTopic(topic_id=topic_id, partitions=each) for topic_id, each in topics.items()]

    def _on_lost(self, number: int, failure: Exception) -> None:
        if not isinstance(failure, RequestLost):
            raise failure
        self._in_flight -= 1
        self._begin_session_anew()
        self._wait()

    def _begin_session_anew(self) -> None:
        self._session_id = self._session_epoch = 0
        for replica in self._replicas.values():
            replica.wish = None
            # Ignore responses to requests of the old session.
            replica.sent_in = self._requests

    def _wait(self) -> None:
        self._is_waiting = True

        def go_on() -> None:
            self._is_waiting = False
            self._wake()

        self._clock.call_later(self._backoff_ms(), go_on)

    def _backoff_ms(self) -> int:
        return BACKOFF_MS + self._services.world.entropy.below(BACKOFF_MS + 1)

    # Applying a response.

    def _on_response(self, number: int, response: m.FetchResponse, *, is_whole: bool) -> None:
        self._in_flight -= 1
        if response.error_code:
            self._begin_session_anew()
            if ErrorCode(response.error_code) in SESSION_ERRORS and not is_whole:
                self._wake()
            else:
                self._wait()
            return
        if is_whole:
            self._session_id, self._session_epoch = response.session_id, 1 if response.session_id else 0
            self._may_have_session = response.session_id != 0
        self._answers += 1
        self._take_in(_Answer(number, response))

    def _take_in(self, answer: _Answer) -> None:
        """Apply as much of the response as one turn of the event loop allows."""
        taken = 0
        for key, reply in answer.left:
            replica = self._replicas.get(key)
            if replica is None or replica.wish is None or key in self._news or replica.sent_in > answer.number:
                # No longer followed, or its fetch state has changed since.
                continue
            if replica.asked is None:
                # The previous response is still being applied; the partition fetches again after that.
                continue
            self._take_reply(replica, reply, answer)
            taken += len(reply.records or b"")
            if taken >= TURN_BYTES:
                self._clock.call_soon(lambda: self._take_in(answer))
                return
        self._end_answer(answer)

    def _end_answer(self, answer: _Answer) -> None:
        if answer.failed:
            first = min(each.failures for each in answer.failed)
            delay_ms = min(FIRST_BACKOFF_MS << min(first, 10), self._backoff_ms())
            for replica in answer.failed:
                replica.failures += 1
            self._clock.call_later(delay_ms, lambda: self._want_all(answer.failed))

        def synced(_: object) -> None:
            self._answers -= 1
            for replica in answer.grown:
                if self._is_here(replica):
                    self._want(replica)
            self._wake()

        # Sync first: by the next fetch offset the leader counts the appended records as replicated.
        flusher = self._services.flusher
        logs = [each.partition.log for each in answer.grown if _owes_a_sync(each.partition)]
        syncs = [flusher.after_sync(log, log.end_offset, None).recover(OSError, lambda _: None) for log in logs]
        gather(syncs).then(synced)

    def _want_all(self, replicas: Sequence[_Replica]) -> None:
        for replica in replicas:
            if self._is_here(replica) and replica.key in self._apart:
                self._want(replica)

    def _take_reply(self, replica: _Replica, reply: m.FetchResponse.PartitionData, answer: _Answer) -> None:
        fetched = _fetched(reply)
        if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._ask_for_end(replica, fetched)
        else:
            self._carry_out(replica, fetched, answer)

    def _carry_out(self, replica: _Replica, fetched: Fetched, answer: _Answer) -> None:
        asked, replica.asked = replica.asked, None
        assert asked is not None, "nothing was asked"
        follower = replica.follower
        for effect in follower.on_response(asked, fetched):
            match effect:
                case Append(records):
                    if not self._append(replica, records, fetched.evidence_floor):
                        answer.failed.append(replica)
                        return
                case Truncate(offset):
                    self._truncate(replica, fetched, offset)
                    return
                case Restart(offset, is_outdated):
                    self._cut(replica, fetched, offset, is_new_start=True, is_outdated=is_outdated)
                    return
                case AskAgain():
                    self._set_apart(replica)
                    answer.failed.append(replica)
                    return
        log = replica.partition.log
        if fetched.start_offset > log.start_offset and log.failed is None:
            # Follow the leader's log start offset, up to our own log end offset.
            log.delete_before(min(fetched.start_offset, log.end_offset))
        replica.partition.follow_high_watermark(follower, fetched)
        replica.failures, replica.complaint = 0, ""
        if fetched.records:
            answer.grown.append(replica)
        else:
            self._want(replica)

    def _append(self, replica: _Replica, records: Buffer, evidence_floor: int) -> bool:
        """Append the leader's batches. Batches damaged in transit, or refused for lack of space, are fetched
        again."""
        try:
            replica.partition.append_fetched(whole_batches(memoryview(records)), evidence_floor)
        except Refused as refusal:
            self._complain(replica, refusal)
            return False
        if replica.partition.is_throttled:
            self._services.throttle.count(len(records), self._clock.monotonic_ms())
        return True

    def _complain(self, replica: _Replica, problem: Exception) -> None:
        self._set_apart(replica)
        if replica.complaint != str(problem):
            replica.complaint = str(problem)
            name = replica.partition.name.folder
            self._services.journal("replica does not follow", partition=name, leader=self._leader, error=str(problem))

    def _ask_for_end(self, replica: _Replica, fetched: Fetched) -> None:
        """Ask the leader for its log end offset.

        OFFSET_OUT_OF_RANGE means past the leader's log end or before its log start; the fetch response has only the
        latter offset.
        """
        self._set_apart(replica)
        name, epoch = replica.partition.name, replica.follower.leader_epoch
        wanted = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
            partition=name.partition, current_leader_epoch=epoch, leader_epoch=epoch
        )
        request = m.OffsetForLeaderEpochRequest(
            replica_id=self._services.node_id,
            topics=[m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name.topic, partitions=[wanted])],
        )

        def heard(response: m.OffsetForLeaderEpochResponse) -> None:
            if not self._is_here(replica):
                return
            told = response.topics[0].partitions[0] if response.topics and response.topics[0].partitions else None
            answer = _Answer(replica.sent_in, None)
            if told is None or told.error_code or told.leader_epoch != epoch or fetched.start_offset < 0:
                answer.failed.append(replica)
            else:
                told_all = Fetched(fetched.error, start_offset=fetched.start_offset, end_offset=told.end_offset)
                self._carry_out(replica, told_all, answer)
            if answer.failed:
                self._want_later(replica)

        def lost(failure: Exception) -> None:
            if not isinstance(failure, RequestLost):
                raise failure
            self._want_later(replica)

        self._services.peers.ask(self._leader, request, EPOCH_END_VERSION, TIMEOUT_MS).then(heard, lost)

    def _want_later(self, replica: _Replica) -> None:
        self._clock.call_later(self._backoff_ms(), lambda: self._want_all([replica]))

    # Truncating the log.

    def _truncate(self, replica: _Replica, fetched: Fetched, offset: int) -> None:
        log = replica.partition.log
        if offset < log.end_offset:
            self._cut(replica, fetched, offset, is_new_start=False)
            return
        try:
            log.forget_epochs_at_end()
        except Refused as refusal:
            # The log has failed since the fetch was sent.
            self._complain(replica, refusal)
            self._want_later(replica)
            return
        replica.partition.follow_high_watermark(replica.follower, fetched)
        self._want(replica)

    def _cut(
        self, replica: _Replica, fetched: Fetched, offset: int, *, is_new_start: bool, is_outdated: bool = False
    ) -> None:
        self._set_apart(replica)
        services, partition = self._services, replica.partition
        log = partition.log
        committed = replica.follower.high_watermark
        if log.durability.away:
            # Worker threads could find their files gone, or other files under the same names.
            log.compaction.cancel()

            def again() -> None:
                if self._is_here(replica):
                    self._cut(replica, fetched, offset, is_new_start=is_new_start, is_outdated=is_outdated)

            self._clock.call_later(SYNC_POLL_MS, again)
            return
        try:
            truncation = log.begin_truncation(
                offset, is_new_start=is_new_start, keeps=offset < committed and not is_outdated
            )
        except Refused as refusal:
            self._complain(replica, refusal)
            self._want_later(replica)
            return
        facts = {
            "partition": partition.name.folder,
            "offset": truncation.offset,
            "end_offset": log.end_offset,
            "leader": self._leader,
            "leader_epoch": replica.follower.leader_epoch,
        }
        if is_outdated:
            services.journal(OUTDATED, evidence_floor=fetched.evidence_floor, **facts)
        elif truncation.keeps:
            services.journal(CUT_BELOW_COMMITTED, committed=committed, **facts)
        else:
            services.journal("replica restarted empty" if is_new_start else "replica truncated", **facts)
        services.cuts.add(partition)

        def ended(error: OSError | None) -> None:
            services.cuts.discard(partition)
            if error is None:
                replica.partition.follow_high_watermark(replica.follower, fetched)
            else:
                self._complain(replica, error)
            if error is not None:
                self._want_later(replica)
            elif self._is_here(replica):
                self._want(replica)
            services.on_cut(partition)

        _run_cut(services, partition, truncation).then(ended)


def _owes_a_sync(partition: Partition) -> bool:
    return partition.follows_synced and partition.log.synced_offset < partition.log.end_offset


def _run_cut(services: FetcherServices, partition: Partition, truncation: Truncation) -> Later[OSError | None]:
    """Truncate the log. If that fails, the log is unchanged or offline."""
    log = partition.log

    def not_noted(error: OSError) -> OSError:
        log.give_up_truncation(truncation)
        return error

    def run(error: OSError | None) -> Later[OSError | None]:
        if error is not None:
            return done(error)
        ran = services.world.workers.run(truncation.run).map(lambda _: None)
        return ran.recover(OSError, lambda fault: fault).map(finish)

    def finish(error: OSError | None) -> OSError | None:
        log.finish_truncation(truncation, error)
        return error

    # Recovery treats records missing below the checkpointed recovery point as damage.
    is_noted = services.store.notes_no_more_than(partition.name, log.synced_offset)
    noted = done(None) if is_noted else services.checkpoints.write()
    return noted.recover(OSError, not_noted).chain(run)


@dataclass(slots=True)
class _Answer:
    """A response that is being applied."""

    number: int
    response: m.FetchResponse | None
    grown: list[_Replica] = field(default_factory=list)
    failed: list[_Replica] = field(default_factory=list)
    left: Iterator[tuple[_Key, m.FetchResponse.PartitionData]] = field(init=False)

    def __post_init__(self) -> None:
        topics = self.response.responses if self.response is not None else ()
        self.left = (
            ((topic.topic_id, reply.partition_index), reply) for topic in topics for reply in topic.partitions
        )


def _by_topic(keys: dict[_Key, None]) -> dict[UUID, list[int]]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    return topics


def _fetched(reply: m.FetchResponse.PartitionData) -> Fetched:
    diverging = reply.diverging_epoch
    assert not isinstance(reply.records, FileRange | list), "a decoded response holds its records as bytes"
    known = reply.error_code in ErrorCode.__members__.values()
    return Fetched(
        ErrorCode(reply.error_code) if known else ErrorCode.UNKNOWN_SERVER_ERROR,
        high_watermark=reply.high_watermark,
        start_offset=reply.log_start_offset,
        diverging=EpochEnd(diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
        evidence_floor=reply.snapshot_id.end_offset,
        records=reply.records or None,
    )
