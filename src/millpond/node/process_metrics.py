"""What the system knows of this process, and what the loop knows of itself, for /metrics."""

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
    """None is what this system does not tell."""

    cpu_seconds: float
    resident_bytes: int | None
    virtual_bytes: int | None
    open_files: int | None
    open_files_max: int


class ProcessMetrics:
    """Under the names that every Prometheus client gives them."""

    def __init__(self, workers: Workers, delay: LoopDelay, core_wait: CoreWait, journal: LineJournal) -> None:
        self._began_seconds = time.time()
        self._workers = workers
        self._delay = delay
        self._core_wait = core_wait
        self._journal = journal

    def collect(self, page: Exposition) -> Steps[None]:
        self._collect_loop(page)
        # A process with many files open takes a while to count them.
        process = yield self._workers.run(_look)
        cpu = page.counter("process_cpu_seconds_total", "Time on a core, all threads together.")
        cpu.add(process.cpu_seconds)
        memory = page.gauge("process_resident_memory_bytes", "Memory that is in use.")
        virtual = page.gauge("process_virtual_memory_bytes", "Memory that is reserved.")
        files = page.gauge("process_open_fds", "Descriptors that are open: files and connections.")
        page.gauge("process_max_fds", "How many may be.").add(process.open_files_max)
        page.gauge("process_start_time_seconds", "When the process began, since 1970.").add(self._began_seconds)
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
            "millpond_loop_delay_seconds", "How late the loop was: a timer that does nothing else, 20 times a second."
        )
        late.add_histogram(delay.delays)
        longest = page.gauge("millpond_loop_longest_delay_seconds", "The longest of them since the node began.")
        longest.add(delay.longest_ms / 1000)
        stalls = page.counter("millpond_loop_stalls_total", "Those of half a second and more.")
        stalls.add(delay.stalls_total)
        waited = page.counter(
            "millpond_loop_without_core_seconds_total", "How long the loop was ready to run and had no core."
        )
        if (waited_ms := self._core_wait()) is not None:
            waited.add(waited_ms / 1000)
        dropped = page.counter("millpond_journal_dropped_total", "Lines of the journal that nobody read in time.")
        dropped.add(self._journal.dropped_total)


def _look() -> _Process:
    used = resource.getrusage(resource.RUSAGE_SELF)
    resident_bytes = virtual_bytes = open_files = None
    try:
        with open("/proc/self/statm", "rb") as file:
            virtual, resident, *_ = map(int, file.read().split())
        resident_bytes, virtual_bytes = resident * _PAGE_BYTES, virtual * _PAGE_BYTES
        open_files = len(os.listdir("/proc/self/fd")) - 1  # that of the listing itself
    except (OSError, ValueError):
        # Another system than Linux.
        pass
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _Process(used.ru_utime + used.ru_stime, resident_bytes, virtual_bytes, open_files, soft)
