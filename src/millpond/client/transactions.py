"""Exactly once from topic to topic: what records want sent and the group's offsets are one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as RawMessage
from confluent_kafka import Producer as RawProducer
from confluent_kafka import TopicPartition as RawPartition

from millpond.base.ids import TopicPartition
from millpond.client.call_thread import CallOverrun, CallThread
from millpond.client.connection import LOG, make, producer_settings
from millpond.client.consumer import Consumer
from millpond.client.errors import Fenced, SendFailed, Timeout, advice_on, send_failure
from millpond.client.in_flight import InFlight
from millpond.client.message import Message, Send, as_bytes, header_list
from millpond.client.progress import Job
from millpond.client.settlers import (
    BATCH_REFUSALS,
    GROUP_MOVED_ON,
    RECORD_BYTES_MAX,
    REFUSED_SENDS,
    OnRefused,
    RunAside,
)

CALL_SECONDS = 30.0
GRACE_SECONDS = 5.0
"""A call that takes this much longer than it was allowed to will not return."""

IDLE_CONNECTION_MS = 5_000
ABORTS_MAX = 5
RETRIES_MAX = 20
FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


@dataclass(slots=True)
class _Finished:
    """Finished records of one partition that are not in a committed transaction yet."""

    offset: int
    outgoing: list[Send] = field(default_factory=list)


class Transactional:
    """Handlers run first; their results wait in memory for the next transaction. An aborted one is done again."""

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
        self._finished: dict[TopicPartition, _Finished] = {}
        self._aborts = 0
        self._refusals: list[tuple[Send, SendFailed]] = []
        """What no further transaction could send either."""
        self._is_one_by_one = False
        """Whether each record goes out in a batch of its own: a broker refuses whole batches."""
        self._group: Any = None
        """The consumer's group metadata, while it cannot be asked for them."""
        self._is_abandoned = False
        """The worker has stopped waiting. A transaction that is not being committed yet must not be."""
        own = {
            "transactional.id": f"{group}-{instance or uuid4().hex}",
            "transaction.timeout.ms": int(timeout_s * 1000),
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
            "linger.ms": 0,
            "message.max.bytes": RECORD_BYTES_MAX,
            "delivery.report.only.error": True,
            # By default librdkafka forgets the group's coordinator when the only node goes away in the middle of a
            # transaction, and then waits for ever to send it the offsets.
            "metadata.recovery.strategy": "none",
            # It also waits for a coordinator that has left the metadata until some connection opens or closes
            # (its issues 5456 and 5511): closing idle ones soon ends that wait.
            "connections.max.idle.ms": IDLE_CONNECTION_MS,
        }
        self._settings = producer_settings(bootstrap, own, settings)
        self._begin()

    def _begin(self) -> None:
        """Fences an earlier producer of this transactional id, and aborts what it left open."""
        self._calls = CallThread("millpond-transaction")
        self._raw = make(RawProducer, self._settings)
        self._call("begin to use transactions", lambda: self._raw.init_transactions(CALL_SECONDS))

    def before(self, batch: Sequence[Message]) -> bool:
        return True

    def finished(self, job: Job, outgoing: list[Send], on_refused: OnRefused | None = None) -> None:
        if on_refused is not None and outgoing:
            outgoing = list(_Outgoing(outgoing, on_refused))
        self._in_flight.finish(job, outgoing)

    def settle(self) -> None:
        for partition, offset, outgoing in self._in_flight.take_finished():
            finished = self._finished.setdefault(partition, _Finished(offset))
            finished.offset = offset
            finished.outgoing += outgoing
        may_repeat = False
        while self._finished and not self._is_abandoned:
            if self._transact():
                self._finished.clear()
                self._is_one_by_one = False
            elif self._replace_refused():
                # librdkafka goes on behind the sequence numbers of what was refused, so the next one fails, too.
                may_repeat = True
            elif may_repeat:
                may_repeat = False
            else:
                return

    def hand_over(self, partitions: Sequence[TopicPartition], timeout_s: float) -> None:
        self.settle()

    def hand_over_in_callback(self, partitions: Sequence[TopicPartition], timeout_s: float, run: RunAside) -> None:
        self._group = self._consumer.raw.consumer_group_metadata()
        try:
            run(self.settle)
        finally:
            self._group = None

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._finished.pop(each, None)

    def left(self) -> str:
        partitions = ", ".join(
            f"{topic}[{number}] up to {each.offset}" for (topic, number), each in self._finished.items()
        )
        return f"the transaction of {partitions} uncommitted" if partitions else "its group without saying so"

    def abandon(self) -> None:
        """Another thread may still be inside `settle`: it aborts what it has not begun to commit."""
        self._is_abandoned = True

    def close(self) -> None:
        self._calls.close()
        self._raw.flush(0)

    def _transact(self) -> bool:
        """Whether it is committed; False when it was aborted and may be tried again."""
        offsets = [RawPartition(*partition, each.offset) for partition, each in self._finished.items()]
        try:
            self._call("begin a transaction", self._raw.begin_transaction)
            for finished in self._finished.values():
                for each in finished.outgoing:
                    self._produce(each)
            self._call("put the offsets into the transaction", lambda: self._send_offsets(offsets))
            self._call("commit", lambda: self._raw.commit_transaction(CALL_SECONDS))
        except _Abandoned:
            self._abandon()
            return False
        except CallOverrun as fault:
            if self._is_abandoned:
                # Nothing can be done with this producer. The coordinator aborts the transaction when it times out.
                return False
            self._count_abort(fault)
            LOG.warning("librdkafka hangs in send_offsets_to_transaction, starting a new producer: %s", fault)
            self._calls.close()
            self._begin()
            return False
        except _MustAbort as fault:
            self._call("abort", lambda: self._raw.abort_transaction(CALL_SECONDS))
            self._raw.poll(0)
            if self._refusals:
                LOG.info("transaction aborted, the cluster refuses what a record wants sent: %s", fault)
                return False
            if fault.code not in GROUP_MOVED_ON:
                self._count_abort(fault)
            LOG.info("transaction aborted, will be done again: %s", fault)
            return False
        self._aborts = 0
        return True

    def _count_abort(self, fault: Exception) -> None:
        self._aborts += 1
        if self._aborts > ABORTS_MAX:
            raise SendFailed(f"{self._aborts} transactions in a row had to be aborted: {fault}") from fault

    def _send_offsets(self, offsets: Sequence[RawPartition]) -> None:
        """CallOverrun where librdkafka does not keep to the timeout that it is given."""
        group = self._group or self._consumer.raw.consumer_group_metadata()
        self._calls.run(
            self._raw.send_offsets_to_transaction,
            list(offsets),
            group,
            CALL_SECONDS,
            timeout_s=CALL_SECONDS + GRACE_SECONDS,
        )

    def _replace_refused(self) -> bool:
        """Put dead letters in the place of what was refused. Whether there is another transaction to try at once."""
        refusals, self._refusals = self._refusals, []
        if not refusals:
            return False
        self._aborts = 0
        if not self._is_one_by_one and all(each.code in BATCH_REFUSALS for _, each in refusals):
            # The others in its batch were refused with it: find out which one it was.
            self._is_one_by_one = True
            return True
        for refused, refusal in refusals:
            if not isinstance(refused, _OutgoingSend):
                raise refusal
            letter: Send | None = None
            for finished in self._finished.values():
                kept = [each for each in finished.outgoing if not refused.is_with(each)]
                if len(kept) < len(finished.outgoing):
                    letter = letter or refused.outgoing.on_refused(refusal)
                    finished.outgoing = [*kept, letter]
        return True

    def _note_refusal(self, wanted: Send, error: KafkaError) -> None:
        self._refusals.append((wanted, send_failure(wanted.topic, error)))

    def _produce(self, wanted: Send) -> None:
        def delivered(error: KafkaError | None, message: RawMessage) -> None:
            if error is not None and error.code() in REFUSED_SENDS:
                self._note_refusal(wanted, error)

        options: dict[str, Any] = {"headers": header_list(wanted.headers), "on_delivery": delivered}
        if wanted.partition is not None:
            options["partition"] = wanted.partition
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            try:
                self._raw.produce(wanted.topic, wanted.value, as_bytes(wanted.key), **options)
                if self._is_one_by_one:
                    self._raw.flush(CALL_SECONDS)
                return
            except BufferError:
                if time.monotonic() > deadline:
                    raise Timeout("the cluster does not take what the transaction sends") from None
                self._raw.poll(0.05)
            except KafkaException as fault:
                error = fault.args[0]
                if error.fatal() or error.code() in FENCED:
                    raise Fenced(advice_on(error), code=error.code()) from fault
                if error.txn_requires_abort() or error.code() == KafkaError._STATE:
                    raise _MustAbort(error) from fault
                if error.code() in REFUSED_SENDS:
                    self._note_refusal(wanted, error)
                    raise _MustAbort(error) from fault
                self._abandon()
                raise send_failure(wanted.topic, error) from fault

    def _abandon(self) -> None:
        """Leave no open transaction behind when the worker stops."""
        try:
            self._raw.abort_transaction(CALL_SECONDS)
        except KafkaException as fault:
            LOG.warning("a transaction was left to time out: %s", fault)

    def _call(self, what: str, call: Callable[[], Any]) -> None:
        for _ in range(RETRIES_MAX):
            if self._is_abandoned and what != "abort":
                raise _Abandoned
            try:
                call()
                return
            except KafkaException as fault:
                error = fault.args[0]
                if error.fatal() or error.code() in FENCED:
                    raise Fenced(f"cannot {what}: {advice_on(error)}", code=error.code()) from fault
                if error.txn_requires_abort():
                    raise _MustAbort(error) from fault
                if not error.retriable():
                    raise SendFailed(f"cannot {what}: {advice_on(error)}", code=error.code()) from fault
                time.sleep(0.05)
        raise Timeout(f"cannot {what}: no success in {RETRIES_MAX} tries; check that the cluster is up")


class _Outgoing:
    """All that one record wants sent, and what is sent in its place when a part of it is refused."""

    def __init__(self, sends: Sequence[Send], on_refused: OnRefused) -> None:
        self.on_refused = on_refused
        self._sends = sends

    def __iter__(self) -> Iterator[Send]:
        return (
            _OutgoingSend(each.topic, each.value, each.key, each.headers, each.partition, outgoing=self)
            for each in self._sends
        )


@dataclass(slots=True, frozen=True, kw_only=True)
class _OutgoingSend(Send):
    outgoing: _Outgoing

    def is_with(self, other: Send) -> bool:
        """Whether the same record wants it sent."""
        return isinstance(other, _OutgoingSend) and other.outgoing is self.outgoing


class _Abandoned(Exception):
    """The worker stopped waiting while the transaction was under way."""


class _MustAbort(Exception):
    """The transaction cannot be committed; a new one can."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.str())
        self.code = error.code()
