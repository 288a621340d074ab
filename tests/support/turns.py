"""Threads that take turns: one runs at a time, and a random choice picks the next, so that a seed reproduces a race.

The code under test gets its threads, locks, queues and clock from here. At each of them, and occasionally at a line
of the watched files, the running thread may have to wait while others run. Some threads are slow for a while, as on a
busy machine. Time is simulated: it advances a little with each turn, sometimes leaps, and skips to the next deadline
when all threads wait. If no thread can ever run again, that is a stall, and `run` reports where each one waits.
"""

from __future__ import annotations

import random
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

TURN_SECONDS = 0.00002
LEAP_SECONDS = 0.3
"""The average length of an occasional leap."""
LEAP_CHANCES = (0.0, 0.0, 0.0001, 0.001)
LINE_CHANCES = (0.0, 0.02, 0.1, 0.3)
WEIGHT_CHANCE = 0.01
WEIGHTS = (0.01, 1.0, 1.0, 30.0)
TURNS_MAX = 2_000_000
REAL_SECONDS = 240.0


class Stalled(AssertionError):
    """No thread can run, or the run does not end."""


class TurnThread(threading.Thread):
    """Waits for its turn before its first line, and at each point where others may run."""

    def __init__(self, turns: Turns, target: Callable[[], object], name: str | None) -> None:
        super().__init__(name=name, daemon=True)
        self._turns = turns
        self._body = target
        self.baton = threading.Semaphore(0)
        self.is_ready: Callable[[], bool] | None = None
        """What it waits for; None if it can run."""
        self.deadline: float | None = None
        self.weight = 1.0
        self.is_over = False

    def start(self) -> None:
        self._turns.enter(self)
        super().start()

    def run(self) -> None:
        self.baton.acquire()
        sys.settrace(self._turns.trace)
        try:
            self._body()
        except BaseException as error:
            self._turns.failures.append(error)
        finally:
            sys.settrace(None)
            self.is_over = True
            self._turns.leave(self)

    def join(self, timeout: float | None = None) -> None:
        self._turns.wait(lambda: self.is_over, timeout)

    def is_alive(self) -> bool:
        return not self.is_over

    def end_for_real(self) -> None:
        super().join(1.0)

    def can_go_on(self, now: float) -> bool:
        if self.is_ready is None or self.is_ready():
            return True
        return self.deadline is not None and self.deadline <= now


