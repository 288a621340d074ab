"""An HTTP service that confirms an order once it is in the log. Usage: orders_api.py [PORT].

To choose the server: `uvicorn orders_api:app --workers 4`; each worker process has its own producer.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from millpond import AsyncProducer, ClientError


class Order(BaseModel):
    id: str
    customer: str
    total: float


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # A record that is not acknowledged within five seconds is a 503, and the caller may retry.
    async with AsyncProducer(delivery_timeout_s=5) as producer:
        app.state.producer = producer
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place(order: Order) -> dict[str, str | int]:
    try:
        at = await app.state.producer.send("fastapi.orders", order, key=order.customer)
    except ClientError as fault:
        raise HTTPException(503, str(fault)) from fault
    return {"topic": at.topic, "partition": at.partition, "offset": at.offset}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000, log_level="warning")
