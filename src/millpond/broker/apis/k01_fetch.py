"""Fetch (1), versions 4-18: read record batches, waiting for new ones if there are too few.

4 isolation level · 5 log start offset · 7 fetch sessions · 9 leader epoch check · 10 zstd · 11 rack · 12 flexible,
diverging epoch · 13 topic ids · 15 replica state · 16 node endpoints · 17 directory id · 18 high watermark.
A follower (a replica id) is served by `replica_sessions`: it reads up to the end of the log, and what it asks for
tells how far it has come. It must name its broker epoch (version 15). Everybody else reads what is committed. A
consumer that names its rack is sent by the leader to a replica in that rack (KIP-392), which shows it what it knows
to be committed; one that is not in sync, or not so far, answers OFFSET_NOT_AVAILABLE, at which clients go back.

Records leave as file ranges, straight from the page cache; a range that is not in memory is first read by a worker,
so that no other client waits for the disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.later import Later
from millpond.base.ports import FileRange
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import OF_NODES, Need, Rights, Screened, demand_node, demand_topic
from millpond.broker.fetch.closest_replica import closest
from millpond.broker.fetch.short_path import serve_short
from millpond.broker.fetch_sessions.consumer_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchContext,
    Wanted,
    Wishes,
)
from millpond.broker.loop.steps import Steps, in_slices
from millpond.broker.quorum.wire import is_metadata_fetch
from millpond.broker.replication.partitions import Partition
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome, release_ranges
from millpond.broker.responses.current_leader import MOVED, current_leader, endpoints
from millpond.broker.serving.api import Api
from millpond.config.node import FETCH_MAX_BYTES, FETCH_WAIT_MAX_MS, REPLICA_SELECTOR_CLASS
from millpond.wire import messages as m
from millpond.wire.kernel import short_fetch

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext, SecurityContext
    from millpond.broker.requests.connection import Connection

READ_COMMITTED = 1
WARM_STEP_BYTES = 1 << 20
AT_ONCE_MAX: Final = 500
"""So many partitions are read in one turn of the loop; of more, a part in each turn: each takes ten microseconds or
more."""
STEP_PARTITIONS: Final = 300
ITEMS_MAX: Final = 30_000
"""So many topics and partitions one request may name: before any is read it is looked up what is known of each."""
ON_TOPIC = Need(Operation.READ, AclResource.TOPIC)
CURRENT_LEADER_FROM, REPLICA_STATE_FROM, NODE_ENDPOINTS_FROM = 12, 15, 16


def prepare(data: DataContext, call: Call, request: m.FetchRequest) -> Later[Any] | None:
    """Thousands of partitions are looked up before the request is handled, some of them in each turn of the loop."""
    replica_id = request.replica_state.replica_id if call.version >= REPLICA_STATE_FROM else request.replica_id
    if replica_id >= 0 or is_metadata_fetch(request, call.version):
        return None

    def keep(wishes: Wishes) -> None:
        call.wishes = wishes

    owner = call.principal if call.access.is_on else None
    return call.connection.run_in_turns(data.fetch_sessions.wishes_in_steps(request, owner)).map(keep)


def handle(
    node: NodeContext, metadata: MetadataContext, data: DataContext, call: Call, request: m.FetchRequest
) -> Outcome:
    if is_metadata_fetch(request, call.version):
        return metadata.controller.host.answer(request, call.connection.number, call.connection.link.listener)
    state = request.replica_state
    if call.version >= REPLICA_STATE_FROM and state.replica_id >= 0:
        in_turns = call.connection.run_in_turns
        return data.replica_sessions.fetch(request, state.replica_id, state.replica_epoch, in_turns)
    if call.version < REPLICA_STATE_FROM and request.replica_id >= 0:
        return data.replica_sessions.fetch(request, request.replica_id, -1, call.connection.run_in_turns)
    consumer = None if call.meter is None else call.meter.consumer
    owes = consumer is not None and consumer.wait_ms(node.clock.monotonic_ms()) > 0
    if owes and request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        # No session begins by it: clients begin again when they were told to wait.
        return m.FetchResponse(session_id=NO_SESSION, responses=[])
    owner = call.principal if call.access.is_on else None
    try:
        now_ms = node.clock.monotonic_ms()
        context = data.fetch_sessions.context(request, call.version, now_ms, owner, call.wishes)
    except Refused as refusal:
        return m.FetchResponse(error_code=refusal.code, session_id=0, responses=[])
    if owes:
        return m.FetchResponse(session_id=context.session_id, responses=[])
    fetch = _Fetch(node, metadata, data, call, request, context)
    at_least_bytes = 0 if request.max_wait_ms <= 0 else fetch.bytes_min
    if len(context.wanted) > AT_ONCE_MAX:
        return fetch.begin_in_steps(at_least_bytes)
    if fetch.read(at_least_bytes):
        return fetch.outcome()
    return fetch.park()


def short(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    data: DataContext,
    connection: Connection,
    frame: memoryview,
) -> bool:
    """One partition, or a session that has one, no error, little to read or none: what most consumers ask."""
    asked = short_fetch(frame)
    return asked is not None and serve_short(node, security, metadata, data, connection, asked, _answer_now)


def _answer_now(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    call: Call,
    request: m.FetchRequest,
    context: FetchContext,
) -> Outcome:
    """What there is, or why there is nothing."""
    fetch = _Fetch(node, metadata, data, call, request, context)
    fetch.read(0)
    return fetch.outcome()


_Read = tuple[Wanted, m.FetchResponse.PartitionData, list[FileRange]]


_Topics = dict[tuple[str, object], m.FetchResponse.FetchableTopicResponse]


class _Watched:
    """What a waiting fetch keeps of a partition, so that an append costs it no read."""

    __slots__ = ("_stable_offset", "_unstable_bytes", "room")

    def __init__(self, partition: Partition, room: int) -> None:
        self.room = room
        """How many bytes of it can still count: a reply has no more of one partition than the client allows."""
        self._stable_offset = partition.last_stable_offset
        # Those of open transactions that are there already, or more.
        is_stable = self._stable_offset >= partition.committed_offset
        self._unstable_bytes = 0 if is_stable else partition.log.size_from(self._stable_offset)

    def take_stable(self, stable_offset: int, size: int) -> int:
        """How many bytes a reader of committed records can see more of; those of an open transaction wait."""
        self._unstable_bytes += size
        if stable_offset == self._stable_offset:
            return 0
        self._stable_offset = stable_offset
        seen, self._unstable_bytes = self._unstable_bytes, 0
        return seen


class _Fetch:
    """One fetch: reads all its partitions, now or again once enough has been appended."""

    def __init__(
        self,
        node: NodeContext,
        metadata: MetadataContext,
        data: DataContext,
        call: Call,
        request: m.FetchRequest,
        context: FetchContext,
    ) -> None:
        self._node = node
        self._metadata = metadata
        self._data = data
        self._connection = call.connection
        self._is_for_node = call.is_from_node
        self._leaders: set[int] = set()
        """Nodes that the client should ask instead."""
        self._is_reading = False
        """Whether a read in steps is under way, and what has happened meanwhile."""
        self._has_grown = False
        self._version = call.version
        self._quota = None if call.meter is None else call.meter.consumer
        self._by_id = call.version >= 13
        self._rack = request.rack_id if node.settings[REPLICA_SELECTOR_CLASS] else ""
        self._committed_only = request.isolation_level == READ_COMMITTED
        self._bytes_max = min(request.max_bytes, node.settings[FETCH_MAX_BYTES])
        # More than a reply may hold will never be there.
        self.bytes_min = min(request.min_bytes, self._bytes_max)
        self._bytes_missing = 0
        self._wait_ms = min(request.max_wait_ms, node.settings[FETCH_WAIT_MAX_MS])
        self._context = context
        self._reads: list[_Read] = []
        self._watched: dict[Partition, _Watched] = {}
        self._reply: Later[m.FetchResponse] = Later(self._unpark)
        self._is_parked = False
        self._is_due = False
        """Its turn to read again comes."""
        self._is_late = False
        """Then it takes what there is."""
        self._call = call if call.access.is_on and not call.is_unlimited else None
        """Whose rights are asked for, if they have to be."""

    # Reading.

    def read(self, at_least_bytes: int) -> bool:
        """Read every partition. False, with nothing kept, when it came to fewer bytes and no error."""
        read_bytes, is_at_once = self._read_some(self._context.wanted, self._room_bytes(), 0)
        self._bytes_missing = at_least_bytes - read_bytes
        if read_bytes >= at_least_bytes or is_at_once or not self._context.wanted:
            return True
        self._watch(self._reads)
        self._release()
        return False

    def _room_bytes(self) -> int:
        if self._quota is None:
            return self._bytes_max
        # What is there for this client: of a batch that is larger only the first is sent.
        return min(self._bytes_max, max(int(self._quota.left(self._node.clock.monotonic_ms())), 0))

    def _read_some(self, some: Iterable[Wanted], bytes_max: int, read_bytes: int) -> tuple[int, bool]:
        """How many bytes have been read with these, and whether one of them has to be told of at once."""
        is_at_once = False
        for wanted in some:
            reply, ranges = self._read_one(wanted, bytes_max - read_bytes, first=read_bytes == 0)
            for part in ranges:
                read_bytes += part.length
            if reply.error_code or reply.preferred_read_replica >= 0:
                is_at_once = True
            self._reads.append((wanted, reply, ranges))
        return read_bytes, is_at_once

    def _read_one(
        self, wanted: Wanted, bytes_left: int, *, first: bool
    ) -> tuple[m.FetchResponse.PartitionData, list[FileRange]]:
        index = wanted.key[2]
        partition = self._partition(wanted)
        if self._call is not None and not self._may_read(self._call, wanted, partition):
            return self._failed(wanted, ON_TOPIC.refusal), []
        if partition is None:
            name, topic_id, _ = wanted.key
            return self._failed(wanted, self._data.absence(topic_id if self._by_id else name, index)), []
        ranges: list[FileRange] = []
        try:
            partition.check_leader_epoch(wanted.leader_epoch)
            partition.check_reads(by_rack=bool(self._rack))
            elsewhere = (
                closest(self._node, self._metadata, partition, self._rack, wanted.fetch_offset)
                if self._rack
                else None
            )
            if elsewhere is not None:
                return self._sent_to(elsewhere, partition), []
            if not partition.is_leader and not partition.holds(wanted.fetch_offset):
                # It is in the leader's log, if anywhere: each replica deletes old segments by its own time.
                raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE)
            stable_offset = partition.last_stable_offset
            ranges, upper_offset = partition.read(
                wanted.fetch_offset,
                min(wanted.bytes_max, max(bytes_left, 0)),
                at_least_one_batch=first,
                upper_offset=stable_offset if self._committed_only else partition.committed_offset,
            )
            aborted = self._aborted(partition, wanted.fetch_offset, upper_offset) if ranges else []
        except Refused as refusal:
            # Which transactions were aborted may not be readable though the records are.
            release_ranges(ranges)
            return self._failed(wanted, refusal.code, partition), []
        reply = m.FetchResponse.PartitionData(
            partition_index=index,
            high_watermark=partition.committed_offset,
            last_stable_offset=stable_offset,
            log_start_offset=partition.log.start_offset,
            aborted_transactions=aborted if self._committed_only else None,
            records=[*ranges],
        )
        return reply, ranges

    def _may_read(self, call: Call, wanted: Wanted, partition: Partition | None) -> bool:
        if partition is not None:
            topic = partition.name.topic
            return call.access.may_often(self._connection, Operation.READ, topic) or call.demand(*ON_TOPIC, topic)
        name, topic_id, _ = wanted.key
        return demand_topic(self._metadata, call, Operation.READ, name, topic_id if self._by_id else NO_TOPIC_ID)

    def _sent_to(self, node_id: int, partition: Partition) -> m.FetchResponse.PartitionData:
        return m.FetchResponse.PartitionData(
            partition_index=partition.name.partition,
            high_watermark=partition.committed_offset,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.start_offset,
            aborted_transactions=[] if self._committed_only else None,
            preferred_read_replica=node_id,
            records=b"",
        )

    def _failed(
        self, wanted: Wanted, code: ErrorCode, partition: Partition | None = None
    ) -> m.FetchResponse.PartitionData:
        name, topic_id, index = wanted.key
        reply = m.FetchResponse.PartitionData(
            partition_index=index,
            error_code=code,
            high_watermark=-1 if partition is None else partition.committed_offset,
            last_stable_offset=-1,
            log_start_offset=-1 if partition is None else partition.log.start_offset,
            records=b"",
        )
        if code not in MOVED or self._version < CURRENT_LEADER_FROM:
            return reply
        leader = current_leader(self._node, self._metadata, self._data, topic_id if self._by_id else name, index)
        if leader is not None:
            if self._version >= NODE_ENDPOINTS_FROM:
                self._leaders.add(leader.node_id)
            reply.current_leader = m.FetchResponse.LeaderIdAndEpoch(
                leader_id=leader.node_id, leader_epoch=leader.leader_epoch
            )
        return reply

    def _partition(self, wanted: Wanted) -> Partition | None:
        name, topic_id, index = wanted.key
        partitions = self._data.partitions
        return partitions.by_id(topic_id, index) if self._by_id else partitions.get(name, index)

    def _aborted(
        self, partition: Partition, offset: int, upper_offset: int
    ) -> list[m.FetchResponse.AbortedTransaction]:
        """What a reader of committed records has to leave out of what it gets."""
        if not self._committed_only:
            return []
        return [
            m.FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset in partition.log.aborted_transactions(offset, upper_offset)
        ]

    def _release(self) -> None:
        for _, _, ranges in self._reads:
            release_ranges(ranges)
        self._reads = []

    # Waiting.

    def _watch(self, reads: Iterable[_Read]) -> None:
        """What was read is too little: wait for more of each partition."""
        for wanted, _, ranges in reads:
            partition = self._partition(wanted)
            if partition is not None:
                partition.watchers[self] = None
                # One batch is read, however small the limit.
                room = max(wanted.bytes_max, 1) - sum(part.length for part in ranges)
                self._watched[partition] = _Watched(partition, max(room, 0))

    def park(self) -> Outcome:
        self._is_parked = True
        self._data.pending_fetches.add()
        self._reply.expire_after(self._node.clock, self._wait_ms, self.answer)
        return self._reply

    def on_append(self, partition: Partition, size: int) -> None:
        """A partition that we watch has grown: read once enough of it may be there."""
        if self._is_reading:
            self._has_grown = True
            return
        if not self._is_waiting():
            return
        watched = self._watched[partition]
        if self._committed_only:
            size = watched.take_stable(partition.last_stable_offset, size)
        counted = min(size, watched.room)
        watched.room -= counted
        self._bytes_missing -= counted
        if counted and self._bytes_missing <= 0:
            self._answer_in_turn()

    def answer(self) -> None:
        """Answer with what there is, however little."""
        self._is_late = True
        if not self._is_reading:
            self._answer_in_turn()

    def _answer_in_turn(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._data.pending_fetches.answer(self._read_again)

    def _read_again(self) -> None:
        self._is_due = False
        if self._is_reading or not self._is_waiting():
            return
        at_least_bytes = 0 if self._is_late else self.bytes_min
        if self._is_in_steps:
            self._begin_steps(at_least_bytes)
        elif self.read(at_least_bytes):
            self._finish()

    def _is_waiting(self) -> bool:
        """Not once something was found: while a worker warms it, the deadline may pass and partitions may grow."""
        return not self._reply.ended and not self._reads

    def _unpark(self) -> None:
        if self._is_parked:
            self._is_parked = False
            self._data.pending_fetches.remove()
        for partition in self._watched:
            partition.watchers.pop(self, None)
        self._watched = {}

    # The same for very many partitions, some of them in each turn of the loop. What has been read is watched at once:
    # what comes to it while others are read must not be missed.

    @property
    def _is_in_steps(self) -> bool:
        return len(self._context.wanted) > AT_ONCE_MAX

    def begin_in_steps(self, at_least_bytes: int) -> Outcome:
        self._begin_steps(at_least_bytes)
        self._reply.expire_after(self._node.clock, max(self._wait_ms, 0), self.answer)
        return self._reply

    def _begin_steps(self, at_least_bytes: int) -> None:
        self._is_reading = True

        def end(is_answered: bool) -> None:
            self._is_reading = False
            if self._reply.ended:
                self._release()
                self._unpark()
            elif is_answered:
                self._unpark()
                self._connection.run_in_turns(self._answer_in_steps()).then(self._end_steps)
            else:
                self._release()

        self._connection.run_in_turns(self._read_in_steps(at_least_bytes)).then(end)

    def _read_in_steps(self, at_least_bytes: int) -> Steps[bool]:
        """Whether there is enough to be answered."""
        while True:
            self._has_grown = False
            bytes_max, read_bytes, is_at_once = self._room_bytes(), 0, False
            for some in in_slices(self._context.wanted, STEP_PARTITIONS):
                if self._reply.ended:
                    return False
                begin = len(self._reads)
                read_bytes, is_urgent = self._read_some(some, bytes_max, read_bytes)
                is_at_once |= is_urgent
                self._watch(self._reads[begin:])
                yield None
            self._bytes_missing = at_least_bytes - read_bytes
            if self._bytes_missing <= 0 or is_at_once or self._is_late:
                return True
            if not self._has_grown:
                return False
            self._release()

    def _answer_in_steps(self) -> Steps[m.FetchResponse | None]:
        """The response; None where nobody waits for it any more."""
        cold: list[FileRange] = []
        for some in in_slices(self._reads, STEP_PARTITIONS):
            cold += _cold_ranges(some)
            yield None
        if cold:
            try:
                yield self._node.workers.run(partial(_fill_page_cache, cold))
            except OSError:
                self._release()
                return _unreadable()
        topics: _Topics = {}
        for some in in_slices(self._reads, STEP_PARTITIONS):
            if self._reply.ended:
                return None
            self._put(some, topics)
            yield None
        return self._joined(topics)

    def _end_steps(self, response: m.FetchResponse | None) -> None:
        if response is None or self._reply.ended:
            self._release()
        else:
            self._reads = []
            self._reply.finish(response)

    # Answering.

    def outcome(self) -> Outcome:
        cold = _cold_ranges(self._reads)
        if not cold:
            # Else each would keep the other, and the connection, until the next collection of garbage.
            self._reply.cancel()
            return self._response()
        self._warm(cold)
        return self._reply

    def _finish(self) -> None:
        self._unpark()
        cold = _cold_ranges(self._reads)
        if cold:
            self._warm(cold)
        else:
            self._reply.finish(self._response())

    def _warm(self, cold: list[FileRange]) -> None:
        def warmed(_: None) -> None:
            if self._reply.ended:
                self._release()
            else:
                self._reply.finish(self._response())

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError):
                raise error
            self._release()
            self._reply.finish(_unreadable())

        self._node.workers.run(partial(_fill_page_cache, cold)).then(warmed, failed)

    def _response(self) -> m.FetchResponse:
        topics: _Topics = {}
        self._put(self._reads, topics)
        self._reads = []
        return self._joined(topics)

    def _put(self, reads: Iterable[_Read], topics: _Topics) -> None:
        """Put what the client has to hear of these into the response."""
        for wanted, reply, ranges in reads:
            if ranges and not self._is_for_node and (partition := self._partition(wanted)) is not None:
                partition.read_bytes += sum(part.length for part in ranges)
            if not self._context.keep_in_reply(wanted, reply):
                continue
            name, topic_id, _ = wanted.key
            topic = topics.get((name, topic_id))
            if topic is None:
                topic = topics[name, topic_id] = m.FetchResponse.FetchableTopicResponse(
                    topic=name, topic_id=topic_id, partitions=[]
                )
            topic.partitions.append(reply)

    def _joined(self, topics: _Topics) -> m.FetchResponse:
        return m.FetchResponse(
            session_id=self._context.session_id,
            responses=list(topics.values()),
            node_endpoints=[
                m.FetchResponse.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
                for node_id, host, port, rack in endpoints(self._node, self._connection, self._leaders)
            ],
        )


def _cold_ranges(reads: Iterable[_Read]) -> list[FileRange]:
    return [part for _, _, ranges in reads for part in ranges if not part.file.is_cached(part.position, part.length)]


def _unreadable() -> m.FetchResponse:
    return m.FetchResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR, responses=[])


def _fill_page_cache(cold: list[FileRange]) -> None:
    for part in cold:
        for position in range(part.position, part.position + part.length, WARM_STEP_BYTES):
            part.file.read_at(position, min(WARM_STEP_BYTES, part.position + part.length - position))


def _screen(metadata: MetadataContext, call: Call, request: m.FetchRequest) -> Screened | None:
    """Only nodes read as a replica does, and the metadata. What consumers read is asked for at each read."""
    is_metadata = is_metadata_fetch(request, call.version)
    replica_id = request.replica_state.replica_id if call.version >= REPLICA_STATE_FROM else request.replica_id
    if (not is_metadata and replica_id < 0) or demand_node(call):
        return None
    if is_metadata or sum(len(topic.partitions) for topic in request.topics) > AT_ONCE_MAX:
        # No client that calls itself a replica by mistake names that many.
        return Screened(None, m.FetchResponse(error_code=OF_NODES.refusal, responses=[]))
    return Screened(None, m.FetchResponse(responses=[_refuse_topic(topic) for topic in request.topics]))


def _refuse_topic(topic: m.FetchRequest.FetchTopic) -> m.FetchResponse.FetchableTopicResponse:
    return m.FetchResponse.FetchableTopicResponse(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partitions=[
            m.FetchResponse.PartitionData(
                partition_index=each.partition,
                error_code=ON_TOPIC.refusal,
                high_watermark=-1,
                last_stable_offset=-1,
                log_start_offset=-1,
                records=b"",
            )
            for each in topic.partitions
        ],
    )


def _has_many_partitions(response: m.FetchResponse) -> bool:
    return sum(len(topic.partitions) for topic in response.responses) > AT_ONCE_MAX


API = Api(
    key=1,
    name="Fetch",
    versions=(4, 18),
    handle=handle,
    short=short,
    lists="topics",
    prepare=prepare,
    is_large=_has_many_partitions,
    has_ranges=True,
    whole_max=ITEMS_MAX,
    rights=Rights((ON_TOPIC, OF_NODES), _screen),
)
