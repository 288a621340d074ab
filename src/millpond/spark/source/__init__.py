"""The entry points for `pyspark_millpond`: the columns of a read, and its reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from millpond.spark.options import VALUE_FORMAT, VALUE_SCHEMA, OptionError, Options, Where, read_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from millpond.spark.source.batch_reader import BatchReader
    from millpond.spark.source.stream_reader import StreamReader


def schema_of(given: Mapping[str, str]) -> StructType:
    """The columns. Spark asks for them before it is known whether the read is a batch or a stream, so options of both
    are accepted."""
    from millpond.spark.source import arrow

    try:
        options = read_options(given, "read")
    except OptionError as fault:
        try:
            options = read_options(given, "readStream")
        except OptionError:
            raise fault from None
    return arrow.schema_of(options)


def reader_of(given: Mapping[str, str], schema: StructType) -> BatchReader:
    from millpond.spark.source.batch_reader import BatchReader

    return BatchReader(_checked(given, schema, "read"))


def stream_reader_of(given: Mapping[str, str], schema: StructType) -> StreamReader:
    from millpond.spark.source.stream_reader import StreamReader

    return StreamReader(_checked(given, schema, "readStream"))


def _checked(given: Mapping[str, str], schema: StructType, where: Where) -> Options:
    from millpond.spark.source import arrow

    options = read_options(given, where)
    if schema != arrow.schema_of(options):
        raise OptionError("the columns of this source are fixed: leave out schema(…), and select or cast afterwards")
    return _portable(options)


def _portable(options: Options) -> Options:
    """Options that mean the same on every machine: a schema file's name is replaced by its contents."""
    schema = options.get(VALUE_SCHEMA)
    if options[VALUE_FORMAT] == "raw" or schema is None:
        return options
    from millpond.columns.schemas import inline_schema

    return replace(options, values={**options.values, VALUE_SCHEMA.name: inline_schema(schema)})
