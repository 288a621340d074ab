"""One of four services that all read every order, each at its own pace.

Usage: service.py billing|shipping|email|stats

A service is a group, with its own committed position. Two processes of one service share its work; services are
independent of each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from millpond import Message, Worker

Order = Mapping[str, Any]


def billing(order: Order) -> str:
    return f"invoice over {order['cents'] / 100:.2f} to {order['customer']}"


def shipping(order: Order) -> str:
    return f"parcel {order['order']} to {order['customer']}"


def email(order: Order) -> str:
    return f"mail to {order['customer']}: thank you for order {order['order']}"


class Stats:
    """A service with its own state."""

    def __init__(self) -> None:
        self.cents = 0

    def __call__(self, order: Order) -> str:
        self.cents += order["cents"]
        return f"revenue is now {self.cents / 100:.2f}"


SERVICES: Mapping[str, Callable[[Order], str]] = {
    "billing": billing,
    "shipping": shipping,
    "email": email,
    "stats": Stats(),
}


def main(name: str) -> None:
    service = SERVICES[name]

    def handle(message: Message) -> None:
        print(f"{name}: {service(message.json())}", flush=True)

    Worker(handle, "fan-out.orders", group=f"fan-out.{name}").run()


if __name__ == "__main__":
    main(sys.argv[1])
