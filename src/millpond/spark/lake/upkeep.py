"""Compact small files and delete old ones. Both keep every row of the current version."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millpond.spark.lake.errors import LakeError
from millpond.spark.lake.location import STAGING_FOLDER, Location
from millpond.spark.lake.options import RETENTION_HOURS

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from millpond.spark.lake.options import WriteOptions

LOG = logging.getLogger("millpond.lake")


@dataclass(frozen=True)
class Compacted:
    files_before: int
    files_after: int


def compact(path: str, *, target_file_bytes: int = 128 << 20, storage: Mapping[str, str] | None = None) -> Compacted:
    """Merge the small files of each partition up to about this size. A vacuum deletes the old ones."""
    from deltalake import WriterProperties

    table = _existing(Location.of(path, storage))
    figures = table.optimize.compact(
        target_size=target_file_bytes, writer_properties=WriterProperties(compression="ZSTD", compression_level=1)
    )
    return Compacted(figures["numFilesRemoved"], figures["numFilesAdded"])


def vacuum(
    path: str,
    hours: int | None = None,
    *,
    allow_short: bool = False,
    dry_run: bool = False,
    storage: Mapping[str, str] | None = None,
) -> list[str]:
    """Delete files removed from the table more than `hours` ago, and leftovers of failed tasks; return their paths.

    None means the table's retention (a week by default). Fewer hours are refused unless `allow_short`: active readers
    and writers could lose their files.
    """
    from deltalake.exceptions import DeltaError

    if hours is not None and hours < 0:
        raise LakeError("a vacuum cannot keep files for less than no time: hours is 0 or more")
    location = Location.of(path, storage)
    table = _existing(location)
    try:
        gone = table.vacuum(hours, dry_run, enforce_retention_duration=not allow_short, full=True)
    except DeltaError as error:
        if "retention" not in str(error):
            raise
        raise LakeError(
            f"{str(error).splitlines()[0]}; keep files longer, or allow it (vacuumShort, allow_short=True) when no "
            "reader or writer is at work"
        ) from None
    # A vacuum finds deleted files in the log, but staged files were never in it.
    return gone + _old_staging(location, timedelta(hours=RETENTION_HOURS if hours is None else hours), dry_run)


def _old_staging(location: Location, age: timedelta, dry_run: bool) -> list[str]:
    from pyarrow.fs import FileSelector, FileType

    horizon = datetime.now(UTC) - age
    staged = location.files().get_file_info(FileSelector(STAGING_FOLDER, recursive=True, allow_not_found=True))
    old = [info.path for info in staged if info.type == FileType.File and info.mtime <= horizon]
    if not dry_run:
        location.remove(old)
    return old


def after_batch(options: WriteOptions, batch_id: int) -> None:
    """Maintenance due after this batch. A failure is logged and does not stop the stream."""
    from deltalake.exceptions import DeltaError

    if not options.compact_every or (batch_id + 1) % options.compact_every or options.location.table() is None:
        return
    storage = dict(options.location.storage)
    try:
        compact(options.location.uri, target_file_bytes=options.target_file_bytes, storage=storage)
        if options.vacuum_hours:
            vacuum(options.location.uri, options.vacuum_hours, allow_short=options.vacuum_short, storage=storage)
    except (DeltaError, LakeError, OSError) as error:
        LOG.warning("upkeep of %s is put off: %s", options.location.uri, error)


def _existing(location: Location) -> DeltaTable:
    table = location.table()
    if table is None:
        raise LakeError(f"there is no Delta table at {location.uri}")
    return table
