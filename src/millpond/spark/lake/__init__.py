"""Delta tables as sink and source of Spark jobs: written exactly once, without a jar.

`format("millpond_delta")` needs no import of this package. `into_table` is for streams in Spark's update mode, which
Spark does not support for Python sinks:

    counts.writeStream.outputMode("update").foreachBatch(into_table("lake/counts", mode="upsert", keys="word"))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["into_table"]


def into_table(path: str, **options: str | int | bool) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: write each batch at most once, with the options of `millpond_delta`."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}

    def write(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format("millpond_delta").mode("append").option("ofStream", "true").options(**texts)
        writer.save(path)

    return write
