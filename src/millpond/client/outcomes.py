"""What happens to a failed record: another attempt, now or later, or the dead letters."""

from __future__ import annotations

import time
from math import ceil
from typing import Protocol

from millpond.base.words import counted
from millpond.client.connection import LOG
from millpond.client.dead_letters import Origin, dead_letter, error_name
from millpond.client.errors import DecodeFailed, HandlerFailed, Reject
from millpond.client.message import Message, Send
from millpond.client.options import Options
from millpond.client.progress import Job
from millpond.client.retry import retry_record, retry_topic


class FailedRecord(Protocol):
    @property
    def message(self) -> Message: ...

    @property
    def origin(self) -> Origin: ...

    @property
    def attempts(self) -> int: ...

    @property
    def redriven(self) -> int: ...


def is_worth_another_try(options: Options, job: FailedRecord, error: BaseException) -> bool:
    """Retrying does not help a payload that cannot be decoded or was rejected."""
    hopeless = isinstance(error, (DecodeFailed, Reject, *options.retries.give_up_on))
    return not hopeless and job.attempts < options.retries.tries


def to_retry_topic(options: Options, job: Job) -> Send:
    retries = options.retries
    return retry_record(
        job.message,
        to=retry_topic(options.home(job.partition.topic), retries.plain_delay_s(job.attempts)),
        origin=job.origin,
        attempts=job.attempts,
        due_ms=ceil((time.time() + retries.delay_s(job.attempts)) * 1000),
        group=options.group,
        redriven=job.redriven,
    )


def to_dead_letters(options: Options, job: FailedRecord, error: BaseException) -> Send:
    """HandlerFailed if there is no dead-letter topic."""
    tries = counted(job.attempts, "try")
    if options.dead_letters is None:
        raise HandlerFailed(
            f"{job.origin} failed after {tries} ({error_name(error)}) and there is no dead-letter topic: fix the "
            "handler, or give the worker dead_letters=…"
        ) from error
    LOG.warning("%s goes to %s after %s: %s", job.origin, options.dead_letters, tries, error_name(error))
    return dead_letter(
        job.message,
        error,
        to=options.dead_letters,
        origin=job.origin,
        attempts=job.attempts,
        group=options.group,
        now_ms=int(time.time() * 1000),
        redriven=job.redriven,
    )
