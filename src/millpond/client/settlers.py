"""Making the outcome of a record last: what it wants sent, and the group's offset. One way for each delivery.

`before` runs ahead of the handlers of a batch, `finished` when one is through (on its thread), `settle` now and then,
`hand_over` before a partition is given away (both on the polling thread).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from confluent_kafka import KafkaError

from millpond.base.ids import TopicPartition
from millpond.client.connection import LOG
from millpond.client.consumer import Consumer
from millpond.client.dead_letters import letter_origin, shorter_letter
from millpond.client.errors import CommitFailed, ConsumeFailed, SendFailed, Timeout
from millpond.client.in_flight import InFlight
from millpond.client.message import Message, Send, partition_of
from millpond.client.ordered_sends import OrderedSends, Renew
from millpond.client.producer import Producer
from millpond.client.progress import Job

GROUP_MOVED_ON = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._ASSIGNMENT_LOST,
    }
)
"""The group has changed without us. Whoever has the partition now runs the records again."""

PASSING = frozenset({KafkaError.STALE_MEMBER_EPOCH, KafkaError.REBALANCE_IN_PROGRESS})
"""The group changes this moment; we are likely to be in it again when that is over."""

AWAY = frozenset(
    {
        KafkaError._WAIT_COORD,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
"""Nobody answers for the group. That is no reason to end: reading goes on by itself when somebody does."""

REFUSED_SENDS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)
"""What a handler wants sent and no cluster will take, however long one waits: a failure of its record."""

RunAside: TypeAlias = "Callable[[Callable[[], None]], None]"
"""Makes a call on another thread and waits for it; raises Timeout when the time to stop is over."""

OnRefused: TypeAlias = "Callable[[SendFailed], Send]"
"""Makes the dead letter of a record whose Send was refused; HandlerFailed when there is no topic for it."""

RECORD_BYTES_MAX = 500_000_000
"""For librdkafka. How large a record may be is for its topic to say: one that could be read, and goes away with an
error added to it, is more than librdkafka takes by default."""

COMMIT_TRIES = 5
COMMIT_RETRY_SECONDS = 0.2


def refused_letter(letter: Send) -> OnRefused:
    """What to do about a dead letter that is refused: a letter must not end the worker, at every start again."""

    def replaced(refusal: SendFailed) -> Send:
        shorter = shorter_letter(letter) if refusal.code == KafkaError.MSG_SIZE_TOO_LARGE else None
        if shorter is None:
            raise refusal
        LOG.warning(
            "the dead letter of %s is too large for %s%s: raise max.message.bytes of that topic",
            letter_origin(letter),
            letter.topic,
            " and loses its value" if shorter.value is None else ", it is sent without a traceback",
        )
        return shorter

    return replaced


class Settler(Protocol):
    def before(self, batch: Sequence[Message]) -> bool:
        """Whether the batch may be processed."""
        ...

    def finished(self, job: Job, outgoing: list[Send], on_refused: OnRefused | None = None) -> None:
        """Not asked about a record that wants nothing sent: that is finished without further ado.

        A refused Send is replaced by what `on_refused` makes of the refusal; without that it ends the worker, unless
        it is a dead letter that can be shortened.
        """
        ...

    def settle(self) -> None: ...

    def hand_over(self, partitions: Sequence[TopicPartition], timeout_s: float) -> None:
        """Others go on with these. Nothing of them runs any more; what is finished is settled now."""
        ...

    def hand_over_in_callback(self, partitions: Sequence[TopicPartition], timeout_s: float, run: RunAside) -> None:
        """The same inside a rebalance callback, where no other thread can use the consumer: confluent-kafka blocks
        such calls until the callback returns. Only what does not use the consumer may be given to `run`."""
        ...

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        """These are not ours any more: what is not settled is dropped."""
        ...

    def left(self) -> str:
        """What is finished and not settled, for the log."""
        ...

    def abandon(self) -> None:
        """The worker no longer waits for `settle`, which may still be running on another thread."""
        ...

    def close(self) -> None: ...


class AtLeastOnce:
    """What a record wants sent is acknowledged before its offset is committed."""

    def __init__(
        self,
        consumer: Consumer,
        producer: Callable[[], Producer],
        in_flight: InFlight,
        fail: Callable[[BaseException], None],
        single_producer: Callable[[], Producer] | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        renew: Renew = lambda _: None,
    ) -> None:
        self._consumer = consumer
        self._in_flight = in_flight
        self._fail = fail
        self._is_stopping = is_stopping
        self._sends = OrderedSends(producer, single_producer or producer, renew)
        self._unsent = 0
        self._offsets: dict[TopicPartition, int] = {}
        """To be committed."""
        self._away: CommitFailed | None = None
        """Why the cluster knows nothing of the last commit."""

    def before(self, batch: Sequence[Message]) -> bool:
        return True

    def finished(self, job: Job, outgoing: list[Send], on_refused: OnRefused | None = None) -> None:
        if not outgoing:
            self._in_flight.finish(job, [])
            return
        if on_refused is None and len(outgoing) == 1:
            on_refused = refused_letter(outgoing[0])
        self._send(job, outgoing, on_refused)

    def _send(self, job: Job, outgoing: list[Send], on_refused: OnRefused | None) -> None:
        left = len(outgoing)
        lock = self._in_flight.mutex
        refusal: SendFailed | None = None

        def sent(error: BaseException | None) -> None:
            nonlocal left, refusal
            with lock:
                left -= 1
                if on_refused is not None and _is_refusal(error):
                    assert isinstance(error, SendFailed)
                    refusal = refusal or error
                    error = None
                if error is None and left == 0 and refusal is None:
                    self._in_flight.finish(job, [])
                is_refused = left == 0 and refusal is not None and self._in_flight.is_ours(job)
            if error is not None:
                self._fail(error)
            if is_refused:
                # Not here: the thread that reads reports would wait for itself where the buffer is full.
                self._sends.run_later(send_letter)
            else:
                self._count_sent()

        def send_letter() -> None:
            assert on_refused is not None
            assert refusal is not None
            try:
                self.finished(job, [on_refused(refusal)])
            except BaseException as fault:
                self._fail(fault)
            self._count_sent()

        with lock:
            self._unsent += left
        for done, each in enumerate(outgoing):
            try:
                self._sends.send(each, sent)
            except BaseException as error:
                for _ in outgoing[done:]:
                    sent(error)
                if on_refused is None or not _is_refusal(error):
                    raise
                return

    def _count_sent(self) -> None:
        with self._in_flight.mutex:
            self._unsent -= 1
            self._in_flight.tell_change()

    def settle(self) -> None:
        self._offsets |= {partition: offset for partition, offset, _ in self._in_flight.take_finished()}
        # What a group that is changing refuses is kept: a partition that stays ours may get no further record.
        if self._offsets and self._commit(self._offsets):
            self._offsets.clear()

    def hand_over(self, partitions: Sequence[TopicPartition], timeout_s: float) -> None:
        self._in_flight.wait_for(lambda: not self._unsent, timeout_s)
        self.settle()

    def hand_over_in_callback(self, partitions: Sequence[TopicPartition], timeout_s: float, run: RunAside) -> None:
        if not self._is_stopping():
            self._in_flight.wait_for(lambda: not self._unsent or self._is_stopping(), timeout_s)
        if not self._is_stopping():
            self.hand_over(partitions, 0.0)
            return
        # A commit that is waited for has no limit in here. librdkafka sends this one before the member joins again.
        self._offsets |= {partition: offset for partition, offset, _ in self._in_flight.take_finished()}
        if self._offsets:
            self._consumer.commit(offsets=self._offsets, wait=False)

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._offsets.pop(each, None)

    def left(self) -> str:
        uncommitted = ", ".join(f"{topic}[{number}] at {offset}" for (topic, number), offset in self._offsets.items())
        unsent = f"{self._unsent} records without an acknowledgement" if self._unsent else ""
        offsets = f"the offsets of {uncommitted} uncommitted" if uncommitted else ""
        return " and ".join(filter(None, (unsent, offsets))) or "its group without saying so"

    def abandon(self) -> None:
        """A commit that arrives late is still right: what it covers was sent and acknowledged before."""

    def close(self) -> None:
        """The consumer and the producer belong to others. CommitFailed or Timeout when the cluster is away."""
        if self._unsent:
            raise Timeout("the cluster does not acknowledge what was sent")
        if self._away is not None:
            raise self._away

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether the group knows them now; if not, they can be committed again while the partition is ours."""
        try:
            is_known = commit(self._consumer, offsets)
        except CommitFailed as fault:
            if fault.code not in AWAY:
                raise
            if self._away is None:
                LOG.warning("offsets will be committed when the cluster is back: %s", fault)
            self._away = fault
            return False
        self._away = None
        return is_known


