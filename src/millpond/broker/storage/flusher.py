"""Group commit: one pass of `fdatasync` on a worker thread serves every acknowledgement that waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from millpond.base.later import Later, done, end_all, failed, run_all
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Disk, Workers
from millpond.log.durability import SyncTicket, run_tickets
from millpond.log.partition_log import PartitionLog

ROUNDS_MAX = 2
"""Concurrent passes: more than one, so that a slow file does not delay all others."""

LOGS_AT_ONCE = 500
"""Logs per pass: preparing this many takes the event loop a few milliseconds."""

T = TypeVar("T")


class Flusher:
    def __init__(self, workers: Workers, disk: Disk, folder: str) -> None:
        self._workers = workers
        self._disk = disk
        self._folder = folder
        self._waiting: dict[PartitionLog, list[_Waiter]] = {}
        self._syncing: dict[PartitionLog, None] = {}
        self._rounds = 0

    def after_sync(self, log: PartitionLog, end_offset: int, value: T) -> Later[T]:
        """`value`, once everything below `end_offset` is synced; an OSError if that fails."""
        if log.failed is not None:
            return failed(log.failed)
        if log.synced_offset >= end_offset:
            return done(value)
        if log.closed:
            return failed(_gone(log))
        return self._wait(log, value)

    def force(self, log: PartitionLog) -> Later[None]:
        """Ends once everything is synced: records, but also file names and notes that no acknowledgement
        waits for."""
        if log.failed is None and not log.closed and (log.dirty or log in self._syncing):
            return self._wait(log, None)
        return self.after_sync(log, log.end_offset, None)

    def _wait(self, log: PartitionLog, value: T) -> Later[T]:
        later: Later[T] = Later()
        self._waiting.setdefault(log, []).append((later, value))
        self._start_round()
        return later

    def is_idle(self) -> bool:
        return not self._waiting and not self._rounds

    def _start_round(self) -> None:
        if self._rounds >= ROUNDS_MAX or not self._waiting:
            return
        going: list[_Going] = []
        refused: list[tuple[list[_Waiter], OSError]] = []
        # A log is in one pass at a time: a second ticket would not cover what the first has not finished yet.
        for log in list(islice((log for log in self._waiting if log not in self._syncing), LOGS_AT_ONCE)):
            waiters = self._waiting.pop(log)
            try:
                going.append(_Going(log, _ticket(log), waiters))
            except OSError as error:
                refused.append((waiters, error))
        if going:
            self._run(going)
        if refused:
            # Last: the callbacks may ask for more syncs.
            _tell(refused)

    def _run(self, going: list[_Going]) -> None:
        self._syncing.update((each.log, None) for each in going)
        self._rounds += 1

        def end_round(errors: list[OSError | None]) -> None:
            self._rounds -= 1
            for each, error in zip(going, errors, strict=True):
                del self._syncing[each.log]
                # A failed sync closes the log for good: the kernel may claim success for pages it has dropped.
                if error is None:
                    each.log.synced(each.ticket)
                else:
                    each.log.fail(error, each.ticket)
            self._start_round()
            # Without file descriptors, or space for notes, nothing counts as synced, though the log itself is sound.
            _tell([(each.waiters, each.log.failed or error) for each, error in zip(going, errors, strict=True)])

        def all_failed(failure: Exception) -> None:
            if not isinstance(failure, OSError):
                raise failure
            end_round([failure for _ in going])

        tickets = [each.ticket for each in going]
        self._workers.run(lambda: run_tickets(self._disk, self._folder, tickets)).then(end_round, all_failed)


_Waiter: TypeAlias = tuple[Later[Any], object]
"""A pending sync, and the value it ends with."""


class _Going(NamedTuple):
    """One log in a pass."""

    log: PartitionLog
    ticket: SyncTicket
    waiters: list[_Waiter]


def _ticket(log: PartitionLog) -> SyncTicket:
    """OSError if the log has failed or was deleted meanwhile, or if its files cannot be opened at the moment."""
    if log.failed is not None:
        raise log.failed
    if log.closed:
        raise _gone(log)
    return log.sync_target()


def _gone(log: PartitionLog) -> OSError:
    return OSError(f"{log.folder} is closed")


def _tell(outcomes: Sequence[tuple[list[_Waiter], OSError | None]]) -> None:
    """End all waits, even if a callback of one log raises."""
    run_all(partial(end_all, waiters, failure) for waiters, failure in outcomes)
