"""Producer state: the last batches of each idempotent producer, to deduplicate retries, and its open transaction.

The last five batches of each producer id are remembered, as many as a client keeps in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from millpond.base.errors import ErrorCode, LimitMet, Refused
from millpond.base.named_tuple import NamedTuple
from millpond.log.markers import Marker, read_marker
from millpond.log.scan import Readable
from millpond.wire.batch import CONTROL, SEQUENCE_COUNT, TRANSACTIONAL, BatchHeader

BATCHES_REMEMBERED = 5
PRODUCERS_LIMIT = "max.producers.per.partition"
"""The broker setting that limits the producers a partition remembers."""

NO_EPOCH = -1
NO_SEQUENCE = -1

TRANSACTIONS_RAISE_EPOCH_FROM = 2
"""From this `transaction.version` on a marker has a higher epoch than the records that it ends."""

RETRIED_WITHIN_MS = 900_000
"""A producer that has been idle for longer has nothing left to retry; clients give up much earlier."""

DECIDED_REMEMBERED = 10_000
"""Markers that may not have reached the followers yet."""

UNWRITTEN_REMEMBERED = 1_000

FORGOTTEN_MAX = SEQUENCE_COUNT // 2
"""Sequences wrap around to 0: one further back could equally be ahead."""

ASKED_REMEMBERED = 10_000
"""Verifications without a coordinator's permission: anyone can request one, for any producer."""


class WrittenBefore(Refused):
    """A batch that is in the log at an offset no longer remembered: before `end_offset`."""

    def __init__(self, message: str, end_offset: int) -> None:
        super().__init__(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, message)
        self.end_offset = end_offset


class FirstBatchMissing(Refused):
    """A batch of an unknown producer that is not its first: the first may be in flight."""

    def __init__(self, header: BatchHeader) -> None:
        super().__init__(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"producer {header.producer_id} begins with sequence {header.base_sequence}: its earlier batches "
            "may still be in flight to the previous leader, and must come first",
        )


class Span(NamedTuple):
    """One batch that a producer wrote."""

    base_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class Ended(NamedTuple):
    """A transaction that its marker has just ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the marker."""
    committed: bool
    stable_offset: int
    """The last stable offset after the marker."""


class ProducerFacts(NamedTuple):
    """One producer in a DescribeProducers response."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int
    """-1 without an open transaction."""


class Verification:
    """Permission for one transaction of a producer to write to this partition, requested from its coordinator.

    It ends when a marker arrives: the coordinator's answer concerned the transaction before the marker. Batches that
    came with the first one and were permitted later share it. It applies to one transactional id and one producer
    epoch: requests by others in this producer's name do not affect it.
    """

    __slots__ = ("asks", "is_void", "lowest_sequence", "made_ms", "producer_epoch", "producer_id", "transactional_id")

    def __init__(
        self, transactional_id: str, producer_id: int, producer_epoch: int, sequence: int, now_ms: int
    ) -> None:
        self.is_void = False
        """Whether it must be requested again: the leadership moved, or too many others were requested since."""
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.lowest_sequence = sequence
        self.made_ms = now_ms
        self.asks = 0
        """The number of requests that wait for the coordinator's answer."""

    @property
    def key(self) -> tuple[int, int, str]:
        return self.producer_id, self.producer_epoch, self.transactional_id


class ProducerEntry:
    """The state of one producer id."""

    __slots__ = ("active_ms", "coordinator_epoch", "epoch", "forgotten", "spans", "transaction_start")

    def __init__(self, epoch: int = NO_EPOCH) -> None:
        self.epoch = epoch
        self.spans: list[Span] = []
        self.forgotten = 0
        """How many consecutive sequences are known to be written just before those spans."""
        self.coordinator_epoch = -1
        self.transaction_start: int | None = None
        """The first offset of the open transaction."""
        self.active_ms = -1

    @property
    def last_sequence(self) -> int:
        return self.spans[-1].last_sequence if self.spans else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.spans[-1].last_offset if self.spans else -1


