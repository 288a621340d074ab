"""A simulated read_committed consumer of one topic: what it is shown, and what it must never be shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from millpond.base.errors import ErrorCode
from millpond.base.named_tuple import NamedTuple
from millpond.sim.clients.client import Client
from millpond.sim.clients.group_member import GroupTopic
from millpond.sim.clients.script import Ask, Player, Rest, Script
from millpond.sim.history.groups import CoordinationHistory
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m
from millpond.wire.batch import BatchHeader, CorruptBatch, check_batch, walk
from millpond.wire.records import Record, decode_batch

READ_COMMITTED = 1
RETRY_MS = 100
FETCH_WAIT_MS = 200
COMMIT = b"\0\0\0\1"
TRANSACTION_HEADER = "transaction"


class Shown(NamedTuple):
    """One record as a reader was shown it."""

    partition: int
    offset: int
    tag: str
    transaction: str
    seen_ms: int


@dataclass(slots=True)
class _View:
    position: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    aborted: dict[int, None] = field(default_factory=dict)
    """Producers inside an aborted transaction, where we are."""


class CommittedReader:
    """Follows every partition from its start, and leaves out what the broker says was aborted."""

    def __init__(
        self,
        clock: VirtualClock,
        client: Client,
        history: CoordinationHistory,
        topic: GroupTopic,
        *,
        version: int = 11,
        max_bytes: int = 1 << 20,
    ) -> None:
        self.shown: list[Shown] = []
        self.views = {number: _View() for number in range(topic.partitions)}
        self._clock = clock
        self._client = client
        self._history = history
        self._topic = topic
        self._version = version
        self._max_bytes = max_bytes
        self._player = Player(clock, self._follow())

    def start(self) -> None:
        self._player.start()

    def close(self) -> None:
        self._player.end()
        self._client.disconnect()

    def is_at_end(self) -> bool:
        return all(view.position >= view.high_watermark >= 0 for view in self.views.values())

    def _follow(self) -> Script[None]:
        made = 0
        while True:
            reply = yield Ask(self._client, self._request(), self._version)
            if self._client.connections_made != made:
                made = self._client.connections_made
                # A new connection may have reached a new life of the node, which knows of less.
                for view in self.views.values():
                    view.high_watermark = view.last_stable_offset = -1
            if reply is None or reply.error_code:
                yield Rest(RETRY_MS)
                continue
            parts = [part for topic in reply.responses for part in topic.partitions]
            try:
                for part in parts:
                    self._take(part)
            except CorruptBatch:
                # Its checksum is what a client refuses it by, and asks again; somebody has to mend it.
                yield Rest(RETRY_MS)
            if any(part.error_code for part in parts):
                yield Rest(RETRY_MS)

    def _request(self) -> m.FetchRequest:
        kind = m.FetchRequest
        return kind(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=self._max_bytes,
            isolation_level=READ_COMMITTED,
            topics=[
                kind.FetchTopic(
                    topic=self._topic.name,
                    topic_id=self._topic.id,
                    partitions=[
                        kind.FetchPartition(
                            partition=number, fetch_offset=view.position, partition_max_bytes=self._max_bytes
                        )
                        for number, view in self.views.items()
                    ],
                )
            ],
            forgotten_topics_data=[],
        )

    def _take(self, part: m.FetchResponse.PartitionData) -> None:
        view = self.views[part.partition_index]
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # Aborted records, and markers, need not have been safe when we passed them: a power cut takes them back.
            view.position = max(part.high_watermark, 0)
            view.aborted.clear()
        if part.error_code:
            return
        for what, before, now in (
            ("high watermark", view.high_watermark, part.high_watermark),
            ("last stable offset", view.last_stable_offset, part.last_stable_offset),
        ):
            if now < before:
                self._blame(f"the {what} of {self._name(part)} fell from {before} to {now}")
        if part.last_stable_offset > part.high_watermark:
            self._blame(f"{self._name(part)} is stable up to {part.last_stable_offset} of {part.high_watermark}")
        view.high_watermark, view.last_stable_offset = part.high_watermark, part.last_stable_offset
        self._read(view, part)

    def _read(self, view: _View, part: m.FetchResponse.PartitionData) -> None:
        assert isinstance(part.records, memoryview), "a decoded reply holds its records as a view"
        data = bytes(part.records)
        aborted = sorted((each.first_offset, each.producer_id) for each in part.aborted_transactions or ())
        for at, header in walk(data):
            check_batch(data, at, compacted=True)
            while aborted and aborted[0][0] <= header.last_offset:
                view.aborted[aborted.pop(0)[1]] = None
            records = [each for each in decode_batch(data, at) if each.offset >= view.position]
            if header.last_offset >= part.last_stable_offset:
                self._blame(
                    f"{self._name(part)} showed offset {header.last_offset}, stable is {part.last_stable_offset}"
                )
            self._show(view, part.partition_index, header, records)
            view.position = max(view.position, header.next_offset)

    def _show(self, view: _View, partition: int, header: BatchHeader, records: list[Record]) -> None:
        if header.is_control:
            if any((record.key or b"")[:4] != COMMIT for record in records):
                view.aborted.pop(header.producer_id, None)
            return
        if header.is_transactional and header.producer_id in view.aborted:
            return
        for record in records:
            transaction = (dict(record.headers).get(TRANSACTION_HEADER) or b"").decode()
            tag = (record.value or b"").decode()
            self.shown.append(Shown(partition, record.offset, tag, transaction, self._clock.now_ms))

    def _name(self, part: m.FetchResponse.PartitionData) -> str:
        return f"{self._topic.name}-{part.partition_index}"

    def _blame(self, finding: str) -> None:
        self._history.blame(self._clock.now_ms, f"{self._client.name}: {finding}")
