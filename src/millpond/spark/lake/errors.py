"""What can go wrong with a lake table. Every message says what happened and what to do about it."""

from __future__ import annotations


class LakeError(Exception):
    """Anything that the lake sink or reader says is wrong."""


class LakeOptionError(LakeError, ValueError):
    """An option that is unknown, or a value that cannot be."""


class SchemaConflict(LakeError):
    """The frame and the table do not fit together."""


class UnsupportedTable(LakeError):
    """The table uses a feature of Delta that would be broken or misread here."""


class CommitContested(LakeError):
    """Other writers were faster, again and again."""


class WriteTaken(LakeError):
    """What this write calls itself stands for another one, which is in the table."""
