"""Orders in Avro with the schema in a registry. Usage: registry_orders.py send COUNT | charge.

SCHEMA_REGISTRY_URL is the address of the registry; the default is on this machine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

from millpond import Producer, registry_decoder, registry_serializer, worker

SCHEMA = Path(__file__).with_name("order.avsc").read_text(encoding="utf-8")
REGISTRY = SchemaRegistryClient({"url": os.environ.get("SCHEMA_REGISTRY_URL", "http://127.0.0.1:8081")})


@worker(
    "registry.orders",
    group="registry-billing",
    decoder=registry_decoder(AvroDeserializer(REGISTRY)),
    dead_letters="registry.orders.dlq",
)
def charge(order: dict[str, Any]) -> None:
    print(f"{order['customer']} pays {order['total']:.2f} for {order['id']}", flush=True)


def send(count: int) -> None:
    with Producer(serializer=registry_serializer(AvroSerializer(REGISTRY, SCHEMA))) as producer:
        for number in range(count):
            order = {"id": f"o-{number}", "customer": "ann", "total": number * 1.5}
            producer.send("registry.orders", order, key="ann")
    print(f"{count} orders are sent")


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(int(sys.argv[2]))
    else:
        charge.run(until_idle_s=3)
