"""Errors of a write; each message says what to do."""

from __future__ import annotations

from millpond.columns.errors import RowError


class SinkError(RowError):
    """The rows cannot be written as they are."""


class BatchNotWritten(SinkError):
    """The batch is not committed, or not completely. The query repeats it after a restart."""


class BatchTorn(SinkError):
    """Part of a batch is in the topic, and the rest can no longer be added without duplicating or losing rows."""


class WriteTaken(SinkError):
    """The write's name and number belong to another write that is already in the topic."""
