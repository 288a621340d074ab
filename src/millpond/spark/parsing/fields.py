"""The parser from a source's options, and the columns it adds."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from pyspark.sql import types

from millpond.columns.errors import SchemaError
from millpond.columns.parser import Parser
from millpond.spark.options import AVRO_PREFIX, BAD_RECORDS, VALUE_FORMAT, VALUE_SCHEMA, OptionError, Options
from millpond.spark.parsing.spark_types import spark_type

PARSED: Final = "parsed"
FAULT: Final = "fault"
PARSERS_MAX: Final = 16


def parsed_fields(options: Options) -> list[types.StructField]:
    """The added columns: none for raw values, `fault` only if bad rows are kept."""
    if options[VALUE_FORMAT] == "raw":
        return []
    fields = [types.StructField(PARSED, spark_type(parser_of(options).type))]
    if options[BAD_RECORDS] == "null":
        fields.append(types.StructField(FAULT, types.StringType()))
    return fields


def parser_of(options: Options) -> Parser:
    """OptionError if the schema is missing or cannot be read."""
    schema = options.get(VALUE_SCHEMA)
    if schema is None:
        raise OptionError(
            f"valueFormat={options[VALUE_FORMAT]} needs the option valueSchema, such as "
            '"id long, amount double, at timestamp", or a file with a schema'
        )
    try:
        return _parser(options[VALUE_FORMAT], schema, options[AVRO_PREFIX] == "confluent")
    except SchemaError as fault:
        raise OptionError(f"option valueSchema: {fault}") from fault


@lru_cache(PARSERS_MAX)
def _parser(value_format: str, schema: str, prefixed: bool) -> Parser:
    """Cached: one process runs many tasks of the same query."""
    return Parser(value_format, schema, prefixed=prefixed)
