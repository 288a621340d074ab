"""Topics as tables: Arrow, pandas and SQL in one line, on any Kafka cluster.

`arrow` reads, `write_arrow` writes. Both need the extra `arrow`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.remote.errors import needs

if TYPE_CHECKING:
    from millpond.analysis.reader import arrow
    from millpond.analysis.table_writer import write_arrow

__all__ = ["arrow", "write_arrow"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise needs("pyarrow", "arrow") from None
    from millpond.analysis.reader import arrow
    from millpond.analysis.table_writer import write_arrow

    globals().update(arrow=arrow, write_arrow=write_arrow)
    return globals()[name]
