"""A simulated read_committed consumer of one topic, which reports records that it should not have been shown."""

from __future__ import annotations

from millpond.base.errors import ErrorCode
from millpond.base.named_tuple import NamedTuple
from millpond.sim.clients.client import Client
from millpond.sim.clients.group_member import GroupTopic
from millpond.sim.clients.isolation import Cursor, visible_records
from millpond.sim.clients.requests import READ_COMMITTED, RETRY_MS, fetch_request
from millpond.sim.clients.script import Script, ScriptRunner, Send, Sleep
from millpond.sim.history.groups import CoordinationHistory
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m
from millpond.wire.batch import CorruptBatch

FETCH_WAIT_MS = 200
TRANSACTION_HEADER = "transaction"


class SeenRecord(NamedTuple):
    """One record that a reader saw."""

    partition: int
    offset: int
    tag: str
    transaction: str
    seen_ms: int


class CommittedReader:
    """Reads every partition from its start, without the records that the broker says were aborted."""

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
        self.shown: list[SeenRecord] = []
        self.views = {number: Cursor() for number in range(topic.partitions)}
        self._clock = clock
        self._client = client
        self._history = history
        self._topic = topic
        self._version = version
        self._max_bytes = max_bytes
        self._runner = ScriptRunner(clock, self._follow())

    def start(self) -> None:
        self._runner.start()

    def close(self) -> None:
        self._runner.end()
        self._client.disconnect()

    def is_at_end(self) -> bool:
        return all(view.position >= view.high_watermark >= 0 for view in self.views.values())

    def _follow(self) -> Script[None]:
        made = 0
        while True:
            request = fetch_request(
                self._topic.name,
                {number: view.position for number, view in self.views.items()},
                topic_id=self._topic.id,
                max_bytes=self._max_bytes,
                max_wait_ms=FETCH_WAIT_MS,
                isolation_level=READ_COMMITTED,
            )
            reply = yield Send(self._client, request, self._version)
            if self._client.connections_made != made:
                made = self._client.connections_made
                # A new connection may have reached a restarted node, which knows less.
                for view in self.views.values():
                    view.high_watermark = view.last_stable_offset = -1
            if reply is None or reply.error_code:
                yield Sleep(RETRY_MS)
                continue
            parts = [part for topic in reply.responses for part in topic.partitions]
            try:
                for part in parts:
                    self._take(part)
            except CorruptBatch:
                # A client rejects it by its checksum and fetches again, until the broker has repaired the log.
                yield Sleep(RETRY_MS)
            if any(part.error_code for part in parts):
                yield Sleep(RETRY_MS)

    def _take(self, part: m.FetchResponse.PartitionData) -> None:
        view = self.views[part.partition_index]
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # Aborted records and markers may not have been durable when we read them: a power cut removes them.
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

    def _read(self, view: Cursor, part: m.FetchResponse.PartitionData) -> None:
        for header, records in visible_records(view, part, read_committed=True):
            if header.last_offset >= part.last_stable_offset:
                self._blame(
                    f"{self._name(part)} showed offset {header.last_offset}, stable is {part.last_stable_offset}"
                )
            for record in records:
                transaction = (dict(record.headers).get(TRANSACTION_HEADER) or b"").decode()
                tag = (record.value or b"").decode()
                self.shown.append(
                    SeenRecord(part.partition_index, record.offset, tag, transaction, self._clock.now_ms)
                )
            view.position = max(view.position, header.next_offset)

    def _name(self, part: m.FetchResponse.PartitionData) -> str:
        return f"{self._topic.name}-{part.partition_index}"

    def _blame(self, finding: str) -> None:
        self._history.report(self._clock.now_ms, f"{self._client.name}: {finding}")
