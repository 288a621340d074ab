"""The one compiled room: walking batches and records, in Cython where it was built, else in its plain twin.

`MILLPOND_PLAIN=1` in the environment asks for the twin.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from millpond.wire.kernel.plain import RecordFields, ScannedBatch
from millpond.wire.kernel.produce import SingleProduce, single_produce_reply

if TYPE_CHECKING:
    from millpond.wire.kernel.plain import decode_records, record_keys, record_spans, scan
    from millpond.wire.kernel.produce import single_produce

    COMPILED: bool
else:
    try:
        if os.environ.get("MILLPOND_PLAIN"):
            raise ImportError("the plain twin was asked for")
        from millpond.wire.kernel._fast import decode_records, record_keys, record_spans, scan, single_produce

        COMPILED = True
    except ImportError:
        from millpond.wire.kernel.plain import decode_records, record_keys, record_spans, scan
        from millpond.wire.kernel.produce import single_produce

        COMPILED = False

__all__ = [
    "COMPILED",
    "RecordFields",
    "ScannedBatch",
    "SingleProduce",
    "decode_records",
    "record_keys",
    "record_spans",
    "scan",
    "single_produce",
    "single_produce_reply",
]
