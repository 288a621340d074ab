"""A few processes that run simulations, each with limits, started on demand.

Nothing is simulated in the console's own process. A request that takes too long, or too much memory, ends its
process; the next request starts another, which replays the tape. Idle processes are ended.
"""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from millpond.base.interpreter import PYTHON
from millpond.console.cluster_pool import Busy
from millpond.console.shapes import BadRequest

PROCESSES_MAX: Final = 3
IDLE_SECONDS: Final = 180.0
ANSWER_SECONDS: Final = 40.0
CAMPAIGN_SECONDS: Final = 150.0
LINE_BYTES_MAX: Final = 16 << 20
PROGRAM: Final = (*PYTHON, "-m", "millpond.console.simulator_process")
FAILED: Final = "The simulator process failed on this run: use fewer actions, or another link."


@dataclass(slots=True, eq=False)
class Slot:
    """One process, and the page that it serves."""

    session: str
    process: Process | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    used_at: float = 0.0
    timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        self.process = None


class Simulators:
    def __init__(self, program: Sequence[str] = PROGRAM, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._program = program
        self._idle_seconds = idle_seconds
        self._slots: list[Slot] = []

    async def ask(self, session: str, question: Mapping[str, Any], seconds: float = ANSWER_SECONDS) -> bytes:
        """The response as JSON. `session` is chosen by the page: its requests go to the same process."""
        slot = self._slot_of(session)
        if slot.lock.locked():
            raise Busy
        async with slot.lock:
            try:
                # The process has the timeout, too: it ends even if the console is gone by then.
                return await asyncio.wait_for(self._put(slot, {**question, "seconds": seconds}), seconds)
            except TimeoutError:
                slot.end()
                why = f"The simulator took more than {seconds:.0f} s: do less in one run."
                raise BadRequest(why) from None
            except asyncio.CancelledError:
                # Its late response would be taken for that of the next request.
                slot.end()
                raise
            finally:
                self._rest(slot)

    def _slot_of(self, session: str) -> Slot:
        slot = next((each for each in self._slots if each.session == session), None)
        if slot is None and len(self._slots) < PROCESSES_MAX:
            slot = Slot(session)
            self._slots.append(slot)
        if slot is None:
            idle = [each for each in self._slots if not each.lock.locked()]
            if not idle:
                raise Busy
            slot = min(idle, key=lambda each: each.used_at)
            slot.session = session
        return slot

    async def _put(self, slot: Slot, question: Mapping[str, Any]) -> bytes:
        process = slot.process
        if process is None or process.returncode is not None:
            process = slot.process = await asyncio.create_subprocess_exec(
                *self._program, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=LINE_BYTES_MAX
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        except (ConnectionError, ValueError):
            line = b""
        if line[:1] == b"+":
            return line[1:]
        if line[:1] == b"-":
            raise BadRequest(json.loads(line[1:])["error"])
        slot.end()
        raise BadRequest(json.loads(line[1:])["error"] if line[:1] == b"!" else FAILED)

    def _rest(self, slot: Slot) -> None:
        loop = asyncio.get_running_loop()
        slot.used_at = loop.time()
        if slot.timer is not None:
            slot.timer.cancel()
        slot.timer = loop.call_later(self._idle_seconds, lambda: self._drop(slot))

    def _drop(self, slot: Slot) -> None:
        if not slot.lock.locked() and slot in self._slots:
            self._slots.remove(slot)
            slot.end()

    def close(self) -> None:
        for slot in self._slots:
            slot.end()
        self._slots.clear()
