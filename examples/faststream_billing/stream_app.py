"""A FastStream application that reads orders and writes bills. Run it, or `faststream run stream_app:app`."""

from __future__ import annotations

import asyncio
import os

from faststream import FastStream
from faststream.confluent import KafkaBroker
from pydantic import BaseModel

broker = KafkaBroker(os.environ.get("MILLPOND_BOOTSTRAP", "127.0.0.1:9092"))
app = FastStream(broker)


class Order(BaseModel):
    id: str
    total: float


class Bill(BaseModel):
    order: str
    amount: float


@broker.subscriber("faststream.orders", group_id="faststream-billing", auto_offset_reset="earliest")
@broker.publisher("faststream.bills")
async def charge(order: Order) -> Bill:
    return Bill(order=order.id, amount=order.total)


if __name__ == "__main__":
    asyncio.run(app.run())
