"""Commit files to the table, at most once for each batch of a query.

The commit carries the query's id and the batch number as Delta's application transaction. A repeated batch is found
in the log before it is committed; of two concurrent commits the later one conflicts, and checks the log again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

from millpond.spark.lake.errors import CommitContested, WriteTaken
from millpond.spark.lake.files import WrittenFile
from millpond.spark.lake.location import Location
from millpond.spark.lake.row_summary import rows_in, summary_of_files
from millpond.spark.lake.schemas import check_partitions, check_writable, delta_schema, new_columns

LOG = logging.getLogger("millpond.lake")

TRIES_MAX: Final = 20
FIRST_WAIT_S: Final = 0.05
LONGEST_WAIT_S: Final = 2.0
COMMITS_SEARCHED: Final = 1_000
"""How far back the log is searched for an earlier write."""

_WRITE: Final = "millpond.write"
_RUN: Final = "millpond.run"
_ROWS: Final = "millpond.rows"
"""The log's key for the row summary of a write by `df.write`."""


@dataclass(frozen=True)
class WriteId:
    """One batch of one query, as recorded in the log."""

    query_id: str
    batch_id: int
    is_job: bool = False
    """Written by `df.write`, which may reuse a number by mistake; a stream does not."""
    run: str = ""
    """The run of the stream in whose foreachBatch a job writes; nothing is replayed within a run."""

    def is_done(self, table: DeltaTable) -> bool:
        last = table.transaction_version(self.query_id)
        return last is not None and last >= self.batch_id

    @property
    def label(self) -> str:
        return f"{self.query_id}/{self.batch_id}"


def properties(write_id: WriteId | None, summary: str, tries: int | None = None) -> CommitProperties:
    """`tries=0` when creating a table: the library's retry would overwrite another writer's table."""
    if write_id is None:
        return CommitProperties(max_commit_retries=tries)
    metadata = {_WRITE: write_id.label, _RUN: write_id.run, _ROWS: summary} if write_id.is_job else None
    done = [Transaction(write_id.query_id, write_id.batch_id)]
    return CommitProperties(custom_metadata=metadata, max_commit_retries=tries, app_transactions=done)


def publish(
    location: Location,
    files: Sequence[WrittenFile],
    schema: pa.Schema,
    partition_by: tuple[str, ...],
    write_id: WriteId | None,
    *,
    overwrite: bool = False,
) -> bool:
    """Add the files to the table, creating it if needed. False if the batch was already committed."""

    summary = summary_of_files(files)

    def once(table: DeltaTable | None) -> None:
        added = [_add_action(file) for file in files]
        if table is None:
            create_table_with_add_actions(
                location.uri,
                delta_schema(schema),
                added,
                partition_by=list(partition_by),
                storage_options=dict(location.storage) or None,
                commit_properties=properties(write_id, summary, tries=0),
            )
            return
        check_writable(table)
        check_partitions(table, partition_by)
        if not overwrite:
            add_columns(table, schema)
        table.create_write_transaction(
            [*added],
            "overwrite" if overwrite else "append",
            schema,
            list(partition_by),
            commit_properties=properties(write_id, summary),
        )

    return contend(location, write_id, once, lambda: summary)


def contend(
    location: Location,
    write_id: WriteId | None,
    once: Callable[[DeltaTable | None], None],
    summarize: Callable[[], str],
) -> bool:
    """Retry a commit on the newest version until it succeeds. False if the batch was already committed.

    A commit whose answer was lost looks like a conflict: the next try finds it in the log.
    """
    for tries in range(TRIES_MAX):
        table = location.table()
        if write_id is not None and table is not None and write_id.is_done(table):
            _check_same_write(table, write_id, summarize)
            return tries > 0
        try:
            once(table)
            return True
        except CommitFailedError as error:
            LOG.info("commit to %s was contested: %s", location.uri, error)
        except DeltaError as error:
            # Another writer created the table at the same time: it exists now.
            if table is not None or location.table() is None:
                raise
            LOG.info("%s was created by another writer: %s", location.uri, error)
        time.sleep(min(FIRST_WAIT_S * 2**tries, LONGEST_WAIT_S) * (0.5 + random.random()))
    raise CommitContested(
        f"{TRIES_MAX} tries to commit to {location.uri} failed because other writers changed the table each time; "
        "write to it with fewer queries at once, or compact it at a quieter time"
    )


def _check_same_write(table: DeltaTable, write_id: WriteId, summarize: Callable[[], str]) -> None:
    """WriteTaken if a job repeats a number with other rows, as far as the log still shows."""
    if not write_id.is_job:
        return
    history = table.history(COMMITS_SEARCHED)
    earlier = next((each for each in history if each.get(_WRITE) == write_id.label), None)
    if earlier is None:
        LOG.warning("%s has %s %d already, or a later one", table.table_uri, write_id.query_id, write_id.batch_id)
        return
    before, now = earlier[_ROWS], summarize()
    if before == now:
        return
    if write_id.run and write_id.run != earlier[_RUN]:
        # A stream repeats the batch after a failure; its rows may contain a time or a random number.
        LOG.warning("%s has %s already; the replay has other rows and is ignored", table.table_uri, write_id.label)
        return
    raise WriteTaken(
        f"{write_id.query_id}, number {write_id.batch_id} is in {table.table_uri} already, with {rows_in(before)} "
        f"rows of another write: this one has other rows ({rows_in(now)}), and none of them were written. Give each "
        "write into the same table its own txnVersion, or its own txnAppId (with ofStream: one write per batch). If "
        "it is the same write with rows that differ on each run, leave it out: it is done"
    )


def add_columns(table: DeltaTable, schema: pa.Schema) -> None:
    """Add the frame's new columns in a separate commit, which is harmless if a crash follows."""
    fresh = new_columns(table.schema(), delta_schema(schema))
    if fresh:
        names = ", ".join(field.name for field in fresh)
        LOG.warning("new columns in %s: %s; they are null in the rows before", table.table_uri, names)
        table.alter.add_columns(fresh)


def _add_action(file: WrittenFile) -> AddAction:
    return AddAction(file.path, file.size, file.partition_values, file.written_ms, True, file.statistics)
