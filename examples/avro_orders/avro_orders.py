"""Orders in Avro, with the schema in a file next to the program. Usage: avro_orders.py send COUNT | charge."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import load_schema

from millpond import Message, Producer, worker

SCHEMA = parse_schema(load_schema(str(Path(__file__).with_name("order.avsc"))))
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def to_avro(value: Any, topic: str) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, SCHEMA, value)
    return out.getvalue()


def from_avro(message: Message) -> Any:
    return schemaless_reader(io.BytesIO(message.value or b""), SCHEMA, None)


@worker("orders.avro", group="avro-billing", decoder=from_avro, dead_letters="orders.avro.dlq")
def charge(order: dict[str, Any]) -> None:
    print(f"{order['customer']} pays {order['total']:.2f} for {order['id']}", flush=True)


def send(count: int) -> None:
    with Producer(serializer=to_avro) as producer:
        for number in range(count):
            at = NOON + timedelta(minutes=number)
            order = {"id": f"o-{number}", "customer": "ann", "total": number * 1.5, "at": at}
            producer.send("orders.avro", order, key="ann")
    print(f"{count} orders are sent")


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(int(sys.argv[2]))
    else:
        charge.run(until_idle_s=3)
