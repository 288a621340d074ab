"""How long the loop stood still: measured, and told without flooding."""

from __future__ import annotations

from collections.abc import Callable

from millpond.node.loop_delay import INTERVAL_MS, QUIET_MS, STALL_MS, CoreWait, LoopDelay


class HandClock:
    """A loop whose one timer fires when the test says so."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self._due: list[tuple[int, Callable[[], None]]] = []

    def monotonic_ms(self) -> int:
        return self.now_ms

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._due.append((self.now_ms + delay_ms, callback))

    def pass_by(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while self._due[0][0] <= end_ms:
            due_ms, callback = self._due.pop(0)
            self.now_ms = max(self.now_ms, due_ms)
            callback()
        self.now_ms = max(self.now_ms, end_ms)


class Harness:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.lines: list[str] = []
        self.waited_ms: int | None = None
        self.delay = LoopDelay(self.clock, self._journal, lambda: self.waited_ms)  # type: ignore[arg-type]
        self.delay.start()

    def _journal(self, event: str, **facts: object) -> None:
        self.lines.append(f"{event} {facts}")

    def stand_still(self, duration_ms: int) -> None:
        """Nothing runs for so long; then what is due does."""
        self.clock.now_ms += duration_ms
        self.clock.pass_by(0)


def test_a_loop_that_is_never_late_has_nothing_to_tell() -> None:
    harness = Harness()
    harness.clock.pass_by(10_000)
    assert (harness.delay.longest_ms, harness.delay.stalls_total, harness.lines) == (0, 0, [])


def test_the_longest_stand_is_kept_and_a_long_one_told() -> None:
    harness = Harness()
    harness.stand_still(STALL_MS // 2)
    assert STALL_MS // 2 - INTERVAL_MS <= harness.delay.longest_ms <= STALL_MS // 2
    assert harness.lines == []
    harness.stand_still(3 * STALL_MS)
    assert harness.delay.stalls_total == 1
    assert harness.lines == [f"event loop stalled {{'stall_ms': {harness.delay.longest_ms}, 'times': 1}}"]


def test_many_stands_are_one_line() -> None:
    harness = Harness()
    for _ in range(5):
        harness.stand_still(2 * STALL_MS)
    assert len(harness.lines) == 1
    harness.clock.pass_by(QUIET_MS)
    assert len(harness.lines) == 2
    assert "'times': 4" in harness.lines[1]
    assert harness.delay.stalls_total == 5


def test_a_stall_without_a_cpu_is_reported_as_such() -> None:
    harness = Harness()
    harness.waited_ms = 10
    harness.clock.pass_by(INTERVAL_MS)
    harness.waited_ms += 2 * STALL_MS
    harness.stand_still(3 * STALL_MS)
    assert harness.lines == [
        f"event loop stalled {{'stall_ms': {3 * STALL_MS - INTERVAL_MS}, 'times': 1, "
        f"'cpu_starved_ms': {2 * STALL_MS}}}"
    ]


def test_the_system_says_how_long_a_thread_has_waited_for_a_core() -> None:
    wait = CoreWait()
    first, second = wait(), wait()
    wait.close()
    if first is not None:
        assert second is not None
        assert 0 <= first <= second
    assert wait() is None
