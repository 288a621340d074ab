"""The share session with one leader: which request comes next, and what its response means.

One request is on its way at a time. No clock, threads or sockets in here; times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.remote.errors import PASSING, STALE_LEADER, Answered, ClientError, LockExpired
from millpond.remote.shares.acknowledgement_queue import AcknowledgementPart, AcknowledgementQueue
from millpond.remote.shares.acquired_records import decode_acquired
from millpond.remote.shares.held_record import Acknowledgement, HeldRecord, PartitionKey, Verdict
from millpond.wire import messages as m

EPOCH_FIRST: Final = 0
EPOCH_LAST: Final = -1
_EPOCH_MAX: Final = (1 << 31) - 1

RENEWED_AT: Final = 0.4
"""A lock is renewed after this part of its duration."""
GRACE_SECONDS: Final = 1.0
"""An acknowledgement that could not be sent fails this long after the lock has expired by our clock."""

SESSION_LOST: Final = frozenset({ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH})
_MOVED: Final = STALE_LEADER - {ErrorCode.KAFKA_STORAGE_ERROR}
"""The leader does not lead any longer: what it delivered is delivered again by the next one."""
_BY_RECORD: Final = frozenset({ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST})
"""Refusals that a single record may have caused."""

Request: TypeAlias = "m.ShareFetchRequest | m.ShareAcknowledgeRequest"
Settled: TypeAlias = tuple[Acknowledgement, "ClientError | None"]


@dataclass(slots=True)
class Outcome:
    """What a response means for others."""

    records: list[HeldRecord] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    is_stale: bool = False
    """A partition has another leader, or none."""
    is_paused: bool = False
    """Wait a moment before the next request."""
    failure: ClientError | None = None
    """No further request can succeed."""
    warnings: list[str] = field(default_factory=list)


class LeaderSession:
    def __init__(self, leader: int, group: str, member_id: str, *, renews: bool) -> None:
        self._leader = leader
        self._group = group
        self._member_id = member_id
        self._renews = renews
        self.may_renew = True
        """Until the leader refuses it, or does not know of it."""
        self._epoch = EPOCH_FIRST
        self._wanted: dict[PartitionKey, TopicPartition] = {}
        self._names: dict[PartitionKey, TopicPartition] = {}
        """Of every partition that the session has or had."""
        self._known: set[PartitionKey] = set()
        """The partitions that the session has at the leader."""
        self._held: dict[tuple[PartitionKey, int], HeldRecord] = {}
        self._queue = AcknowledgementQueue()
        self._renewals_at = 0.0
        """When to look for locks to renew."""

    @property
    def is_open(self) -> bool:
        return self._epoch != EPOCH_FIRST

    @property
    def held_count(self) -> int:
        return len(self._held)

    @property
    def has_partitions(self) -> bool:
        return bool(self._wanted)

    @property
    def unsent_count(self) -> int:
        """Acknowledgements without a result."""
        return len(self._queue) + sum(map(len, self._queue.sent().values()))

    def want(self, partitions: Mapping[PartitionKey, TopicPartition]) -> None:
        """Read these partitions from now on."""
        self._wanted = dict(partitions)
        self._names.update(partitions)

    # Acknowledging.

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """The record is held here and has no verdict yet."""
        held = acknowledgement.held
        assert held is not None
        if acknowledgement.verdict is Verdict.RENEW:
            held.is_renewing = True
        else:
            held.verdict = acknowledgement.verdict
        self._queue.add(held.key, acknowledgement)

    def renew_due(self, now: float) -> float | None:
        """Renew the locks that are due; returns when to call again, None if nothing is held."""
        if not self._renews or not self.may_renew or not self._held:
            return None
        if now < self._renewals_at:
            return self._renewals_at
        for held in self._held.values():
            due = held.locked_until - held.lock_seconds * (1 - RENEWED_AT)
            if now >= due and held.verdict is None and not held.is_renewing:
                self.acknowledge(Acknowledgement(held.record.offset, Verdict.RENEW, held))
        shortest = min(each.lock_seconds for each in self._held.values())
        self._renewals_at = now + max(shortest / 20, 0.02)
        return self._renewals_at

    def expire(self, now: float) -> list[Settled]:
        """Give up on acknowledgements that could not be sent before their locks expired."""
        late = [
            each
            for each in self._queue.waiting()
            if each.held is not None and each.held.locked_until + GRACE_SECONDS < now
        ]
        self._queue.remove_waiting({id(each) for each in late})
        return [self._lose(each, _expired(each)) for each in late]

    # Requests.

    def next_request(self, *, records_max: int, wait_ms: int, bytes_max: int, version: int) -> Request | None:
        """A fetch, with the acknowledgements that wait; only these without room for records; None for nothing."""
        if not self.is_open:
            if self._queue:
                # Without a session there is nothing to acknowledge in.
                records_max, wait_ms = max(records_max, 1), 0
            return self._fetch({}, records_max, wait_ms, bytes_max, version) if self._wanted and records_max else None
        fetches = records_max > 0 and bool(self._wanted)
        if not self._queue:
            return self._fetch({}, records_max, wait_ms, bytes_max, version) if fetches else None
        # A fetch with acknowledgements of another partition would fetch that too.
        if fetches and not self._queue.has_renewal() and self._wanted.keys() >= set(self._queue.partitions()):
            return self._fetch(self._queue.take(), records_max, wait_ms, bytes_max, version)
        return self._acknowledge(self._queue.take(), self._epoch)

    def last_request(self) -> m.ShareAcknowledgeRequest | None:
        """Ends the session: what is still held is released, and does not count as delivered."""
        return self._acknowledge({}, EPOCH_LAST) if self.is_open else None

    def _fetch(
        self,
        parts: Mapping[PartitionKey, list[AcknowledgementPart]],
        records_max: int,
        wait_ms: int,
        bytes_max: int,
        version: int,
    ) -> m.ShareFetchRequest:
        kind = m.ShareFetchRequest
        named = dict.fromkeys((*parts, *(each for each in self._wanted if each not in self._known)))
        forgotten = [] if not self.is_open else [each for each in self._known if each not in self._wanted]
        self._known = set(self._wanted)
        return kind(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=bytes_max,
            max_records=records_max,
            batch_size=records_max,
            # Otherwise the leader rounds up to whole batches.
            share_acquire_mode=1 if version >= 2 else 0,
            topics=[
                kind.FetchTopic(
                    topic_id=topic_id,
                    partitions=[
                        kind.FetchPartition(
                            partition_index=key[1],
                            acknowledgement_batches=_batches(kind.AcknowledgementBatch, parts.get(key, ())),
                        )
                        for key in keys
                    ],
                )
                for topic_id, keys in _by_topic(named).items()
            ],
            forgotten_topics_data=[
                kind.ForgottenTopic(topic_id=topic_id, partitions=[each[1] for each in keys])
                for topic_id, keys in _by_topic(forgotten).items()
            ],
        )

    def _acknowledge(
        self, parts: Mapping[PartitionKey, list[AcknowledgementPart]], epoch: int
    ) -> m.ShareAcknowledgeRequest:
        kind = m.ShareAcknowledgeRequest
        return kind(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=epoch,
            is_renew_ack=any(Verdict.RENEW in each.types for some in parts.values() for each in some),
            topics=[
                kind.AcknowledgeTopic(
                    topic_id=topic_id,
                    partitions=[
                        kind.AcknowledgePartition(
                            partition_index=key[1],
                            acknowledgement_batches=_batches(kind.AcknowledgementBatch, parts[key]),
                        )
                        for key in keys
                    ],
                )
                for topic_id, keys in _by_topic(parts).items()
            ],
        )

    # Responses.

    def on_fetch(self, response: m.ShareFetchResponse, sent_at: float) -> Outcome:
        outcome = Outcome()
        if response.error_code:
            self._on_refusal(response.error_code, response.error_message, outcome)
            return outcome
        self._epoch = self._epoch % _EPOCH_MAX + 1
        lock_seconds = max(response.acquisition_lock_timeout_ms, 1) / 1000
        acquired: list[tuple[PartitionKey, Any]] = []
        for topic in response.responses:
            for partition in topic.partitions:
                key = (topic.topic_id, partition.partition_index)
                self._on_result(key, partition.acknowledge_error_code, sent_at, lock_seconds, outcome)
                if partition.error_code:
                    self._on_partition_error(key, partition.error_code, partition.error_message, outcome)
                acquired.append((key, partition))
        self._settle_unanswered(outcome)
        for key, partition in acquired:
            if partition.acquired_records:
                self._acquire(key, partition, sent_at, lock_seconds, outcome)
        return outcome

    def on_acknowledge(self, response: m.ShareAcknowledgeResponse, sent_at: float) -> Outcome:
        outcome = Outcome()
        if response.error_code:
            self._on_refusal(response.error_code, response.error_message, outcome)
            return outcome
        self._epoch = self._epoch % _EPOCH_MAX + 1
        lock_seconds = response.acquisition_lock_timeout_ms / 1000
        for topic in response.responses:
            for partition in topic.partitions:
                key = (topic.topic_id, partition.partition_index)
                self._on_result(key, partition.error_code, sent_at, lock_seconds, outcome)
        self._settle_unanswered(outcome)
        return outcome

    def on_disconnect(self, why: str) -> list[Settled]:
        """The connection is gone, and with it the session and every lock."""
        self._epoch = EPOCH_FIRST
        self._known.clear()
        settled = [self._lose(each, _lost(each, why)) for each in self._queue.clear()]
        for held in self._held.values():
            held.loss = why
        self._held.clear()
        return settled

    def _on_refusal(self, code: int, message: str | None, outcome: Outcome) -> None:
        """The whole request was refused: its acknowledgements were not applied."""
        if code not in SESSION_LOST and code != ErrorCode.SHARE_SESSION_LIMIT_REACHED and code not in PASSING:
            outcome.failure = Answered(f"share group {self._group}", code, message)
        if code == ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            outcome.warnings.append(
                f"node {self._leader} has no share session left for the group {self._group}: raise "
                "group.share.max.share.sessions, or run fewer members"
            )
        outcome.is_paused = code not in SESSION_LOST
        self._epoch = EPOCH_FIRST
        self._known.clear()
        for key, sent in list(self._queue.sent().items()):
            if outcome.failure is None and all(each.tries == 0 for each in sent) and self._wanted:
                for each in sent:
                    each.tries += 1
                self._queue.again(key)
            else:
                why = f"the share session was lost ({_name(code)})"
                outcome.settled += [self._lose(each, _lost(each, why)) for each in self._queue.taken(key)]

    def _on_partition_error(self, key: PartitionKey, code: int, message: str | None, outcome: Outcome) -> None:
        outcome.is_paused = True
        if code in STALE_LEADER:
            outcome.is_stale = True
        elif code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            outcome.failure = Answered(f"topic {self._names[key].topic}", code, message)
        else:
            name = self._names[key]
            outcome.warnings.append(f"{name.topic}[{name.partition}] cannot be read now: {message or _name(code)}")

    def _on_result(self, key: PartitionKey, code: int, sent_at: float, lock_seconds: float, outcome: Outcome) -> None:
        """The result of the acknowledgements of one partition."""
        sent = self._queue.sent().get(key)
        if sent is None:
            return
        if not code:
            for each in self._queue.taken(key):
                self._take(each, sent_at, lock_seconds)
                outcome.settled.append((each, None))
        elif code in _BY_RECORD:
            for each in self._queue.refused(key):
                outcome.settled.append(self._refuse(each, code, outcome))
        elif code in PASSING and code not in _MOVED:
            outcome.is_paused = True
            self._queue.again(key)
        else:
            outcome.is_stale |= code in _MOVED
            why = (
                "the partition has another leader now" if code in _MOVED else f"the leader refused it: {_name(code)}"
            )
            outcome.settled += [self._lose(each, _lost(each, why, code)) for each in self._queue.taken(key)]

    def _settle_unanswered(self, outcome: Outcome) -> None:
        for key in list(self._queue.sent()):
            why = "the leader's response leaves it out"
            outcome.settled += [self._lose(each, _lost(each, why)) for each in self._queue.taken(key)]

    def _take(self, acknowledgement: Acknowledgement, sent_at: float, lock_seconds: float) -> None:
        held = acknowledgement.held
        if held is None:
            return
        if acknowledgement.verdict is Verdict.RENEW:
            held.lock_seconds = lock_seconds or held.lock_seconds
            held.locked_until = sent_at + held.lock_seconds
            held.is_renewing = False
        else:
            self._drop(held)

    def _refuse(self, acknowledgement: Acknowledgement, code: int, outcome: Outcome) -> Settled:
        held = acknowledgement.held
        if code == ErrorCode.INVALID_REQUEST and acknowledgement.verdict is Verdict.RENEW and held is not None:
            if self.may_renew:
                self.may_renew = False
                outcome.warnings.append(
                    f"the group {self._group} does not allow its members to renew locks "
                    "(share.renew.acknowledge.enable): a record whose lock expires is delivered again"
                )
            held.is_renewing = False
            return acknowledgement, Answered(f"renewing {held}", code)
        if code == ErrorCode.INVALID_REQUEST:
            return self._lose(acknowledgement, Answered(f"acknowledging {held}", code))
        return self._lose(acknowledgement, _expired(acknowledgement))

    def _lose(self, acknowledgement: Acknowledgement, error: ClientError) -> Settled:
        held = acknowledgement.held
        if held is not None:
            held.loss = held.loss or str(error)
            self._drop(held)
        return acknowledgement, error

    def _drop(self, held: HeldRecord) -> None:
        at = (held.key, held.record.offset)
        if self._held.get(at) is held:
            del self._held[at]

    # Acquiring.

    def _acquire(
        self,
        key: PartitionKey,
        partition: m.ShareFetchResponse.PartitionData,
        sent_at: float,
        lock_seconds: float,
        outcome: Outcome,
    ) -> None:
        name = self._names[key]
        data = partition.records
        assert data is None or isinstance(data, bytes | bytearray | memoryview), "decoded records are one buffer"
        acquired = decode_acquired(
            data or b"",
            [(each.first_offset, each.last_offset, each.delivery_count) for each in partition.acquired_records],
        )
        self._forget_earlier(key, {record.offset for record, _ in acquired.records}, outcome)
        for record, deliveries in acquired.records:
            held = HeldRecord(key, name, record, deliveries, sent_at + lock_seconds, lock_seconds, self._leader)
            self._held[key, record.offset] = held
            outcome.records.append(held)
        for offset in acquired.gaps:
            self._queue.add(key, Acknowledgement(offset, Verdict.GAP, None))
        for offset in acquired.unreadable:
            self._queue.add(key, Acknowledgement(offset, Verdict.RELEASE, None))
        if acquired.unreadable:
            outcome.is_paused = True
            outcome.warnings.append(
                f"{name.topic}[{name.partition}]: {len(acquired.unreadable)} records from offset "
                f"{acquired.unreadable[0]} on could not be read ({acquired.fault or 'they did not arrive'}) and are "
                "released"
            )

    def _forget_earlier(self, key: PartitionKey, offsets: set[int], outcome: Outcome) -> None:
        """These are delivered again: an earlier delivery cannot be acknowledged any longer."""
        again = {id(self._held[key, each]) for each in offsets if (key, each) in self._held}
        if not again:
            return
        late = [each for each in self._queue.waiting() if each.held is not None and id(each.held) in again]
        self._queue.remove_waiting({id(each) for each in late})
        outcome.settled += [self._lose(each, _expired(each)) for each in late]
        for offset in offsets:
            if (earlier := self._held.pop((key, offset), None)) is not None:
                earlier.loss = "it was delivered again"


def _expired(acknowledgement: Acknowledgement) -> LockExpired:
    return LockExpired(
        f"{acknowledgement.held}: the lock had expired, so the record is delivered again: finish sooner, renew the "
        "lock, or raise share.record.lock.duration.ms of the group",
        code=ErrorCode.INVALID_RECORD_STATE,
    )


def _lost(acknowledgement: Acknowledgement, why: str, code: int = 0) -> LockExpired:
    return LockExpired(
        f"{acknowledgement.held}: the acknowledgement is not confirmed, the record may be delivered again: {why}",
        code=code,
    )


def _name(code: int) -> str:
    return ErrorCode(code).name if code in {each.value for each in ErrorCode} else f"error {code}"


def _batches(kind: Callable[..., Any], parts: Iterable[AcknowledgementPart]) -> list[Any]:
    return [
        kind(
            first_offset=each.first,
            last_offset=each.last,
            acknowledge_types=each.types,
            delay_ms=each.delay_ms,
            error_type=each.error_type,
            error_message=each.error_message,
        )
        for each in parts
    ]


def _by_topic(keys: Iterable[PartitionKey]) -> dict[Any, list[PartitionKey]]:
    topics: dict[Any, list[PartitionKey]] = {}
    for key in keys:
        topics.setdefault(key[0], []).append(key)
    return topics
