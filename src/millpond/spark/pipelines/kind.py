"""The interface between the runner and the kinds of jobs: what a kind is, and the context in which its jobs start.

A kind is one file in `kinds/`. It holds a frozen dataclass (a `Job`, whose fields are the keys of its table in TOML)
and ends in one value, `KIND = Kind(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from millpond.spark.pipelines.tables import Declaration, Job
from millpond.spark.sql.columns import Columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Query(Protocol):
    """What the runner watches: Spark's StreamingQuery, or background work."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802

    @property
    def lastProgress(self) -> Any: ...  # noqa: N802

    def exception(self) -> Any: ...

    def stop(self) -> None: ...


Plan: TypeAlias = Callable[[], Query]
"""Starts a job whose columns and SQL Spark has accepted. No job is started before all are planned."""


class Report(Protocol):
    """Background work reports progress here and checks for a stop request."""

    def rows(self, count: int) -> None:
        """Count finished rows."""

    @property
    def is_stopping(self) -> bool:
        """True once a stop is requested: finish what must be complete, then return."""


class Context(Protocol):
    """The context that a job is planned in. Created by the runner, or by a test."""

    @property
    def spark(self) -> SparkSession: ...

    @property
    def pipeline(self) -> Declaration: ...

    @property
    def checkpoint(self) -> str:
        """The path of this job's checkpoint. `start` sets it; other state of the job belongs beside it."""

    @property
    def is_once(self) -> bool:
        """True if the run processes what is available now and ends."""

    def frame(self) -> DataFrame:
        """The stream of the job's input: parsed, transformed."""

    def parsed(self) -> DataFrame:
        """The stream before any transform: the parsed columns and _value (of raw records only `value`), then _key,
        _topic, _partition, _offset, _timestamp and _headers; and _fault with bad_records = "null"."""

    def raw(self, **options: str) -> DataFrame:
        """The stream as the source returns it (key, value, topic, partition, offset, timestamp, timestampType), with
        these options in addition to the declared ones. Nothing is parsed."""

    def cluster(self) -> dict[str, str]:
        """The `kafka.*` options of the source's cluster, for a sink or another source on the same cluster."""

    def plan(self, writer: DataStreamWriter, part: str = "") -> Plan:
        """Plan a streaming query with the job's name, checkpoint and trigger. A job with several queries names each
        part, and returns one Query for all of them."""

    def in_background(self, work: Callable[[Report], None]) -> Plan:
        """Run work other than a streaming query on a thread; the runner watches it like a query."""

    def tell(self, name: str, figure: int | float | str) -> None:
        """Set a figure of this job for the live table, the status and the metrics (numbers only). Thread-safe."""


class Findings(Protocol):
    """A job's findings for people: tables and advice."""

    @property
    def advice(self) -> str: ...

    def tables(self) -> Sequence[tuple[str, Sequence[str], Sequence[Sequence[str | int]], int]]:
        """Title, columns, rows, and how many columns are text, for each table."""


class Asked(NamedTuple):
    """What a job needs from its rows: a SQL expression or a column name."""

    key: str
    sql: str
    columns: Columns
    """The columns that it may use."""
    is_name: bool = False


J = TypeVar("J", bound=Job)


@dataclass(frozen=True)
class Kind(Generic[J]):
    """One kind of job.

    The runner adds up over all batches what a query counts with `DataFrame.observe`: an observed number named `bad`
    is shown as bad records, `rows_out` as rows out, others under their own names.
    """

    name: str
    """Its table in TOML."""
    doc: str
    """One line for the overview."""
    job: type[J]
    plan: Callable[[Context, J], Plan]
    """Have Spark analyze the job without starting it."""
    asks: Callable[[J, Columns], Iterable[Asked]] | None = None
    """The SQL in the job's table, given its input columns: for a review without Spark."""
    dead_letters: Callable[[J], str] | None = None
    """The topic that the job sends bad records to, or "" for `<topic>.bad.dlq`, so that its growth can be watched."""
    example: str = ""
    """The lines of a small table in TOML, for `millpond pipeline init` and the docs."""
    outputs: Callable[[J], Mapping[str, str]] | None = None
    """What it writes, for people: {"table": "…"} or {"topic": "…"}."""
    findings: Callable[[Declaration, J], Sequence[Findings]] | None = None
    """The findings of a read-only job, shown after a run."""
