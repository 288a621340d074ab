"""Syncing many logs at once. A thousand logs would need thousands of syncs; the system can do it in one or two."""

from __future__ import annotations

from collections.abc import Sequence

from millpond.base.ports import Disk
from millpond.log.syncing import SyncTicket

TOGETHER_FROM = 12
"""From this many logs on the whole file system is synced: it may hold other people's writes, but costs one call."""


def run_tickets(disk: Disk, path: str, tickets: Sequence[SyncTicket]) -> list[OSError | None]:
    """Run all tickets; how each fared. May run on any thread. `path` lies on the file system that holds the logs."""
    if sum(ticket.is_owed for ticket in tickets) >= TOGETHER_FROM:
        try:
            if _run_together(disk, path, tickets):
                return [None] * len(tickets)
        except OSError as error:
            # Whose bytes were lost nobody knows: all of them count as lost.
            return [error] * len(tickets)
    return [_run_alone(ticket) for ticket in tickets]


def _run_together(disk: Disk, path: str, tickets: Sequence[SyncTicket]) -> bool:
    asides = [(disk.write_aside(name, data), name) for ticket in tickets for name, data in ticket.replacements]
    if not disk.sync_everything(path):
        return False
    for aside, name in asides:
        disk.rename(aside, name)
    return disk.sync_everything(path) if asides else True


def _run_alone(ticket: SyncTicket) -> OSError | None:
    try:
        ticket.run()
    except OSError as error:
        return error
    return None
