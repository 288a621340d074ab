"""What records say about their delivery: headers for time and priority, and keys.

A batch without such headers costs one search through its bytes, which a compressed one has to be decompressed for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from millpond.base.errors import Refused, RemoteError
from millpond.base.named_tuple import NamedTuple
from millpond.broker.shares.next_records import Fact
from millpond.broker.shares.ready import PRIORITY_DEFAULT
from millpond.coordinators.shares.state_batches import NO_TIME
from millpond.wire import kernel
from millpond.wire.batch import HEADER_BYTES, read_header
from millpond.wire.records import records_section

if TYPE_CHECKING:
    from millpond.base.ports import FileRange
    from millpond.broker.shares.window_settings import ShareSettings
    from millpond.wire.kernel import RecordFields

DELIVER_AT: Final = "queue.deliver-at"
PRIORITY: Final = "queue.priority"

TIME_DIGITS_MAX: Final = 18
DECOMPRESSED_BYTES_MAX: Final = 64 << 20
RECORDS_MAX: Final = 200_000
"""A batch that decompresses to more bytes, or has more records, is delivered as if none of them said anything."""


class Wanted(NamedTuple):
    """What a group asks of records."""

    times: bool
    priorities: bool
    keys: bool

    @property
    def headers(self) -> tuple[bytes, ...]:
        return (DELIVER_AT.encode(),) * self.times + (PRIORITY.encode(),) * self.priorities


def wanted_by(settings: ShareSettings) -> Wanted:
    return Wanted(settings.delay_enable, settings.priority_enable, settings.key_order_enable)


def read_facts(parts: Iterable[FileRange], wanted: Wanted) -> list[Fact]:
    """The facts of these batches, in order. Runs on a worker."""
    facts: list[Fact] = []
    for part in parts:
        try:
            facts += batch_facts(part.file.read_at(part.position, part.length), wanted)
        except Refused:
            # Too many bytes, or a codec that is unknown here.
            continue
    return facts


def batch_facts(batch: bytes, wanted: Wanted, decompressed_max: int = DECOMPRESSED_BYTES_MAX) -> list[Fact]:
    """Records that have neither key nor header are left out. Refused if it decompresses to too many bytes."""
    header = read_header(batch)
    if header.record_count > RECORDS_MAX:
        return []
    try:
        section = records_section(batch, 0, header, limit_bytes=decompressed_max)
        # An uncompressed section is a view, in which nothing can be searched.
        data, at = (section, 0) if isinstance(section, bytes) else (batch, HEADER_BYTES)
        if any(data.find(name, at) >= 0 for name in wanted.headers):
            return list(_facts(kernel.decode_records(section, header.record_count, header.base_offset, 0, 0), wanted))
        if not wanted.keys:
            return []
        keys = kernel.record_keys(section, header.record_count)
        return [Fact(header.base_offset + delta, hash(key)) for delta, key, _, _ in keys if key is not None]
    except RemoteError:
        # The members find out what is wrong with it.
        return []


def _facts(records: Sequence[RecordFields], wanted: Wanted) -> Iterator[Fact]:
    for offset, _, key, _, headers in records:
        due_ms, priority = NO_TIME, PRIORITY_DEFAULT
        for name, value in headers:
            if name == DELIVER_AT and wanted.times:
                due_ms = _time(value)
            elif name == PRIORITY and wanted.priorities:
                priority = _priority(value)
        key_hash = hash(key) if wanted.keys and key is not None else None
        if key_hash is not None or due_ms != NO_TIME or priority != PRIORITY_DEFAULT:
            yield Fact(offset, key_hash, priority, due_ms)


def _time(value: bytes | None) -> int:
    is_time = value is not None and value.isdigit() and len(value) <= TIME_DIGITS_MAX
    return int(value) if is_time and value is not None else NO_TIME


def _priority(value: bytes | None) -> int:
    return int(value) if value is not None and len(value) == 1 and value.isdigit() else PRIORITY_DEFAULT
