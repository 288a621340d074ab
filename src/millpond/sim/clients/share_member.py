"""A simulated member of a share group (KIP-932): heartbeats for its membership, and share sessions for records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final
from uuid import NAMESPACE_OID, UUID, uuid5

from millpond.base.errors import ErrorCode
from millpond.base.named_tuple import NamedTuple
from millpond.sim.clients.cluster_client import WRONG_NODE, ClusterClient
from millpond.sim.clients.group_member import JOINING_EPOCH, LEAVING_EPOCH, UNKNOWN_MEMBER, GroupMember
from millpond.sim.clients.requests import GROUP_KEY, RETRY_MS, find_coordinator
from millpond.sim.clients.script import Script, Send, Sleep
from millpond.wire import messages as m
from millpond.wire.batch import walk
from millpond.wire.records import Record, decode_batch

SHARE_VERSION: Final = 2
HEARTBEAT_VERSION: Final = 1
RECORD_LIMIT: Final = 1
"""The acquire mode with a strict limit of records."""
FETCH_BYTES: Final = 1 << 20
OPENING_EPOCH: Final = 0
CLOSING_EPOCH: Final = -1
EPOCH_MAX: Final = (1 << 31) - 1


class Acknowledge(IntEnum):
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class ShareMember(GroupMember):
    """Heartbeats return the partitions from which it may fetch. Other members fetch from them, too."""

    def run(self) -> Script[None]:
        self.membership.member_id = str(uuid5(NAMESPACE_OID, self._incarnation))
        yield from find_coordinator(self._client, GROUP_KEY, self.membership.group_id)
        epoch = JOINING_EPOCH
        while not self.is_leaving:
            reply = yield Send(self._client, self._heartbeat(epoch), HEARTBEAT_VERSION)
            code = None if reply is None else reply.error_code
            pause_ms = RETRY_MS
            if reply is not None and code == ErrorCode.NONE:
                self.state = "stable"
                self.membership.generation = epoch = reply.member_epoch
                # A member that joins is asked to return soon.
                pause_ms = min(reply.heartbeat_interval_ms, self._times.heartbeat_ms)
                if reply.assignment is not None:
                    yield from self._take_assignment(self._assigned(reply.assignment))
            elif code in UNKNOWN_MEMBER:
                self._lose()
                self.state, epoch = "joining", JOINING_EPOCH
            yield Sleep(pause_ms)
        yield from self._revoke(self.membership.partitions)
        yield Send(self._client, self._heartbeat(LEAVING_EPOCH), HEARTBEAT_VERSION)
        self.state = "gone"

    def _assigned(self, assignment: m.ShareGroupHeartbeatResponse.Assignment) -> frozenset[int]:
        mine = (each for each in assignment.topic_partitions if each.topic_id == self._topic_id)
        return frozenset(number for each in mine for number in each.partitions)

    def _heartbeat(self, epoch: int) -> m.ShareGroupHeartbeatRequest:
        return m.ShareGroupHeartbeatRequest(
            group_id=self.membership.group_id,
            member_id=self.membership.member_id,
            member_epoch=epoch,
            subscribed_topic_names=[self._topic] if epoch == JOINING_EPOCH else None,
        )


class HeldRecord(NamedTuple):
    """A record that this member has acquired."""

    node_id: int
    """The leader with whose session it was acquired."""
    partition: int
    deliveries: int
    record: Record


@dataclass(slots=True)
class _Session:
    """The share session with one node."""

    epoch: int = OPENING_EPOCH
    partitions: frozenset[int] = frozenset()

    def advance(self) -> None:
        self.epoch = self.epoch % EPOCH_MAX + 1


@dataclass(slots=True)
class ShareReader:
    """Fetches and acknowledges records of one topic, over one session with each leader."""

    client: ClusterClient
    group_id: str
    member_id: str
    topic: str
    topic_id: UUID
    lock_ms: int = 0
    """How long records are locked, as the last response said."""
    _sessions: dict[int, _Session] = field(default_factory=dict)
    _last: int = 0
    """The node of the last fetch."""

    def poll(self, partitions: Iterable[int], records_max: int, wait_ms: int) -> Script[list[HeldRecord]]:
        """Acquire records from one leader, each time from the next one, so that the limit holds."""
        by_node = self._by_leader(partitions)
        if not by_node:
            yield Sleep(RETRY_MS)
            return []
        node_id = next((each for each in sorted(by_node) if each > self._last), min(by_node))
        self._last = node_id
        session = self._sessions.setdefault(node_id, _Session())
        request = self._fetch_request(session, by_node[node_id], records_max, wait_ms)
        session.partitions = by_node[node_id]
        session.advance()
        reply = yield Send(self.client.nodes[node_id], request, SHARE_VERSION)
        if reply is None or reply.error_code:
            self._sessions.pop(node_id, None)
            yield Sleep(RETRY_MS)
            return []
        self.lock_ms = reply.acquisition_lock_timeout_ms
        parts = [part for topic in reply.responses for part in topic.partitions]
        if any(part.error_code for part in parts):
            yield Sleep(RETRY_MS)
        return self._held(node_id, parts)

    def acknowledge(self, held: Sequence[HeldRecord], how: Acknowledge) -> Script[ErrorCode]:
        """Send the verdict on records of one leader. The code says whether all of them were still held."""
        node_id = held[0].node_id
        assert all(each.node_id == node_id for each in held), "one session, one node"
        session = self._sessions.get(node_id)
        if session is None or session.epoch == OPENING_EPOCH:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        request = self._acknowledge_request(session, held, how)
        session.advance()
        reply = yield Send(self.client.nodes[node_id], request, SHARE_VERSION)
        if reply is None or reply.error_code:
            self._sessions.pop(node_id, None)
            return ErrorCode.REQUEST_TIMED_OUT if reply is None else ErrorCode(reply.error_code)
        codes = {part.error_code for topic in reply.responses for part in topic.partitions}
        return ErrorCode(next((each for each in sorted(codes) if each), 0))

    def close(self) -> Script[None]:
        """End the sessions in order: what is held is available again, as if it had not been delivered."""
        for node_id in sorted(self._sessions):
            session = self._sessions.pop(node_id)
            if session.epoch == OPENING_EPOCH:
                continue
            session.epoch = CLOSING_EPOCH
            request = self._fetch_request(session, session.partitions, 0, 0)
            yield Send(self.client.nodes[node_id], request, SHARE_VERSION)

    def _by_leader(self, partitions: Iterable[int]) -> dict[int, frozenset[int]]:
        by_node: dict[int, frozenset[int]] = {}
        for index in sorted(partitions):
            leader = self.client.leader_of(self.topic, index)
            if leader is not None:
                by_node[leader[0]] = by_node.get(leader[0], frozenset()) | {index}
        return by_node

    def _held(self, node_id: int, parts: Iterable[m.ShareFetchResponse.PartitionData]) -> list[HeldRecord]:
        held: list[HeldRecord] = []
        for part in parts:
            if part.error_code in WRONG_NODE:
                self.client.forget_leader(self.topic, part.partition_index, node_id)
            deliveries = {
                offset: each.delivery_count
                for each in part.acquired_records
                for offset in range(each.first_offset, each.last_offset + 1)
            }
            data = bytes(part.records) if isinstance(part.records, memoryview) else b""
            records = [record for at, _ in walk(data) for record in decode_batch(data, at)]
            held += [
                HeldRecord(node_id, part.partition_index, deliveries[each.offset], each)
                for each in records
                if each.offset in deliveries
            ]
        return held

    def _fetch_request(
        self, session: _Session, partitions: frozenset[int], records_max: int, wait_ms: int
    ) -> m.ShareFetchRequest:
        kind = m.ShareFetchRequest
        added = sorted(partitions if session.epoch == OPENING_EPOCH else partitions - session.partitions)
        forgotten = sorted(session.partitions - partitions)
        return kind(
            group_id=self.group_id,
            member_id=self.member_id,
            share_session_epoch=session.epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            max_records=records_max,
            batch_size=max(records_max, 1),
            share_acquire_mode=RECORD_LIMIT,
            topics=[
                kind.FetchTopic(
                    topic_id=self.topic_id,
                    partitions=[
                        kind.FetchPartition(partition_index=index, acknowledgement_batches=[]) for index in added
                    ],
                )
            ]
            if added
            else [],
            forgotten_topics_data=[kind.ForgottenTopic(topic_id=self.topic_id, partitions=forgotten)]
            if forgotten
            else [],
        )

    def _acknowledge_request(
        self, session: _Session, held: Sequence[HeldRecord], how: Acknowledge
    ) -> m.ShareAcknowledgeRequest:
        kind = m.ShareAcknowledgeRequest
        by_partition: dict[int, list[int]] = {}
        for each in held:
            by_partition.setdefault(each.partition, []).append(each.record.offset)
        return kind(
            group_id=self.group_id,
            member_id=self.member_id,
            share_session_epoch=session.epoch,
            is_renew_ack=how is Acknowledge.RENEW,
            topics=[
                kind.AcknowledgeTopic(
                    topic_id=self.topic_id,
                    partitions=[
                        kind.AcknowledgePartition(
                            partition_index=index,
                            acknowledgement_batches=[
                                kind.AcknowledgementBatch(
                                    first_offset=offset, last_offset=offset, acknowledge_types=[how]
                                )
                                for offset in sorted(offsets)
                            ],
                        )
                        for index, offsets in sorted(by_partition.items())
                    ],
                )
            ],
        )
