"""The compiled kernel: scanning batches and records, in Cython if it was built, else in plain Python.

It also converts between records and columns: `ColumnBuilder` one way, `encode_rows` and `key_partitions` the other. A
node never needs those, so they are imported on first use; so are `read_messages`, which creates a client's messages,
and `values`, which reads JSON and Avro into columns (its plain twin is in `columns`). `MILLPOND_PLAIN=1` in the
environment selects the plain twins. The short paths have none: without the kernel the general path serves their
requests.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from millpond.wire.kernel.plain import RecordFields, ScannedBatch

__all__ = [
    "COMPILED",
    "BinaryBuffers",
    "BinaryColumn",
    "ColumnBuilder",
    "Columns",
    "EncodedRows",
    "HeaderBuffers",
    "HeaderColumn",
    "RecordFields",
    "RowColumns",
    "ScannedBatch",
    "ShortCommit",
    "ShortConsumerHeartbeat",
    "ShortFetch",
    "ShortHeartbeat",
    "ShortProduce",
    "TimestampColumn",
    "decode_records",
    "encode_rows",
    "first_not_older",
    "flag_latest",
    "flagged_records",
    "key_partitions",
    "keyless_records",
    "latest_record",
    "note_keys",
    "read_messages",
    "record_keys",
    "record_spans",
    "records_outside",
    "scan",
    "short_commit",
    "short_consumer_heartbeat",
    "short_fetch",
    "short_heartbeat",
    "short_produce",
]

if TYPE_CHECKING:
    from millpond.wire.kernel.columns import BinaryBuffers, ColumnBuilder, Columns, HeaderBuffers
    from millpond.wire.kernel.fetch import ShortFetch, short_fetch
    from millpond.wire.kernel.group_requests import (
        ShortCommit,
        ShortConsumerHeartbeat,
        ShortHeartbeat,
        short_commit,
        short_consumer_heartbeat,
        short_heartbeat,
    )
    from millpond.wire.kernel.messages import read_messages
    from millpond.wire.kernel.plain import (
        decode_records,
        first_not_older,
        flag_latest,
        flagged_records,
        keyless_records,
        latest_record,
        note_keys,
        record_keys,
        record_spans,
        records_outside,
        scan,
    )
    from millpond.wire.kernel.produce import ShortProduce, short_produce
    from millpond.wire.kernel.rows import (
        BinaryColumn,
        EncodedRows,
        HeaderColumn,
        RowColumns,
        TimestampColumn,
        encode_rows,
        key_partitions,
    )

    COMPILED: bool
else:

    def _load(*modules: str) -> None:
        for module in modules:
            loaded = import_module(f"{__name__}.{module}")
            globals().update({name: getattr(loaded, name) for name in __all__ if hasattr(loaded, name)})

    try:
        if os.environ.get("MILLPOND_PLAIN"):
            raise ImportError("MILLPOND_PLAIN is set")
        _load("_fast", "_small")
        COMPILED = True
    except ImportError:
        _load("plain", "produce", "fetch", "group_requests")
        COMPILED = False

    _LATE = {
        "BinaryBuffers": "columns",
        "BinaryColumn": "rows",
        "ColumnBuilder": "_columns",
        "Columns": "columns",
        "EncodedRows": "rows",
        "HeaderBuffers": "columns",
        "HeaderColumn": "rows",
        "RowColumns": "rows",
        "TimestampColumn": "rows",
        "encode_rows": "_rows",
        "key_partitions": "_rows",
        "read_messages": "_messages",
    }

    def __getattr__(name: str) -> object:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = _LATE[name]
        if not COMPILED or find_spec(f"{__name__}.{module}") is None:
            module = module.removeprefix("_")
        function = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
        return function
