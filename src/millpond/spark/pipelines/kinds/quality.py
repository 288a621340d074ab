"""quality: writes rows that satisfy all rules to a table or a topic; rows that break one are counted and go to the
dead letters with the names of the broken rules, where `millpond dlq` finds them.

A rule is a SQL condition that must be true; null is not true. A record that did not parse (bad_records = "null")
breaks the rule `parses`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millpond.spark.options import BAD_ENDING
from millpond.spark.pipelines.context import JobContext
from millpond.spark.pipelines.kind import ColumnUse, Kind
from millpond.spark.pipelines.kinds.columns import (
    FAULT,
    HEADER_TYPE,
    HEADERS,
    KEY,
    TOPIC,
    VALUE,
    need_columns,
    value_bytes,
)
from millpond.spark.pipelines.kinds.flows import (
    TOPICS,
    Flow,
    Sink,
    To,
    expression_uses,
    name_uses,
    topic_options,
    write_batch,
    writer,
)
from millpond.spark.pipelines.kinds.letters import NEEDED, letter_headers
from millpond.spark.pipelines.plan import Plan
from millpond.spark.pipelines.values import NAME, TEXTS, DeclarationError, one_of, table_of, value
from millpond.spark.sql.columns import Columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PARSES: Final = "parses"
ERROR_TYPE: Final = "millpond.quality"
BROKEN: Final = "_broken"
_RULE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Quality(Flow):
    """Checks rows, and sends bad ones to the dead letters."""

    kind = "quality"

    rules: dict[str, str] = value('What must be true, in SQL by name, as { positive = "total > 0" }.', TEXTS)
    to: To | None = value("The target of good rows; by default they are not written.", table_of(To), None)
    dead_letters: str = value('The topic for bad rows; "<topic>.bad.dlq" if not given.', NAME, "")
    delivery: str = value(
        "The delivery guarantee for good and bad records.", one_of("exactly_once", "at_least_once"), "exactly_once"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rules:
            raise DeclarationError('rules is empty: write what must be true, as { positive = "total > 0" }')
        for name in self.rules:
            if name == PARSES:
                raise DeclarationError(f"rules.{name}: this name is taken")
            if not _RULE.fullmatch(name):
                raise DeclarationError(f"rules.{name}: a rule's name is made of letters, digits and '_'")
        if self.to is not None and self.to.topic and self.to.delivery != self.delivery:
            raise DeclarationError(
                "delivery: good rows and dead letters are written together; give the same value here and in `to`"
            )

    @property
    def splits(self) -> bool:
        """Whether good and bad rows have different sinks, so that a batch is written twice."""
        return self.to is not None and bool(self.to.table)

    def shape(self, frame: DataFrame) -> DataFrame:
        """Records for the topic sink, good and bad in one stream; or, if `splits`, rows with `_broken`."""
        rows = check_rows(frame, self)
        return rows if self.splits else route(rows, self)

    def sink(self, cluster: Mapping[str, str]) -> Sink:
        """The sink of all rows if they go to topics, otherwise that of the good ones."""
        if self.to is not None and self.to.table:
            return self.to.sink(cluster)
        further = self.to.options if self.to is not None else {}
        return Sink(TOPICS, topic_options(cluster, "", self.delivery) | further)


def check_rows(frame: DataFrame, job: Quality) -> DataFrame:
    """The rows with the names of the rules that each breaks, counted by rule."""
    from pyspark.sql import functions as f

    rules = {name: ~f.coalesce(f.expr(sql), f.lit(False)) for name, sql in job.rules.items()}
    if FAULT in frame.columns:
        # A value that did not parse has no columns for other rules.
        parses = f.col(FAULT).isNull()
        rules = {PARSES: ~parses} | {name: parses & broken for name, broken in rules.items()}
    names = f.array(*[f.when(broken, f.lit(name)) for name, broken in rules.items()])
    rows = frame.withColumn(BROKEN, f.array_compact(names))
    is_bad = f.size(BROKEN) > 0
    return rows.observe(
        "quality",
        f.count_if(is_bad).alias("bad"),
        f.count_if(~is_bad).alias("rows_out" if job.to is not None else "good"),
        *[f.count_if(f.array_contains(BROKEN, name)).alias(f"breaks_{name}") for name in rules],
    )


def good_rows(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return rows.where(f.size(BROKEN) == 0).drop(BROKEN, VALUE, FAULT)


def bad_records(rows: DataFrame, job: Quality) -> DataFrame:
    """The bad rows as dead letters for the topic sink."""
    from pyspark.sql import functions as f

    return route(rows.where(f.size(BROKEN) > 0), job)


def route(rows: DataFrame, job: Quality) -> DataFrame:
    """Every row as a record with its target topic: good ones unchanged, bad ones as dead letters. Without a topic for
    good rows, only the bad ones."""
    from pyspark.sql import functions as f

    need_columns(rows, NEEDED, "[quality] keep them in the transforms (select *, …)")
    is_bad = f.size(BROKEN) > 0
    to = job.to.topic if job.to is not None else ""
    kept = rows if to else rows.where(is_bad)
    dead = f.lit(job.dead_letters) if job.dead_letters else f.concat(f.col(TOPIC), f.lit(BAD_ENDING))
    own_headers = f.col(HEADERS) if HEADERS in rows.columns else f.lit(None)
    letter = letter_headers(rows, ERROR_TYPE, _reason(rows), job.name)
    return kept.select(
        f.when(is_bad, dead).otherwise(f.lit(to or None)).alias("topic"),
        _key(rows, job, is_bad).alias("key"),
        value_bytes(rows.drop(BROKEN)).alias("value"),
        f.when(is_bad, letter).otherwise(own_headers.cast(HEADER_TYPE)).alias("headers"),
    )


def _key(rows: DataFrame, job: Quality, is_bad: Column) -> Column:
    from pyspark.sql import functions as f

    own = f.col(KEY) if KEY in rows.columns else f.lit(None).cast("binary")
    if job.to is None or not job.to.key:
        return own
    return f.when(is_bad, own).otherwise(job.to.key_column([]))


def _reason(rows: DataFrame) -> Column:
    from pyspark.sql import functions as f

    reason = f.concat(f.lit("breaks "), f.array_join(BROKEN, ", "))
    return f.coalesce(f.col(FAULT), reason) if FAULT in rows.columns else reason


def plan(context: JobContext, job: Quality) -> Plan:
    rows = job.shape(job.source(context))
    good = job.sink(context.cluster())
    if not job.splits:
        return context.plan(writer(rows, good))
    # Fail now instead of in the first batch.
    assert bad_records(rows, job).columns is not None
    bad = Sink(TOPICS, topic_options(context.cluster(), "", job.delivery))

    def write(batch: DataFrame, number: int) -> None:
        # Cached, because it is written twice: rows must be counted once.
        held = batch.persist()
        try:
            write_batch(bad_records(held, job), number, bad)
            write_batch(good_rows(held), number, good)
        finally:
            held.unpersist()

    return context.plan(rows.writeStream.foreachBatch(write))


def column_uses(job: Quality, columns: Columns) -> Iterator[ColumnUse]:
    yield from expression_uses("rules", job.rules, columns)
    yield from name_uses("dead_letters (keep it in the transforms, as by select *)", NEEDED, columns)
    if job.to is not None:
        yield from job.to.column_uses(columns)


KIND = Kind(
    name="quality",
    doc="Rows that keep the rules go on, others are counted and go to the dead letters.",
    job=Quality,
    plan=plan,
    column_uses=column_uses,
    dead_letters=lambda job: job.dead_letters,
    outputs=lambda job: job.to.outputs() if job.to is not None else {},
    example="""\
[quality]
rules = { positive = "total > 0", known_region = "region in ('eu', 'us')" }
to = { topic = "orders.checked" }
""",
)
