"""The limits of the machine: a bare loop that answers, a memory copy, and a disk sync."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from dataclasses import asdict, dataclass

from bench.floor import Floor
from bench.load_raw import percentiles_ms
from bench.measure import MEGA, Plan, measure
from bench.noise import SPREAD, Measured, medians_of

COPY_BYTES = 64 << 20
SYNC_BYTES = 4096
SYNCS_MIN = 20


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that figures come from."""

    cpu: str
    cores: int
    kernel: str
    python: str

    @classmethod
    def this(cls) -> Machine:
        return cls(_cpu_model(), os.cpu_count() or 1, platform.release(), platform.python_version())

    def is_like(self, other: Machine) -> bool:
        """Whether figures of one machine are comparable with those of the other."""
        return (self.cpu, self.cores) == (other.cpu, other.cores)

    def text(self) -> str:
        return f"{self.cpu}, {self.cores} cores, Linux {self.kernel}, Python {self.python}"

    def data(self) -> dict[str, object]:
        return asdict(self)


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as facts:
            for line in facts:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"


def bare_loop(plan: Plan) -> Measured:
    with Floor() as node:
        return measure(node, plan, "ProduceOne", topic="one", acks=1, connections=16)


def memory_copy(plan: Plan) -> Measured:
    """Copy memory in one thread, more than the caches hold."""
    source, target = b"v" * COPY_BYTES, memoryview(bytearray(COPY_BYTES))
    slices: list[Measured] = []
    # Touch the memory once, so that it is allocated.
    target[:] = source
    for _ in range(plan.slices):
        began = time.perf_counter()
        copied = 0
        while (took := time.perf_counter() - began) < plan.slice_seconds / 3 or not copied:
            target[:] = source
            copied += COPY_BYTES
        slices.append({"seconds": took, "bytes": copied, "mb_per_s": copied / MEGA / took})
    return medians_of(slices)


def disk_sync(plan: Plan, folder: str | None = None) -> Measured:
    """Append a little and fdatasync, one after the other, in the folder where nodes keep their data."""
    slices: list[Measured] = []
    with tempfile.NamedTemporaryFile(prefix="millpond-bench-", dir=folder) as file:
        descriptor = file.fileno()
        block = b"v" * SYNC_BYTES
        for _ in range(plan.slices):
            waits: list[int] = []
            began = time.perf_counter()
            while time.perf_counter() - began < plan.slice_seconds / 3 or len(waits) < SYNCS_MIN:
                os.write(descriptor, block)
                at = time.perf_counter_ns()
                os.fdatasync(descriptor)
                waits.append(time.perf_counter_ns() - at)
            took = time.perf_counter() - began
            slices.append({"seconds": took, "syncs_per_s": len(waits) / took, **percentiles_ms(waits)})
    return medians_of(slices)


PARTS = {
    "loop": (bare_loop, ("requests_per_s", "us_per_request", "p50_ms")),
    "copy": (memory_copy, ("mb_per_s",)),
    "sync": (disk_sync, ("p50_ms", "p99_ms")),
}
"""The measurements, and the figures that limit others."""


def floor_of(found: dict[str, Measured]) -> Measured:
    """The limits and their spreads from all measurements, as PART_FIGURE."""
    return {
        f"{part}_{name}{ending}": found[part][name + ending]
        for part, (_, names) in PARTS.items()
        for name in names
        for ending in ("", SPREAD)
    }


def measure_limits(plan: Plan) -> dict[str, Measured]:
    return {part: measured(plan) for part, (measured, _) in PARTS.items()}
