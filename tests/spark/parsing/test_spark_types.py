"""The types of parsed values as Spark's own: columns have the Arrow types that Spark expects."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark", reason="pip install 'millpond[spark]'")

from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from millpond.columns.schemas import nullable, read_schema
from millpond.columns.types import SIMPLE
from millpond.spark.parsing import spark_type

EVERY = ", ".join(
    [
        *(f"f{number} {name}" for number, name in enumerate(SIMPLE)),
        "d decimal(20,3)",
        "a array<map<string,struct<b:int,c:timestamp>>>",
        "m map<string,array<date>>",
        "r struct<x:long,y:binary> not null",
    ]
)


def test_every_type_has_sparks_arrow_type() -> None:
    for kind in (read_schema(EVERY), nullable(read_schema(EVERY))):
        assert to_arrow_type(spark_type(kind), timezone="UTC") == kind.arrow()
        assert spark_type(kind).simpleString() == kind.text


def test_sparks_json_is_read_as_spark_writes_it() -> None:
    written = spark_type(read_schema(EVERY))
    assert isinstance(written, spark.StructType)
    assert spark_type(read_schema(json.dumps(written.jsonValue()))) == written
