"""One trace from the producer to the handler, and onward: with OpenTelemetry's own SDK, where it is installed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from millpond import AsyncProducer, BufferFull, Producer, Send, SendFailed, Timeout, Worker
from millpond.client.pending_reports import PendingReports
from millpond.client.producer import WhenFull
from millpond.client.traces import TracedSendFuture

NOT_LOADED = """
import sys
sys.modules["opentelemetry"] = None
import millpond
with millpond.Producer("127.0.0.1:1") as producer:
    pass
for make in (lambda: millpond.Producer("127.0.0.1:1", tracing=True),
             lambda: millpond.Worker(lambda value: None, "t", group="g", payload=bytes, tracing=True)):
    try:
        make()
    except millpond.MissingExtra as refusal:
        assert "millpond[otel]" in str(refusal), refusal
    else:
        raise AssertionError("not refused")
assert "millpond.client.traces" in sys.modules
"""


def test_without_the_package_nothing_is_missing_until_it_is_asked_for() -> None:
    subprocess.run([sys.executable, "-c", NOT_LOADED], check=True, timeout=60)


def test_tracing_is_not_loaded_unless_requested() -> None:
    program = "import sys, millpond\nmillpond.Producer('127.0.0.1:1').close()\n"
    program += "assert not any(name.startswith(('opentelemetry', 'millpond.client.traces')) for name in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.fixture(scope="module")
def spans() -> Iterator[Any]:
    """What was traced."""
    reason = "pip install opentelemetry-sdk"
    trace = pytest.importorskip("opentelemetry.trace", reason=reason)
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason=reason)
    export = pytest.importorskip("opentelemetry.sdk.trace.export", reason=reason)
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter", reason=reason)
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


@pytest.fixture(params=["at_least_once", "exactly_once"])
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_record_and_its_handler_are_one_trace(broker: Any, spans: Any, delivery: Any) -> None:
    from opentelemetry import trace

    spans.clear()
    topic, onward = broker.topic(1), broker.topic(1)

    def handle(value: bytes) -> Send:
        return Send(onward, value)

    worker = Worker(handle, topic, group=broker.group(), bootstrap=broker.bootstrap, delivery=delivery, tracing=True)
    with Producer(broker.bootstrap, tracing=True) as producer:
        with trace.get_tracer("test").start_as_current_span("request"):
            producer.send(topic, b"a", headers={"mine": "kept"}).result(30)
        worker.run(until_idle_s=0.5)
    named = {span.name: span for span in spans.get_finished_spans()}
    request, sent, handled = named["request"], named[f"send {topic}"], named[f"process {topic}"]
    assert sent.parent.span_id == request.context.span_id
    assert handled.parent.span_id == sent.context.span_id
    assert request.context.trace_id == sent.context.trace_id == handled.context.trace_id
    assert sent.attributes["messaging.kafka.offset"] == handled.attributes["messaging.kafka.offset"] == 0
    (first,), (second,) = broker.read(topic), broker.read(onward)
    assert first.header("mine") == b"kept"
    trace_id = f"{request.context.trace_id:032x}"
    # What follows are flags.
    assert (first.header("traceparent") or b"")[:52] == f"00-{trace_id}-{sent.context.span_id:016x}".encode()
    assert (second.header("traceparent") or b"")[:52] == f"00-{trace_id}-{handled.context.span_id:016x}".encode()


def test_a_handler_that_fails_is_a_span_with_its_error(broker: Any, spans: Any) -> None:
    spans.clear()
    topic = broker.topic(1)
    letters = broker.topic(1)

    def handle(value: bytes) -> None:
        raise ValueError("bad order")

    with Producer(broker.bootstrap, tracing=True) as producer:
        producer.send(topic, b"a").result(30)
    options: dict[str, Any] = {"group": broker.group(), "bootstrap": broker.bootstrap, "tracing": True}
    Worker(handle, topic, dead_letters=letters, **options).run(until_idle_s=0.5)
    (handled,) = [each for each in spans.get_finished_spans() if each.name == f"process {topic}"]
    assert handled.status.status_code.name == "ERROR"
    (letter,) = broker.read(letters)
    (sent,) = [each for each in spans.get_finished_spans() if each.name == f"send {topic}"]
    assert f"{sent.context.span_id:016x}".encode() in (letter.header("traceparent") or b"")


def test_a_record_that_cannot_be_sent_is_a_span_with_its_error(broker: Any, spans: Any) -> None:
    spans.clear()
    topic = broker.topic(1)
    with Producer(broker.bootstrap, tracing=True) as producer, pytest.raises(Exception, match="large"):
        producer.send(topic, b"x" * 2_000_000).result(30)
    (sent,) = spans.get_finished_spans()
    assert sent.status.status_code.name == "ERROR"


def test_headers_that_are_no_trace_are_no_reason_to_fail(broker: Any, spans: Any) -> None:
    topic = broker.topic(1)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"a", headers={"traceparent": b"\xff\x00 nonsense", "tracestate": b"\xff"}).result(30)
    seen: list[bytes] = []
    Worker(
        lambda value: seen.append(value),
        topic,
        group=broker.group(),
        bootstrap=broker.bootstrap,
        payload=bytes,
        tracing=True,
    ).run(until_idle_s=0.5)
    assert seen == [b"a"]


class Span:
    """One that remembers how it ended."""

    def __init__(self) -> None:
        self.ends = 0
        self.errors: list[BaseException] = []

    def record_exception(self, error: BaseException) -> None:
        self.errors.append(error)

    def set_status(self, *_: object) -> None:
        pass

    def end(self) -> None:
        self.ends += 1


class Tracer:
    """Makes spans without the package: which ones end is our part."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def sent(self, topic: str, pending_reports: PendingReports, headers: Any) -> tuple[TracedSendFuture, Any]:
        self.spans.append(Span())
        return TracedSendFuture(topic, pending_reports, self.spans[-1], "error"), headers


@pytest.mark.parametrize("when_full", ["block", "raise"])
def test_the_span_of_a_record_that_finds_no_room_ends(when_full: WhenFull) -> None:
    tracer: Any = Tracer()
    producer = Producer("127.0.0.1:1", buffer_records=1, when_full=when_full, full_timeout_s=0.1)
    producer._tracing = tracer
    producer.send("orders", b"kept")
    with pytest.raises(BufferFull) as refusal:
        producer.send("orders", b"refused")
    kept, refused = tracer.spans
    assert (kept.ends, refused.ends) == (0, 1)
    assert refused.errors == [refusal.value]
    with pytest.raises(Timeout):
        producer.close(0.05)
    assert (kept.ends, refused.ends) == (1, 1)


def test_who_waits_for_room_in_a_loop_leaves_one_failed_span_and_not_one_for_each_look() -> None:
    tracer: Any = Tracer()

    async def main() -> None:
        producer = AsyncProducer("127.0.0.1:1", buffer_records=1, full_timeout_s=0.1)
        producer._producer._tracing = tracer
        producer._is_traced = True
        kept = await producer.queue("orders", b"kept")
        with pytest.raises(BufferFull):
            await producer.queue("orders", b"refused")
        with pytest.raises(Timeout):
            await producer.close(0.05)
        assert isinstance((await asyncio.gather(kept, return_exceptions=True))[0], SendFailed)

    asyncio.run(main())
    assert sum(len(each.errors) for each in tracer.spans) == 2, "the one that was kept, and the one that was refused"
    assert len(tracer.spans) > 3, "it looked more than once"
