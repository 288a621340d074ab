"""Sends that stay in order although a broker refuses whole batches.

A refused batch contains good records besides the bad one. Resent while later records go out, they would arrive after
these. So the batching producer stops at a refused batch (librdkafka's `enable.gapless.guarantee`) and writes nothing
behind it. Unacknowledged records are then resent in order: up to the end of the refused batch one per batch, which
identifies the bad one, and the rest through a new batching producer.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import count
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from typing import Final, NamedTuple, TypeAlias

from confluent_kafka import KafkaError

from millpond.client.connection import LOG
from millpond.client.errors import SendFailed
from millpond.client.message import Send, as_bytes
from millpond.client.pending_reports import OnReport
from millpond.client.producer import Producer

BATCH_REFUSALS: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})
"""Refusals of a whole batch. Only a record sent alone is known to be the cause."""

NOT_SENT: Final = frozenset(
    {KafkaError._FATAL, KafkaError._GAPLESS_GUARANTEE, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
)
"""Errors of records behind a refused batch."""

OnSent: TypeAlias = "Callable[[BaseException | None], None]"
"""Called once, with None when the record is acknowledged; often on the thread that reads delivery reports."""


Renew: TypeAlias = "Callable[[int | None], None]"
"""Closes the batching producer; the next one is created on use. A number is the size of a batch that was refused
although its records were accepted alone: the next producer must send smaller batches."""


class _Pending(NamedTuple):
    record: Send
    on_sent: OnSent


class OrderedSends:
    """Thread-safe, as long as records of one key are sent by one thread at a time."""

    def __init__(
        self,
        producer: Callable[[], Producer],
        single_producer: Callable[[], Producer],
        renew: Renew,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._producer = producer
        self._single_producer = single_producer
        self._renew = renew
        self._fail = fail
        """Called when a recovery cannot go on: what it holds is never sent."""
        self._numbers = count()
        self._lock = Lock()
        self._drained = Condition(self._lock)
        self._outstanding = 0
        """Records in the batching producer without a report."""
        self._is_recovering = False
        self._held: list[_Pending] = []
        """Records that arrived during a recovery and go out after it."""
        self._returned: dict[int, tuple[_Pending, SendFailed]] = {}
        """Records to resend, by number."""
        self._last_refused: int | None = None
        """The last record of refused batches."""
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: Thread | None = None

    def send(self, record: Send, on_sent: OnSent) -> None:
        """`on_sent` is not called if this raises."""
        pending = _Pending(record, on_sent)
        with self._lock:
            if self._is_recovering:
                self._held.append(pending)
                return
            self._outstanding += 1
        self._send_batched(pending)

    def future(self, record: Send) -> Future[None]:
        """Send it; the future waits for the acknowledgement."""
        outcome: Future[None] = Future()

        def sent(error: BaseException | None) -> None:
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

        self.send(record, sent)
        return outcome

    def run_later(self, task: Callable[[], None]) -> None:
        """Run it on a thread that may wait for room in the buffer, unlike the one that reads reports."""
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._serve, name="millpond-resend", daemon=True)
                self._thread.start()
        self._tasks.put(task)

    def _serve(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                task()
            except BaseException as fault:
                self._fail(fault)

    def _send_batched(self, pending: _Pending) -> None:
        number = next(self._numbers)
        try:
            _send(self._producer(), pending.record, partial(self._reported, number, pending))
        except BaseException as error:
            if not self._take_back(number, pending, error):
                raise

    def _reported(self, number: int, pending: _Pending, error: SendFailed | None) -> None:
        if not self._take_back(number, pending, error):
            pending.on_sent(error)

    def _take_back(self, number: int, pending: _Pending, error: BaseException | None) -> bool:
        """Note the outcome. Whether the record will be resent."""
        is_refused = isinstance(error, SendFailed) and error.code in BATCH_REFUSALS
        is_returned = is_refused or (isinstance(error, SendFailed) and error.code in NOT_SENT)
        must_recover = False
        with self._lock:
            self._outstanding -= 1
            if is_returned:
                assert isinstance(error, SendFailed)
                self._returned[number] = pending, error
                if is_refused:
                    self._last_refused = max(number, -1 if self._last_refused is None else self._last_refused)
                must_recover, self._is_recovering = not self._is_recovering, True
            if self._is_recovering and not self._outstanding:
                self._drained.notify_all()
        if must_recover:
            self.run_later(self._recover)
        return is_returned

    def _recover(self) -> None:
        """Resend until nothing is returned or held."""
        while True:
            with self._lock:
                if self._returned:
                    # Every record gets a report: one that cannot be delivered fails after delivery_timeout_s.
                    self._drained.wait_for(lambda: not self._outstanding)
                    returned, self._returned = sorted(self._returned.items()), {}
                    last_refused, self._last_refused = self._last_refused, None
                    again: list[_Pending] = []
                elif self._held:
                    again, self._held = self._held, []
                    returned, last_refused = [], None
                else:
                    self._is_recovering = False
                    return
            if returned and last_refused is None:
                # No refusal stopped the producer, so a new one would not do better.
                for _, (pending, error) in returned:
                    pending.on_sent(error)
            elif last_refused is not None:
                LOG.info("a broker refused a batch; resending %d records in order", len(returned))
                again = [pending for number, (pending, _) in returned if number > last_refused]
                alone = [pending for number, (pending, _) in returned if number <= last_refused]
                self._renew(None if self._send_alone(alone) else sum(_size(each.record) for each in alone))
            self._send_again(again)

    def _send_alone(self, pendings: list[_Pending]) -> bool:
        """Send each record in a separate batch and wait for the reports. Whether one failed."""
        left, has_failed = len(pendings), False
        all_reported = Condition(self._lock)

        def reported(pending: _Pending, error: BaseException | None) -> None:
            nonlocal left, has_failed
            pending.on_sent(error)
            with self._lock:
                left -= 1
                has_failed = has_failed or error is not None
                all_reported.notify_all()

        for each in pendings:
            try:
                _send(self._single_producer(), each.record, partial(reported, each))
            except BaseException as error:
                reported(each, error)
        with self._lock:
            all_reported.wait_for(lambda: not left)
            return has_failed

    def _send_again(self, pendings: list[_Pending]) -> None:
        with self._lock:
            self._outstanding += len(pendings)
        for pending in pendings:
            try:
                self._send_batched(pending)
            except BaseException as error:
                pending.on_sent(error)


def _size(record: Send) -> int:
    return len(record.value or b"") + len(as_bytes(record.key) or b"")


def _send(producer: Producer, record: Send, on_report: OnReport) -> None:
    producer.send_with_callback(
        on_report, record.topic, record.value, record.key, headers=record.headers, partition=record.partition
    )
