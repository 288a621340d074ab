"""Charges orders, then packs parcels: two workers in one process. Usage: pipeline.py [CURRENCY...].

The bank fails now and then, so an order is tried three times; after that it goes to the dead letters with its error,
and the orders behind it continue.
"""

from __future__ import annotations

import sys
from collections import Counter

from shop import ORDERS, PARCELS, PAYMENTS, Order

from millpond import Message, Reject, Retry, Send, run_workers, worker

currencies = set(sys.argv[1:]) or {"EUR"}
calls: Counter[int] = Counter()


class UnknownCurrency(Exception):
    """The currency may be added later: then the dead letters can be redriven."""


def say(line: str) -> None:
    """Print a whole line at once: several threads write to the same output."""
    print(f"{line}\n", end="", flush=True)


def ask_bank(order: Order) -> str:
    """A bank that does not answer the first attempt of every third order."""
    calls[order.id] += 1
    if order.id % 3 == 0 and calls[order.id] == 1:
        raise TimeoutError("the bank does not answer")
    if order.currency not in currencies:
        raise UnknownCurrency(order.currency)
    return f"payment-{order.id}"


@worker(
    ORDERS,
    group="shop.charge",
    delivery="exactly_once",
    retries=Retry(3, first_s=0.05, give_up_on=(UnknownCurrency,)),
    dead_letters=f"{ORDERS}.dlq",
    concurrency=4,
)
def charge(order: Order, message: Message) -> Send:
    if order.cents <= 0:
        raise Reject(f"an order over {order.cents} cents")
    payment = ask_bank(order)
    say(f"charged order {order.id}")
    return Send(PAYMENTS, {"order": order.id, "payment": payment}, key=message.key)


@worker(PAYMENTS, group="shop.pack", delivery="exactly_once")
def pack(message: Message) -> Send:
    paid = message.json()
    say(f"packed order {paid['order']}")
    return Send(PARCELS, f"parcel-{paid['order']}", key=message.key)


if __name__ == "__main__":
    run_workers(charge, pack)
