"""A reader of a cluster, which follows leader changes and reports records that changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millpond.base.errors import ErrorCode
from millpond.sim.clients.cluster_client import WRONG_NODE, ClusterClient
from millpond.sim.clients.reader import PartitionView, take_records
from millpond.sim.clients.requests import RETRY_MS, fetch_request
from millpond.sim.clients.script import Script, ScriptRunner, Send, Sleep
from millpond.sim.history.records import History, TopicIdPartition
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m
from millpond.wire.batch import CorruptBatch

WAIT_MS = 300
MAX_BYTES = 1 << 16
RETRY_LATER = (*WRONG_NODE, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT)


class ClusterReader:
    """Reads each partition from its start. With `keep` it keeps all records."""

    def __init__(
        self,
        client: ClusterClient,
        clock: VirtualClock,
        history: History,
        *,
        version: int = 12,
        keep: bool = False,
        may_read_corruption: Callable[[], bool] = lambda: False,
    ) -> None:
        self.client = client
        self.name = client.name
        self.version = version
        self.views: dict[TopicIdPartition, PartitionView] = {}
        self.records_read = 0
        self._keep = keep
        self._may_meet_rot = may_read_corruption
        self._clock = clock
        self._history = history
        self._closed = False

    def follow(self, partitions: Iterable[TopicIdPartition]) -> None:
        for partition in partitions:
            view = self.views[partition] = PartitionView(partition)
            if self._keep:
                view.records, view.batches = {}, []
            self.client.expect(partition.topic, partition.topic_id)
            ScriptRunner(self._clock, self._read(view)).start()

    def close(self) -> None:
        self._closed = True
        self.client.disconnect()

    def is_at_end(self) -> bool:
        return all(view.position >= view.high_watermark >= 0 for view in self.views.values())

    def _read(self, view: PartitionView) -> Script[None]:
        topic, _, index = view.partition
        read_from: tuple[int, int] | None = None
        while not self._closed:
            source = self.client.source_of(topic, index)
            if source is None:
                yield Sleep(RETRY_MS)
                continue
            node_id, epoch = source
            if source != read_from:
                # A new leader or another replica may learn later than the old one what is committed.
                read_from, view.high_watermark = source, -1
            reply = yield Send(self.client.nodes[node_id], self._request(view, epoch), self.version)
            if not self._take(view, reply, node_id):
                yield Sleep(RETRY_MS)

    def _request(self, view: PartitionView, epoch: int) -> m.FetchRequest:
        topic, topic_id, index = view.partition
        return fetch_request(
            topic,
            {index: view.position},
            topic_id=topic_id,
            max_bytes=MAX_BYTES,
            max_wait_ms=WAIT_MS,
            leader_epoch=epoch,
            rack_id=self.client.rack,
        )

    def _take(self, view: PartitionView, reply: m.FetchResponse | None, node_id: int) -> bool:
        """False if it should wait a moment."""
        if self._closed:
            return False
        topic, _, index = view.partition
        part = reply.responses[0].partitions[0] if reply is not None and reply.responses else None
        error = ErrorCode.REQUEST_TIMED_OUT if reply is None else reply.error_code
        if part is not None:
            error = part.error_code or error
        if self.client.rack and self._is_sent_elsewhere(view, part, error):
            return True
        if part is not None and error == ErrorCode.OFFSET_OUT_OF_RANGE and view.position < self._deleted(view):
            view.position = max(view.position, part.log_start_offset)
            return False
        if error or part is None:
            view.high_watermark = -1
            self.client.forget_leader(topic, index, node_id)
            if error not in RETRY_LATER:
                self._blame(view, f"a fetch from {view.position} on was answered {ErrorCode(error).name}")
            return False
        if part.high_watermark < view.high_watermark:
            self._blame(
                view, f"the high watermark fell from {view.high_watermark} to {part.high_watermark} at one leader"
            )
        view.high_watermark = part.high_watermark
        view.start_offset = max(part.log_start_offset, 0)
        try:
            self.records_read += take_records(self._history, self.name, view, part, self._clock.now_ms)
        except CorruptBatch:
            # A client rejects it by its checksum and fetches again, until the broker has repaired the log.
            if not self._may_meet_rot():
                raise
            return False
        if part.records and view.position > part.high_watermark:
            self._blame(
                view, f"records up to {view.position} were given, the high watermark is {part.high_watermark}"
            )
        return True

    def _is_sent_elsewhere(self, view: PartitionView, part: m.FetchResponse.PartitionData | None, error: int) -> bool:
        topic, _, index = view.partition
        answer = part or m.FetchResponse.PartitionData(partition_index=index, error_code=error)
        return self.client.update_source(topic, index, answer)

    def _deleted(self, view: PartitionView) -> int:
        """The highest offset that was requested to be deleted."""
        return self._history.requested_deletes.get(view.partition, 0)

    def _blame(self, view: PartitionView, sentence: str) -> None:
        self._history.violations.append(f"{self.name}: {view.partition}: {sentence}")
