"""Dead letters from a frame: the headers of `millpond.client.dead_letters` as Spark column expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.client import dead_letters as names
from millpond.spark.pipelines.kinds.columns import HEADER_TYPE, HEADERS, OFFSET, PARTITION, TIMESTAMP, TOPIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NEEDED: Final = (TOPIC, PARTITION, OFFSET, TIMESTAMP)
"""The columns with a record's position."""


def letter_headers(frame: DataFrame, error_type: str, message: Column, group: str) -> Column:
    """The headers of a dead letter: the record's own, its origin and the error."""
    from pyspark.sql import functions as f

    own = f.coalesce(f.col(HEADERS), f.array()) if HEADERS in frame.columns else f.array()
    own = own.cast(HEADER_TYPE)
    headers = {
        names.TOPIC: f.col(TOPIC),
        names.PARTITION: f.col(PARTITION),
        names.OFFSET: f.col(OFFSET),
        names.TIMESTAMP: f.unix_millis(TIMESTAMP),
        names.ATTEMPTS: f.lit(1),
        names.ERROR_TYPE: f.lit(error_type),
        names.ERROR_MESSAGE: f.substring(message, 1, names.ERROR_MESSAGE_CHARACTERS_MAX),
        names.ERROR_TRACEBACK: f.lit(""),
        names.GROUP: f.lit(group),
        names.TIME: f.unix_millis(f.current_timestamp()),
        names.REDRIVEN: _redriven(own),
    }
    added = f.array(
        *[
            f.struct(f.lit(name).alias("key"), f.encode(text.cast("string"), "UTF-8").alias("value"))
            for name, text in headers.items()
        ]
    )
    return f.concat(f.filter(own, _is_own), added.cast(HEADER_TYPE))


def _is_own(header: Column) -> Column:
    return ~header["key"].startswith(names.PREFIX)


def _redriven(own: Column) -> Column:
    """How often the record was redriven, from the last such header."""
    from pyspark.sql import functions as f

    counted = f.filter(own, lambda header: header["key"] == names.REDRIVEN)
    return f.coalesce(f.try_element_at(counted, f.lit(-1))["value"].cast("string").try_cast("int"), f.lit(0))
