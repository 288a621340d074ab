"""Metadata records as bytes: a frame version, the record's type and version, each a varint, then its fields.

The kinds in `records` and the wire messages share their names and field names, so one loop over the fields serves all
kinds.

From the level `ALIKE_FROM` of metadata.version on, partitions of one decision with equal changes share one record. It
has the offset of the last of them, so that all other records have their usual offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from struct import Struct
from typing import Any, Final, get_args

from millpond.base.errors import MalformedMessage
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Buffer
from millpond.base.values import names_of
from millpond.metadata.features import ALIKE_FROM
from millpond.metadata.records import (
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    LeadAnewRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaPart,
    Record,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from millpond.wire import messages

FRAME_VERSION: Final = 1
ALIKE_TYPE: Final = 101
"""The type of the record for several partitions."""

WRITTEN_VERSIONS: Final[dict[type, int]] = dict.fromkeys(get_args(Record), 0) | {
    RegisterBrokerRecord: 3,
    BrokerRegistrationChangeRecord: 1,
    PartitionRecord: 2,
    PartitionChangeRecord: 2,
}
"""The version in which each kind is written: the first with all the fields we use. Later ones are read too."""

TYPE_NUMBERS: Final[dict[type, int]] = {
    RegisterBrokerRecord: 0,
    UnregisterBrokerRecord: 1,
    TopicRecord: 2,
    PartitionRecord: 3,
    ConfigRecord: 4,
    PartitionChangeRecord: 5,
    RemoveTopicRecord: 9,
    DelegationTokenRecord: 10,
    UserScramCredentialRecord: 11,
    FeatureLevelRecord: 12,
    ClientQuotaRecord: 14,
    ProducerIdsRecord: 15,
    BrokerRegistrationChangeRecord: 17,
    AccessControlEntryRecord: 18,
    RemoveAccessControlEntryRecord: 19,
    NoOpRecord: 20,
    RemoveUserScramCredentialRecord: 22,
    RemoveDelegationTokenRecord: 26,
    LeadAnewRecord: 100,
}
"""As in the schemas, which need not all be parsed to decode a few kinds."""
_RECORDS_BY_TYPE: Final = {number: record for record, number in TYPE_NUMBERS.items()}

_HEAD_BYTES: Final = 3
_INDEX: Final = Struct(">i")
_ALIKE_MAX: Final = 4096
"""The most cached kinds of partitions."""

_bytes_of_alike: dict[tuple[type, tuple[Any, ...]], tuple[bytes, bytes]] = {}
_alike_of_bytes: dict[bytes, tuple[type[Any], tuple[Any, ...]]] = {}
"""Decoded records without their partition index. Most of the thousands of records for a topic or a failed leader
differ only in the index, which comes first, so the rest is decoded once.
"""


class UnknownRecord(MalformedMessage):
    """A record of a kind that only a newer version knows."""


class _Kind(NamedTuple):
    """One kind of record with its wire message."""

    record: type[Any]
    message: type[messages.Message]
    names: tuple[str, ...]
    values_of: Callable[[Any], tuple[Any, ...]]
    """The values of these fields."""
    type_number: int
    version: int


_kinds: dict[type, _Kind] = {}


def encode_records(records: Sequence[Record], level: int) -> Iterator[tuple[int, bytes]]:
    """The values of one decision's records for this metadata.version, each with its offset in the batch."""
    if level < ALIKE_FROM:
        yield from _one_by_one(list(enumerate(records)))
        return
    for is_change, run in groupby(enumerate(records), lambda each: isinstance(each[1], PartitionChangeRecord)):
        yield from (_alike if is_change else _one_by_one)(list(run))


def _one_by_one(run: list[tuple[int, Record]]) -> Iterator[tuple[int, bytes]]:
    return ((index, encode_record(record)) for index, record in run)


