"""One query over topics, files and tables about the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa

from millpond.admin.errors import unknown_topic
from millpond.analysis.layout import Bad
from millpond.analysis.parallel import THREADS_MAX
from millpond.analysis.ranges import Bound, find_ranges
from millpond.analysis.sql import system_tables
from millpond.analysis.sql.dataset import Scan, Scans, TopicDataset
from millpond.analysis.values import ValueForm, find_form, guessed_form, is_text
from millpond.base.resource import Closable
from millpond.columns.sample import sample_pairs
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClientError, needs
from millpond.remote.offsets import Isolation

ROWS_PER_BATCH: Final = 10_000
_CONFIG: Final = {"autoinstall_known_extensions": "false"}
"""A query does not download code."""


class QueryFailed(ClientError):
    """A query that cannot be run as it is."""


class QueryCancelled(QueryFailed):
    """`interrupt` was called, or Ctrl-C pressed while DuckDB worked."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How topics become tables."""

    start: Bound = None
    end: Bound = None
    values: Mapping[str, str] = field(default_factory=dict)
    """By topic: bytes, text, json, or a schema; others are found by a sample."""
    keys: Literal["text", "bytes"] | None = None
    """None: as a sample has them."""
    bad: Bad = "fail"
    isolation: Isolation = "read_committed"
    threads: int = THREADS_MAX


