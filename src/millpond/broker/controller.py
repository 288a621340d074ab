"""Where metadata meets the log: what is decided is written, forced to disk, replayed, and only then answered.

There are two images. `image` holds what is committed, and is what everybody reads. `_ahead` also holds what is
written but not yet forced to disk, and is what the next decision is made on, so that decisions need not wait for each
other: one sync commits all that was written before it began.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.base.ids import LeaderEpoch, NodeId, TopicPartition
from millpond.base.later import Later, done, end_all, failed, gather
from millpond.base.ports import Entropy, World
from millpond.base.settings import Settings
from millpond.config.node import BROKER_RACK, CLUSTER_ID, NODE_ID
from millpond.log.durability import SyncTicket
from millpond.log.limits import FOREVER, LogLimits
from millpond.log.partition_log import PartitionLog
from millpond.log.store import LogStore
from millpond.metadata.brokers import decide_begin_leader_epochs, decide_found, decide_register_broker
from millpond.metadata.codec import decode_record, encode_record
from millpond.metadata.decision import Decision
from millpond.metadata.image import Image
from millpond.metadata.records import BrokerEndpoint, Record
from millpond.metadata.topics import METADATA_TOPIC
from millpond.wire import records as wire_records
from millpond.wire.batch import CONTROL, walk

R = TypeVar("R")

METADATA_PARTITION: Final = TopicPartition(METADATA_TOPIC, 0)
METADATA_TOPIC_ID: Final = UUID(int=1)
METADATA_LIMITS: Final = LogLimits(cleanup_delete=False, segment_ms=FOREVER, retention_ms=-1)
"""The metadata log is kept whole: it is all that there is of the metadata."""

READ_BYTES: Final = 1 << 20
SYNC_RETRY_MS: Final = 100

OnChange = Callable[[Sequence[Record]], Later[None]]


class CannotStart(Exception):
    """The data folder is not one that this node can go on with. Starting without it would lose topics."""


@dataclass(frozen=True, slots=True)
class _Parked:
    """A reply that waits until everything below `end_offset` is committed."""

    end_offset: int
    records: tuple[Record, ...]
    later: Later[Any]
    reply: object


class Controller:
    """Owner of the metadata log. `load` first; then `submit` decisions."""

    def __init__(self, world: World, store: LogStore, settings: Settings) -> None:
        self.image: Final = Image()
        """The committed metadata. Always the same object."""
        self.node_id = NodeId(settings[NODE_ID])
        self.broker_epoch = -1
        self.leader_epoch = LeaderEpoch(0)
        self._ahead = Image()
        self._clock = world.clock
        self._sync_workers = world.sync_workers
        self._entropy = world.entropy
        self._store = store
        self._settings = settings
        self._log: PartitionLog | None = None
        self._parked: deque[_Parked] = deque()
        self._observers: list[OnChange] = []
        self._is_syncing = False
        self._stopped: Refused | None = None

    # Facts.

    @property
    def log(self) -> PartitionLog:
        assert self._log is not None, "not loaded"
        return self._log

    @property
    def committed_offset(self) -> int:
        """Everything below is committed (the high watermark of the metadata)."""
        return self.log.synced_offset

    @property
    def is_active(self) -> bool:
        """Whether decisions are made here."""
        return True

    @property
    def leader_id(self) -> int:
        return self.node_id

    @property
    def next_offset(self) -> int:
        """The offset that the first record of a decision gets that is made now."""
        return self.log.end_offset

    def is_idle(self) -> bool:
        return not self._parked and not self._is_syncing

    def on_change(self, observer: OnChange) -> None:
        """Call `observer` with every group of records once they are committed and replayed.

        The reply to their decision waits until what it returns has ended.
        """
        self._observers.append(observer)

    # Starting.

    def load(self, advertised: tuple[str, int], *, after_crash: bool = False) -> None:
        """Replay the log, then add what this start changes: on the first one the cluster itself. Waits for the disk.

        `after_crash` begins a new leader epoch everywhere, because written records may be gone.
        """
        if METADATA_PARTITION in self._store.failed:
            raise CannotStart(f"the metadata log cannot be read: {self._store.failed[METADATA_PARTITION]}")
        log = self._log = self._store.create(METADATA_PARTITION, METADATA_TOPIC_ID, METADATA_LIMITS)
        log.limits = METADATA_LIMITS
        self._read(log)
        self._check_identity()
        self.leader_epoch = LeaderEpoch(log.last_epoch + 1)
        self._begin(decide_found(self.image, self._settings[CLUSTER_ID] or random_cluster_id(self._entropy)))
        end_points = (BrokerEndpoint("PLAINTEXT", *advertised),)
        rack = self._settings[BROKER_RACK] or None
        self.broker_epoch = self._begin(
            decide_register_broker(self.image, self.node_id, self._entropy.uuid(), end_points, rack)
        )
        if after_crash:
            self._begin(decide_begin_leader_epochs(self.image, self.node_id, self.broker_epoch))
        ticket = log.sync_target()
        try:
            ticket.run()
        except OSError as error:
            log.fail(error, ticket)
            raise
        log.synced(ticket)

    def _read(self, log: PartitionLog) -> None:
        offset: int = log.start_offset
        while data := log.read_batches(offset, READ_BYTES):
            for position, header in walk(data):
                offset = header.next_offset
                if header.attributes & CONTROL:
                    continue
                for entry in wire_records.decode_batch(data, position):
                    try:
                        record = decode_record(entry.value or b"")
                    except MalformedMessage as fault:
                        raise CannotStart(
                            f"the metadata log cannot be read at offset {entry.offset}: {fault}"
                        ) from fault
                    self._replay((record,))

    def _check_identity(self) -> None:
        wanted, recorded = self._settings[CLUSTER_ID], self.image.cluster_id
        if wanted and recorded and wanted != recorded:
            raise CannotStart(f"the data folder belongs to cluster {recorded}, not to {wanted}")
        if self.image.brokers and self.node_id not in self.image.brokers:
            owner = next(iter(self.image.brokers))
            raise CannotStart(f"the data folder belongs to node {owner}, not to node {self.node_id}")

    def _begin(self, decision: Decision[R]) -> R:
        """Nobody reads yet: a decision counts as soon as it is written."""
        if decision.records:
            self._write(decision.records)
            self._replay(decision.records)
        return decision.reply

    def _replay(self, records: Sequence[Record]) -> None:
        for record in records:
            self.image.replay(record)
            self._ahead.replay(record)

    # Deciding.

    def submit(self, decide: Callable[[Image], Decision[R]]) -> Later[R]:
        """Decide now, on everything decided before; the reply comes once it is committed, Refused if it cannot be.

        It also waits until the observers have followed. But for that, replies come in the order of the calls, and a
        decision without records is a reply, too, that waits for what it was made on: it must not tell of a topic that
        a crash could still take away.
        """
        if self._stopped is not None:
            return failed(self._stopped)
        decision = decide(self._ahead)
        if decision.records:
            try:
                self._write(decision.records)
            except Refused as refused:
                # Nothing was written, so nothing is lost but this one: the disk may have room again for the next.
                if self.log.failed is not None:
                    self._stop(self.log.failed)
                return failed(refused)
            for record in decision.records:
                self._ahead.replay(record)
        elif not self._parked:
            return done(decision.reply)
        later: Later[R] = Later()
        self._parked.append(_Parked(self.log.end_offset, decision.records, later, decision.reply))
        self._sync()
        return later

    def close(self) -> None:
        """Decide nothing more. What is under way is still answered if its sync ends before the log is closed."""
        if self._stopped is None:
            self._stopped = Refused(ErrorCode.NOT_CONTROLLER, "the broker is stopping")

    # Committing.

    def _write(self, records: tuple[Record, ...]) -> None:
        """One batch, so that the records of one decision are there all or not at all."""
        now_ms = self._clock.wall_ms()
        batch = wire_records.encode_batch(
            [wire_records.Record(index, now_ms, None, encode_record(record)) for index, record in enumerate(records)]
        )
        self.log.append(
            memoryview(bytearray(batch)), leader_epoch=self.leader_epoch, now_ms=now_ms, from_client=False
        )

    def _sync(self) -> None:
        if self._is_syncing or not self._parked or self.log.closed:
            return
        try:
            ticket = self.log.sync_target()
        except OSError:
            # Its files cannot be had at the moment (too many are open): nothing is lost, who waits goes on waiting.
            self._clock.call_later(SYNC_RETRY_MS, self._sync)
            return
        self._is_syncing = True
        self._sync_workers.run(ticket.run).then(
            lambda _: self._on_synced(ticket), lambda error: self._on_sync_failed(error, ticket)
        )

    def _on_synced(self, ticket: SyncTicket) -> None:
        self._is_syncing = False
        self.log.synced(ticket)
        self._settle()
        if self._parked and not self.log.closed:
            self._sync()

    def _settle(self) -> None:
        committed = self.committed_offset
        while self._parked and self._parked[0].end_offset <= committed:
            parked = self._parked.popleft()
            for record in parked.records:
                self.image.replay(record)
            followed = [observer(parked.records) for observer in self._observers] if parked.records else []
            gather(followed).then(partial(_answer, parked))

    def _on_sync_failed(self, error: Exception, ticket: SyncTicket) -> None:
        if not isinstance(error, OSError):
            raise error
        self._is_syncing = False
        self.log.fail(error, ticket)
        self._stop(error)

    def _stop(self, error: OSError) -> None:
        """The log is closed for good: nobody knows what of it would survive, so nothing may be answered."""
        self._stopped = Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log is offline: {error}")
        parked, self._parked = self._parked, deque()
        end_all([(each.later, each.reply) for each in parked], self._stopped)


def _answer(parked: _Parked, _: object) -> None:
    parked.later.finish(parked.reply)


def random_cluster_id(entropy: Entropy) -> str:
    """22 characters that no other cluster has."""
    return urlsafe_b64encode(entropy.uuid().bytes).decode().rstrip("=")
