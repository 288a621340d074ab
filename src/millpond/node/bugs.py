"""What a bug does to a node: its traceback is printed and the process exits.

An exception that reaches the loop was unexpected, and what it interrupted is unknown: the node might look healthy
while requests wait forever. Recovery from a crash is tested; running on half-broken is not.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from millpond.broker.loop.journal import Journal
from millpond.node.journal import LineJournal

EXIT_CODE = 70
"""EX_SOFTWARE in sysexits.h: an internal software error."""


def watch_for_bugs(loop: asyncio.AbstractEventLoop, journal: Journal, end: Callable[[BaseException], None]) -> None:
    """Call `end` with the first exception that reaches the loop, after logging it."""

    def on_exception(_: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None:
            journal("event loop error", message=context.get("message"))
            return
        lines = "".join(traceback.format_exception(error)).rstrip()
        journal("exiting because of a bug in Millpond, please report it", traceback=f"\n{lines}")
        end(error)

    loop.set_exception_handler(on_exception)


def leave(journal: LineJournal) -> NoReturn:
    """Exit now: nothing more is written, and the next start recovers as after a crash."""
    journal.flush()
    os._exit(EXIT_CODE)
