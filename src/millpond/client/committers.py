"""Commit the outcome of records, their Sends and the group's offset: one committer for each delivery guarantee.

`may_process` runs before the handlers of a batch, `record_finished` after a handler returns (on its thread),
`commit_finished` periodically and `hand_over` before a partition is revoked (both on the polling thread).
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
from millpond.client.ordered_sends import OrderedSends
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
"""The group rebalanced without this member. The partition's new owner runs the records again."""

REBALANCING = frozenset({KafkaError.STALE_MEMBER_EPOCH, KafkaError.REBALANCE_IN_PROGRESS})
"""The group is rebalancing; this member is likely to be back in it afterwards."""

UNREACHABLE = frozenset(
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
"""The coordinator does not answer. The worker goes on: reading resumes by itself when it does."""

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
"""No retry helps: a Send refused with one of these fails the record whose handler returned it."""

RunOnThread: TypeAlias = "Callable[[Callable[[], None]], None]"
"""Makes a call on another thread and waits for it; raises Timeout once the stop deadline has passed."""

OnRefused: TypeAlias = "Callable[[SendFailed], Send]"
"""Makes the dead letter of a record whose Send was refused; HandlerFailed when there is no topic for it."""

RECORD_BYTES_MAX = 500_000_000
"""librdkafka's limit. The topic sets the real one: a record that could be read may exceed librdkafka's default once
an error has been added to it."""

COMMIT_TRIES = 5
COMMIT_RETRY_SECONDS = 0.2


def refused_letter(letter: Send) -> OnRefused:
    """Shorten a refused dead letter. A letter that ended the worker would end it again at every start."""

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


class Committer(Protocol):
    def may_process(self, batch: Sequence[Message]) -> bool:
        """Whether the batch may be processed."""
        ...

    def record_finished(self, job: Job, outgoing: list[Send], on_refused: OnRefused | None = None) -> None:
        """Not called for a record without Sends.

        `on_refused` replaces a refused Send; without it a refusal ends the worker, unless the Send is a dead letter
        that can be shortened.
        """
        ...

    def commit_finished(self) -> None: ...

    def hand_over(self, partitions: Sequence[TopicPartition], timeout_s: float) -> None:
        """Commit what is finished in these partitions before others take over. None of their handlers run now."""
        ...

    def hand_over_in_callback(self, partitions: Sequence[TopicPartition], timeout_s: float, run: RunOnThread) -> None:
        """The same inside a rebalance callback, where no other thread can use the consumer: confluent-kafka blocks
        such calls until the callback returns. Only what does not use the consumer may be given to `run`."""
        ...

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are no longer assigned: drop what is uncommitted."""
        ...

    def uncommitted_summary(self) -> str:
        """What is finished but uncommitted, for the log."""
        ...

    def abandon(self) -> None:
        """The worker no longer waits for `commit_finished`, which may still be running on another thread."""
        ...

    def close(self) -> None: ...


class AtLeastOnce:
    """A record's Sends are acknowledged before its offset is committed."""

    def __init__(
        self,
        consumer: Consumer,
        sends: OrderedSends,
        in_flight: InFlight,
        fail: Callable[[BaseException], None],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._consumer = consumer
        self._in_flight = in_flight
        self._fail = fail
        self._is_stopping = is_stopping
        self._sends = sends
        self._unsent = 0
        self._offsets: dict[TopicPartition, int] = {}
        """To be committed."""
        self._unreachable: CommitFailed | None = None
        """Why the last commit failed, while the cluster is unreachable."""

    def may_process(self, batch: Sequence[Message]) -> bool:
        return True

    def record_finished(self, job: Job, outgoing: list[Send], on_refused: OnRefused | None = None) -> None:
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
                if on_refused is not None and is_refusal(error):
                    assert isinstance(error, SendFailed)
                    refusal = refusal or error
                    error = None
                if error is None and left == 0 and refusal is None:
                    self._in_flight.finish(job, [])
                is_refused = left == 0 and refusal is not None and self._in_flight.is_ours(job)
            if error is not None:
                self._fail(error)
            if is_refused:
                # Not on this thread: it reads the delivery reports, and would deadlock while the buffer is full.
                self._sends.run_later(send_letter)
            else:
                self._count_sent()

        def send_letter() -> None:
            assert on_refused is not None
            assert refusal is not None
            try:
                self.record_finished(job, [on_refused(refusal)])
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
                if on_refused is None or not is_refusal(error):
                    raise
                return

    def _count_sent(self) -> None:
        with self._in_flight.mutex:
            self._unsent -= 1
            self._in_flight.notify_change()

    def commit_finished(self) -> None:
        self._offsets |= {partition: offset for partition, offset, _ in self._in_flight.take_finished()}
        # Keep what a rebalancing group refuses: a partition that stays assigned may get no further record.
        if self._offsets and self._commit(self._offsets):
            self._offsets.clear()

    def hand_over(self, partitions: Sequence[TopicPartition], timeout_s: float) -> None:
        self._in_flight.wait_for(lambda: not self._unsent, timeout_s)
        self.commit_finished()

    def hand_over_in_callback(self, partitions: Sequence[TopicPartition], timeout_s: float, run: RunOnThread) -> None:
        if not self._is_stopping():
            self._in_flight.wait_for(lambda: not self._unsent or self._is_stopping(), timeout_s)
        if not self._is_stopping():
            self.hand_over(partitions, 0.0)
            return
        # A synchronous commit has no time limit here. librdkafka sends this one before the member rejoins.
        self._offsets |= {partition: offset for partition, offset, _ in self._in_flight.take_finished()}
        if self._offsets:
            self._consumer.commit(offsets=self._offsets, wait=False)

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._offsets.pop(each, None)

    def uncommitted_summary(self) -> str:
        uncommitted = ", ".join(f"{topic}[{number}] at {offset}" for (topic, number), offset in self._offsets.items())
        unsent = f"{self._unsent} records without an acknowledgement" if self._unsent else ""
        offsets = f"the offsets of {uncommitted} uncommitted" if uncommitted else ""
        return " and ".join(filter(None, (unsent, offsets))) or "its group without saying so"

    def abandon(self) -> None:
        """A late commit is still right: what it covers was acknowledged before."""

    def close(self) -> None:
        """Raise CommitFailed or Timeout if the cluster is unreachable. The caller closes consumer and producer."""
        if self._unsent:
            raise Timeout("the cluster does not acknowledge what was sent")
        if self._unreachable is not None:
            raise self._unreachable

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether the offsets are committed; if not, they can be committed again while the partition is assigned."""
        try:
            is_known = commit(self._consumer, offsets)
        except CommitFailed as fault:
            if fault.code not in UNREACHABLE:
                raise
            if self._unreachable is None:
                LOG.warning("offsets will be committed when the cluster is back: %s", fault)
            self._unreachable = fault
            return False
        self._unreachable = None
        return is_known


class AtMostOnce(AtLeastOnce):
    """The offsets are committed before the first handler of a batch runs."""

    def may_process(self, batch: Sequence[Message]) -> bool:
        if self._commit({partition_of(each): each.offset + 1 for each in batch}):
            return True
        for partition, offset in {partition_of(each): each.offset for each in reversed(batch)}.items():
            try:
                self._consumer.seek(*partition, offset)
            except ConsumeFailed as fault:
                LOG.info("cannot seek, another member has the partition: %s", fault)
        return False

    def commit_finished(self) -> None:
        self._in_flight.take_finished()  # committed long ago

    def hand_over(self, partitions: Sequence[TopicPartition], timeout_s: float) -> None:
        super().hand_over(partitions, timeout_s)
        # Rewind to what no handler has seen, or an orderly stop would lose it.
        if offsets := self._in_flight.not_started(partitions):
            self._commit(offsets)

    def hand_over_in_callback(self, partitions: Sequence[TopicPartition], timeout_s: float, run: RunOnThread) -> None:
        self.hand_over(partitions, timeout_s)


def commit(consumer: Consumer, offsets: Mapping[TopicPartition, int]) -> bool:
    """Whether the offsets are committed; False when the group has rebalanced without this member."""
    for tries_left in reversed(range(COMMIT_TRIES)):
        try:
            consumer.commit(offsets=offsets)
            return True
        except CommitFailed as fault:
            if not tries_left or not (fault.retriable or fault.code in REBALANCING):
                if fault.code in GROUP_MOVED_ON:
                    LOG.info("not committed, the group has moved on: %s", fault)
                    return False
                raise
            time.sleep(COMMIT_RETRY_SECONDS)
    raise AssertionError("the last try returns or raises")


def is_refusal(error: BaseException | None) -> bool:
    return isinstance(error, SendFailed) and error.code in REFUSED_SENDS
