"""What `pyspark_millpond` asks for: the columns of a read, and its reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from millpond.spark.options import VALUE_FORMAT, VALUE_SCHEMA, OptionError, Options, Where, read_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from millpond.spark.batch_reader import BatchReader
    from millpond.spark.stream_reader import StreamReader


def schema_of(given: Mapping[str, str]) -> StructType:
    """The columns. Spark asks before it says whether the read is a batch or a stream: the options may fit either."""
    from millpond.spark import arrow

    try:
        options = read_options(given, "read")
    except OptionError as fault:
        try:
            options = read_options(given, "readStream")
        except OptionError:
            raise fault from None
    return arrow.schema_of(options)


def batch_reader(given: Mapping[str, str]) -> BatchReader:
    from millpond.spark.batch_reader import BatchReader

    return BatchReader(_portable(given, "read"))


def stream_reader(given: Mapping[str, str]) -> StreamReader:
    from millpond.spark.stream_reader import StreamReader

    return StreamReader(_portable(given, "readStream"))


def _portable(given: Mapping[str, str], where: Where) -> Options:
    """Options that mean the same on every machine: where a schema is a file's name, what the file says."""
    options = read_options(given, where)
    schema = options[VALUE_SCHEMA]
    if options[VALUE_FORMAT] == "raw" or schema is None:
        return options
    from millpond.spark.parsing import inlined

    return replace(options, values={**options.values, VALUE_SCHEMA.name: inlined(schema)})