def _alike(run: list[tuple[int, Record]]) -> Iterator[tuple[int, bytes]]:
    """Merge partition changes that differ only in the partition, at the offset of the last of them."""
    groups: dict[tuple[Any, ...], list[tuple[int, Record]]] = {}
    partitions = set()
    for index, record in run:
        assert isinstance(record, PartitionChangeRecord)
        groups.setdefault(record[1:], []).append((index, record))
        partitions.add((record.topic_id, record.partition_id))
    if len(partitions) < len(run):
        # A partition that changes twice must do so in order.
        yield from _one_by_one(run)
        return
    for group in sorted(groups.values(), key=lambda group: group[-1][0]):
        index = group[-1][0]
        if len(group) == 1:
            yield index, encode_record(group[0][1])
            continue
        others = [record.partition_id for _, record in group[1:] if isinstance(record, PartitionChangeRecord)]
        message = messages.AlikePartitionsRecord(first=encode_record(group[0][1]), others=others)
        yield index, bytes((FRAME_VERSION, ALIKE_TYPE, 0)) + message.encode(0)


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
    kind = _kinds.get(type(record)) or _new_kind(type(record))
    values = kind.values_of(record)
    message = kind.message(
        **{
            name: _list_to_wire(value) if type(value) is tuple else value
            for name, value in zip(kind.names, values, strict=True)
        }
    )
    return bytes((FRAME_VERSION, kind.type_number, kind.version)) + message.encode(kind.version)


def decode_records(value: Buffer, newest: int) -> Sequence[Record]:
    """The records in one value of the log, for a program that knows metadata.version up to `newest`."""
    view = memoryview(value)
    if newest < ALIKE_FROM or len(view) < _HEAD_BYTES or (view[0], view[1]) != (FRAME_VERSION, ALIKE_TYPE):
        return (decode_record(value),)
    message, end = messages.AlikePartitionsRecord.decode(view, view[2], _HEAD_BYTES)
    first = decode_record(message.first)
    if end != len(view) or not isinstance(first, PartitionChangeRecord):
        raise MalformedMessage("a record for several partitions is incomplete or not a partition change")
    return (first, *(first._replace(partition_id=index) for index in message.others))


def decode_record(value: Buffer) -> Record:
    """The record in these bytes. An unknown kind is a MalformedMessage."""
    view = memoryview(value)
    alike = _alike_of_bytes.get(_without_index(view)) if len(view) > _HEAD_BYTES + _INDEX.size else None
    if alike is not None:
        partition_record: Record = alike[0](*_INDEX.unpack_from(view, _HEAD_BYTES), *alike[1])
        return partition_record
    # Types and versions are far below 128: their varints are single bytes.
    if len(view) < 3 or view[0] != FRAME_VERSION:
        raise MalformedMessage("not a metadata record, or its frame version is unknown")
    record_type = _RECORDS_BY_TYPE.get(view[1])
    if record_type is None:
        raise UnknownRecord(
            f"metadata record type {view[1]} is unknown to this version: start the newer version that wrote it"
        )
    kind = _kinds.get(record_type) or _new_kind(record_type)
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


def _new_kind(record: type[Any]) -> _Kind:
    """Created on first use, because it builds the wire class."""
    message: type[messages.Message] = getattr(messages, record.__name__)
    names = _names_of(record)
    kind = _Kind(record, message, names, _values_of(names), TYPE_NUMBERS[record], WRITTEN_VERSIONS[record])
    return _kinds.setdefault(record, kind)


def _names_of(kind: type[Any]) -> tuple[str, ...]:
    return getattr(kind, "_fields", None) or names_of(kind)


def _values_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


@cache
def _parts() -> dict[type[Any], type[messages.Message]]:
    """The elements of lists in records, with their wire messages."""
    return {
        BrokerEndpoint: messages.RegisterBrokerRecord.BrokerEndpoint,
        BrokerFeature: messages.RegisterBrokerRecord.BrokerFeature,
        QuotaPart: messages.ClientQuotaRecord.EntityData,
    }


def _list_to_wire(values: tuple[Any, ...]) -> list[Any]:
    return [_to_wire(each) for each in values] if values and type(values[0]) in _parts() else list(values)


def _to_wire(part: BrokerEndpoint | BrokerFeature | QuotaPart) -> messages.Message:
    kind = _parts()[type(part)]
    return kind(**{name: getattr(part, name) for name in _names_of(type(part))})


def _list_from_wire(values: list[Any]) -> tuple[Any, ...]:
    part = next((part for part, kind in _parts().items() if values and isinstance(values[0], kind)), None)
    if part is None:
        return tuple(values)
    names = _names_of(part)
    return tuple(part(*(getattr(each, name) for name in names)) for each in values)
