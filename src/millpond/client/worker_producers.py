"""The producers of a worker that does not use transactions: one batches, one sends each record by itself."""

from __future__ import annotations

import time
from contextlib import ExitStack
from threading import Lock
from typing import Any

from millpond.client.committers import RECORD_BYTES_MAX
from millpond.client.errors import Closed
from millpond.client.options import Options
from millpond.client.producer import Producer

DELIVERY_SECONDS = 120.0
"""Longer than a plain producer's: a worker ends when a record is not sent."""
BATCH_BYTES = 1_000_000


class WorkerProducers:
    """Thread-safe. Each producer is created on first use."""

    def __init__(self, options: Options, bootstrap: str | None) -> None:
        self._options = options
        self._bootstrap = bootstrap
        self._lock = Lock()
        self._is_closed = False
        self._batching: Producer | None = None
        self._single: Producer | None = None
        self._batch_bytes = BATCH_BYTES
        """The batch limit, lowered when a topic refuses batches of that size."""

    def batching(self) -> Producer:
        with self._lock:
            if self._batching is None:
                settings = {**_gapless(self._options), **self._options.settings}
                self._batching = self._make(settings, linger_ms=1, batch_bytes=self._batch_bytes)
            return self._batching

    def single(self) -> Producer:
        """Sends each record in a separate batch, so that what the broker refuses is that record."""
        with self._lock:
            if self._single is None:
                self._single = self._make({**self._options.settings, "batch.num.messages": 1}, linger_ms=0)
            return self._single

    def renew(self, refused_bytes: int | None) -> None:
        """The batching producer has stopped at a refused batch and can send nothing any longer."""
        with self._lock:
            stopped, self._batching = self._batching, None
            if refused_bytes is not None:
                self._batch_bytes = max(min(self._batch_bytes, refused_bytes) // 2, 1)
        if stopped is not None:
            stopped.close()

    def close(self, deadline: float) -> None:
        """Flush until the deadline; Timeout if records are left."""
        with self._lock:
            self._is_closed = True

        def close(producer: Producer) -> None:
            producer.close(max(deadline - time.monotonic(), 0.0))

        with ExitStack() as closing:
            for each in (self._single, self._batching):
                if each is not None:
                    closing.callback(close, each)

    def _make(self, settings: dict[str, Any], **arguments: Any) -> Producer:
        if self._is_closed:
            raise Closed("the worker has ended")
        settings = {"message.max.bytes": RECORD_BYTES_MAX, **settings}
        return Producer(self._bootstrap, delivery_timeout_s=DELIVERY_SECONDS, settings=settings, **arguments)


def _gapless(options: Options) -> dict[str, Any]:
    """Settings of a producer that stops at a refused batch instead of writing what was sent after it."""
    gapless = {"enable.idempotence": True, "enable.gapless.guarantee": True}
    is_idempotent = str(options.settings.get("enable.idempotence", True)).lower() in ("true", "1")
    acks = str(options.settings.get("acks", options.settings.get("request.required.acks", "all")))
    return gapless if is_idempotent and acks in ("all", "-1") else {}
