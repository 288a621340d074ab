"""Ranges of log files that are not in memory: a worker reads them first, so that no client waits for the disk."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from millpond.base.later import Later
from millpond.base.ports import FileRange, Workers

WARM_STEP_BYTES: Final = 1 << 20


def cold_ranges(ranges: Iterable[FileRange]) -> list[FileRange]:
    return [part for part in ranges if not part.file.is_cached(part.position, part.length)]


def warm(workers: Workers, cold: list[FileRange]) -> Later[bool]:
    """Read the ranges into the page cache; False if the disk fails."""
    return workers.run(partial(_fill_page_cache, cold)).map(_is_readable).recover(OSError, _is_unreadable)


def _fill_page_cache(cold: list[FileRange]) -> None:
    for part in cold:
        end = part.position + part.length
        for position in range(part.position, end, WARM_STEP_BYTES):
            part.file.read_at(position, min(WARM_STEP_BYTES, end - position))


def _is_readable(_: None) -> bool:
    return True


def _is_unreadable(_: OSError) -> bool:
    return False
