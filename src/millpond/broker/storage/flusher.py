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
"""How many passes may run at once: more than one, so that a slow file does not hold up all the others."""

LOGS_AT_ONCE = 500
"""How many logs one pass takes: to say what has to be synced of so many takes the loop some milliseconds."""

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
        """`value`, once everything below `end_offset` survives a power cut; an OSError if it cannot."""
        if log.failed is not None:
            return failed(log.failed)
        if log.synced_offset >= end_offset:
            return done(value)
        if log.closed:
            return failed(_gone(log))
        return self._wait(log, value)

    def force(self, log: PartitionLog) -> Later[None]:
        """Ends once nothing is owed to the disk any more: records, and names and notes that nobody waits for."""
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
        # A log is in one round at a time: a second ticket would not cover what the first has yet to finish.
        for log in list(islice((log for log in self._waiting if log not in self._syncing), LOGS_AT_ONCE)):
            waiters = self._waiting.pop(log)
            try:
                going.append(_Going(log, _ticket(log), waiters))
            except OSError as error:
                refused.append((waiters, error))
        if going:
            self._run(going)
        if refused:
            # Last, because whoever hears of it may come back with more.
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
            # Without descriptors or room for notes nothing counts as synced, though the log is as sound as before.
            _tell([(each.waiters, each.log.failed or error) for each, error in zip(going, errors, strict=True)])

        def all_failed(failure: Exception) -> None:
            if not isinstance(failure, OSError):
                raise failure
            end_round([failure for _ in going])

        tickets = [each.ticket for each in going]
        self._workers.run(lambda: run_tickets(self._disk, self._folder, tickets)).then(end_round, all_failed)


_Waiter: TypeAlias = tuple[Later[Any], object]
"""Somebody who waits, and what he gets."""


class _Going(NamedTuple):
    """One log in a round."""

    log: PartitionLog
    ticket: SyncTicket
    waiters: list[_Waiter]


def _ticket(log: PartitionLog) -> SyncTicket:
    """OSError when the log has failed or was deleted meanwhile, or when its files cannot be had at the moment."""
    if log.failed is not None:
        raise log.failed
    if log.closed:
        raise _gone(log)
    return log.sync_target()


def _gone(log: PartitionLog) -> OSError:
    return OSError(f"{log.folder} is closed")


def _tell(outcomes: Sequence[tuple[list[_Waiter], OSError | None]]) -> None:
    """Whoever waited for one log does not keep those of the others from hearing of theirs."""
    run_all(partial(end_all, waiters, failure) for waiters, failure in outcomes)
