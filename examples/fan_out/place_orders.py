"""Places orders: writes each once, for all readers. Usage: place_orders.py COUNT [FIRST]."""

from __future__ import annotations

import sys

from millpond import Producer


def main(count: int, first: int = 0) -> None:
    with Producer() as producer:
        for number in range(first, first + count):
            customer = f"customer-{number % 7}"
            order = {"order": number, "customer": customer, "cents": 100 + number}
            producer.send("fan-out.orders", order, key=customer)
    print(f"placed {count} orders")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
