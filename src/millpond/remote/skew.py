"""How balanced a topic is, why, and what would help. Pure: numbers in, words out.

Predictions are not estimates: the keys seen are hashed again, as clients do it, for every partition count and key
considered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from millpond.base.named_tuple import NamedTuple
from millpond.wire.partitioner import partition_for_key

Cause: TypeAlias = Literal["balanced", "hot_key", "few_keys", "other_partitioner", "unlucky_hash", "empty"]

Cells: TypeAlias = Sequence[str | int]

FOLLOWED_LEAST: Final = 0.95
"""A partitioner that explains fewer of the records than this is not the one in use."""

FEW_KEYS: Final = 3
"""With fewer keys per partition than this, chance decides."""

SALTS: Final = (2, 4, 8, 16, 32, 64)
AS_IT_IS: Final = "as it is"


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    partition: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class HotKey:
    key: bytes
    partition: int
    records: int
    bytes: int

    @property
    def text(self) -> str:
        return self.key.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Prediction:
    """The load with this key and partition count."""

    key: str
    partitions: int
    loads: tuple[int, ...]
    """Bytes by partition."""

    @property
    def imbalance(self) -> float:
        return imbalance(self.loads)


class Table(NamedTuple):
    """For display: the first `words` columns are text, the others numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Cells]
    words: int = 1


@dataclass(frozen=True)
class Report:
    """The balance of one topic."""

    topic: str
    loads: tuple[PartitionLoad, ...]
    """Of every partition, including empty ones."""
    keys: int = 0
    """The number of distinct keys."""
    keyless: int = 0
    """The number of records without a key."""
    hottest: tuple[HotKey, ...] = ()
    followed: Mapping[str, float] = field(default_factory=dict)
    """By partitioner, the share of keyed records that are where it would have put them."""
    predictions: tuple[Prediction, ...] = ()
    cause: Cause = "empty"
    advice: str = ""

    @property
    def records(self) -> int:
        return sum(each.records for each in self.loads)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.loads)

    @property
    def imbalance(self) -> float:
        """The busiest partition relative to the average, by bytes: 1 is even."""
        return imbalance([each.bytes for each in self.loads])

    def share(self, hot: HotKey) -> float:
        return hot.bytes / self.bytes if self.bytes else 0.0

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        report = asdict(self) | {"records": self.records, "bytes": self.bytes, "imbalance": round(self.imbalance, 4)}
        report["hottest"] = [
            asdict(each) | {"key": each.text, "key_hex": each.key.hex(), "share": round(self.share(each), 4)}
            for each in self.hottest
        ]
        report["predictions"] = [asdict(each) | {"imbalance": round(each.imbalance, 4)} for each in self.predictions]
        return report

    @classmethod
    def from_object(cls, report: Mapping[str, Any]) -> Report:
        """The inverse of `as_object`."""
        hottest = [
            HotKey(bytes.fromhex(each["key_hex"]), each["partition"], each["records"], each["bytes"])
            for each in report["hottest"]
        ]
        return cls(
            topic=report["topic"],
            loads=tuple(PartitionLoad(**each) for each in report["loads"]),
            keys=report["keys"],
            keyless=report["keyless"],
            hottest=tuple(hottest),
            followed=report["followed"],
            predictions=tuple(
                Prediction(each["key"], each["partitions"], tuple(each["loads"])) for each in report["predictions"]
            ),
            cause=report["cause"],
            advice=report["advice"],
        )

    def tables(self) -> list[Table]:
        loads: list[Cells] = [
            [str(each.partition), each.records, each.bytes, _percent(each.bytes, self.bytes)] for each in self.loads
        ]
        hottest: list[Cells] = [
            [each.text, str(each.partition), each.records, each.bytes, _percent(each.bytes, self.bytes)]
            for each in self.hottest
        ]
        predictions: list[Cells] = [
            [each.key, each.partitions, f"{each.imbalance:.2f}", _percent(max(each.loads), sum(each.loads))]
            for each in self.predictions
            if each.loads
        ]
        return [
            Table(f"Partitions of {self.topic}", ("PARTITION", "RECORDS", "BYTES", "SHARE"), loads),
            Table("Hottest keys", ("KEY", "PARTITION", "RECORDS", "BYTES", "SHARE"), hottest),
            Table("Predicted", ("KEY", "PARTITIONS", "IMBALANCE", "BUSIEST"), predictions),
        ]


