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
from millpond.console.desk import Busy
from millpond.console.shapes import BadRequest

PROCESSES_MAX: Final = 3
IDLE_SECONDS: Final = 180.0
ANSWER_SECONDS: Final = 40.0
CAMPAIGN_SECONDS: Final = 150.0
LINE_BYTES_MAX: Final = 16 << 20
PROGRAM: Final = (*PYTHON, "-m", "millpond.console.simulator_process")
FAILED: Final = "The simulator has ended over this: start with fewer actions, or another link."


@dataclass(slots=True, eq=False)
class Bench:
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
        self._benches: list[Bench] = []

    async def ask(self, session: str, question: Mapping[str, Any], seconds: float = ANSWER_SECONDS) -> bytes:
        """The response as JSON. `session` is chosen by the page: its requests go to the same process."""
        bench = self._bench(session)
        if bench.lock.locked():
            raise Busy
        async with bench.lock:
            try:
                # The process has the timeout, too: it ends even if the console is gone by then.
                return await asyncio.wait_for(self._put(bench, {**question, "seconds": seconds}), seconds)
            except TimeoutError:
                bench.end()
                why = f"The simulator took more than {seconds:.0f} s over this: do less in one run."
                raise BadRequest(why) from None
            except asyncio.CancelledError:
                # Its late response would be taken for that of the next request.
                bench.end()
                raise
            finally:
                self._rest(bench)

    def _bench(self, session: str) -> Bench:
        known = next((each for each in self._benches if each.session == session), None)
        if known is None and len(self._benches) < PROCESSES_MAX:
            known = Bench(session)
            self._benches.append(known)
        if known is None:
            idle = [each for each in self._benches if not each.lock.locked()]
            if not idle:
                raise Busy
            known = min(idle, key=lambda each: each.used_at)
            known.session = session
        return known

    async def _put(self, bench: Bench, question: Mapping[str, Any]) -> bytes:
        process = bench.process
        if process is None or process.returncode is not None:
            process = bench.process = await asyncio.create_subprocess_exec(
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
        bench.end()
        raise BadRequest(json.loads(line[1:])["error"] if line[:1] == b"!" else FAILED)

    def _rest(self, bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        bench.used_at = loop.time()
        if bench.timer is not None:
            bench.timer.cancel()
        bench.timer = loop.call_later(self._idle_seconds, lambda: self._drop(bench))

    def _drop(self, bench: Bench) -> None:
        if not bench.lock.locked() and bench in self._benches:
            self._benches.remove(bench)
            bench.end()

    def close(self) -> None:
        for bench in self._benches:
            bench.end()
        self._benches.clear()
