"""Start and end of a read from its options, and offsets in Spark's JSON: `{"orders":{"0":23}}`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from millpond.base.ids import TopicPartition
from millpond.spark.options import (
    ENDING_OFFSETS,
    ENDING_OFFSETS_BY_TIMESTAMP,
    ENDING_TIMESTAMP,
    STARTING_OFFSETS,
    STARTING_OFFSETS_BY_TIMESTAMP,
    STARTING_OFFSETS_BY_TIMESTAMP_STRATEGY,
    STARTING_TIMESTAMP,
    Option,
    OptionError,
    Options,
)

LATEST: Final = -1
EARLIEST: Final = -2
OFFSET_MAX: Final = (1 << 63) - 1

Offsets: TypeAlias = dict[TopicPartition, int]
_Edge: TypeAlias = Literal["earliest", "latest"]
_NoMatch: TypeAlias = Literal["error", "latest"]


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge of every partition."""

    at: _Edge


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition; LATEST and EARLIEST are the edges."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first record at or after a time: one for all partitions, or one for each."""

    times_ms: int | Mapping[TopicPartition, int]
    no_match: _NoMatch


Bound: TypeAlias = Edge | AtOffsets | AtTimes


def starting(options: Options) -> Bound:
    """Where the read starts. OptionError for what a batch does not support."""
    strategy: _NoMatch = "latest" if options[STARTING_OFFSETS_BY_TIMESTAMP_STRATEGY] == "latest" else "error"
    default: _Edge = "latest" if options.is_streaming else "earliest"
    bound = _bound(options, STARTING_TIMESTAMP, STARTING_OFFSETS_BY_TIMESTAMP, STARTING_OFFSETS, default, strategy)
    if not options.is_streaming:
        _refuse_edge(STARTING_OFFSETS.name, bound, "latest", LATEST)
    return bound


def ending(options: Options) -> Bound:
    """Where a batch ends."""
    bound = _bound(options, ENDING_TIMESTAMP, ENDING_OFFSETS_BY_TIMESTAMP, ENDING_OFFSETS, "latest", "latest")
    _refuse_edge(ENDING_OFFSETS.name, bound, "earliest", EARLIEST)
    return bound


def check_order(start: Bound, end: Bound) -> None:
    """OptionError if the options alone show a start after its end."""
    match start, end:
        case AtOffsets(first), AtOffsets(last):
            _check_pairs("offset", first, last)
        case AtTimes(int(first), _), AtTimes(int(last), _):
            if first > last:
                raise OptionError(f"startingTimestamp {first} is after endingTimestamp {last}")
        case AtTimes(Mapping() as first, _), AtTimes(Mapping() as last, _):
            _check_pairs("timestamp", first, last)


def moves_with_time(bound: Bound) -> bool:
    """Whether the same spec can resolve differently later although nothing was deleted."""
    match bound:
        case Edge(at):
            return at == "latest"
        case AtOffsets(offsets):
            return LATEST in offsets.values()
        case AtTimes(_, no_match):
            return no_match == "latest"


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """The offsets as sorted JSON: Spark compares the text."""
    written: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        written.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return written


def from_json(by_topic: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Offsets from a checkpoint."""
    try:
        return _read(by_topic, 0)
    except (ValueError, AttributeError, TypeError):
        raise OptionError(
            f"these are not offsets of topics: {by_topic!r}; is the checkpoint another source's?"
        ) from None


def _bound(
    options: Options,
    timestamp: Option[int],
    by_timestamp: Option[str],
    offsets: Option[str],
    default: _Edge,
    no_match: _NoMatch,
) -> Bound:
    moment = options.get(timestamp)
    if moment is not None:
        return AtTimes(moment, no_match)
    moments = options.get(by_timestamp)
    if moments is not None:
        return AtTimes(_parsed(by_timestamp.name, moments, 0), no_match)
    text = options.get(offsets)
    match text.lower() if text else default:
        case "earliest":
            return Edge("earliest")
        case "latest":
            return Edge("latest")
    return AtOffsets(_parsed(offsets.name, text or "", EARLIEST))


def _parsed(option: str, text: str, least: int) -> Offsets:
    try:
        return _read(json.loads(text), least)
    except (ValueError, AttributeError, TypeError):
        edges = "earliest, latest or " if least == EARLIEST else ""
        example = '{"orders":{"0":23,"1":-2}}' if least == EARLIEST else '{"orders":{"0":1700000000000}}'
        raise OptionError(f"option {option} is {edges}{example}, not {text!r}") from None


def _read(by_topic: Mapping[str, Mapping[str, int]], least: int) -> Offsets:
    offsets: Offsets = {}
    for topic, by_partition in by_topic.items():
        for partition, offset in by_partition.items():
            if type(offset) is not int or not least <= offset <= OFFSET_MAX:
                raise ValueError("no offset")
            if not partition.isdecimal():
                raise ValueError("no partition")
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def _refuse_edge(option: str, bound: Bound, edge: str, number: int) -> None:
    match bound:
        case Edge(at) if at == edge:
            raise OptionError(f"option {option} of a batch cannot be {edge}: there would be nothing to read")
        case AtOffsets(offsets) if number in offsets.values():
            partition = next(partition for partition, offset in offsets.items() if offset == number)
            raise OptionError(
                f"option {option} of a batch cannot be {edge} ({number}) for {partition}: there "
                "would be nothing to read"
            )


def _check_pairs(what: str, first: Mapping[TopicPartition, int], last: Mapping[TopicPartition, int]) -> None:
    if first.keys() != last.keys():
        odd = ", ".join(f"{partition}" for partition in sorted(first.keys() ^ last.keys()))
        raise OptionError(f"starting and ending {what}s name different partitions: {odd}")
    for partition, begin in first.items():
        if 0 <= last[partition] < begin:
            raise OptionError(
                f"the starting {what} {begin} of {partition} is after the ending {what} {last[partition]}"
            )
