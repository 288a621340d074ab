"""What a bug does to a node: its traceback is printed and the process ends.

An exception that reaches the loop was expected by nobody. What it left half done is unknown: a flag may stand that
makes everybody wait for ever, in a node that looks well. A start after a crash is tested, half a life is not.
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
"""What the system's own headers call an internal software error."""


def watch_for_bugs(loop: asyncio.AbstractEventLoop, journal: Journal, end: Callable[[BaseException], None]) -> None:
    """Call `end` with the first exception that reaches the loop; it is in the journal already."""

    def on_exception(_: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None:
            journal("the loop reports a fault", message=context.get("message"))
            return
        lines = "".join(traceback.format_exception(error)).rstrip()
        journal("the node ends because of a bug in it, please report this", traceback=f"\n{lines}")
        end(error)

    loop.set_exception_handler(on_exception)


def leave(journal: LineJournal) -> NoReturn:
    """End the process now: nothing more is written, and the next start takes the folder as one of a crash."""
    journal.flush()
    os._exit(EXIT_CODE)
