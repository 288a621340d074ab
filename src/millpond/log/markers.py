"""Transaction markers: the control batch that ends a transaction in a partition, in Kafka's format.

key: version (0), type (0 abort, 1 commit)   value: version (0), coordinator epoch
"""

from __future__ import annotations

import struct

from millpond.base.errors import MalformedMessage, Refused
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Buffer
from millpond.wire.batch import HEADER_BYTES, read_header
from millpond.wire.records import Record, decode_batch, encode_batch

ABORT = 0
COMMIT = 1

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_BYTES_MAX = 4096
"""A marker has about 80 bytes; anything much larger is something else."""


class Marker(NamedTuple):
    committed: bool
    coordinator_epoch: int


def encode_marker(marker: Marker, producer_id: int, producer_epoch: int, now_ms: int) -> bytearray:
    """The control batch; it gets its offset when it is appended."""
    record = Record(
        offset=0,
        timestamp=now_ms,
        key=_KEY.pack(0, COMMIT if marker.committed else ABORT),
        value=_VALUE.pack(0, marker.coordinator_epoch),
    )
    return bytearray(
        encode_batch(
            [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
        )
    )


def read_marker(batch: Buffer) -> Marker | None:
    """The marker in a control batch; None if it holds none, for instance because compaction emptied it."""
    header = read_header(batch)
    if not header.record_count or not HEADER_BYTES <= header.size <= _BYTES_MAX:
        return None
    try:
        record = decode_batch(batch, limit_bytes=_BYTES_MAX)[0]
    except (MalformedMessage, Refused):
        return None
    if record.key is None or len(record.key) < _KEY.size or record.value is None or len(record.value) < _VALUE.size:
        return None
    kind = _KEY.unpack_from(record.key)[1]
    if kind not in (ABORT, COMMIT):
        return None
    return Marker(kind == COMMIT, _VALUE.unpack_from(record.value)[1])
