"""A simulated consumer, which uses fetch sessions, checks every batch and records what it saw."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.sim.clients.client import SimClient
from millpond.sim.history.records import History, TopicIdPartition
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m
from millpond.wire.batch import BatchHeader, check_batch, walk
from millpond.wire.records import Record, decode_batch

RETRY_MS = 100
SESSIONS_FROM = 7
IDS_FROM = 13
LOST_SESSION = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


@dataclass(slots=True)
class PartitionView:
    """What one reader knows of one partition."""

    partition: TopicIdPartition
    position: int = 0
    start_offset: int = 0
    high_watermark: int = -1
    records: dict[int, Record] | None = None
    batches: list[BatchHeader] | None = None
    session_position: int | None = None
    """The position in the fetch session; None if the next request has to contain it."""


class SimReader:
    """Reads partitions from their start. With `keep` it keeps all records for the checkers."""

    def __init__(
        self,
        client: SimClient,
        clock: VirtualClock,
        history: History,
        partitions: list[TopicIdPartition],
        *,
        version: int = 12,
        max_bytes: int = 1 << 20,
        keep: bool = False,
    ) -> None:
        self.client = client
        self.name = client.name
        self.version = version
        self.views = {partition: PartitionView(partition) for partition in partitions}
        if keep:
            for view in self.views.values():
                view.records, view.batches = {}, []
        self.records_read = 0
        self._max_bytes = max_bytes
        self._clock = clock
        self._history = history
        self._session_id = 0
        self._session_epoch = 0
        self._departures = 0
        self._closed = False

    def start(self) -> None:
        self._fetch()

    def close(self) -> None:
        self._closed = True
        self.client.disconnect()

    def is_at_end(self) -> bool:
        """Whether it has read up to the high watermarks that it knows."""
        return all(view.position >= view.high_watermark >= 0 for view in self.views.values())

    def follow(self, partition: TopicIdPartition) -> None:
        self.views.setdefault(partition, PartitionView(partition))

    def leave(self, partition: TopicIdPartition) -> None:
        """Stop reading a partition; a new fetch session is the simplest way."""
        if self.views.pop(partition, None) is not None:
            self._departures += 1
            self._forget_session()

    # Requests

    def _fetch(self) -> None:
        if self._closed:
            return
        if not self.views:
            self._later()
            return
        request = m.FetchRequest(
            max_wait_ms=200,
            min_bytes=1,
            max_bytes=self._max_bytes,
            session_id=self._session_id if self.version >= SESSIONS_FROM else 0,
            session_epoch=self._session_epoch if self.version >= SESSIONS_FROM else -1,
            topics=self._topics(),
            forgotten_topics_data=[],
        )
        made, departures = self.client.connections_made, self._departures
        self.client.send(request, self.version, lambda reply: self._on_reply(reply, departures))
        if self.client.connections_made != made:
            # The high watermark falls only with a restart of the node, which a new connection may have reached.
            for view in self.views.values():
                view.high_watermark = -1

    def _topics(self) -> list[m.FetchRequest.FetchTopic]:
        topics: dict[tuple[str, UUID], m.FetchRequest.FetchTopic] = {}
        for view in self.views.values():
            if self._session_id and view.session_position == view.position:
                continue
            view.session_position = view.position
            name, topic_id, index = view.partition
            topic = topics.setdefault(
                (name, topic_id), m.FetchRequest.FetchTopic(topic=name, topic_id=topic_id, partitions=[])
            )
            topic.partitions.append(
                m.FetchRequest.FetchPartition(
                    partition=index, fetch_offset=view.position, partition_max_bytes=self._max_bytes
                )
            )
        return list(topics.values())

    def _later(self) -> None:
        self._clock.call_later(RETRY_MS, self._fetch)

    def _forget_session(self) -> None:
        self._session_id = self._session_epoch = 0
        for view in self.views.values():
            view.session_position = None

    # Responses

    def _on_reply(self, reply: m.FetchResponse | None, departures: int) -> None:
        if self._closed:
            return
        if reply is None or departures != self._departures:
            # Lost, or for topics that may have been recreated since.
            self._forget_session()
            self._later()
            return
        if reply.error_code:
            self._forget_session()
            if reply.error_code not in (*LOST_SESSION, ErrorCode.KAFKA_STORAGE_ERROR):
                self._history.violations.append(f"{self.name}: fetch answered {ErrorCode(reply.error_code).name}")
            self._later()
            return
        self._go_on_with_session(reply.session_id)
        troubled = False
        for topic in reply.responses:
            for part in topic.partitions:
                view = self._view_of(topic, part.partition_index)
                if view is not None:
                    troubled |= not self._take(view, part)
        if troubled:
            self._later()
        else:
            self._fetch()

    def _go_on_with_session(self, session_id: int) -> None:
        if self.version < SESSIONS_FROM or not session_id:
            self._forget_session()
            return
        self._session_id = session_id
        self._session_epoch += 1

    def _view_of(self, topic: m.FetchResponse.FetchableTopicResponse, index: int) -> PartitionView | None:
        for partition, view in self.views.items():
            by_id = self.version >= IDS_FROM
            same = partition.topic_id == topic.topic_id if by_id else partition.topic == topic.topic
            if same and partition.partition_index == index:
                return view
        return None

    def _take(self, view: PartitionView, part: m.FetchResponse.PartitionData) -> bool:
        """False if it should wait a moment."""
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # Unacknowledged records may be lost in a crash, and retention may have deleted others.
            view.position = max(min(view.position, part.high_watermark), part.log_start_offset)
            view.session_position = None
            return True
        if part.error_code:
            view.session_position = None
            return False
        if part.high_watermark < view.high_watermark:
            self._history.violations.append(
                f"{self.name}: the high watermark of {view.partition} fell from {view.high_watermark} to "
                f"{part.high_watermark} within one incarnation of the node"
            )
        view.high_watermark = part.high_watermark
        view.start_offset = max(part.log_start_offset, 0)
        self._take_records(view, part)
        return True

    def _take_records(self, view: PartitionView, part: m.FetchResponse.PartitionData) -> None:
        self.records_read += take_records(self._history, self.name, view, part, self._clock.now_ms)


def take_records(
    history: History, reader: str, view: PartitionView, part: m.FetchResponse.PartitionData, now_ms: int
) -> int:
    """Check and record fetched batches and advance the view; returns the number of new records."""
    assert isinstance(part.records, memoryview), "a decoded reply holds its records as a view"
    data = bytes(part.records)
    asked = view.position
    count = 0
    for at, header in walk(data):
        check_batch(data, at, compacted=True)
        if header.next_offset <= view.position:
            history.violations.append(
                f"{reader}: {view.partition} gave the batch {header.base_offset} to {header.last_offset} when "
                f"{asked} was asked for and {view.position} was due"
            )
        records = [record for record in decode_batch(data, at) if record.offset >= view.position]
        history.see(view.partition, records, now_ms)
        count += len(records)
        if view.records is not None and view.batches is not None:
            view.records.update({record.offset: record for record in records})
            view.batches.append(header)
        view.position = max(view.position, header.next_offset)
    return count
