"""A time range of the source's topics as a batch, for kinds that do not stream."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from millpond.spark.pipelines.context import JobContext
from millpond.spark.pipelines.kinds.archive import raw_columns
from millpond.spark.pipelines.kinds.flows import TOPICS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def range_options(context: JobContext, begin: datetime | None, end: datetime | None) -> dict[str, str]:
    """The options of a batch read of this time range."""
    source = context.pipeline.source
    assert source is not None
    options = {"subscribe": ",".join(source.topic)} if source.topic else {"subscribePattern": source.pattern}
    if begin is not None:
        options |= {"startingTimestamp": _ms(begin), "startingOffsetsByTimestampStrategy": "latest"}
    if end is not None:
        options["endingTimestamp"] = _ms(end)
    return options


def read_batch(context: JobContext, options: dict[str, str]) -> DataFrame:
    """The records, with the columns of a raw archive."""
    all_options = {**context.cluster(), "includeHeaders": "true", **options}
    return raw_columns(context.spark.read.format(TOPICS).options(**all_options).load())


def _ms(moment: datetime) -> str:
    return str(round(moment.timestamp() * 1000))
