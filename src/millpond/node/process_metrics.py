"""Process and event loop metrics for /metrics."""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING, Final

from millpond.base.named_tuple import NamedTuple
from millpond.broker.loop.steps import Steps
from millpond.broker.metrics.exposition import Exposition

if TYPE_CHECKING:
    from millpond.base.ports import Workers
    from millpond.node.journal import LineJournal
    from millpond.node.loop_delay import CoreWait, LoopDelay

_PAGE_BYTES: Final = resource.getpagesize()


class _Process(NamedTuple):
    """None if this system does not report it."""

    cpu_seconds: float
    resident_bytes: int | None
    virtual_bytes: int | None
    open_files: int | None
    open_files_max: int


class ProcessMetrics:
    """Under the names that every Prometheus client uses."""

    def __init__(self, workers: Workers, delay: LoopDelay, core_wait: CoreWait, journal: LineJournal) -> None:
        self._began_seconds = time.time()
        self._workers = workers
        self._delay = delay
        self._core_wait = core_wait
        self._journal = journal

    def collect(self, page: Exposition) -> Steps[None]:
        self._collect_loop(page)
        # Counting many open files takes a while.
        process = yield self._workers.run(_look)
        cpu = page.counter("process_cpu_seconds_total", "CPU time of all threads.")
        cpu.add(process.cpu_seconds)
        memory = page.gauge("process_resident_memory_bytes", "Resident memory.")
        virtual = page.gauge("process_virtual_memory_bytes", "Virtual memory.")
        files = page.gauge("process_open_fds", "Open descriptors: files and connections.")
        page.gauge("process_max_fds", "The limit of open descriptors.").add(process.open_files_max)
        page.gauge("process_start_time_seconds", "Start time of the process, in seconds since 1970.").add(
            self._began_seconds
        )
        for family, value in (
            (memory, process.resident_bytes),
            (virtual, process.virtual_bytes),
            (files, process.open_files),
        ):
            if value is not None:
                family.add(value)

    def _collect_loop(self, page: Exposition) -> None:
        delay = self._delay
        late = page.histogram(
            "millpond_loop_delay_seconds",
            "Event loop delay: how late a timer was that does nothing else, 20 times a second.",
        )
        late.add_histogram(delay.delays)
        longest = page.gauge("millpond_loop_longest_delay_seconds", "The longest event loop delay since the start.")
        longest.add(delay.longest_ms / 1000)
        stalls = page.counter("millpond_loop_stalls_total", "Event loop stalls of half a second and more.")
        stalls.add(delay.stalls_total)
        waited = page.counter(
            "millpond_loop_without_core_seconds_total", "How long the event loop was runnable without getting a CPU."
        )
        if (waited_ms := self._core_wait()) is not None:
            waited.add(waited_ms / 1000)
        dropped = page.counter(
            "millpond_journal_dropped_total", "Journal lines dropped because standard error was not read in time."
        )
        dropped.add(self._journal.dropped_total)


def _look() -> _Process:
    used = resource.getrusage(resource.RUSAGE_SELF)
    resident_bytes = virtual_bytes = open_files = None
    try:
        with open("/proc/self/statm", "rb") as file:
            virtual, resident, *_ = map(int, file.read().split())
        resident_bytes, virtual_bytes = resident * _PAGE_BYTES, virtual * _PAGE_BYTES
        open_files = len(os.listdir("/proc/self/fd")) - 1  # without the descriptor of the listing itself
    except (OSError, ValueError):
        # Not Linux.
        pass
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _Process(used.ru_utime + used.ru_stime, resident_bytes, virtual_bytes, open_files, soft)
