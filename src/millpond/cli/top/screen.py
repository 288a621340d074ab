"""The screen of `millpond top`: redrawn with each sample and each change of its size, until `q`.

A separate thread polls the cluster, so that keys work even if it does not answer.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from millpond.admin.cluster_rates import RateWindow, sample_cluster
from millpond.base.errors import RemoteError
from millpond.cli.errors import sentence
from millpond.cli.stop import stop_on
from millpond.cli.terminal import empty_table
from millpond.cli.top.view import (
    WINDOW_SECONDS,
    Table,
    groups_table,
    headline,
    nodes_table,
    problems,
    topics_table,
)
from millpond.remote.errors import ClientError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from millpond.remote.cluster import Cluster

NAP_SECONDS: Final = 0.1
"""The time within which a key or a change of size is noticed."""

LAST_SECONDS: Final = 1.0
"""How long to wait for its last request."""

GONE: Final = "\x04"
"""End of input: the terminal was closed."""

END_KEYS: Final = frozenset({"q", "Q", "\x03", GONE})
PROBLEMS_MAX: Final = 4
NODES_MAX: Final = 6
TABLE_LINES: Final = 3
"""Lines of a table besides its rows: the header, the rule below it, and a gap."""


class _Poller(threading.Thread):
    """Polls the cluster; the screen reads the last result."""

    def __init__(self, cluster: Cluster, every: float) -> None:
        super().__init__(name="top", daemon=True)
        self._cluster = cluster
        self._every = every
        self._over = threading.Event()
        self.window = RateWindow(WINDOW_SECONDS)
        self.fault = ""
        """Why the last sample failed."""
        self.samples = 0

    def run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            try:
                sample = sample_cluster(self._cluster)
            except (ClientError, RemoteError, OSError) as fault:
                self.fault = sentence(str(fault))
            else:
                self.window.add(sample)
                self.fault = ""
            self.samples += 1
            self._over.wait(max(self._every - (time.monotonic() - began), 0.05))

    def end(self) -> None:
        self._over.set()


def run_screen(cluster: Cluster, every: float) -> None:
    """Until `q` or Ctrl-C."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    poller = _Poller(cluster, every)
    poller.start()
    console = Console(highlight=False, markup=False)
    try:
        with (
            stop_on(signal.SIGINT, signal.SIGTERM) as stop,
            _keys() as pressed,
            Live(Text("Looking …"), console=console, screen=True, auto_refresh=False) as live,
        ):
            drawn: tuple[int, os.terminal_size] | None = None
            while not stop.is_requested and pressed(NAP_SECONDS) not in END_KEYS:
                now = (poller.samples, shutil.get_terminal_size())
                if now != drawn:
                    drawn = now
                    live.update(_drawn(poller, every, now[1].lines), refresh=True)
    finally:
        poller.end()
        # The thread uses the client, which is about to be closed.
        poller.join(LAST_SECONDS)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits up to this long for a key and returns it, or ""; without echo or line buffering."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str:
        if not select.select([descriptor], [], [], seconds)[0]:
            return ""
        with contextlib.suppress(OSError):
            return os.read(descriptor, 1).decode("latin-1") or GONE
        return GONE

    tty.setcbreak(descriptor)
    try:
        yield pressed
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _drawn(poller: _Poller, every: float, height: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if poller.fault:
        parts.append(Text(f"The cluster does not answer: {poller.fault} Trying again.", style="bold red"))
    if poller.window.last is None:
        return Group(*parts, Text("Looking …" if not poller.fault else ""))
    window = poller.window
    wrong = problems(window)
    head = f"{time.strftime('%H:%M:%S')}  {headline(window)}"
    parts.append(Text(head, style="bold", overflow="ellipsis", no_wrap=True))
    parts += [Text(f"! {each}", style="red", overflow="ellipsis", no_wrap=True) for each in wrong[:PROBLEMS_MAX]]
    parts.append(Text(""))
    nodes, topics, groups = nodes_table(window), topics_table(window), groups_table(window)
    nodes_shown = min(len(nodes.rows), NODES_MAX)
    left = max(height - len(parts) - nodes_shown - 3 * TABLE_LINES - 1, 2)
    # Half for each, and what one does not need for the other.
    topics_shown = min(len(topics.rows), max(left // 2, left - len(groups.rows)))
    groups_shown = min(len(groups.rows), left - topics_shown)
    for table, shown in ((nodes, nodes_shown), (topics, topics_shown), (groups, groups_shown)):
        if table.rows:
            parts += [_table(table, shown), Text("")]
    more = len(topics.rows) - topics_shown + len(groups.rows) - groups_shown
    hidden = f"; {more:,} rows do not fit" if more else ""
    parts.append(Text(f"every {every:g} s{hidden}; q ends", style="dim"))
    return Group(*parts)


def _table(table: Table, shown: int) -> RenderableType:
    drawn = empty_table(table.columns, table.columns[: table.words], no_wrap=True)
    for row in table.rows[:shown]:
        drawn.add_row(*row)
    return drawn
