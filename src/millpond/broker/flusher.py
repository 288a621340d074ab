"""Group commit: one pass of `fdatasync` on a worker thread serves every acknowledgement that waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from millpond.base.ports import Disk, Workers
from millpond.log.partition_log import PartitionLog
from millpond.log.syncing import SyncTicket
from millpond.log.together import run_tickets

ROUNDS_MAX = 2
"""How many passes may run at once: more than one, so that a slow file does not hold up all the others."""

OnSynced = Callable[[OSError | None], None]


class Flusher:
    def __init__(self, workers: Workers, disk: Disk, folder: str) -> None:
        self._workers = workers
        self._disk = disk
        self._folder = folder
        self._waiting: dict[PartitionLog, list[OnSynced]] = {}
        self._syncing: dict[PartitionLog, None] = {}
        self._rounds = 0

    def after_sync(self, log: PartitionLog, end_offset: int, on_synced: OnSynced) -> None:
        """Call back once everything below `end_offset` survives a power cut, or with the error that prevents it."""
        if log.failed is not None:
            on_synced(log.failed)
        elif log.synced_offset >= end_offset:
            on_synced(None)
        elif log.closed:
            on_synced(_gone(log))
        else:
            self._waiting.setdefault(log, []).append(on_synced)
            self._start_round()

    def force(self, log: PartitionLog, on_synced: OnSynced) -> None:
        """Call back once nothing is owed to the disk any more: records, and names and notes that nobody waits for."""
        if log.failed is None and not log.closed and (log.dirty or log in self._syncing):
            self._waiting.setdefault(log, []).append(on_synced)
            self._start_round()
        else:
            self.after_sync(log, log.end_offset, on_synced)

    def is_idle(self) -> bool:
        return not self._waiting and not self._rounds

    def _start_round(self) -> None:
        if self._rounds >= ROUNDS_MAX:
            return
        going: list[_Going] = []
        refused: list[tuple[OSError, list[OnSynced]]] = []
        # A log is in one round at a time: a second ticket would not cover what the first has yet to finish.
        for log in [log for log in self._waiting if log not in self._syncing]:
            callbacks = self._waiting.pop(log)
            try:
                going.append(_Going(log, _ticket(log), callbacks))
            except OSError as error:
                refused.append((error, callbacks))
        if going:
            self._run(going)
        # Last, because whoever hears of it may come back with more.
        for fault, callbacks in refused:
            for on_synced in callbacks:
                on_synced(fault)

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
            for each in going:
                for on_synced in each.callbacks:
                    on_synced(each.log.failed)

        tickets = [each.ticket for each in going]
        self._workers.run(lambda: run_tickets(self._disk, self._folder, tickets), end_round, _unexpected)


class _Going(NamedTuple):
    """One log in a round."""

    log: PartitionLog
    ticket: SyncTicket
    callbacks: list[OnSynced]


def _ticket(log: PartitionLog) -> SyncTicket:
    """OSError when the log has failed or was deleted meanwhile, or when its files cannot be had at the moment."""
    if log.failed is not None:
        raise log.failed
    if log.closed:
        raise _gone(log)
    return log.sync_target()


def _gone(log: PartitionLog) -> OSError:
    return OSError(f"{log.folder} is closed")


def _unexpected(error: Exception) -> None:
    raise error
