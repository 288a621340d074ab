"""Frames: of a test broker's topics, and in other libraries."""

from __future__ import annotations

from typing import Any

import pytest

from millpond import write_arrow
from millpond.testing import Pond

pandas = pytest.importorskip("pandas")


def test_a_frame_of_a_topic(pond: Pond) -> None:
    topic = pond.new_topic(2)
    pond.produce(topic, '{"a": 2}', '{"a": 3, "b": "x"}', partition=1)
    pond.produce(topic, '{"a": 1}', partition=0)
    frame = pond.frame(topic)
    assert frame["a"].tolist() == [1, 2, 3]
    assert frame["_partition"].tolist() == [0, 1, 1]
    pandas.testing.assert_frame_equal(
        pond.frame(topic, columns=["b"]), pandas.DataFrame({"b": [None, None, "x"]}, dtype="object")
    )
    assert pond.frame(topic, value="text", last=1)["value"].tolist() == ['{"a": 1}', '{"a": 3, "b": "x"}']


def test_a_frame_of_a_secure_broker(make_millpond: Any) -> None:
    secure = make_millpond(secure=True)
    topic = secure.new_topic()
    secure.produce(topic, '{"a": 1}')
    assert secure.frame(topic)["a"].tolist() == [1]


def test_polars_and_duckdb(pond: Pond, read: Any) -> None:
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb", reason="pip install 'millpond[sql]'")
    topic = pond.new_topic()
    frame = polars.DataFrame({"a": [1, 2], "b": [["x"], None]})
    assert write_arrow(topic, frame, bootstrap=pond.bootstrap) == 2
    back = polars.from_arrow(read(topic, value="json", columns=["a", "b"]).read_all())
    assert back.equals(frame)
    assert duckdb.from_arrow(read(topic, value="json")).aggregate("sum(a)").fetchall() == [(3,)]
