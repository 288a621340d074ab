"""Start and end of a read, from the options."""

from __future__ import annotations

import json

import pytest

from millpond.base.ids import TopicPartition
from millpond.spark.options import OptionError, Where, read_options
from millpond.spark.source.offset_spec import (
    AtOffsets,
    AtTimes,
    Bound,
    Edge,
    check_order,
    ending,
    from_json,
    moves_with_time,
    starting,
    to_json,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def start_of(where: Where, **given: str) -> Bound:
    return starting(read_options(given, where))


def end_of(**given: str) -> Bound:
    return ending(read_options(given, "read"))


def test_streams_start_at_the_end_and_batches_at_the_beginning() -> None:
    assert start_of("readStream") == Edge("latest")
    assert start_of("read") == Edge("earliest")
    assert end_of() == Edge("latest")


def test_every_form_of_a_bound() -> None:
    assert start_of("readStream", startingOffsets="Earliest") == Edge("earliest")
    assert start_of("readStream", startingOffsets='{"a":{"0":23,"1":-1},"b":{"0":-2}}') == AtOffsets(
        {A0: 23, A1: -1, B0: -2}
    )
    assert start_of("read", startingTimestamp="1700") == AtTimes(1700, "error")
    assert start_of(
        "read", startingOffsetsByTimestamp='{"a":{"0":5}}', startingOffsetsByTimestampStrategy="LATEST"
    ) == AtTimes({A0: 5}, "latest")
    assert end_of(endingTimestamp="9") == AtTimes(9, "latest")
    assert end_of(endingOffsetsByTimestamp='{"a":{"0":5}}') == AtTimes({A0: 5}, "latest")
    assert end_of(endingOffsets='{"a":{"0":5,"1":-1}}') == AtOffsets({A0: 5, A1: -1})


def test_one_time_overrides_times_per_partition_and_both_override_offsets() -> None:
    given = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"a":{"0":5}}'}
    assert start_of("read", **given) == AtTimes({A0: 5}, "error")
    assert start_of("read", **given, startingTimestamp="9") == AtTimes(9, "error")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets of a batch cannot be latest"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, r"cannot be latest \(-1\) for a\[0\]"),
        ({"startingOffsets": "first"}, "startingOffsets is earliest, latest or"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "startingOffsets is"),
        ({"startingOffsets": '{"a":{"0":"1"}}'}, "startingOffsets is"),
        ({"startingOffsets": '{"a":{"0":true}}'}, "startingOffsets is"),
        ({"startingOffsets": '{"a":{"zero":1}}'}, "startingOffsets is"),
        ({"startingOffsets": '{"a":{"0":9223372036854775808}}'}, "startingOffsets is"),
        ({"startingOffsets": '{"a":5}'}, "startingOffsets is"),
        ({"startingOffsetsByTimestamp": '{"a":{"0":-1}}'}, "startingOffsetsByTimestamp is {"),
    ],
)
def test_invalid_starts_of_a_batch_are_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        start_of("read", **given)


@pytest.mark.parametrize("given", ["earliest", '{"a":{"0":-2}}'])
def test_a_batch_cannot_end_at_the_earliest_offset(given: str) -> None:
    with pytest.raises(OptionError, match="endingOffsets of a batch cannot be earliest"):
        end_of(endingOffsets=given)


def test_a_start_after_its_end_is_refused_without_a_cluster() -> None:
    check_order(AtOffsets({A0: 5, A1: -2}), AtOffsets({A0: -1, A1: 5}))
    check_order(Edge("earliest"), AtOffsets({A0: 5}))
    check_order(AtTimes(5, "error"), AtTimes(5, "latest"))
    with pytest.raises(OptionError, match=r"starting offset 6 of a\[0\] is after the ending offset 5"):
        check_order(AtOffsets({A0: 6}), AtOffsets({A0: 5}))
    with pytest.raises(OptionError, match=r"different partitions: a\[1\]"):
        check_order(AtOffsets({A0: 6}), AtOffsets({A0: 7, A1: 7}))
    with pytest.raises(OptionError, match="startingTimestamp 6 is after endingTimestamp 5"):
        check_order(AtTimes(6, "error"), AtTimes(5, "latest"))
    with pytest.raises(OptionError, match="starting timestamp 6"):
        check_order(AtTimes({A0: 6}, "error"), AtTimes({A0: 5}, "latest"))


def test_latest_and_late_times_move_with_time() -> None:
    moving = [Edge("latest"), AtOffsets({A0: 3, A1: -1}), AtTimes(5, "latest")]
    fixed = [Edge("earliest"), AtOffsets({A0: 3, A1: -2}), AtTimes(5, "error")]
    assert [moves_with_time(bound) for bound in moving + fixed] == [True] * 3 + [False] * 3


def test_offsets_have_the_json_of_sparks_kafka_source() -> None:
    offsets = {B0: 3, TopicPartition("a", 10): 1, A1: 2}
    assert json.dumps(to_json(offsets)) == '{"a": {"1": 2, "10": 1}, "b": {"0": 3}}'
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets
    assert from_json({}) == {}


@pytest.mark.parametrize("given", [{"a": 5}, {"a": {"0": -1}}, {"a": {"x": 1}}, {"a": {"0": "1"}}])
def test_other_json_is_reported_as_another_sources_checkpoint(given: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="is the checkpoint another source's"):
        from_json(given)  # type: ignore[arg-type]
