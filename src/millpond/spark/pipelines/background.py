"""Background work of a job, watched like a streaming query."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

TICK_SECONDS: Final = 0.5
"""How often new rows are reported as a batch."""


class Background:
    """Work on a thread, which reports progress to this object; a `Query` for the runner."""

    def __init__(self, name: str, work: Callable[[Background], None]) -> None:
        self._work = work
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._rows = 0
        self._lock = threading.Lock()
        self._reported_rows = 0
        self._reported_at = time.monotonic()
        self._progress: dict[str, Any] | None = None
        self._thread = threading.Thread(target=self._run, name=f"job {name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self)
        except Exception as error:
            self._error = error

    # For the work

    def add_rows(self, count: int) -> None:
        """Count finished rows."""
        with self._lock:
            self._rows += count

    @property
    def is_stopping(self) -> bool:
        """True once a stop is requested: finish what must be complete, then return."""
        return self._stop.is_set()

    # For the runner

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._thread.is_alive()

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        with self._lock:
            now = time.monotonic()
            rows, seconds = self._rows - self._reported_rows, now - self._reported_at
            if rows and (seconds >= TICK_SECONDS or not self.isActive):
                self._reported_rows, self._reported_at = self._rows, now
                self._progress = {
                    "batchId": (self._progress["batchId"] if self._progress else -1) + 1,
                    "timestamp": str(now),
                    "numInputRows": rows,
                    "inputRowsPerSecond": rows / max(seconds, 0.001),
                    "processedRowsPerSecond": rows / max(seconds, 0.001),
                    "sink": {"numOutputRows": rows},
                }
            return self._progress

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        """Request a stop and wait."""
        self._stop.set()
        self._thread.join()
