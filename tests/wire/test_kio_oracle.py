"""Every version of every message that kio knows, byte for byte and value for value, both ways.

kio aborts the process on hostile lengths, so it is only ever shown bytes that are right.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
from pkgutil import resolve_name
from typing import Any
from uuid import UUID

import pytest
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from tests.wire.conftest import is_private

from millpond.wire import messages, notation

ROUNDS = 4
ZERO = UUID(int=0)
MILLISECOND = datetime.timedelta(milliseconds=1)


def kio_classes() -> dict[tuple[str, int], str]:
    """Where each class is, by name and version."""
    found = {}
    for versions in schema_name_map.values():
        for version, paths in versions.items():
            for path in paths.values():
                found[path.rpartition(":")[2], version] = path
    return found


KIO = kio_classes()
NEWER_THAN_KIO = {
    ("ApiVersionsRequest", 5),
    ("ApiVersionsResponse", 5),
    ("DeleteGroupsRequest", 3),
    ("DeleteGroupsResponse", 3),
    ("TxnOffsetCommitRequest", 6),
    ("TxnOffsetCommitResponse", 6),
}
"""Versions of Kafka 4.4. `test_kafka_4_4.py` compares them with bytes of another client."""
OURS = {
    (name, version): cls
    for name in messages.names()
    for cls in [getattr(messages, name)]
    for version in range(cls.VERSIONS[0], cls.VERSIONS[1] + 1)
}


def plain(value: Any) -> Any:
    """A kio value with its units taken off."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return value


def check_struct(value: Any, theirs: dict[str, Any], struct: notation.Struct, version: int) -> None:
    """Our structure against kio's, field by field. kio drops `_ms` from names, and calls the zero uuid null."""
    ours = [field for field in struct.fields if field.versions.has(version) and not is_private(field)]
    for field, (name, their_value) in zip(ours, theirs.items(), strict=True):
        where = f"{struct.name}.{field.name}"
        assert field.name.startswith(name.rstrip("_")), f"{where} is {name} there"
        our_value = getattr(value, field.name)
        if field.type == "uuid" and field.is_array and their_value is not None:
            assert our_value == [each or ZERO for each in their_value], where
        elif field.type == "uuid" and not field.is_array:
            assert our_value == (their_value or ZERO), where
        elif our_value is None or field.struct is None:
            assert our_value == their_value, where
        elif field.is_array:
            for one, other in zip(our_value, their_value, strict=True):
                check_struct(one, other, field.struct, version)
        else:
            check_struct(our_value, their_value, field.struct, version)


@pytest.mark.parametrize("name", sorted({name for name, _ in OURS.keys() & KIO.keys()}))
def test_same_bytes_and_values_as_kio(name: str, random_messages: Any) -> None:
    cls = getattr(messages, name)
    for version in range(cls.VERSIONS[0], cls.VERSIONS[1] + 1):
        if (name, version) in NEWER_THAN_KIO:
            continue
        other = resolve_name(KIO[name, version])
        read, write = entity_reader(other), entity_writer(other)
        for number in range(ROUNDS):
            seed = f"{name} {version} {number}"
            value = random_messages(seed, with_private=False).message(cls, version)
            data = value.encode(version)
            theirs, size = read(data, 0)
            assert size == len(data), seed
            check_struct(value, plain(theirs), cls._schema.root, version)
            written = io.BytesIO()
            write(written, theirs)
            assert written.getvalue() == data, seed
            assert cls.decode(data, version) == (value, len(data)), seed


def test_the_oracle_covers_what_it_should() -> None:
    """kio has no metadata records and no coordinator records; everything else of ours must have been compared."""
    assert not NEWER_THAN_KIO & KIO.keys()
    compared = OURS.keys() - NEWER_THAN_KIO
    unknown = {name for name, version in compared if (name, version) not in KIO}
    without = {name for name in unknown if getattr(messages, name).KIND not in ("record", "key", "value")}
    assert without == {"QuorumStateData"}
    assert len(unknown) == 65
    assert len(compared) == 698
    assert sum(pair in KIO for pair in compared) == 613