class AtMostOnce(AtLeastOnce):
    """The offsets are committed before the first handler of a batch runs."""

    def before(self, batch: Sequence[Message]) -> bool:
        if self._commit({partition_of(each): each.offset + 1 for each in batch}):
            return True
        for partition, offset in {partition_of(each): each.offset for each in reversed(batch)}.items():
            try:
                self._consumer.seek(*partition, offset)
            except ConsumeFailed as fault:
                LOG.info("another reads on: %s", fault)
        return False

    def settle(self) -> None:
        self._in_flight.take_finished()  # committed long ago

    def hand_over(self, partitions: Sequence[TopicPartition], timeout_s: float) -> None:
        super().hand_over(partitions, timeout_s)
        # What no handler has seen is given back, or an orderly stop would lose it.
        if offsets := self._in_flight.not_started(partitions):
            self._commit(offsets)

    def hand_over_in_callback(self, partitions: Sequence[TopicPartition], timeout_s: float, run: RunAside) -> None:
        self.hand_over(partitions, timeout_s)


def commit(consumer: Consumer, offsets: Mapping[TopicPartition, int]) -> bool:
    """Whether the group knows the offsets now; False when it has moved on without us."""
    for tries_left in reversed(range(COMMIT_TRIES)):
        try:
            consumer.commit(offsets=offsets)
            return True
        except CommitFailed as fault:
            if not tries_left or not (fault.retriable or fault.code in PASSING):
                if fault.code in GROUP_MOVED_ON:
                    LOG.info("not committed, the group has moved on: %s", fault)
                    return False
                raise
            time.sleep(COMMIT_RETRY_SECONDS)
    raise AssertionError("the last try returns or raises")


def _is_refusal(error: BaseException | None) -> bool:
    return isinstance(error, SendFailed) and error.code in REFUSED_SENDS
