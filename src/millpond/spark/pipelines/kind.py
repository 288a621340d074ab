"""The seam between the runner and the kinds of jobs: what a kind is, and what its jobs are given to start.

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
    """What the runner watches. Spark's StreamingQuery is one; so is work in the background."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802

    @property
    def lastProgress(self) -> Any: ...  # noqa: N802

    def exception(self) -> Any: ...

    def stop(self) -> None: ...


Plan: TypeAlias = Callable[[], Query]
"""A job whose columns and SQL Spark has accepted: calling it starts the job. None starts before all have planned."""


class Report(Protocol):
    """How work in the background tells how it goes, and hears that it should end."""

    def rows(self, count: int) -> None:
        """So many more rows are through."""

    @property
    def is_stopping(self) -> bool:
        """True once somebody wants it to end: finish what must be whole, then return."""


class Context(Protocol):
    """What a job is given to plan with. Made by the runner; a test may make its own."""

    @property
    def spark(self) -> SparkSession: ...

    @property
    def pipeline(self) -> Declaration: ...

    @property
    def checkpoint(self) -> str:
        """Where this job's own checkpoint belongs. `start` sets it; other state of the job belongs beside it."""

    @property
    def is_once(self) -> bool:
        """True when the run takes what is there now and then ends."""

    def frame(self) -> DataFrame:
        """The stream of the job's input: parsed, transformed."""

    def parsed(self) -> DataFrame:
        """The stream before any transform: the parsed columns and _value (of raw records only `value`), then _key,
        _topic, _partition, _offset, _timestamp and _headers; and _fault with bad_records = "null"."""

    def raw(self, **options: str) -> DataFrame:
        """The stream as the source gives it (key, value, topic, partition, offset, timestamp, timestampType), with
        these options beside the declared ones. Nothing is parsed."""

    def cluster(self) -> dict[str, str]:
        """The `kafka.*` options of the source's cluster: for a sink, or another source, on the same one."""

    def plan(self, writer: DataStreamWriter, part: str = "") -> Plan:
        """A streaming query with the job's name, checkpoint and trigger. A job of several queries gives each a part's
        name, and hands back a Query that stands for all."""

    def in_background(self, work: Callable[[Report], None]) -> Plan:
        """Work that is no streaming query, in a thread of its own; the runner watches it like one."""

    def tell(self, name: str, figure: int | float | str) -> None:
        """A figure of this job for the live table, the status and the metrics (numbers only). From any thread."""


class Findings(Protocol):
    """What a job found out, for people: tables, and what to do about it."""

    @property
    def advice(self) -> str: ...

    def tables(self) -> Sequence[tuple[str, Sequence[str], Sequence[Sequence[str | int]], int]]:
        """Of each the title, the columns, the rows, and how many columns hold words."""


class Asked(NamedTuple):
    """What a job asks of its rows: an expression in SQL, or the plain name of a column."""

    key: str
    sql: str
    columns: Columns
    """Those that it may use."""
    is_name: bool = False


J = TypeVar("J", bound=Job)


@dataclass(frozen=True)
class Kind(Generic[J]):
    """One kind of job.

    Rows that a query counts by `DataFrame.observe` are added up over the batches by the runner: an observed number
    called `bad` is shown as bad records, `rows_out` as rows out, others under their own names.
    """

    name: str
    """Its table in TOML."""
    doc: str
    """One line for the overview."""
    job: type[J]
    plan: Callable[[Context, J], Plan]
    """Have Spark look at all of the job, without starting it."""
    asks: Callable[[J, Columns], Iterable[Asked]] | None = None
    """The SQL in the job's table, given the columns of its input: for a look without Spark."""
    dead_letters: Callable[[J], str] | None = None
    """The topic that the job sends bad records to, or "" for `<topic>.bad.dlq`, so that its growth can be watched."""
    example: str = ""
    """The lines of a small table in TOML, for `millpond pipeline init` and the docs."""
    outputs: Callable[[J], Mapping[str, str]] | None = None
    """What it writes, for people: {"table": "…"} or {"topic": "…"}."""
    findings: Callable[[Declaration, J], Sequence[Findings]] | None = None
    """What a job that looks rather than writes has found, told after a run."""
