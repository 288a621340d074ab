"""Errors of lake tables; each message says what happened and what to do."""

from __future__ import annotations


class LakeError(Exception):
    """Base class of the lake's errors."""


class LakeOptionError(LakeError, ValueError):
    """An unknown option or an invalid value."""


class SchemaConflict(LakeError):
    """The frame and the table do not fit together."""


class UnsupportedTable(LakeError):
    """The table uses a feature of Delta that would be broken or misread here."""


class CommitContested(LakeError):
    """The commit lost to other writers too often."""


class WriteTaken(LakeError):
    """The write's name and number belong to another write that is already in the table."""
