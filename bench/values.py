"""Values of JSON and Avro into columns for Spark, in this process: with the compiled reader and without it.

A value is an order of eight fields, one of them a struct of three.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.line import LeftOut
from bench.measure import MEGA, Plan, medians_in_turn
from bench.noise import Measured

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.columns.parser import Parser

ROWS = 30_000
"""As many as a task hands to Spark at once."""
COMPILED, PLAIN = "compiled", "plain"

DDL = (
    "id long, customer string, amount double, currency string, paid boolean, at timestamp, quantity int, "
    "address struct<street:string,city:string,zip:int>"
)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "currency", "type": {"type": "enum", "name": "Currency", "symbols": ["EUR", "USD"]}},
        {"name": "paid", "type": "boolean"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "quantity", "type": ["null", "int"]},
        {
            "name": "address",
            "type": {
                "type": "record",
                "name": "Address",
                "fields": [
                    {"name": "street", "type": "string"},
                    {"name": "city", "type": "string"},
                    {"name": "zip", "type": "int"},
                ],
            },
        },
    ],
}


def order(number: int, at: object) -> dict[str, Any]:
    return {
        "id": 10_000_000 + number,
        "customer": f"customer-{number % 977}",
        "amount": round(number * 0.37, 2),
        "currency": "EUR",
        "paid": number % 3 == 0,
        "at": at,
        "quantity": number % 50,
        "address": {
            "street": f"Long Street {number % 300}",
            "city": "Zürich" if number % 10 == 0 else "Berlin",
            "zip": 10_000 + number % 9_000,
        },
    }


def json_values() -> list[bytes]:
    orders = (order(number, f"2024-01-02T03:04:05.{number % 1000:03}Z") for number in range(ROWS))
    return [json.dumps(each, ensure_ascii=False).encode() for each in orders]


def avro_values() -> list[bytes]:
    import fastavro

    schema = fastavro.parse_schema(AVRO)
    values = []
    for number in range(ROWS):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, order(number, 1_704_164_645_000 + number))
        values.append(out.getvalue())
    return values


def measure_values(plan: Plan) -> Iterator[tuple[str, str, Measured]]:
    """Format, way and figures."""
    try:
        import fastavro  # noqa: F401
        import pyarrow as pa

        from millpond.columns.parser import Parser
    except ImportError as missing:
        raise LeftOut("Spark is not installed: pip install 'millpond[spark]'") from missing
    formats = {"json": (DDL, json_values()), "avro": (json.dumps(AVRO), avro_values())}
    runs = [
        (kind, way, Parser(kind, schema, plain=way == PLAIN), pa.array(values, pa.binary()))
        for kind, (schema, values) in formats.items()
        for way in (COMPILED, PLAIN)
    ]
    if any(way == COMPILED and not parser.is_compiled for _, way, parser, _ in runs):
        raise LeftOut("the compiled kernel was not built")
    slices = {f"{kind} {way}": partial(_slice, parser, part) for kind, way, parser, part in runs}
    for (kind, way, _, _), figures in zip(runs, medians_in_turn(plan, slices).values(), strict=True):
        yield kind, way, figures


def _slice(parser: Parser, part: pa.BinaryArray, seconds: float) -> Measured:
    rows, began, spent = 0, time.perf_counter(), time.process_time()
    while not rows or time.perf_counter() - began < seconds:
        found = parser.parse(part)
        assert not found.faults
        rows += len(part)
    spent, elapsed = time.process_time() - spent, time.perf_counter() - began
    data_bytes = rows * part.nbytes / len(part)
    return {
        "seconds": elapsed,
        "messages": float(rows),
        # Of one core's time: others that take the core do not make the reader slower.
        "messages_per_s": rows / spent,
        "mb_per_s": data_bytes / MEGA / spent,
        "cpu_s_per_million": spent / rows * MEGA,
    }