class ProducerStates:
    """All producers of one partition."""

    __slots__ = (
        "_asked",
        "_askers",
        "_decided",
        "_permitted",
        "_unwritten",
        "awaits_first_batches",
        "entries",
        "open_starts",
    )

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.open_starts: dict[int, int] = {}
        """The first offset of each producer's open transaction, oldest first."""
        self._decided: deque[Ended] | None = None
        """Created on first use: even an empty deque is large, and most partitions see no transaction."""
        self._asked: dict[tuple[int, int, str], Verification] = {}
        """Verifications the coordinator has not permitted yet, by producer, producer epoch and transactional id."""
        self._askers: dict[int, set[tuple[int, int, str]]] = {}
        """The keys of those, by producer: a marker ends all of them."""
        self._permitted: dict[int, Verification] = {}
        """The latest permitted verification, by producer."""
        self._unwritten: dict[int, tuple[int, int]] = {}
        """Epoch and sequence of first batches that could not be written to disk."""
        self.awaits_first_batches = False
        """Whether an unknown producer must begin with sequence 0: another node was the leader until recently.

        Batches sent to that leader may be unanswered while the producer continues here. If a later one were written
        first, the earlier ones would be out of order forever.
        """

    def check(
        self,
        headers: Sequence[BatchHeader],
        verification: Verification | None = None,
        count_max: int = 1 << 31,
    ) -> Span | None:
        """Refuse what is out of order; the original span if the first batch is a duplicate."""
        ahead: dict[int, tuple[int, int]] = {}
        for header in headers:
            if header.producer_id < 0:
                continue
            if header.base_sequence < 0 or header.producer_epoch < 0:
                raise Refused(ErrorCode.INVALID_RECORD, "an idempotent batch needs a producer epoch and a sequence")
            entry = self.entries.get(header.producer_id)
            seen = ahead.get(header.producer_id)
            if seen is None and entry is not None:
                if header.attributes & TRANSACTIONAL:
                    _check_unused(entry, header)
                duplicate = _written_before(entry, header)
                if duplicate is not None:
                    return duplicate
                seen = entry.epoch, entry.last_sequence
                if header.base_sequence != seen[1] + 1 and entry.forgotten and len(headers) == 1:
                    _check_forgotten(entry, header)
            if seen is not None:
                _check_order(header, *seen)
            else:
                if len(self.entries) >= count_max:
                    raise LimitMet(
                        ErrorCode.POLICY_VIOLATION,
                        PRODUCERS_LIMIT,
                        count_max,
                        f"the partition has {len(self.entries)} producers and {PRODUCERS_LIMIT}={count_max}: new "
                        "ones are refused until some expire",
                    )
                if header.base_sequence:
                    self._check_first(header)
            if header.attributes & TRANSACTIONAL or header.producer_id in self.open_starts:
                self._check_transaction(header, verification)
            ahead[header.producer_id] = header.producer_epoch, header.last_sequence
        return None

    def _check_first(self, header: BatchHeader) -> None:
        """An unknown producer may begin with any sequence, except one that follows a batch it still has to retry:
        that batch would be out of order forever."""
        epoch, sequence = self._unwritten.get(header.producer_id, (NO_EPOCH, NO_SEQUENCE))
        if epoch == header.producer_epoch and header.base_sequence > sequence:
            raise Refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, but {sequence} was not written",
            )
        if self.awaits_first_batches:
            raise FirstBatchMissing(header)

    def note_unwritten(self, headers: Sequence[BatchHeader]) -> None:
        """These batches were not written to disk; their producers will retry them."""
        for header in headers:
            producer_id = header.producer_id
            if min(producer_id, header.producer_epoch, header.base_sequence) < 0 or producer_id in self.entries:
                continue
            refused = header.producer_epoch, header.base_sequence
            earliest = self._unwritten.pop(producer_id, refused)
            self._unwritten[producer_id] = (
                min(earliest, refused) if earliest[0] == refused[0] else max(earliest, refused)
            )
            if len(self._unwritten) > UNWRITTEN_REMEMBERED:
                del self._unwritten[next(iter(self._unwritten))]

    def check_trusted(self, headers: Sequence[BatchHeader], verification: Verification | None) -> None:
        """The checks for a coordinator that writes for a producer, without sequences."""
        for header in headers:
            if header.producer_id < 0 or header.attributes & CONTROL:
                continue
            entry = self.entries.get(header.producer_id)
            if entry is not None and header.producer_epoch < entry.epoch:
                raise _old_epoch(header.producer_id, header.producer_epoch, entry.epoch)
            self._check_transaction(header, verification)

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, transaction_version: int = 0
    ) -> None:
        """Refuse the marker of a zombie: an older producer, an older coordinator, an older transaction."""
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        if producer_epoch < entry.epoch:
            raise _old_epoch(producer_id, producer_epoch, entry.epoch)
        if coordinator_epoch < entry.coordinator_epoch:
            raise Refused(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"the coordinator's epoch is {entry.coordinator_epoch}, but this marker has {coordinator_epoch}",
            )
        raises_epoch = transaction_version >= TRANSACTIONS_RAISE_EPOCH_FROM
        if raises_epoch and producer_epoch == entry.epoch and entry.transaction_start is not None:
            # The producer got this epoch with the marker of its last transaction: this is that marker, delivered
            # late.
            raise _old_epoch(producer_id, producer_epoch, entry.epoch + 1)

    def _check_transaction(self, header: BatchHeader, verification: Verification | None) -> None:
        entry = self.entries.get(header.producer_id)
        is_open = entry is not None and entry.transaction_start is not None
        if not header.attributes & TRANSACTIONAL:
            if is_open:
                raise Refused(
                    ErrorCode.INVALID_TXN_STATE,
                    f"producer {header.producer_id} has an open transaction; this batch is not transactional",
                )
            return
        if verification is not None and verification.is_void:
            # A retriable error: the codes below would make the producer give up, and it is not at fault.
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the transaction must be verified again; retry")
        if (
            verification is None
            or verification.producer_epoch != header.producer_epoch
            or self._permitted.get(header.producer_id) is not verification
        ):
            raise Refused(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has no verified open transaction in this partition",
            )
        is_known = entry is not None and (is_open or entry.spans) and entry.epoch == header.producer_epoch
        if not is_known and header.base_sequence > verification.lowest_sequence:
            raise Refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} begins with sequence {verification.lowest_sequence}, not "
                f"{header.base_sequence}",
            )

    def verification(
        self, transactional_id: str, producer_id: int, producer_epoch: int, sequence: int, now_ms: int
    ) -> Verification:
        """The verification that a batch of this transaction must be appended with. Unless it `is_permitted`, the
        caller asks the coordinator next and passes the answer to `permit` or `refuse`.

        Ask the coordinator after this call, not before: only then can a marker that arrives in between end it.
        """
        permitted = self._permitted.get(producer_id)
        if permitted is None or permitted.key != (producer_id, producer_epoch, transactional_id):
            permitted = self._asked.get((producer_id, producer_epoch, transactional_id))
        if permitted is None:
            permitted = Verification(transactional_id, producer_id, producer_epoch, sequence, now_ms)
            self._asked[permitted.key] = permitted
            self._askers.setdefault(producer_id, set()).add(permitted.key)
            if len(self._asked) > ASKED_REMEMBERED:
                oldest = next(iter(self._asked.values()))
                oldest.is_void = True
                self._take_back(oldest)
        permitted.lowest_sequence = min(permitted.lowest_sequence, sequence)
        if not self.is_permitted(permitted):
            permitted.asks += 1
        return permitted

    def is_permitted(self, verification: Verification) -> bool:
        """Whether the coordinator need not be asked, because the transaction is open here."""
        entry = self.entries.get(verification.producer_id)
        return (
            entry is not None
            and entry.transaction_start is not None
            and entry.epoch == verification.producer_epoch
            and self._permitted.get(verification.producer_id) is verification
        )

    def permit(self, verification: Verification) -> bool:
        """Record the coordinator's permission. False if a marker has ended it in the meantime.

        The coordinator may have meant the transaction before that marker, or the next one: with transactions v2 a
        producer may begin that before the marker has arrived here.
        """
        verification.asks -= 1
        if self._asked.get(verification.key) is not verification:
            return verification.is_void or self._permitted.get(verification.producer_id) is verification
        self._take_back(verification)
        current = self._permitted.get(verification.producer_id)
        if current is None or current.producer_epoch <= verification.producer_epoch:
            self._permitted[verification.producer_id] = verification
        return True

    def refuse(self, verification: Verification, *, is_final: bool) -> None:
        """Record that the coordinator refused, or could not be asked.

        A final refusal leaves no trace. A batch that will be retried is remembered, because its successors must not
        be written first.
        """
        verification.asks -= 1
        if is_final and not verification.asks and self._asked.get(verification.key) is verification:
            self._take_back(verification)

    def _take_back(self, verification: Verification) -> None:
        del self._asked[verification.key]
        keys = self._askers[verification.producer_id]
        keys.remove(verification.key)
        if not keys:
            del self._askers[verification.producer_id]

    def coordinator_epoch_of(self, producer_id: int) -> int:
        """The epoch of the coordinator that ended the producer's last transaction here; -1 if unknown."""
        entry = self.entries.get(producer_id)
        return -1 if entry is None else entry.coordinator_epoch

    def void_verifications(self) -> None:
        """Require new permissions, because the leadership has changed."""
        for verification in (*self._asked.values(), *self._permitted.values()):
            verification.is_void = True
        self._asked.clear()
        self._askers.clear()
        self._permitted.clear()

    def note(self, header: BatchHeader, first_offset: int, now_ms: int, marker: Marker | None = None) -> Ended | None:
        """Record a batch that is in the log at `first_offset`; the transaction that it ends, if any."""
        producer_id = header.producer_id
        entry = self.entries.get(producer_id)
        if entry is None:
            self._unwritten.pop(producer_id, None)
            entry = self.entries[producer_id] = ProducerEntry(header.producer_epoch)
        elif header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.spans.clear()
            entry.forgotten = 0
        entry.active_ms = now_ms
        if header.attributes & CONTROL:
            return self._note_marker(entry, producer_id, first_offset, marker) if marker else None
        last_offset = first_offset + header.last_offset_delta
        entry.spans.append(
            Span(header.base_sequence, header.last_sequence, first_offset, last_offset, header.max_timestamp)
        )
        if len(entry.spans) > BATCHES_REMEMBERED:
            _forget_first(entry)
        if header.attributes & TRANSACTIONAL and entry.transaction_start is None:
            entry.transaction_start = self.open_starts[producer_id] = first_offset
        return None

    def _note_marker(self, entry: ProducerEntry, producer_id: int, offset: int, marker: Marker) -> Ended | None:
        entry.coordinator_epoch = marker.coordinator_epoch
        self._permitted.pop(producer_id, None)
        for key in self._askers.pop(producer_id, ()):
            del self._asked[key]
        start = entry.transaction_start
        if start is None:
            return None
        entry.transaction_start = None
        del self.open_starts[producer_id]
        oldest = self.first_open_transaction()
        ended = Ended(producer_id, start, offset, marker.committed, offset + 1 if oldest is None else oldest)
        if self._decided is None:
            self._decided = deque(maxlen=DECIDED_REMEMBERED)
        self._decided.append(ended)
        return ended

    def first_open_transaction(self) -> int | None:
        """The first offset of the oldest open transaction."""
        return next(iter(self.open_starts.values()), None)

    def stable_offset(self, high_watermark: int) -> int:
        """The last stable offset: everything below it is replicated and decided.

        A transaction counts as open until its marker is below the high watermark, too.
        """
        stable = min(high_watermark, next(iter(self.open_starts.values()), high_watermark))
        for ended in reversed(self._decided or ()):
            if ended.last_offset < high_watermark:
                break
            stable = min(stable, ended.first_offset)
        return stable

    def restore(self, entries: dict[int, ProducerEntry]) -> None:
        """Restore the state from a snapshot."""
        self.entries = entries
        starts = [
            (e.transaction_start, producer_id)
            for producer_id, e in entries.items()
            if e.transaction_start is not None
        ]
        self.open_starts = {producer_id: start for start, producer_id in sorted(starts)}

    def replay(
        self, file: Readable, walked: Iterable[tuple[int, BatchHeader]], start: int, now_ms: int
    ) -> Iterator[Ended]:
        """Record the batches from offset `start` on, yielding each transaction that ended.

        They count as written now: a producer must not expire because its records have old timestamps.
        """
        for position, header in walked:
            if header.producer_id < 0 or header.base_offset < start:
                continue
            marker = read_marker(file.read_at(position, header.size)) if header.is_control else None
            ended = self.note(header, header.base_offset, now_ms, marker)
            if ended is not None:
                yield ended

    def retrying(self, now_ms: int) -> dict[int, ProducerEntry]:
        """Producers that may retry batches of which a snapshot holds only the last."""
        return {
            producer_id: entry
            for producer_id, entry in self.entries.items()
            if len(entry.spans) == 1 and now_ms - entry.active_ms < RETRIED_WITHIN_MS
        }

    def recall(self, headers: Iterable[BatchHeader], now_ms: int) -> None:
        """Complete a snapshot with the batches before it.

        A snapshot holds only the last batch of a producer. A client may have five in flight, and retries them all if
        a restart lost the responses. Unless the written ones are known, it would be told that they are out of order.
        """
        producer_ids = self.retrying(now_ms)
        earlier: dict[int, list[Span]] = {producer_id: [] for producer_id in producer_ids}
        for header in headers:
            entry = producer_ids.get(header.producer_id)
            if entry is None or header.is_control or header.producer_epoch != entry.epoch:
                continue
            if header.base_offset < entry.spans[0].first_offset:
                earlier[header.producer_id].append(
                    Span(
                        header.base_sequence,
                        header.last_sequence,
                        header.base_offset,
                        header.last_offset,
                        header.max_timestamp,
                    )
                )
        for producer_id, entry in producer_ids.items():
            _put_before(entry, earlier[producer_id])

    def silent_since(self, offset: int) -> ProducerStates:
        """Producers that have written nothing from that offset on, without open transactions."""
        silent = ProducerStates()
        for producer_id, entry in self.entries.items():
            if entry.spans and entry.last_offset < offset:
                alike = silent.entries[producer_id] = ProducerEntry(entry.epoch)
                alike.spans = list(entry.spans)
                alike.forgotten = entry.forgotten
                alike.coordinator_epoch = entry.coordinator_epoch
                alike.active_ms = entry.active_ms
        return silent

    def facts(self) -> list[ProducerFacts]:
        return [
            ProducerFacts(
                producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.spans[-1].timestamp if entry.spans else entry.active_ms,
                entry.coordinator_epoch,
                -1 if entry.transaction_start is None else entry.transaction_start,
            )
            for producer_id, entry in sorted(self.entries.items())
        ]

    def last_offsets(self) -> dict[int, int]:
        """The last offset of every producer that has one: compaction keeps those batches, emptied if need be."""
        return {producer_id: entry.last_offset for producer_id, entry in self.entries.items() if entry.spans}

    def marker_epochs(self) -> dict[int, int]:
        """The epoch of every producer known only from a marker: compaction keeps that marker's batch."""
        return {producer_id: entry.epoch for producer_id, entry in self.entries.items() if not entry.spans}

    def move_times(self, leap_ms: int, now_ms: int) -> None:
        """Adjust to a clock that jumped: no producer has been idle for that long, or active in the future."""
        for entry in self.entries.values():
            entry.active_ms = min(entry.active_ms + max(leap_ms, 0), now_ms)
        for verification in (*self._asked.values(), *self._permitted.values()):
            verification.made_ms = min(verification.made_ms + max(leap_ms, 0), now_ms)

    def expire(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Forget producers that have been idle for this long; an open transaction keeps its producer."""
        gone = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.transaction_start is None and now_ms - entry.active_ms >= expiration_ms
        ]
        for producer_id in gone:
            del self.entries[producer_id]
        for expired in [v for v in self._asked.values() if now_ms - v.made_ms >= expiration_ms]:
            self._take_back(expired)
        self._permitted = {
            producer_id: v
            for producer_id, v in self._permitted.items()
            if now_ms - v.made_ms < expiration_ms or producer_id in self.open_starts
        }
        return gone


def _written_before(entry: ProducerEntry, header: BatchHeader) -> Span | None:
    if header.producer_epoch != entry.epoch:
        return None
    for span in entry.spans:
        if span.base_sequence == header.base_sequence and span.last_sequence == header.last_sequence:
            return span
    return None


def _forget_first(entry: ProducerEntry) -> None:
    gone = entry.spans.pop(0)
    size = (gone.last_sequence - gone.base_sequence) % SEQUENCE_COUNT + 1
    is_followed = (gone.last_sequence + 1) % SEQUENCE_COUNT == entry.spans[0].base_sequence
    entry.forgotten = min(entry.forgotten + size, FORGOTTEN_MAX) if is_followed else 0


def _check_forgotten(entry: ProducerEntry, header: BatchHeader) -> None:
    """Refuse a batch older than the remembered ones as already written.

    A client may have more than five batches in flight: some sent to the previous leader, which hangs, while the new
    leader, which has them, accepts the following ones. If told that they are out of order, the Java client retries
    until its timeout and then reports them lost; librdkafka fails. Transactions differ: see `_check_unused`.
    """
    if header.producer_epoch != entry.epoch or header.attributes & TRANSACTIONAL:
        return
    oldest = entry.spans[0]
    behind = (oldest.base_sequence - header.base_sequence) % SEQUENCE_COUNT
    if header.last_offset_delta < behind <= entry.forgotten:
        raise WrittenBefore(
            f"sequence {header.base_sequence} of producer {header.producer_id} repeats a batch written long before",
            oldest.first_offset,
        )


def _check_unused(entry: ProducerEntry, header: BatchHeader) -> None:
    """Refuse sequences of a transaction that has ended: these are not retries, as no client waits for them.

    librdkafka assigns them to the next transaction's records if it aborts while a retry is pending. If that batch
    were acknowledged as the retry it resembles, it would be missing from the next commit. This code makes clients
    abort and continue with a new epoch.
    """
    if header.producer_epoch != entry.epoch:
        return
    for span in entry.spans:
        is_over = entry.transaction_start is None or span.first_offset < entry.transaction_start
        if is_over and _overlap(span, header):
            raise Refused(
                ErrorCode.UNKNOWN_PRODUCER_ID,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, which belongs to a transaction "
                f"that has ended, at offset {span.first_offset}",
            )


def _overlap(span: Span, header: BatchHeader) -> bool:
    """Whether the two share a sequence; sequences wrap around to 0."""
    behind = (header.base_sequence - span.base_sequence) % SEQUENCE_COUNT
    before = (span.base_sequence - header.base_sequence) % SEQUENCE_COUNT
    return behind <= (span.last_sequence - span.base_sequence) % SEQUENCE_COUNT or (
        before <= header.last_offset_delta
    )


def _put_before(entry: ProducerEntry, spans: list[Span]) -> None:
    for span in reversed(spans):
        follows = (span.last_sequence + 1) % SEQUENCE_COUNT == entry.spans[0].base_sequence
        if len(entry.spans) == BATCHES_REMEMBERED or not follows:
            return
        entry.spans.insert(0, span)


def _check_order(header: BatchHeader, epoch: int, last_sequence: int) -> None:
    if header.producer_epoch < epoch:
        raise _old_epoch(header.producer_id, header.producer_epoch, epoch)
    if header.producer_epoch > epoch:
        if header.base_sequence != 0:
            raise Refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} starts epoch {header.producer_epoch} with sequence "
                f"{header.base_sequence}, not 0",
            )
        return
    if header.base_sequence != (last_sequence + 1) % SEQUENCE_COUNT:
        raise Refused(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} sent sequence {header.base_sequence} after {last_sequence}",
        )


def _old_epoch(producer_id: int, epoch: int, current: int) -> Refused:
    return Refused(
        ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id} has epoch {current}; this batch has epoch {epoch}"
    )
