"""Delivery reports become futures."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from types import FrameType
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import Producer as RawProducer

from millpond import SendFailed
from millpond.client.handover import Handover
from millpond.client.inner_producer import InnerProducer
from millpond.client.pending_reports import ReportsYielded
from millpond.client.reachability import Reachability
from millpond.client.send_future import SendFuture
from support.node import eventually


def lane_to(bootstrap: str, **more: object) -> InnerProducer:
    settings = {"bootstrap.servers": bootstrap, "log_level": 2, **more}
    return InnerProducer(RawProducer(settings), Reachability(settings))


def test_reports_come_without_anybody_asking(broker) -> None:
    topic = broker.topic()
    inner = lane_to(broker.bootstrap)
    future = SendFuture(topic, inner.pending_reports)
    inner.produce(future, topic, b"v", b"k", [("h", b"1")], 2, 1_700_000_000_000)
    place = future.result(60)
    assert (place.topic, place.partition, place.offset) == (topic, 2, 0)
    assert place.timestamp_ms == 1_700_000_000_000
    inner.close()


def test_a_cancelled_future_harms_nobody(broker) -> None:
    topic = broker.topic()
    inner = lane_to(broker.bootstrap, **{"linger.ms": 50})
    given_up = SendFuture(topic, inner.pending_reports)
    future = SendFuture(topic, inner.pending_reports)
    inner.produce(given_up, topic, b"1", None, partition=0)
    assert given_up.cancel()
    inner.produce(future, topic, b"2", None, partition=0)
    assert future.result(60).offset == 1
    inner.close()


def test_waiting_for_room_ends_with_the_deadline() -> None:
    inner = lane_to("127.0.0.1:1")
    assert not inner.wait_for_room(time.monotonic() - 1)
    assert inner.wait_for_room(time.monotonic() + 0.01)
    assert inner.flush(0.01) == 0
    inner.close()


def test_what_is_flushed_is_known_to_everybody(broker) -> None:
    topic = broker.topic()
    inner = lane_to(broker.bootstrap)
    for _ in range(20):
        futures = [SendFuture(topic, inner.pending_reports) for _ in range(50)]
        for each in futures:
            inner.produce(each, topic, b"v", None)
        assert inner.flush(60) == 0
        assert all(each.done() for each in futures), "also the one that the serving thread had in hand"
    inner.close()


def test_a_record_that_was_not_taken_is_not_waited_for() -> None:
    inner = lane_to("127.0.0.1:1", **{"queue.buffering.max.messages": 1})
    kept, refused = SendFuture("orders", inner.pending_reports), SendFuture("orders", inner.pending_reports)
    inner.produce(kept, "orders", b"1", None)
    with pytest.raises(BufferError):
        inner.produce(refused, "orders", b"2", None)
    assert inner.pending_reports.records == {kept}
    assert inner.flush(0.01) == 1
    inner.close()
    assert isinstance(kept.exception(60), SendFailed)
    assert not refused.done()


def test_no_future_stays_open_that_was_sent_after_all_when_it_was_closed() -> None:
    """A thread may hold the producer while another closes it, and then no thread reads reports."""
    inner = lane_to("127.0.0.1:1")
    inner.close()
    late = SendFuture("orders", inner.pending_reports)
    inner.produce(late, "orders", b"1", None)
    assert isinstance(late.exception(20), SendFailed)
    assert isinstance(inner.plain_send()("orders", b"2", None).exception(20), SendFailed)
    assert not inner.pending_reports.records


@pytest.mark.parametrize("kind", ["a future", "one of a loop"])
def test_the_serving_thread_leaves_the_reports_in_its_hands_to_who_reads_them(broker, kind: str) -> None:
    """Each report arrives once, on any thread, and the serving thread continues.

    Not in the order in which they were sent: librdkafka puts what is left of one batch behind the other batches.
    """
    topic = broker.topic()
    # Long enough that the reports come after all were sent: before that, the sender reads them.
    inner = lane_to(broker.bootstrap, **{"linger.ms": 1000})
    numbers: list[int] = []
    stepped_back = 0
    yield_reports = inner.pending_reports.yield_reports

    def counted() -> None:
        nonlocal stepped_back
        try:
            yield_reports()
        except ReportsYielded:
            stepped_back += 1
            raise

    inner.pending_reports.yield_reports = counted  # type: ignore[method-assign]

    def noted(number: int, record: Any) -> Any:
        def hear(error: Any, message: Any) -> None:
            numbers.append(number)
            # The serving thread has many in its hands; another one begins to read.
            inner.pending_reports.request_yield()
            try:
                record(error, message)
            finally:
                inner.pending_reports.records.discard(hear)

        return hear

    async def main() -> None:
        handover = Handover(asyncio.get_running_loop())
        make: Any = SendFuture if kind == "a future" else handover.future_for
        records = [make(topic, inner.pending_reports) for _ in range(500)]
        for n, record in enumerate(records):
            inner.produce(noted(n, record), topic, b"%d" % n, None, partition=0)
        assert await asyncio.to_thread(eventually, lambda: len(numbers) == 500)
        assert inner.flush(60) == 0
        assert sorted(numbers) == list(range(500))
        if kind == "a future":
            assert [each.result(60).offset for each in records] == list(range(500))
        else:
            assert [place.offset for place in await asyncio.gather(*records)] == list(range(500))

    asyncio.run(main())
    assert stepped_back > 10
    again = SendFuture(topic, inner.pending_reports)
    inner.produce(again, topic, b"again", None, partition=0)
    assert again.result(60).offset == 500
    inner.close()


def test_a_flush_that_is_interrupted_leaves_the_reports_to_the_serving_thread() -> None:
    """Whichever line of it the signal meets: its end is one step."""
    lines, start = inspect.getsourcelines(InnerProducer.flush)
    end = start + next(n for n, line in enumerate(lines) if line.strip() == "finally:")
    inner = lane_to("127.0.0.1:1")
    for line in range(start + 1, end):

        def trace(frame: FrameType, event: str, _: object, line: int = line) -> Any:
            if frame.f_code is not InnerProducer.flush.__code__:
                return None
            if event == "line" and frame.f_lineno == line:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            inner.flush(0)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert not inner._flushes, f"at {lines[line - start]}"
    inner.close()


@pytest.mark.parametrize("reads", ["serving thread", "sender", "flush"])
def test_after_an_error_that_ends_all_sending_each_record_has_an_outcome(broker, reads: str) -> None:
    """librdkafka's binding raises such an error on the thread that reads reports; the serving thread continues."""
    topic = broker.topic()
    settings = {"transactional.id": f"fenced-{topic}", "linger.ms": 0}
    inner, newer = lane_to(broker.bootstrap, **settings), lane_to(broker.bootstrap, **settings)
    inner.raw.init_transactions(60)
    inner.raw.begin_transaction()
    inner.plain_send()(topic, b"in time", None).result(60)
    newer.raw.init_transactions(60)
    late: list[SendFuture] = []
    send = inner.plain_send()
    for _ in range(1 if reads == "serving thread" else 10_000):
        try:
            late.append(send(topic, b"late", None))
        except KafkaException:  # It is known by now.
            break
        if reads == "flush":
            inner.flush(0.01)
    assert all(isinstance(each.exception(60), SendFailed) for each in late)
    assert late
    assert inner._thread.is_alive()
    assert inner.flush(60) == 0
    inner.close()
    newer.close()
