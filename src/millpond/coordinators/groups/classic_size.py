"""The size limit of a classic group, whose whole state is one record, rewritten at each change."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.base.errors import ErrorCode, LimitMet
from millpond.config.quota import GROUP_CLASSIC_MAX_BYTES
from millpond.coordinators.groups.memory import text_bytes


def member_record_bytes(names: Iterable[str | None], protocols: Iterable[tuple[str, bytes]]) -> int:
    """The most that a record contains for a member, without its assignment."""
    return sum(map(text_bytes, names)) + said_bytes(protocols)


def said_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def check_classic_growth(size_bytes: int, more_bytes: int, bytes_max: int) -> None:
    """Refused if a group of this size would grow too large. One that is too large may shrink."""
    if more_bytes > 0 and size_bytes + more_bytes > bytes_max:
        limit = GROUP_CLASSIC_MAX_BYTES.name
        raise LimitMet(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            limit,
            bytes_max,
            f"the metadata and assignments of all members of the group exceed {limit}={bytes_max}",
        )
