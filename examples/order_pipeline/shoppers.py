"""Places orders, some of which are unreadable, some invalid, and some in an unknown currency.

Usage: shoppers.py COUNT
"""

from __future__ import annotations

import sys

from shop import ORDERS, Order

from millpond import Producer


def main(count: int) -> None:
    with Producer() as producer:
        for number in range(count):
            customer = f"customer-{number % 5}"
            if number % 10 == 3:
                producer.send(ORDERS, b"{this is no order", key=customer)
                continue
            cents = -1 if number % 10 == 5 else 1000 + number
            currency = "CHF" if number % 10 == 7 else "EUR"
            producer.send(ORDERS, Order(number, customer, cents, currency), key=customer)
    print(f"placed {count} orders")


if __name__ == "__main__":
    main(int(sys.argv[1]))
