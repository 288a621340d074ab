"""Exactly once from topic to topic: records' Sends and the group's offsets are committed in one transaction."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as RawMessage
from confluent_kafka import Producer as RawProducer
from confluent_kafka import TopicPartition as RawPartition

from millpond.base.ids import TopicPartition
from millpond.client.call_thread import CallOverrun, CallThread
from millpond.client.committers import GROUP_MOVED_ON, RECORD_BYTES_MAX, REFUSED_SENDS, OnRefused, RunOnThread
from millpond.client.connection import LOG, make, producer_settings
from millpond.client.consumer import Consumer
from millpond.client.errors import Fenced, SendFailed, Timeout, advice_on, send_failure
from millpond.client.in_flight import InFlight
from millpond.client.message import Message, Send, as_bytes, header_list
from millpond.client.ordered_sends import BATCH_REFUSALS
from millpond.client.outbox import Outbox, OutgoingSend, Portion, outgoing_sends
from millpond.client.progress import Job

CALL_SECONDS_MAX = 30.0
GRACE_SECONDS = 5.0
"""A call that overruns its timeout by this much will not return."""
RETRY_SECONDS = 120.0
"""How long a call that times out is repeated. Less than max.poll.interval.ms, since nothing is polled meanwhile."""
WARN_SECONDS = 5.0
"""When to log that a call is being repeated."""

IDLE_CONNECTION_MS = 5_000
FLUSH_STEP_SECONDS = 0.05
SENDS_MAX = 10_000
"""Per transaction."""
SHARE_TO_PRODUCE = 0.25
SHARE_TO_FLUSH = 0.5
SHARE_OF_A_CALL = 0.25
"""Shares of the transaction timeout, at which the coordinator aborts the transaction and fences the producer."""
ABORTS_MAX = 5
FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


@dataclass(slots=True, frozen=True)
class _Refusal:
    send: OutgoingSend
    failure: SendFailed
    partition: tuple[str, int] | None
    """None if librdkafka itself refused it, and not a broker together with its batch."""

    @property
    def is_of_batch(self) -> bool:
        return self.partition is not None and self.failure.code in BATCH_REFUSALS


class Transactional:
    """Handlers run first; their results wait in memory for the next transaction, which is repeated if aborted."""

    def __init__(
        self,
        consumer: Consumer,
        in_flight: InFlight,
        *,
        bootstrap: str | None,
        group: str,
        instance: str | None,
        timeout_s: float,
        settings: Mapping[str, Any],
    ) -> None:
        self._consumer = consumer
        self._in_flight = in_flight
        self._outbox = Outbox()
        self._aborts = 0
        self._refusals: list[_Refusal] = []
        """Sends that every further transaction would fail on, too."""
        self._group: Any = None
        """The consumer's group metadata, while the consumer cannot be called."""
        self._suspects: list[OutgoingSend] = []
        """The Sends of refused batches: at least one of them is the cause."""
        self._batch_bytes: dict[str, int] = {}
        """Batch limit by topic, where a batch was refused although each of its Sends was accepted alone."""
        self._sends_max = SENDS_MAX
        self._delivery_error: KafkaError | None = None
        """The first delivery error in the open transaction."""
        self._number = 0
        """Counts transactions, to recognize late delivery reports of earlier ones."""
        self._began_at: float | None = None
        """When the open transaction began."""
        self._is_abandoned = False
        """The worker has stopped waiting: do not start to commit."""
        self._may_be_replaced = instance is not None
        """Whether another worker may have the same transactional id, and fences this one for good."""
        own = {
            "transactional.id": f"{group}-{instance or uuid4().hex}",
            "transaction.timeout.ms": int(timeout_s * 1000),
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
            "linger.ms": 0,
            "message.max.bytes": RECORD_BYTES_MAX,
            "delivery.report.only.error": True,
            # By default librdkafka forgets the group's coordinator when the only node goes down in the middle of a
            # transaction, and then waits forever to send it the offsets.
            "metadata.recovery.strategy": "none",
            # It also waits for a coordinator that has left the metadata until some connection opens or closes
            # (its issues 5456 and 5511): closing idle ones soon ends that wait.
            "connections.max.idle.ms": IDLE_CONNECTION_MS,
        }
        self._settings = producer_settings(bootstrap, own, settings)
        self._timeout_s = int(self._settings["transaction.timeout.ms"]) / 1000
        self._call_s = min(CALL_SECONDS_MAX, SHARE_OF_A_CALL * self._timeout_s)
        self._begin()

    def _begin(self) -> None:
        """Fence an earlier producer of this transactional id and abort its open transaction."""
        self._began_at = None
        self._calls = CallThread("millpond-transaction")
        self._raw = make(RawProducer, self._settings)
        self._call("begin to use transactions", lambda: self._bounded(self._raw.init_transactions))

    def _renew(self, fault: Exception) -> None:
        self._count_abort(fault)
        LOG.warning("starting a new transactional producer: %s", fault)
        self._calls.close()
        self._begin()

    def may_process(self, batch: Sequence[Message]) -> bool:
        return True

    def record_finished(self, job: Job, outgoing: list[Send], on_refused: OnRefused | None = None) -> None:
        self._in_flight.finish(job, outgoing_sends(outgoing, job.message.offset, on_refused))

    def commit_finished(self) -> None:
        self._commit_within(self._timeout_s)

    def hand_over(self, partitions: Sequence[TopicPartition], timeout_s: float) -> None:
        self._commit_within(timeout_s)

    def _commit_within(self, timeout_s: float) -> None:
        """Stop at the timeout and leave the rest for next time: the worker must poll to stay in its group."""
        for partition, offset, outgoing in self._in_flight.take_finished():
            self._outbox.add(partition, offset, outgoing)
        until = time.monotonic() + timeout_s
        may_repeat = False
        while self._outbox and not self._is_abandoned:
            if self._search() if self._suspects else self._transact():
                pass
            elif self._replace_refused():
                # librdkafka skips the sequence numbers of refused records, so the next transaction fails too.
                may_repeat = True
            elif may_repeat:
                may_repeat = False
            else:
                return
            if time.monotonic() > until:
                return

    def hand_over_in_callback(self, partitions: Sequence[TopicPartition], timeout_s: float, run: RunOnThread) -> None:
        self._group = self._consumer.raw.consumer_group_metadata()
        try:
            run(lambda: self._commit_within(timeout_s))
        finally:
            self._group = None

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        self._outbox.forget(partitions)
        self._suspects = self._outbox.present(self._suspects)

    def uncommitted_summary(self) -> str:
        partitions = str(self._outbox)
        return f"the transaction of {partitions} uncommitted" if partitions else "its group without saying so"

    def abandon(self) -> None:
        """A `commit_finished` still running on another thread aborts unless it is already committing."""
        self._is_abandoned = True

    def close(self) -> None:
        self._calls.close()
        self._raw.flush(0)

    def _transact(self) -> bool:
        """Commit the first portion of the outbox. False if it was aborted and may be retried."""
        portion = self._outbox.first(self._sends_max)

        def work() -> None:
            nonlocal portion
            portion = self._send(portion)
            offsets = [RawPartition(*partition, offset) for partition, offset in portion.offsets.items()]
            self._call(
                "put the offsets into the transaction",
                lambda: self._send_offsets(offsets),
                until=self._open_until(SHARE_TO_FLUSH + SHARE_OF_A_CALL),
            )
            self._call("commit", self._commit)

        if not self._run_transaction(work):
            return False
        self._outbox.remove(portion)
        self._aborts = 0
        self._sends_max = min(2 * self._sends_max, SENDS_MAX)
        return True

    def _search(self) -> bool:
        """Resend suspects in groups that grow from one until the broker refuses a group; commits nothing.

        True if it refuses none: then their batch was too large, not a Send in it.
        """
        suspects = self._suspects

        def work() -> None:
            begin, count = 0, 1
            while group := suspects[begin : begin + count]:
                for each in group:
                    self._produce(each)
                self._flush()
                begin, count = begin + count, 2 * count
            raise _NoneRefused

        try:
            self._run_transaction(work)
        except _NoneRefused:
            self._abort()
        else:
            return False
        for topic in {each.topic for each in suspects}:
            batch_bytes = sum(_size(each) for each in suspects if each.topic == topic)
            self._batch_bytes[topic] = min(batch_bytes, self._batch_bytes.get(topic, batch_bytes)) // 2
        self._suspects = []
        return True

    def _run_transaction(self, work: Callable[[], None]) -> bool:
        """Whether `work` succeeded; False if the transaction was aborted and may be retried."""
        self._delivery_error = None
        self._number += 1
        try:
            self._call("begin a transaction", self._raw.begin_transaction)
            self._began_at = time.monotonic()
            work()
        except _Abandoned:
            self._abandon()
            return False
        except CallOverrun as fault:
            if self._is_abandoned:
                # This producer is unusable. The coordinator aborts the transaction when it times out.
                return False
            self._renew(fault)
            return False
        except _TooSlow as fault:
            self._abort()
            if self._sends_max == 1 or self._suspects:
                self._count_abort(fault)
            self._sends_max = max(min(self._sends_max, fault.sends) // 2, 1)
            LOG.warning("transaction aborted, retrying with a smaller one: %s", fault)
            return False
        except _MustAbort as fault:
            self._abort()
            if self._refusals:
                LOG.info("transaction aborted, the cluster refused a Send: %s", fault)
                return False
            if fault.code in GROUP_MOVED_ON:
                LOG.info("transaction aborted, the group has moved on: %s", fault)
            else:
                self._count_abort(fault)
                LOG.warning("transaction aborted, retrying: %s", fault)
            return False
        self._began_at = None
        return True

    def _abort(self) -> None:
        try:
            self._call("abort", lambda: self._bounded(self._raw.abort_transaction))
        except CallOverrun as fault:
            self._renew(fault)
        except Fenced as fault:
            if self._may_be_replaced and fault.code in FENCED:
                text = f"{fault}; a coordinator that ends during an abort has the same effect: start the worker again"
                raise Fenced(text, code=fault.code) from fault
            # A coordinator that ended before it answered fences librdkafka when that asks again, or does not know the
            # transaction. No other worker has this transactional id, and a new producer leaves nothing committed.
            self._renew(fault)
        self._began_at = None
        self._raw.poll(0)

    def _count_abort(self, fault: Exception) -> None:
        self._aborts += 1
        if self._aborts > ABORTS_MAX:
            raise SendFailed(f"{self._aborts} transactions in a row had to be aborted: {fault}") from fault

    def _send_offsets(self, offsets: Sequence[RawPartition]) -> None:
        group = self._group or self._consumer.raw.consumer_group_metadata()
        self._bounded(self._raw.send_offsets_to_transaction, list(offsets), group)

    def _commit(self) -> None:
        try:
            self._bounded(self._raw.commit_transaction)
        except CallOverrun as fault:
            # The transaction may be committed already. A new producer here could commit its records once more.
            raise Timeout(f"{fault}: start the worker again, it continues behind what was committed") from fault

    def _bounded(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call librdkafka with a timeout; CallOverrun if it ignores that."""
        try:
            self._calls.run(function, *arguments, self._call_s, timeout_s=self._call_s + GRACE_SECONDS)
        except CallOverrun as late:
            raise CallOverrun(f"librdkafka hangs in {function.__name__}: {late}") from None

    def _replace_refused(self) -> bool:
        """Replace refused Sends by dead letters. Whether to try another transaction at once."""
        refusals, self._refusals = self._refusals, []
        if not refusals:
            return False
        self._aborts = 0
        by_partition = Counter(each.partition for each in refusals if each.is_of_batch)
        suspects: list[OutgoingSend] = []
        for each in refusals:
            if each.is_of_batch and by_partition[each.partition] > 1:
                suspects.append(each.send)
            elif self._outbox.has(each.send):
                # Otherwise another Send of the same record was refused and replaced too.
                letter = _replacement(each)
                # Commit the records up to this one first: a worker that ends here meets no refusal twice.
                self._sends_max = self._outbox.replace(each.send.record, letter) + 1
        self._suspects = self._outbox.present(suspects)
        return True

    def _send(self, portion: Portion) -> Portion:
        """Send the portion and wait until it is delivered. Drop whole records that do not fit in time."""
        produce_until = self._open_until(SHARE_TO_PRODUCE)
        unflushed: Counter[str] = Counter()
        for count, each in enumerate(portion.sends):
            is_new_record = count and portion.sends[count - 1].record is not each.record
            if is_new_record and time.monotonic() > produce_until:
                portion = self._outbox.first(count)
                break
            limit = self._batch_bytes.get(each.topic)
            if limit is not None:
                if unflushed[each.topic] and unflushed[each.topic] + _size(each) > limit:
                    self._flush()
                    unflushed.clear()
                unflushed[each.topic] += _size(each)
            self._produce(each)
        self._flush(len(portion.sends))
        return portion

    def _produce(self, outgoing: OutgoingSend) -> None:
        number = self._number

        def delivered(error: KafkaError | None, message: RawMessage) -> None:
            if error is None or number != self._number:
                return
            self._delivery_error = self._delivery_error or error
            if error.code() in REFUSED_SENDS:
                self._refusals.append(
                    _Refusal(
                        outgoing, send_failure(outgoing.topic, error), (outgoing.topic, message.partition() or 0)
                    )
                )

        options: dict[str, Any] = {"headers": header_list(outgoing.headers), "on_delivery": delivered}
        if outgoing.partition is not None:
            options["partition"] = outgoing.partition
        while True:
            try:
                self._raw.produce(outgoing.topic, outgoing.value, as_bytes(outgoing.key), **options)
                return
            except BufferError:
                if time.monotonic() > self._open_until(SHARE_TO_FLUSH):
                    raise _TooSlow("the cluster does not take what the transaction sends", self._sends_max) from None
                self._raw.poll(FLUSH_STEP_SECONDS)
            except KafkaException as fault:
                error = fault.args[0]
                if error.fatal() or error.code() in FENCED:
                    raise self._fenced("send", error) from fault
                if error.txn_requires_abort() or error.code() == KafkaError._STATE:
                    raise _MustAbort(error) from fault
                if error.code() in REFUSED_SENDS:
                    self._refusals.append(_Refusal(outgoing, send_failure(outgoing.topic, error), None))
                    raise _MustAbort(error) from fault
                self._abandon()
                raise send_failure(outgoing.topic, error) from fault

    def _flush(self, sends: int = 1) -> None:
        """Wait until everything is delivered; _MustAbort on the first failure.

        A commit would wait too, but librdkafka stops waiting neither for a refusal nor for an abort: the coordinator
        would abort the transaction first and fence the producer.
        """
        until = self._open_until(SHARE_TO_FLUSH)
        while len(self._raw) and self._delivery_error is None:
            if self._is_abandoned:
                raise _Abandoned
            if time.monotonic() > until:
                raise _TooSlow(f"{len(self._raw)} records are not acknowledged in time", sends)
            self._call("deliver the records", lambda: self._raw.flush(FLUSH_STEP_SECONDS))
        if self._delivery_error is not None:
            raise _MustAbort(self._delivery_error)

    def _open_until(self, share: float) -> float:
        """When this share of the transaction timeout has passed."""
        assert self._began_at is not None, "no transaction is open"
        return self._began_at + share * self._timeout_s

    def _abandon(self) -> None:
        """Leave no open transaction behind when the worker stops."""
        try:
            self._bounded(self._raw.abort_transaction)
        except (KafkaException, CallOverrun) as fault:
            LOG.warning("cannot abort, the transaction will time out: %s", fault)

    def _call(self, what: str, call: Callable[[], Any], until: float | None = None) -> None:
        """Repeat the call until it succeeds."""
        began = time.monotonic()
        has_warned = False
        while True:
            if self._is_abandoned and what != "abort":
                raise _Abandoned
            try:
                call()
                return
            except KafkaException as fault:
                error = fault.args[0]
                if error.fatal() or error.code() in FENCED:
                    raise self._fenced(what, error) from fault
                if error.txn_requires_abort():
                    raise _MustAbort(error) from fault
                if not error.retriable():
                    raise SendFailed(f"cannot {what}: {advice_on(error)}", code=error.code()) from fault
                now = time.monotonic()
                if until is not None and now > until:
                    raise _MustAbort(error) from fault
                if now - began > RETRY_SECONDS:
                    raise Timeout(
                        f"cannot {what}: no success within {now - began:.0f} s ({advice_on(error)})",
                        code=error.code(),
                    ) from fault
                if not has_warned and now - began > WARN_SECONDS:
                    has_warned = True
                    LOG.warning("cannot %s, retrying for up to %g s: %s", what, RETRY_SECONDS, advice_on(error))
                time.sleep(0.05)

    def _fenced(self, what: str, error: KafkaError) -> Fenced:
        """A coordinator fences a producer for a newer one with the same id, or after a transaction timeout."""
        open_s = 0.0 if self._began_at is None else time.monotonic() - self._began_at
        if open_s < self._timeout_s:
            return Fenced(f"cannot {what}: {advice_on(error)}", code=error.code())
        return Fenced(
            f"cannot {what}: {error.str()} ({error.name()}); the transaction was open for {open_s:.1f} s and its "
            f"coordinator aborted it after {self._timeout_s:g} s: start the worker again, and raise "
            "transaction_timeout_s if the cluster is often this slow",
            code=error.code(),
        )


def _size(send: Send) -> int:
    return len(send.value or b"") + len(as_bytes(send.key) or b"")


def _replacement(refusal: _Refusal) -> Send:
    on_refused = refusal.send.record.on_refused
    if on_refused is None:
        raise refusal.failure
    return on_refused(refusal.failure)


class _Abandoned(Exception):
    """The worker stopped waiting while the transaction was under way."""


class _NoneRefused(Exception):
    """All suspects were delivered."""


class _TooSlow(Exception):
    """The transaction could time out before it is committed."""

    def __init__(self, text: str, sends: int) -> None:
        super().__init__(text)
        self.sends = sends


class _MustAbort(Exception):
    """The transaction cannot be committed; a new one can."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.str())
        self.code = error.code()
