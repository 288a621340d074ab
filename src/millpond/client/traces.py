"""One OpenTelemetry trace from the producer to the handler, carried in record headers.

Needs the package `opentelemetry-api`: pip install 'millpond[otel]'. The program's propagator chooses the header, by
default W3C's `traceparent`. Loaded only when tracing is on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import KafkaError
from confluent_kafka import Message as RawMessage

from millpond.client.errors import needs
from millpond.client.handler import Handler
from millpond.client.message import Delivery, Message, Send, header_list
from millpond.client.pending_reports import PendingReports
from millpond.client.send_future import SendFuture

HeaderList = list[tuple[str, bytes | None]]

SYSTEM: Final = {"messaging.system": "kafka"}


class Tracing:
    """Creates spans with the program's tracer."""

    def __init__(self) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError as fault:
            raise needs("opentelemetry-api", "otel") from fault
        self._propagate: Any = propagate
        self._trace: Any = trace
        self._tracer: Any = trace.get_tracer("millpond.client")

    # Sending.

    def sent(
        self, topic: str, pending_reports: PendingReports, headers: HeaderList | None
    ) -> tuple[TracedSendFuture, HeaderList]:
        """The future of a record about to be sent, and its headers. The span ends with the future."""
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={**SYSTEM, "messaging.destination.name": topic, "messaging.operation.type": "send"},
        )
        context = self._trace.set_span_in_context(span)
        return TracedSendFuture(topic, pending_reports, span, self._trace.StatusCode.ERROR), self._with_trace(
            headers or [], context
        )

    def _with_trace(self, headers: HeaderList, context: Any = None) -> HeaderList:
        """The record's own headers take precedence."""
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, context=context)
        names = {name for name, _ in headers}
        return headers + [(name, text.encode()) for name, text in carrier.items() if name not in names]

    # Handling.

    @contextmanager
    def handling(self, message: Message, group: str) -> Iterator[None]:
        """The span of one attempt, within the record's trace."""
        context = self._propagate.extract(_texts(message))
        with self._tracer.start_as_current_span(
            f"process {message.topic}",
            context=context,
            kind=self._trace.SpanKind.CONSUMER,
            attributes={
                **SYSTEM,
                "messaging.destination.name": message.topic,
                "messaging.destination.partition.id": str(message.partition),
                "messaging.kafka.offset": message.offset,
                "messaging.consumer.group.name": group,
                "messaging.operation.type": "process",
            },
        ):
            yield

    def onward(self, outgoing: Sequence[Send]) -> list[Send]:
        """The handler's Sends, carrying its trace."""
        return [
            Send(each.topic, each.value, each.key, self._with_trace(header_list(each.headers)), each.partition)
            for each in outgoing
        ]


class TracedSendFuture(SendFuture):
    def __init__(self, topic: str, pending_reports: PendingReports, span: Any, error: Any) -> None:
        super().__init__(topic, pending_reports)
        self._span = span
        self._error = error

    def __call__(self, error: KafkaError | None, message: RawMessage) -> None:
        self.resolve(error, message)

    def fulfil(self, delivery: Delivery) -> None:
        self._span.set_attribute("messaging.destination.partition.id", str(delivery.partition))
        if delivery.offset is not None:
            self._span.set_attribute("messaging.kafka.offset", delivery.offset)
        self._span.end()
        super().fulfil(delivery)

    def fail(self, error: BaseException) -> bool:
        self._span.record_exception(error)
        self._span.set_status(self._error, str(error))
        self._span.end()
        return super().fail(error)


class TracedHandler:
    """A handler that runs each attempt in a span."""

    def __init__(self, handler: Handler, group: str) -> None:
        self._handler = handler
        self._group = group
        self._tracing = Tracing()
        self.is_async = handler.is_async

    def run(self, message: Message, unit: Any = None) -> list[Send]:
        with self._tracing.handling(message, self._group):
            return self._tracing.onward(self._handler.run(message, unit))

    async def run_async(self, message: Message) -> list[Send]:
        with self._tracing.handling(message, self._group):
            return self._tracing.onward(await self._handler.run_async(message))


def _texts(message: Message) -> dict[str, str]:
    """The headers for the propagator. Latin-1 decodes any bytes a foreign producer may have written."""
    return {name: value.decode("latin-1") for name, value in message.headers if value is not None}
