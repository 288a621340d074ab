"""Dead letters of share groups, as they are in the log of their topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millpond.wire.batch import walk
from millpond.wire.records import Record, decode_batch

LETTERS = "pond.dlq"


def letters_of(broker: Any, topic: str = LETTERS) -> list[Record]:
    """The records of all partitions that this broker has, in order."""
    found: list[Record] = []
    for partition in broker.partitions:
        if partition.name.topic == topic and partition.log.end_offset > partition.log.start_offset:
            ranges, _ = partition.read(partition.log.start_offset, 1 << 30, at_least_one_batch=True)
            for part in ranges:
                data = part.file.read_at(part.position, part.length)
                for position, _ in walk(data):
                    found += decode_batch(data, position)
                part.file.release()
    return found


def headers(letter: Record) -> Mapping[str, str]:
    return {name: (value or b"").decode() for name, value in letter.headers}


def offsets(letters: list[Record]) -> list[int]:
    """The offsets of the records that the letters are about."""
    return [int(headers(each)["dlq.offset"]) for each in letters]
