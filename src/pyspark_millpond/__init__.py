"""Registers `format("millpond")` with Spark: topics as a source and as a sink, for batches and streams.

Spark imports every module named `pyspark_*` when a session looks for formats, so nothing heavy is loaded here.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class TopicSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        from millpond.spark.versions import check_packages

        check_packages()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "millpond"

    def schema(self) -> StructType:
        from millpond.spark import source

        return source.schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from millpond.spark import source

        return source.reader_of(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from millpond.spark import source

        return source.stream_reader_of(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from millpond.spark.sink.writer import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from millpond.spark.sink.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)


DefaultSource = TopicSource
"""The name under which Spark looks for it."""
