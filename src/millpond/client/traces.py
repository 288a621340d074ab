"""One trace from the producer to the handler: OpenTelemetry spans, tied together by the headers of the records.

Needs the package `opentelemetry-api`: pip install 'millpond[otel]'. Which header carries the trace says the program's
own propagator; by default that is W3C's `traceparent`. Nothing of this is loaded unless somebody asks for it.
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
from millpond.client.sent import Sent
from millpond.client.unreported import Unreported

HeaderList = list[tuple[str, bytes | None]]

SYSTEM: Final = {"messaging.system": "kafka"}


class Tracing:
    """Makes spans by the tracer that the program has set up."""

    def __init__(self) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError as fault:
            raise needs("opentelemetry-api", "otel") from fault
        self._propagate: Any = propagate
        self._trace: Any = trace
        self._tracer: Any = trace.get_tracer("millpond.client")

    # Sending.

    def sent(self, topic: str, unreported: Unreported, headers: HeaderList | None) -> tuple[TracedSent, HeaderList]:
        """The future of a record that is about to be sent, and its headers. Its span ends with it."""
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={**SYSTEM, "messaging.destination.name": topic, "messaging.operation.type": "send"},
        )
        context = self._trace.set_span_in_context(span)
        return TracedSent(topic, unreported, span, self._trace.StatusCode.ERROR), self._with_trace(
            headers or [], context
        )

    def _with_trace(self, headers: HeaderList, context: Any = None) -> HeaderList:
        """What the record brings of its own stays, and goes before."""
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, context=context)
        own = {name for name, _ in headers}
        return headers + [(name, text.encode()) for name, text in carrier.items() if name not in own]

    # Handling.

    @contextmanager
    def handling(self, message: Message, group: str) -> Iterator[None]:
        """The span of one try, within the trace that the record came with."""
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
        """What a handler wants sent goes on in its trace."""
        return [
            Send(each.topic, each.value, each.key, self._with_trace(header_list(each.headers)), each.partition)
            for each in outgoing
        ]


class TracedSent(Sent):
    """Fulfilled as any other; its span hears of it."""

    def __init__(self, topic: str, unreported: Unreported, span: Any, error: Any) -> None:
        super().__init__(topic, unreported)
        self._span = span
        self._error = error

    def __call__(self, error: KafkaError | None, message: RawMessage) -> None:
        self.told(error, message)

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
    """A handler whose every try is a span."""

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
    """Its headers as a propagator reads them: whoever wrote them may have written anything."""
    return {name: value.decode("latin-1") for name, value in message.headers if value is not None}
