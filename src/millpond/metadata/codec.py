"""Metadata records as bytes: a frame version, the record's type and version, each a varint, then its fields.

The kinds in `records` and the messages of the wire share their names and the names of their fields, so one walk over
the fields serves all kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from struct import Struct
from typing import Any, Final, NamedTuple, get_args

from millpond.base.errors import MalformedMessage
from millpond.base.ports import Buffer
from millpond.metadata.records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
)
from millpond.wire import messages

FRAME_VERSION: Final = 1

WRITTEN_VERSIONS: Final[dict[type, int]] = dict.fromkeys(get_args(Record), 0) | {
    RegisterBrokerRecord: 3,
    BrokerRegistrationChangeRecord: 1,
    PartitionRecord: 2,
    PartitionChangeRecord: 2,
}
"""The version in which each kind is written: the first that has all the fields we use. Later ones are read too."""

_HEAD_BYTES: Final = 3
_INDEX: Final = Struct(">i")
_ALIKE_MAX: Final = 4096
"""So many kinds of partitions are remembered at most."""

_bytes_of_alike: dict[tuple[type, tuple[Any, ...]], tuple[bytes, bytes]] = {}
_alike_of_bytes: dict[bytes, tuple[type[Any], tuple[Any, ...]]] = {}
"""Of the thousands of records that a topic or a dead leader comes to, most differ only in the index of the partition,
which stands first: what follows it is worked out once for all that are alike."""


class _Kind(NamedTuple):
    """One kind of record with its twin on the wire."""

    record: type[Any]
    message: type[messages.Message]
    names: tuple[str, ...]
    values_of: Callable[[Any], tuple[Any, ...]]
    """The values of these fields."""
    type_number: int
    version: int


def encode_record(record: Record) -> bytes:
    """The value of one record of the metadata log."""
    if not isinstance(record, PartitionRecord | PartitionChangeRecord):
        return _encode(record)
    key = type(record), record[1:]
    alike = _bytes_of_alike.get(key)
    if alike is None:
        encoded = _encode(record)
        if len(_bytes_of_alike) >= _ALIKE_MAX:
            _bytes_of_alike.clear()
        alike = _bytes_of_alike[key] = encoded[:_HEAD_BYTES], encoded[_HEAD_BYTES + _INDEX.size :]
    return b"".join((alike[0], _INDEX.pack(record.partition_id), alike[1]))


def _encode(record: Record) -> bytes:
    kind = _kinds_by_record()[type(record)]
    values = kind.values_of(record)
    message = kind.message(
        **{
            name: _list_to_wire(value) if type(value) is tuple else value
            for name, value in zip(kind.names, values, strict=True)
        }
    )
    return bytes((FRAME_VERSION, kind.type_number, kind.version)) + message.encode(kind.version)


def decode_record(value: Buffer) -> Record:
    """The record that these bytes are. One of a kind that this program does not know is a MalformedMessage."""
    view = memoryview(value)
    alike = _alike_of_bytes.get(_without_index(view)) if len(view) > _HEAD_BYTES + _INDEX.size else None
    if alike is not None:
        partition_record: Record = alike[0](*_INDEX.unpack_from(view, _HEAD_BYTES), *alike[1])
        return partition_record
    # Types and versions are far below 128: their varints are single bytes.
    if len(view) < 3 or view[0] != FRAME_VERSION:
        raise MalformedMessage("not a metadata record, or one in a frame of a later version")
    kind = _kinds_by_type().get(view[1])
    if kind is None:
        raise MalformedMessage(f"metadata record type {view[1]} is not known here")
    message, end = kind.message.decode(view, view[2], 3)
    if end != len(view):
        raise MalformedMessage(f"{kind.record.__name__} has {len(view) - end} bytes too many")
    values = kind.values_of(message)
    read = [_list_from_wire(value) if type(value) is list else value for value in values]
    if kind.names[:1] == ("partition_id",):
        if len(_alike_of_bytes) >= _ALIKE_MAX:
            _alike_of_bytes.clear()
        _alike_of_bytes[_without_index(view)] = kind.record, tuple(read[1:])
    record: Record = kind.record(*read)
    return record


def _without_index(view: memoryview) -> bytes:
    return bytes(view[:_HEAD_BYTES]) + bytes(view[_HEAD_BYTES + _INDEX.size :])


@cache
def _kinds_by_record() -> dict[type, _Kind]:
    """Built on first use, because it builds the wire's classes."""
    kinds = {}
    for record in get_args(Record):
        message: type[messages.Message] = getattr(messages, record.__name__)
        type_number = message.API_KEY
        assert type_number is not None, record
        names = getattr(record, "_fields", None) or tuple(field.name for field in fields(record))
        version = WRITTEN_VERSIONS[record]
        kinds[record] = _Kind(record, message, names, _values_of(names), type_number, version)
    return kinds


@cache
def _kinds_by_type() -> dict[int, _Kind]:
    return {kind.type_number: kind for kind in _kinds_by_record().values()}


def _values_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


def _list_to_wire(values: tuple[Any, ...]) -> list[Any]:
    if not values or not isinstance(values[0], BrokerEndpoint):
        return list(values)
    return [
        messages.RegisterBrokerRecord.BrokerEndpoint(
            name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol
        )
        for each in values
    ]


def _list_from_wire(values: list[Any]) -> tuple[Any, ...]:
    if not values or not isinstance(values[0], messages.RegisterBrokerRecord.BrokerEndpoint):
        return tuple(values)
    return tuple(BrokerEndpoint(each.name, each.host, each.port, each.security_protocol) for each in values)
