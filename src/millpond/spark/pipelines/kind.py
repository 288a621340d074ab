"""The interface between the runner and the kinds of jobs.

A kind is one file in `kinds/`. It holds a frozen dataclass (a `Job`, whose fields are the keys of its table in TOML)
and ends in one value, `KIND = Kind(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from millpond.spark.pipelines.plan import Plan
from millpond.spark.pipelines.tables import Declaration, Job
from millpond.spark.sql.columns import Columns

if TYPE_CHECKING:
    from millpond.remote.skew import Report
    from millpond.spark.pipelines.context import JobContext


class ColumnUse(NamedTuple):
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
    plan: Callable[[JobContext, J], Plan]
    """Have Spark analyze the job without starting it."""
    column_uses: Callable[[J, Columns], Iterable[ColumnUse]] | None = None
    """The SQL in the job's table, given its input columns: for a review without Spark."""
    dead_letters: Callable[[J], str] | None = None
    """The topic that the job sends bad records to, or "" for `<topic>.bad.dlq`, so that its growth can be watched."""
    example: str = ""
    """The lines of a small table in TOML, for `millpond pipeline init` and the docs."""
    outputs: Callable[[J], Mapping[str, str]] | None = None
    """What it writes, for people: {"table": "…"} or {"topic": "…"}."""
    findings: Callable[[Declaration, J], Sequence[Report]] | None = None
    """The findings of a read-only job, shown after a run."""
