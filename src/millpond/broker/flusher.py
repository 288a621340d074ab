"""Group commit: one pass of `fdatasync` on a worker thread serves every acknowledgement that waits for it."""

from __future__ import annotations

from collections.abc import Callable

from millpond.base.ports import Workers
from millpond.log.partition_log import PartitionLog
from millpond.log.syncing import SyncTicket

ROUNDS_MAX = 2
"""How many passes may run at once: more than one, so that a slow file does not hold up all the others."""

OnSynced = Callable[[OSError | None], None]


class Flusher:
    def __init__(self, workers: Workers) -> None:
        self._workers = workers
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

    def is_idle(self) -> bool:
        return not self._waiting and not self._rounds

    def _start_round(self) -> None:
        # A log is in one round at a time: a second ticket would not cover what the first has yet to finish.
        logs = [log for log in self._waiting if log not in self._syncing]
        if self._rounds >= ROUNDS_MAX or not logs:
            return
        self._fail_those_gone(logs)
        logs = [log for log in logs if log in self._waiting]
        if not logs:
            return
        waiters = [self._waiting.pop(log) for log in logs]
        tickets = [log.sync_target() for log in logs]
        self._syncing.update(dict.fromkeys(logs))
        self._rounds += 1

        def end_round(errors: list[OSError | None]) -> None:
            self._rounds -= 1
            for log, ticket, error in zip(logs, tickets, errors, strict=True):
                del self._syncing[log]
                # A failed sync closes the log for good: the kernel may claim success for pages it has dropped.
                if error is None:
                    log.synced(ticket)
                else:
                    log.fail(error, ticket)
            self._start_round()
            for log, callbacks in zip(logs, waiters, strict=True):
                for on_synced in callbacks:
                    on_synced(log.failed)

        self._workers.run(lambda: [_sync(ticket) for ticket in tickets], end_round, _unexpected)

    def _fail_those_gone(self, logs: list[PartitionLog]) -> None:
        """Logs that were deleted or failed while their waiters waited for a round have nothing to sync any more."""
        for log in logs:
            if log.closed or log.failed is not None:
                for on_synced in self._waiting.pop(log):
                    on_synced(log.failed or _gone(log))


def _gone(log: PartitionLog) -> OSError:
    return OSError(f"{log.folder} is closed")


def _sync(ticket: SyncTicket) -> OSError | None:
    try:
        ticket.run()
    except OSError as error:
        return error
    return None


def _unexpected(error: Exception) -> None:
    raise error
