"""Names and types that the programs of this example share."""

from __future__ import annotations

from dataclasses import dataclass

ORDERS = "shop.orders"
PAYMENTS = "shop.payments"
PARCELS = "shop.parcels"


@dataclass
class Order:
    id: int
    customer: str
    cents: int
    currency: str = "EUR"
