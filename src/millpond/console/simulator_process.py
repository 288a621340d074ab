"""The simulator process: `python -m millpond.console.simulator_process`, one request per line, one line back.

It holds one run. For a later moment of the same tape it continues; for an earlier one, or another tape, it replays
from the start, with the same result. It limits its memory and the time of each request, runs at low priority, and
exits with its parent: at once, or after the time limit of its current request. A response begins with `+`, with `-`
for an error in the request, or with `!` if the process exits because of it.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import time
from typing import Any, Final

from millpond.sim.simulator.actions import KINDS, BadAction, describe, from_json
from millpond.sim.simulator.lessons.catalogue import THEMES
from millpond.sim.simulator.lessons.lesson import Lesson
from millpond.sim.simulator.recording import (
    LINK_SIGNS_MAX,
    RUN_MS_MAX,
    BadLink,
    CampaignSeed,
    Recording,
    decode,
    encode,
)
from millpond.sim.simulator.simulation import Simulation, TooMuch
from millpond.sim.simulator.snapshot import Observer

MEMORY_BYTES_MAX: Final = 1 << 30
SECONDS_MAX: Final = 20
"""Limit of real time for one request about a tape."""
POLITE: Final = 10
STEP_MS_MAX: Final = 300
QUIET: Final = ("heartbeat", "quorum", "metadata")


class SimulatorSession:
    """The current run, and the requests about it."""

    def __init__(self) -> None:
        self._simulation: Simulation | None = None
        self._observer: Observer | None = None
        self._deadline = 0.0

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        self._deadline = time.monotonic() + SECONDS_MAX
        match question.get("ask"):
            case "catalogue":
                return catalogue()
            case "look":
                return self._look(question)
            case "flight":
                return self._flight(question)
        raise BadLink("There is no such request.")

    def forget(self) -> None:
        self._simulation = self._observer = None

    def _look(self, question: dict[str, Any]) -> dict[str, Any]:
        recording = (
            decode(question["tape"])
            if question["tape"]
            else Recording(seed=question["seed"], nodes=question["nodes"])
        )
        if isinstance(recording, CampaignSeed):
            # Imported only where it is used: lessons start faster without it.
            from millpond.sim.simulator.campaigns import play_campaign

            self.forget()
            return {"campaign": play_campaign(recording).shape()}
        at_ms = recording.end_ms if question["at_ms"] < 0 else question["at_ms"]
        if at_ms > RUN_MS_MAX:
            raise BadLink(f"A run may last {RUN_MS_MAX // 60_000} minutes of simulated time: start another one.")
        if question["add"] is not None:
            recording = recording.cut(at_ms).then(from_json(question["add"]))
        since_ms = question["since_ms"]
        simulation, observer = self._at(recording.until(at_ms), at_ms)
        if question["steps"]:
            at_ms = self._step(simulation, at_ms)
        tape = recording.until(at_ms)
        simulation.go_on(tape)
        link = encode(tape)
        if len(link) > LINK_SIGNS_MAX:
            raise BadLink("This run has too many actions for a link: start another one.")
        look = observer.look(at_ms if since_ms < 0 else since_ms, question["line"])
        return {"link": link, "seed": tape.seed, "end_ms": tape.end_ms, "actions": len(tape.moves), **look}

    def _at(self, tape: Recording, at_ms: int) -> tuple[Simulation, Observer]:
        """The tape, played up to this moment."""
        simulation, observer = self._simulation, self._observer
        if simulation is None or observer is None or not self._goes_on(simulation, tape, at_ms):
            self.forget()
            simulation = Simulation(tape, self._is_over)
            observer = Observer(simulation)
        simulation.go_on(tape)
        try:
            simulation.run_to(at_ms)
        except TooMuch:
            self.forget()
            raise
        self._simulation, self._observer = simulation, observer
        return simulation, observer

    def _goes_on(self, simulation: Simulation, tape: Recording, at_ms: int) -> bool:
        return at_ms >= simulation.now_ms and simulation.tape.cut(simulation.now_ms).begins(tape)

    def _step(self, simulation: Simulation, at_ms: int) -> int:
        """Advance to the next event: a message with content, or a line of the event log."""
        lines = len(simulation.story.lines)
        for moment in range(at_ms + 1, min(at_ms + STEP_MS_MAX, RUN_MS_MAX) + 1):
            simulation.go_on(simulation.tape.until(moment))
            simulation.run_to(moment)
            flown = simulation.flights.since(simulation.story.origin_ms + moment - 1)
            fresh = [each for each in flown if simulation.story.origin_ms + moment in (each.sent_ms, each.arrived_ms)]
            if len(simulation.story.lines) > lines or any(each.theme not in QUIET for each in fresh):
                return moment
        return simulation.now_ms

    def _is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def _flight(self, question: dict[str, Any]) -> dict[str, Any]:
        recording = decode(question["tape"])
        if isinstance(recording, CampaignSeed):
            raise BadLink("A campaign has only an event log.")
        simulation, _ = self._at(recording.until(question["at_ms"]), question["at_ms"])
        flight = simulation.flights.by_number(question["number"])
        if flight is None:
            raise BadLink("This message is no longer kept: only the latest are.")
        return flight.details(simulation.story.origin_ms)


def catalogue() -> dict[str, Any]:
    return {
        "themes": [{"title": title, "lessons": list(map(_lesson, lessons))} for title, lessons in THEMES.items()],
        "actions": [describe(kind) for kind in KINDS],
    }


def _lesson(lesson: Lesson) -> dict[str, Any]:
    shown = {each: getattr(lesson, each) for each in ("name", "title", "about", "question", "answer", "claims")}
    tape = lesson.tape
    return {**shown, "link": encode(tape), "question_ms": lesson.question_ms, "end_ms": tape.end_ms}


def respond(session: SimulatorSession, line: bytes) -> tuple[bytes, bytes]:
    """The status mark and JSON of the response."""
    try:
        question = json.loads(line)
        # If the parent is gone, the process still exits by itself.
        signal.alarm(math.ceil(question["seconds"]))
        return b"+", json.dumps(session.answer(question)).encode()
    except (BadLink, BadAction, TooMuch) as wrong:
        text = str(wrong)
        return b"-", _fault(text[:1].upper() + text[1:] + ("" if text.endswith(".") else "."))
    except MemoryError:
        session.forget()
        # The state may be inconsistent: the next request gets a new process.
        return b"!", _fault("This run needs too much memory: start another one.")
    finally:
        signal.alarm(0)


def _fault(text: str) -> bytes:
    return json.dumps({"error": text}).encode()


def main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    os.nice(POLITE)
    session = SimulatorSession()
    for line in sys.stdin.buffer:
        mark, reply = respond(session, line)
        sys.stdout.buffer.write(mark + reply + b"\n")
        sys.stdout.buffer.flush()
        if mark == b"!":
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
