"""Record batches whose header names are not UTF-8, as clients in other languages can write them."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

from millpond.wire.batch import batch_crc
from millpond.wire.records import Record, encode_batch

CRC_AT = 17

RawHeaders = Sequence[tuple[bytes, "bytes | None"]]


def batch_with_raw_headers(records: Sequence[tuple[bytes, RawHeaders]], key: bytes | None = None) -> bytes:
    """One uncompressed batch of (value, headers) pairs; header names are arbitrary bytes."""
    now_ms = time.time_ns() // 1_000_000
    names: dict[str, bytes] = {}

    def placeholder(name: bytes) -> str:
        # As long as the name itself, so that no length in the batch changes when it is replaced.
        text = f"{len(names):03}".rjust(len(name), "~")
        assert len(text) == len(name), "a name needs at least three bytes"
        names[text] = name
        return text

    made = [
        Record(index, now_ms, key, value, tuple((placeholder(name), each) for name, each in headers))
        for index, (value, headers) in enumerate(records)
    ]
    batch = encode_batch(made)
    for text, name in names.items():
        assert batch.count(text.encode()) == 1
        batch = batch.replace(text.encode(), name)
    patched = bytearray(batch)
    struct.pack_into(">I", patched, CRC_AT, batch_crc(patched, 0, len(patched)))
    return bytes(patched)
