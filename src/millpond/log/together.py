"""Syncing many logs at once. A thousand logs would need thousands of syncs; the system can do it in one or two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from millpond.base.ports import Disk
from millpond.log.syncing import SyncTicket

TOGETHER_FROM = 12
"""From this many logs on the whole file system is synced: it may hold other people's writes, but costs one call."""


def run_tickets(disk: Disk, path: str, tickets: Sequence[SyncTicket]) -> list[OSError | None]:
    """Run all tickets; how each fared. May run on any thread. `path` lies on the file system that holds the logs."""
    if sum(ticket.is_owed for ticket in tickets) >= TOGETHER_FROM:
        try:
            errors = _run_together(disk, path, tickets)
        except OSError as error:
            # Whose bytes were lost nobody knows: all of them count as lost.
            return [error] * len(tickets)
        if errors is not None:
            return errors
    return [_error_of(ticket.run) for ticket in tickets]


def _run_together(disk: Disk, path: str, tickets: Sequence[SyncTicket]) -> list[OSError | None] | None:
    """How each fared; None where the system has no such call. What goes wrong in one folder (it may have been deleted
    meanwhile) is that log's own matter; OSError is everybody's."""
    asides: list[list[tuple[str, str]]] = [[] for _ in tickets]

    def write(ticket: SyncTicket, written: list[tuple[str, str]]) -> None:
        for name, data in ticket.replacements:
            written.append((disk.write_aside(name, data), name))

    def rename(written: list[tuple[str, str]]) -> None:
        for aside, name in written:
            disk.rename(aside, name)

    errors = [_error_of(partial(write, *each)) for each in zip(tickets, asides, strict=True)]
    if not disk.sync_everything(path):
        return None
    errors = [error or _error_of(partial(rename, written)) for error, written in zip(errors, asides, strict=True)]
    if any(asides):
        disk.sync_everything(path)
    return errors


def _error_of(work: Callable[[], None]) -> OSError | None:
    try:
        work()
    except OSError as error:
        return error
    return None