class Session(Closable):
    """A database in memory whose tables are the topics that its query names."""

    def __init__(self, settings: Mapping[str, str], options: TableOptions = TableOptions()) -> None:
        try:
            import duckdb
        except ImportError:
            raise needs("duckdb", "sql") from None
        self._duckdb: Any = duckdb
        self._settings = dict(settings)
        self._options = options
        self._scans = Scans(self._settings, options.isolation, options.threads)
        self._tables: dict[str, TopicDataset] = {}
        """Those of the present query."""
        self._forms: dict[str, tuple[ValueForm, bool]] = {}
        self._database: Any = self._duckdb.connect(config=_CONFIG)
        self._database.execute("SET python_enable_replacements = false")

    def close(self) -> None:
        # Its threads may still be at work on a query of which nobody wants the rest, and closing waits for them.
        self._database.interrupt()
        self._database.close()

    @property
    def scans(self) -> Sequence[Scan]:
        """What the last query has read so far."""
        return self._scans.done

    def interrupt(self) -> None:
        """End a running query, from another thread."""
        self._database.interrupt()

    def run(self, query: str) -> pa.RecordBatchReader:
        """The rows of a query. An error is raised here, or while the rows are read."""
        with self._errors():
            self._register(query)
        self._scans.done.clear()
        with self._errors():
            result = self._database.execute(query)
            reader = result.to_arrow_reader(ROWS_PER_BATCH)
        return pa.RecordBatchReader.from_batches(reader.schema, self._batches(reader))

    def explain(self, query: str) -> tuple[list[Scan], str]:
        """What the query would read, and DuckDB's plan. No record is read, except for samples.

        A scan whose bounds depend on the rows of another table is not known; then its whole table is listed.
        """
        with self._errors():
            self._register(query)
            statements = self._database.extract_statements(query)
            if len(statements) != 1 or statements[0].type != self._duckdb.StatementType.SELECT:
                raise QueryFailed("only a single SELECT can be explained")
            plan = self._database.execute(f"EXPLAIN {query}").fetchall()
            self._scans.done.clear()
            self._scans.is_dry = True
            try:
                self._database.execute(query).fetchall()
            finally:
                self._scans.is_dry = False
        scanned = {each.topic for each in self._scans.done}
        for topic, table in self._tables.items():
            if topic not in scanned:
                self._scans.done.append(table.whole())
        return list(self._scans.done), "\n".join(text for _, text in plan)

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        with self._errors():
            yield from reader

    def _register(self, query: str) -> None:
        """Make tables of the topics that the query names. Other names are left to DuckDB: files, its own tables."""
        for topic in self._tables:
            self._database.unregister(topic)
        self._tables = {}
        named = self._named_tables(query)
        with Cluster(self._settings) as cluster:
            for schema, name in sorted(named):
                if schema == system_tables.SCHEMA:
                    self._register_system_table(cluster, name)
            plain = {name for schema, name in named if not schema}
            if plain:
                topics = sorted(plain & cluster.topics().keys())
                self._tables = {topic: self._table(cluster, topic) for topic in topics}
        for topic, table in self._tables.items():
            self._database.register(topic, table)

    def _named_tables(self, query: str) -> set[tuple[str, str]]:
        """The (schema, table) pairs that the query names."""
        ((text,),) = self._database.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
        tree = json.loads(text)
        if tree["error"]:
            # Not a SELECT, or a mistake, which is raised here. This way binds names to columns that it does not know.
            return {("", each) for each in self._database.get_table_names(query)}
        return set(_tables_in(tree))

    def _table(self, cluster: Cluster, topic: str) -> TopicDataset:
        options = self._options
        ranges = find_ranges(cluster, [topic], start=options.start, end=options.end, isolation=options.isolation)
        form, key_is_text = self._form(cluster, topic)
        return TopicDataset(topic, form, ranges, self._scans, key_is_text=key_is_text, bad=options.bad)

    def _form(self, cluster: Cluster, topic: str) -> tuple[ValueForm, bool]:
        """How values are read, and whether keys are text. It is found once; the ends of a topic for every query."""
        known = self._forms.get(topic)
        if known is not None:
            return known
        isolation = self._options.isolation
        pairs = sample_pairs(cluster, topic, isolation)
        given = self._options.values.get(topic)
        if given is None:
            form = guessed_form(value for _, value in pairs)
        else:
            form = find_form(cluster, [topic], given, None, isolation)
        keys = self._options.keys
        found = form, keys == "text" if keys is not None else all(is_text(key) for key, _ in pairs)
        if pairs:
            self._forms[topic] = found
        return found

    def _register_system_table(self, cluster: Cluster, name: str) -> None:
        rows = system_tables.system_table(cluster, name)
        if rows is None:
            raise QueryFailed(
                f"there is no table {system_tables.SCHEMA}.{name}; there are {', '.join(system_tables.names())}"
            )
        self._database.register("_rows", rows)
        self._database.execute(f"CREATE SCHEMA IF NOT EXISTS {system_tables.SCHEMA}")
        self._database.execute(f"CREATE OR REPLACE TABLE {system_tables.SCHEMA}.{name} AS SELECT * FROM _rows")
        self._database.unregister("_rows")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """DuckDB's errors as ours; an error of a read is raised as itself."""
        self._scans.fault = None
        try:
            yield
        except (self._duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            fault = self._scans.fault
            if fault is not None:
                raise fault from None
            if isinstance(error, self._duckdb.InterruptException) or "interrupted" in str(error).lower():
                raise QueryCancelled("the query was cancelled") from None
            raise QueryFailed(self._explained(str(error))) from error

    def _explained(self, text: str) -> str:
        lines = [each for each in text.strip().splitlines() if each.strip()]
        first = lines[0]
        name = _missing_table(first)
        if name is not None:
            with Cluster(self._settings) as cluster:
                return (
                    f"{unknown_topic(name, cluster.topics(), to_create=False)} A file is named in quotes "
                    "('orders.parquet'), a topic with other signs in double quotes"
                )
        hint = next((each for each in lines[1:] if each.startswith(("Did you mean", "Candidate bindings"))), "")
        return f"{first} {hint}".strip()


def _tables_in(node: Any) -> Iterator[tuple[str, str]]:
    """The tables in DuckDB's syntax tree."""
    if isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            yield str(node.get("schema_name", "")), str(node["table_name"])
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from _tables_in(each)


def _missing_table(text: str) -> str | None:
    before, found, rest = text.partition("Table with name ")
    name, does_not, _ = rest.partition(" does not exist")
    return name if found and does_not and "Error" in before else None
