"""The options of a batch read of a time range."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from millpond.spark import Source
from millpond.spark.pipelines.kinds.ranges import range_options
from support.spark_kinds import at


def test_a_range_has_topics_or_a_pattern_and_times() -> None:
    def message(source: Source, *times: Any) -> dict[str, str]:
        context: Any = SimpleNamespace(pipeline=SimpleNamespace(source=source))
        return range_options(context, *times)

    assert message(Source(topic=["a", "b"]), None, None) == {"subscribe": "a,b"}
    assert message(Source(pattern="a.*"), at(0), at(1.5)) == {
        "subscribePattern": "a.*",
        "startingTimestamp": "1769860800000",
        "startingOffsetsByTimestampStrategy": "latest",
        "endingTimestamp": "1769860801500",
    }
