"""Prints at the end of a test run which test files took the most processor time, with the processes they started.

Wall times depend on what else the machine does; these hardly do.
"""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Iterator

import pytest

FILES_SHOWN = 15
_TICKS = os.sysconf("SC_CLK_TCK")
_COLLECTION = "collection"


class FileTimes:
    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()
        self._before = processor_seconds()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Iterator[object]:
        answer = yield
        self._count(_COLLECTION)
        return answer

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[object]:
        answer = yield
        if nextitem is None or nextitem.path != item.path:
            self._count(item.nodeid.partition("::")[0])
        return answer

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["file_times"] = dict(self._seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self._seconds.update(getattr(node, "workeroutput", {}).get("file_times", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        shown = [(name, seconds) for name, seconds in self._seconds.most_common(FILES_SHOWN) if seconds >= 1]
        if shown:
            terminalreporter.section("files with the most processor time, in seconds")
        for name, seconds in shown:
            terminalreporter.write_line(f"{seconds:7.1f}  {name}")

    def _count(self, name: str) -> None:
        now = processor_seconds()
        self._seconds[name] += now - self._before  # type: ignore[assignment]
        self._before = now


def processor_seconds() -> float:
    """Of this process, its children that have ended, and all processes below it that run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + used.ru_utime + used.ru_stime
    pids = _children(os.getpid())
    while pids:
        pid = pids.pop()
        seconds += _seconds_of(pid)
        pids += _children(pid)
    return seconds


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # it has ended, or this is not Linux
    return found


def _seconds_of(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS  # its own, and of its children that have ended
