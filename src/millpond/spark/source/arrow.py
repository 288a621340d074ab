"""The columns of the source as Spark types."""

from __future__ import annotations

from pyspark.sql import types

from millpond.spark.options import INCLUDE_HEADERS, Options
from millpond.spark.parsing import parsed_fields


def schema_of(options: Options) -> types.StructType:
    """The columns as Spark types: those of a Kafka source, then the parsed columns."""
    fields = [
        types.StructField("key", types.BinaryType()),
        types.StructField("value", types.BinaryType()),
        types.StructField("topic", types.StringType()),
        types.StructField("partition", types.IntegerType()),
        types.StructField("offset", types.LongType()),
        types.StructField("timestamp", types.TimestampType()),
        types.StructField("timestampType", types.IntegerType()),
    ]
    if options[INCLUDE_HEADERS]:
        header = [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
        fields.append(types.StructField("headers", types.ArrayType(types.StructType(header))))
    return types.StructType([*fields, *parsed_fields(options)])
