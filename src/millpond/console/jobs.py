"""Long tasks: each runs on its own thread, reports its progress, and can be stopped."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from millpond.admin.errors import Refused
from millpond.console.cluster_pool import FAULTS
from millpond.console.shapes import sentence

RUNNING_MAX: Final = 2
"""Limit of running tasks of each kind."""
KEPT_MAX: Final = 20
UNSEEN_SECONDS: Final = 90.0
"""A task that only shows something ends if no page has polled it for this long. Browsers limit pages in the
background to one request a minute."""

SHOWN: Final = ("id", "kind", "what", "began_ms", "total", "done", "state", "error", "details", "result")

T = TypeVar("T")


class Stopped(Exception):
    """The task was stopped; what was done so far stays done."""


@dataclass(slots=True)
class Job:
    kind: str
    """The page that it belongs to."""
    what: str
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    began_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    total: int | None = None
    done: int = 0
    state: str = "running"
    """running, done, stopped or failed."""
    error: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further details of its progress."""
    result: Any = None
    plan: Any = None
    """The plan of a dry run; a request that agrees to it names this job."""
    stop: threading.Event = field(default_factory=threading.Event)
    is_only_shown: bool = False
    """Whether it changes nothing, so that it may end once no page polls it."""
    seen_at: float = field(default_factory=time.monotonic)

    def shape(self) -> dict[str, Any]:
        return {each: getattr(self, each) for each in SHOWN}

    def check(self) -> None:
        """Raises Stopped if it was stopped, or no page would see its result."""
        if self.stop.is_set() or (self.is_only_shown and time.monotonic() - self.seen_at > UNSEEN_SECONDS):
            raise Stopped


class Jobs:
    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def start(self, kind: str, what: str, work: Callable[[Job], None], *, is_only_shown: bool = False) -> Job:
        """`work` updates the job's progress, and checks whether to stop."""
        if len(self.running(kind)) >= RUNNING_MAX:
            raise Refused(f"{RUNNING_MAX} long tasks of this kind are already running: wait for one, or stop it")
        ended = [each.id for each in self._jobs.values() if each.state != "running"]
        for old in ended[: max(0, len(self._jobs) + 1 - KEPT_MAX)]:
            del self._jobs[old]
        job = Job(kind, what, is_only_shown=is_only_shown)
        self._jobs[job.id] = job
        threading.Thread(target=self._run, args=(job, work), name=f"job {what}", daemon=True).start()
        return job

    def get(self, job_id: str) -> Job:
        if job_id not in self._jobs:
            raise Refused("The task no longer exists: it ended, or the console was restarted")
        job = self._jobs[job_id]
        job.seen_at = time.monotonic()
        return job

    def agreed(self, job_id: str, kind: type[T]) -> T:
        """The plan of this dry run, if it is still known."""
        job = self._jobs.get(job_id)
        if job is None or not isinstance(job.plan, kind):
            raise Refused("The dry run is no longer available: repeat it. Nothing was changed")
        return job.plan

    def running(self, kind: str) -> list[Job]:
        """Those of one page."""
        return [each for each in self._jobs.values() if each.kind == kind and each.state == "running"]

    def _run(self, job: Job, work: Callable[[Job], None]) -> None:
        try:
            work(job)
        except Stopped:
            job.state = "stopped"
        except FAULTS as fault:
            job.error, job.state = sentence(fault), "failed"
        except Exception as bug:
            job.error, job.state = f"A bug in the console: {bug!r}.", "failed"
            raise
        else:
            job.state = "stopped" if job.stop.is_set() and job.total is not None and job.done < job.total else "done"
