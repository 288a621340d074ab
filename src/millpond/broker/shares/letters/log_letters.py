"""The dead letters of records, read from the log of their partition. Runs on a worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import FileRange
from millpond.broker.shares.letters.letter import Sender, Shortening, letter_of
from millpond.coordinators.shares.state_batches import Failure
from millpond.wire.batch import walk
from millpond.wire.records import Record, decode_batch, encode_batch

BATCH_BYTES_MAX: Final = 256 << 10
"""A batch of letters takes no further record once keys, values and headers have this many bytes together."""


class Due(NamedTuple):
    """Records whose letters have to be written."""

    first: int
    last: int
    deliveries: int
    failure: Failure | None


class Letters(NamedTuple):
    batch: bytes | None
    """None if none of the records is in the log any longer."""
    letter_count: int
    last: int
    """All that is due up to this offset is in the batch, or no longer in the log, as later batches show."""


def letters_in_log(
    ranges: Sequence[FileRange],
    due: Sequence[Due],
    sender: Sender,
    now_ms: int,
    *,
    letters_max: int,
    shortening: Shortening,
) -> Letters:
    """One batch with the first letters that are due, as far as the log was read."""
    found: list[Record] = []
    size, last = 0, due[0].first - 1
    for record, each, covered in _records(ranges, due):
        if record is not None and each is not None:
            letter = letter_of(record, each.deliveries, each.failure, sender, now_ms, shortening)
            found.append(letter._replace(offset=len(found)))
            size += _size(letter)
        last = covered
        if len(found) == letters_max or size >= BATCH_BYTES_MAX:
            break
    return Letters(encode_batch(found) if found else None, len(found), last)


def _records(ranges: Sequence[FileRange], due: Sequence[Due]) -> Iterator[tuple[Record | None, Due | None, int]]:
    """The records that are due, and after each and after each batch the offset up to which the log was read."""
    index = 0
    for part in ranges:
        data = part.file.read_at(part.position, part.length)
        for position, header in walk(data):
            while index < len(due) and due[index].last < header.base_offset:
                index += 1
            if index == len(due):
                # None of the rest is in the log any longer.
                yield None, None, due[-1].last
                return
            if due[index].first <= header.last_offset and not header.is_control:
                for record in decode_batch(data, position):
                    while index < len(due) and due[index].last < record.offset:
                        index += 1
                    if index == len(due):
                        break
                    if due[index].first <= record.offset:
                        yield record, due[index], record.offset
            yield None, None, header.last_offset


def _size(letter: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in letter.headers)
    return len(letter.key or b"") + len(letter.value or b"") + headers
