"""Registers `format("millpond_delta")`: Delta tables through deltalake, exactly once, without a jar.

Spark imports every module named `pyspark_*` when a session looks for formats, so nothing heavy is loaded here.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class TableSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        from millpond.spark.versions import check_packages

        check_packages()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "millpond_delta"

    def schema(self) -> StructType:
        from millpond.spark.lake import reader

        return reader.schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from millpond.spark.lake import reader

        return reader.reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from millpond.spark.lake import writers

        return writers.BatchWriter(writers.sink(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from millpond.spark.lake import writers

        return writers.StreamWriter(writers.sink(self.options, schema, overwrite))


DefaultSource = TableSource
"""The name under which Spark looks for it."""
