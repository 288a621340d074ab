"""An event loop on a background thread, to which other threads submit work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from millpond.node.serve import new_loop

T = TypeVar("T")

CALL_SECONDS_MAX = 30.0
"""Work on the loop is quick: a longer wait means that the loop hangs, and the test should fail."""


class LoopThread:
    """Runs from creation until `stop`. A daemon thread."""

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = new_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` on the loop; what it returns or raises comes back here."""
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(work())
            except Exception as error:
                result.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return result.result(CALL_SECONDS_MAX)

    def tell(self, work: Callable[[], object]) -> None:
        """Run `work` on the loop, some time soon."""
        self.loop.call_soon_threadsafe(work)

    def join(self) -> None:
        """Wait until the loop is stopped; the caller can still close it afterwards."""
        self._thread.join(CALL_SECONDS_MAX)
        if self._thread.is_alive():
            raise TimeoutError(f"the thread {self._thread.name} does not end")

    def stop(self) -> None:
        """End the thread and close the loop."""
        self.tell(self.loop.stop)
        self.join()
        self.loop.close()