class Turns:
    def __init__(self, seed: int, watched: Collection[ModuleType] = ()) -> None:
        self.dice = random.Random(seed)
        self.now = 1000.0
        self.taken = 0
        """Turns so far: always the same number with one seed."""
        self.failures: list[BaseException] = []
        self._files = {module.__file__ for module in watched}
        self._line_chance = self.dice.choice(LINE_CHANCES)
        self._leap_chance = self.dice.choice(LEAP_CHANCES)
        self._threads: list[TurnThread] = []
        self._ended: list[TurnThread] = []
        self._is_over = threading.Event()
        self._stall: str | None = None
        self.clock: Any = SimpleNamespace(
            monotonic=lambda: self.now, time=lambda: 1_700_000_000 + self.now, sleep=self.sleep
        )
        """Replaces the module `time`."""

    # Replacements for `threading` and `queue`

    def thread(self, target: Callable[[], object], name: str | None = None, daemon: bool = True) -> TurnThread:
        return TurnThread(self, target, name)

    def condition(self) -> TurnCondition:
        return TurnCondition(self)

    def semaphore(self, value: int = 1) -> TurnSemaphore:
        return TurnSemaphore(self, value)

    def queue(self) -> TurnQueue:
        return TurnQueue(self)

    # Running

    def run(self, body: Callable[[], object]) -> None:
        """Run until the body and all threads have ended, or one raises: then the others stay where they are."""
        first = self.thread(body, "the test")
        first.start()
        first.baton.release()
        if not self._is_over.wait(REAL_SECONDS):
            self._stall = f"no end within {REAL_SECONDS:g} s"
        if self.failures:
            raise self.failures[0]
        if self._stall is not None:
            raise Stalled(f"{self._stall}, after {self.taken} turns\n{self._stacks()}")
        for each in self._ended:
            each.end_for_real()

    def step(self) -> None:
        """Others may run here."""
        self.wait(None)

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def wait(self, is_ready: Callable[[], bool] | None, timeout_s: float | None = None) -> None:
        """Wait until `is_ready`, which takes no lock, or until the timeout."""
        me = threading.current_thread()
        if not isinstance(me, TurnThread):
            return  # A thread from outside, before or after the run.
        me.is_ready = is_ready
        me.deadline = None if timeout_s is None else self.now + timeout_s
        chosen = self._choose()
        if chosen is not me:
            self._hand_to(chosen)
            me.baton.acquire()
        me.is_ready = me.deadline = None

    def enter(self, thread: TurnThread) -> None:
        self._threads.append(thread)

    def leave(self, thread: TurnThread) -> None:
        self._threads.remove(thread)
        self._ended.append(thread)
        if self._threads and not self.failures:
            self._hand_to(self._choose())
        else:
            self._is_over.set()

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._trace_line if frame.f_code.co_filename in self._files else None

    def _trace_line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and self.dice.random() < self._line_chance:
            self.step()
        return self._trace_line

    def _choose(self) -> TurnThread | None:
        dice = self.dice
        self.taken += 1
        if self.taken > TURNS_MAX:
            self._stall = "no end in sight"
            return None
        self.now += dice.random() * 2 * TURN_SECONDS
        if dice.random() < self._leap_chance:
            self.now += dice.expovariate(1 / LEAP_SECONDS)
        if dice.random() < WEIGHT_CHANCE:
            dice.choice(self._threads).weight = dice.choice(WEIGHTS)
        able = [each for each in self._threads if each.can_go_on(self.now)]
        if not able:
            deadlines = [each.deadline for each in self._threads if each.deadline is not None]
            if not deadlines:
                self._stall = "deadlock: no thread can continue"
                return None
            self.now = min(deadlines)
            able = [each for each in self._threads if each.can_go_on(self.now)]
        return able[0] if len(able) == 1 else dice.choices(able, [each.weight for each in able])[0]

    def _hand_to(self, chosen: TurnThread | None) -> None:
        """Without a thread to hand over to, all stay where they are."""
        if chosen is None:
            self._is_over.set()
        else:
            chosen.baton.release()

    def _stacks(self) -> str:
        frames = sys._current_frames()
        reports: list[str] = []
        for each in self._threads:
            stack = traceback.extract_stack(frames[each.ident]) if each.ident in frames else []
            lines = [f"  {at.name}, {at.filename}:{at.lineno}" for at in stack if at.filename != __file__]
            reports += [each.name, *lines[-6:]]
        return "\n".join(reports)


class TurnCondition:
    """A reentrant lock that can be waited on: an RLock and a Condition."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._owner: threading.Thread | None = None
        self._depth = 0
        self._notices = 0

    def __enter__(self) -> bool:
        me = threading.current_thread()
        if self._owner is not me:
            self._turns.step()
            self._take(me)
        self._depth += 1
        return True

    def __exit__(self, *failure: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._turns.step()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else self._turns.now + timeout
        while not (held := predicate()):
            if end is not None and self._turns.now >= end:
                break
            self._wait(end)
        return held

    def notify_all(self) -> None:
        self._notices += 1

    def _wait(self, end: float | None) -> None:
        me, depth, heard = threading.current_thread(), self._depth, self._notices
        self._owner, self._depth = None, 0
        # Only a notification wakes it, not the condition becoming true meanwhile.
        self._turns.wait(lambda: self._notices != heard, None if end is None else end - self._turns.now)
        self._take(me)
        self._depth = depth

    def _take(self, me: threading.Thread) -> None:
        while self._owner is not None and isinstance(me, TurnThread):
            self._turns.wait(lambda: self._owner is None)
        self._owner = me


class TurnSemaphore:
    def __init__(self, turns: Turns, value: int) -> None:
        self._turns = turns
        self._value = value

    def acquire(self, blocking: bool = True) -> bool:
        self._turns.step()
        while blocking and not self._value:
            self._turns.wait(lambda: self._value > 0)
        if not self._value:
            return False
        self._value -= 1
        return True

    def release(self) -> None:
        self._value += 1
        self._turns.step()


class TurnQueue:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._turns.step()

    def get(self) -> Any:
        while not self._items:
            self._turns.wait(lambda: bool(self._items))
        return self._items.popleft()
