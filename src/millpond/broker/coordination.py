"""Runs the shards of a coordinator: appends what they decide to their internal topic, answers once it is safe.

Each partition of the internal topic is the home of one shard. A step's records are appended as one batch and replayed
at once; its replies and orders leave, in order, when the batch is committed. A home whose log fails answers everyone
who waits with an error and stays closed until the node is repaired.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, end_all, failed
from millpond.base.ports import Clock, Timer
from millpond.broker.api import Call
from millpond.broker.flusher import Flusher
from millpond.broker.partitions import Partition
from millpond.coordinators.runtime import TransactionalShard, partition_for, replay_batches
from millpond.coordinators.shard import CoordinatorRecord, Effects, Request, Shard
from millpond.log.producers import Verification
from millpond.wire.batch import walk
from millpond.wire.messages import Message
from millpond.wire.records import Record, encode_batch

S = TypeVar("S", bound=Shard)

LOAD_BYTES = 4 << 20


class Producer(NamedTuple):
    """In whose transaction records are written."""

    id: int
    epoch: int


class Writing(NamedTuple):
    """Records that count only once a producer's transaction is committed."""

    producer: Producer
    verification: Verification | None


class Home(Generic[S]):
    """One shard and the log that it lives in."""

    def __init__(
        self,
        shard: S,
        partition: Partition,
        clock: Clock,
        flusher: Flusher,
        carry_out: Callable[[Any], None],
        after_step: Callable[[], None] | None = None,
    ) -> None:
        self.shard = shard
        self.partition = partition
        self.is_closed = False
        self._clock = clock
        # Members must not time out because somebody set the wall clock: it is looked at once, then time just passes.
        self._wall_minus_monotonic_ms = clock.wall_ms() - clock.monotonic_ms()
        self._flusher = flusher
        self._carry_out = carry_out
        self._after_step = after_step
        self._unsettled: deque[tuple[int, Effects]] = deque()
        self._timer: Timer | None = None
        self._timer_ms = 0

    def load(self) -> None:
        """Replay the log. Waits for the disk: it is done before the node takes requests."""
        log = self.partition.log
        offset: int = log.start_offset
        while data := log.read_batches(offset, LOAD_BYTES):
            replay_batches(self.shard, data)
            for _, header in walk(data):
                offset = header.next_offset
        self.run(lambda shard, now_ms: shard.on_loaded(now_ms))

    def run(self, decide: Callable[[S, int], Effects], writing: Writing | None = None) -> None:
        """Let the shard decide, write down what it decided, answer when that is safe."""
        effects = decide(self.shard, self._now_ms())
        if effects.records:
            try:
                self._append(effects.records, writing)
            except Refused as refused:
                _refuse(effects, refused)
                # A producer whose transaction has ended meanwhile is turned away; the log is as sound as before.
                if writing is None or refused.code is ErrorCode.KAFKA_STORAGE_ERROR:
                    self._close(refused)
                return
        self._settle_later(effects)
        self._set_timer()
        if self._after_step is not None:
            self._after_step()

    def ask(self, call: Call, body: Message, writing: Writing | None = None) -> Later[Any]:
        """Put a client's request to the shard; Refused when what it decides cannot be written down."""
        reply: Later[Any] = Later()
        request = Request(body, call.version, reply, call.client_id or "", call.client_host)
        self.run(lambda shard, now_ms: shard.step(request, now_ms), writing)
        return reply

    def _append(self, records: list[CoordinatorRecord], writing: Writing | None) -> None:
        now_ms = self._now_ms()
        written = [Record(place, now_ms, record.key, record.value) for place, record in enumerate(records)]
        if writing is None:
            batch = encode_batch(written)
            first_offset = self.partition.append_own(batch).first_offset
            for place, record in enumerate(records):
                self.shard.replay(first_offset + place, record.key, record.value)
            return
        producer, verification = writing
        batch = encode_batch(written, producer_id=producer.id, producer_epoch=producer.epoch, transactional=True)
        first_offset = self.partition.append_own(batch, verification).first_offset
        for place, record in enumerate(records):
            self._transactional.replay_transactional(
                producer.id, producer.epoch, first_offset + place, record.key, record.value
            )

    def on_marker(self, producer: Producer, committed: bool, offset: int) -> None:
        """A transaction that wrote here has ended; its marker is in the log."""
        self._transactional.replay_marker(producer.id, producer.epoch, committed, offset)

    @property
    def _transactional(self) -> TransactionalShard:
        shard: object = self.shard
        assert isinstance(shard, TransactionalShard)
        return shard

    # Answering.

    def _settle_later(self, effects: Effects) -> None:
        if not (effects.replies or effects.orders):
            return
        end_offset = self.partition.log.end_offset
        self._unsettled.append((end_offset, effects))
        if self.partition.acknowledges_after_sync:
            self._flusher.after_sync(self.partition.log, end_offset, end_offset).then(self._settle, self._on_unsynced)
        else:
            self._settle(end_offset)

    def _on_unsynced(self, error: Exception) -> None:
        if not isinstance(error, OSError):
            raise error
        self._close(Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log could not be forced to disk: {error}"))

    def _settle(self, safe_offset: int) -> None:
        while self._unsettled and self._unsettled[0][0] <= safe_offset:
            _, effects = self._unsettled.popleft()
            end_all(effects.replies)
            for order in effects.orders:
                self._carry_out(order)

    def _close(self, refused: Refused) -> None:
        self.stop()
        unsettled, self._unsettled = self._unsettled, deque()
        for _, effects in unsettled:
            _refuse(effects, refused)
        end_all(self.shard.unload(refused.code).replies)

    # Time.

    def _now_ms(self) -> int:
        return self._wall_minus_monotonic_ms + self._clock.monotonic_ms()

    def _set_timer(self) -> None:
        deadline_ms = self.shard.next_deadline_ms()
        if self._timer is not None:
            if deadline_ms == self._timer_ms:
                return
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None and not self.is_closed:
            self._timer_ms = deadline_ms
            self._timer = self._clock.call_later(max(deadline_ms - self._now_ms(), 1), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if not self.is_closed:
            self.run(lambda shard, now_ms: shard.on_time(now_ms))

    def stop(self) -> None:
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _refuse(effects: Effects, refused: Refused) -> None:
    end_all(effects.replies, refused)


class Coordination(Generic[S]):
    """All homes of one coordinator."""

    def __init__(self, topic: str, make_home: Callable[[Partition], Home[S]]) -> None:
        self.topic = topic
        self._make_home = make_home
        self._homes: dict[int, Home[S]] = {}
        self._count = 0

    @property
    def is_open(self) -> bool:
        return self._count > 0

    def open(self, partitions: list[Partition], count: int) -> None:
        """The internal topic is there: load the shard of every partition that has none yet.

        Some of its `count` partitions may be offline. Which one is a key's own does not depend on that.
        """
        self._count = count
        for partition in partitions:
            number = partition.name.partition
            if number not in self._homes:
                home = self._homes[number] = self._make_home(partition)
                home.load()

    def partition_of(self, key: str) -> int:
        return partition_for(key, self._count)

    def home_of(self, key: str) -> Home[S]:
        """The home of a group or transactional id. Refused while there is none."""
        if not self._count:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic} does not exist yet")
        home = self._homes.get(self.partition_of(key))
        if home is None or home.is_closed:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"a partition of {self.topic} is offline")
        return home

    def ask(self, call: Call, key: str, body: Message, writing: Writing | None = None) -> Later[Any]:
        """Put a request to the shard that is responsible for `key`; what it writes may be part of a transaction."""
        try:
            home = self.home_of(key)
        except Refused as refused:
            return failed(refused)
        return home.ask(call, body, writing)

    def home_at(self, number: int) -> Home[S] | None:
        return self._homes.get(number)

    def homes(self) -> Iterator[Home[S]]:
        return iter([home for home in self._homes.values() if not home.is_closed])

    def stop(self) -> None:
        for home in self._homes.values():
            home.stop()
