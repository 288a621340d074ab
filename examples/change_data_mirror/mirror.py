"""A copy of the table in memory, built from the topic only; printed as JSON after every change. Usage: mirror.py."""

from __future__ import annotations

import json
from typing import Any

from millpond import Consumer, Message

CUSTOMERS = "customers"

Mirror = dict[str, Any]


def take(mirror: Mirror, change: Message) -> None:
    customer = (change.key or b"").decode()
    if change.value is None:
        # A tombstone. The row may be unknown here: compaction drops older records.
        mirror.pop(customer, None)
    else:
        mirror[customer] = change.json()


def main() -> None:
    mirror: Mirror = {}
    with Consumer(topics=[CUSTOMERS]) as consumer:
        for batch in consumer.batches():
            for change in batch:
                take(mirror, change)
            print(json.dumps(mirror, sort_keys=True), flush=True)


if __name__ == "__main__":
    main()
