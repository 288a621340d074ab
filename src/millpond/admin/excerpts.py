"""Records for display: the beginning of each part, and its size. The rest is not kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from millpond.wire.records import Record

NAME_SIGNS_MAX: Final = 200
"""Limit of characters of a header's name."""

Data: TypeAlias = bytes
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of some bytes, and their number."""

    bytes: int
    data: Data

    @property
    def is_cut(self) -> bool:
        return len(self.data) < self.bytes


@dataclass(frozen=True, slots=True)
class Extent:
    """Limits of an excerpt."""

    data_bytes: int
    """Limit for the key, the value, and each header."""
    headers: int
    headers_bytes: int
    """Limit for all headers together."""


@dataclass(frozen=True, slots=True)
class HeadersExcerpt:
    shown: tuple[tuple[str, Excerpt | None], ...]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class RecordExcerpt:
    partition: int
    offset: int
    timestamp_ms: int
    key: Excerpt | None
    value: Excerpt | None
    headers: tuple[tuple[str, Excerpt | None], ...]
    headers_total: int
    is_cut: bool
    """Whether a part of its key, value or headers is missing."""


def cut(data: bytes | None, limit: int) -> Excerpt | None:
    return None if data is None else Excerpt(len(data), bytes(data[:limit]))


def cut_text(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def cut_headers(headers: Headers, extent: Extent) -> HeadersExcerpt:
    """The first headers, up to the limit of them all."""
    left = extent.headers_bytes
    shown: list[tuple[str, Excerpt | None]] = []
    is_cut = False
    for name, value in headers[: extent.headers]:
        if left <= 0:
            break
        short = cut_text(name, NAME_SIGNS_MAX)
        left -= len(short)
        part = cut(value, max(0, min(extent.data_bytes, left)))
        left -= len(part.data) if part else 0
        is_cut = is_cut or short != name or (part is not None and part.is_cut)
        shown.append((short, part))
    return HeadersExcerpt(tuple(shown), is_cut or len(shown) < len(headers))


def cut_record(partition: int, record: Record, extent: Extent) -> RecordExcerpt:
    key, value = cut(record.key, extent.data_bytes), cut(record.value, extent.data_bytes)
    headers = cut_headers(record.headers, extent)
    return RecordExcerpt(
        partition,
        record.offset,
        record.timestamp,
        key,
        value,
        headers.shown,
        len(record.headers),
        headers.is_cut or any(each is not None and each.is_cut for each in (key, value)),
    )