def imbalance(loads: Sequence[int]) -> float:
    whole = sum(loads)
    return max(loads) * len(loads) / whole if whole else 1.0


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def judged(report: Report, balance: float) -> Report:
    """The report with the cause of its imbalance, what would help, and the salts tried for hot keys."""
    if not report.bytes:
        return replace(report, cause="empty", advice="There are no records in the range.")
    salted = tuple(_salted(report)) if _is_too_hot(report, balance) else ()
    report = replace(report, predictions=(*report.predictions, *salted))
    cause = _cause(report, balance)
    return replace(report, cause=cause, advice=_advice(report, cause, balance))


def _is_too_hot(report: Report, balance: float) -> bool:
    """Whether one key alone exceeds a partition's share: no partition count can divide it."""
    return bool(report.hottest) and report.share(report.hottest[0]) * len(report.loads) > balance


def _cause(report: Report, balance: float) -> Cause:
    if report.imbalance <= balance:
        return "balanced"
    if _is_too_hot(report, balance):
        return "hot_key"
    if report.keys and max(report.followed.values(), default=1.0) < FOLLOWED_LEAST:
        return "other_partitioner"
    if report.keys and report.keys < FEW_KEYS * len(report.loads):
        return "few_keys"
    return "unlucky_hash" if report.keys else "other_partitioner"


def _salted(report: Report) -> Iterable[Prediction]:
    """The present key, with each hot key split into several: `key-0`, `key-1`, …"""
    now = next((each for each in report.predictions if each.partitions == len(report.loads)), None)
    if now is None:
        return
    fair = report.bytes / len(report.loads)
    hot = [each for each in report.hottest if each.bytes > fair / 2]
    for salt in SALTS:
        loads = list(now.loads)
        for each in hot:
            loads[partition_for_key(each.key, len(loads))] -= each.bytes
            for part in range(salt):
                loads[partition_for_key(each.key + b"-%d" % part, len(loads))] += each.bytes // salt
        yield Prediction(f"hot keys in {salt} parts", len(loads), tuple(loads))


def best(predictions: Iterable[Prediction], balance: float) -> Prediction | None:
    """The first that is balanced, in the given order of least change; else the most even."""
    loaded = [each for each in predictions if sum(each.loads)]
    fine = next((each for each in loaded if each.imbalance <= balance), None)
    return fine or min(loaded, key=lambda each: each.imbalance, default=None)


def _advice(report: Report, cause: Cause, balance: float) -> str:
    now = f"The busiest partition has {report.imbalance:.2f} times the average"
    others = [each for each in report.predictions if (each.key, each.partitions) != (AS_IT_IS, len(report.loads))]
    # Partitions can be added, never removed.
    helps = best([each for each in others if each.partitions >= len(report.loads)], balance)
    better = helps if helps is not None and helps.imbalance < report.imbalance * 0.95 else None
    what = _spoken(better, report) if better is not None else "None of the keys and counts that were tried is better."
    match cause:
        case "balanced":
            return f"{now}: that is even enough."
        case "hot_key":
            hot = report.hottest[0]
            share = f"{report.share(hot):.1%}"
            return f"{now}. The key {hot.text!r} alone has {share}, which no partition count can divide. {what}"
        case "few_keys":
            return f"{now}. There are only {report.keys} keys for {len(report.loads)} partitions. {what}"
        case "other_partitioner":
            return (
                f"{now}. The records are not where murmur2, the default of Java clients and ours, puts their keys: "
                "the producers choose partitions by themselves or by another hash, or the count has changed. What is "
                "predicted holds when they use murmur2."
            )
        case _:
            return f"{now}. No key is too hot; the keys fall unevenly on {len(report.loads)} partitions. {what}"


def _spoken(prediction: Prediction, report: Report) -> str:
    change = []
    if prediction.key != AS_IT_IS:
        change.append(
            "the key " + repr(prediction.key) if not prediction.key.startswith("hot keys") else prediction.key
        )
    if prediction.partitions != len(report.loads):
        change.append(f"{prediction.partitions} partitions")
    return f"With {' and '.join(change)} it would be {prediction.imbalance:.2f}."
