"""The types of parsed values as Spark's own."""

from __future__ import annotations

from pyspark.sql import types as spark

from millpond.columns import types


def spark_type(kind: types.DataType) -> spark.DataType:
    match kind:
        case types.StructType():
            return spark.StructType(
                [spark.StructField(each.name, spark_type(each.type), each.nullable) for each in kind]
            )
        case types.ArrayType():
            return spark.ArrayType(spark_type(kind.element), kind.has_nulls)
        case types.MapType():
            return spark.MapType(spark_type(kind.key), spark_type(kind.value), kind.has_nulls)
        case types.DecimalType():
            return spark.DecimalType(kind.precision, kind.scale)
    for ours, theirs in _LEAVES.items():
        if isinstance(kind, ours):
            return theirs()
    raise AssertionError(f"{kind.text} was not refused when the schema was read")


_LEAVES: dict[type[types.DataType], type[spark.DataType]] = {
    types.BooleanType: spark.BooleanType,
    types.ByteType: spark.ByteType,
    types.ShortType: spark.ShortType,
    types.IntegerType: spark.IntegerType,
    types.LongType: spark.LongType,
    types.FloatType: spark.FloatType,
    types.DoubleType: spark.DoubleType,
    types.StringType: spark.StringType,
    types.BinaryType: spark.BinaryType,
    types.DateType: spark.DateType,
    types.TimestampType: spark.TimestampType,
    types.TimestampNTZType: spark.TimestampNTZType,
}
