"""`millpond sql`: a query over topics, with DuckDB in this process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, Literal

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.options import option, pairs
from millpond.cli.sql.output import FORMATS, write_rows
from millpond.cli.text import counted

if TYPE_CHECKING:
    from types import FrameType

    from millpond.analysis.layout import Bad
    from millpond.analysis.sql.dataset import Scan
    from millpond.analysis.sql.session import Session

ROWS_SHOWN: Final = 200
QUERY_CHARACTERS_MAX: Final = 1 << 20
RANGES_SHOWN_MAX: Final = 20
INTERRUPT_SECONDS: Final = 0.1


@click.command("sql")
@click.argument("query")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Without it table, or by the ending of --output.")
@click.option("-o", "--output", metavar="FILE", help="Write the rows to this file.")
@option("--rows", type=click.IntRange(1), default=ROWS_SHOWN, help="How many rows a table shows.")
@option("--from", "start", meta="POINT", default="beginning", help="Where topics begin, as for `consume`.")
@option("--to", "end", meta="POINT", default="end", help="Where topics end.")
@click.option(
    "--value",
    "values",
    metavar="TOPIC=FORM",
    multiple=True,
    help="bytes, text, json, or a schema (or its file); otherwise as sampled records have it. Repeatable.",
)
@click.option(
    "--keys", type=click.Choice(("text", "bytes")), help="How keys are read; otherwise as sampled ones are."
)
@click.option("--bad", type=click.Choice(("fail", "null")), default="fail", help="Values that do not parse.")
@click.option("--uncommitted", is_flag=True, help="Also the records of open and aborted transactions.")
@click.option("--explain", is_flag=True, help="Show what would be read and DuckDB's plan; read only samples.")
@click.option("--stats", is_flag=True, help="Report on standard error what was read.")
@cluster_options
def command(
    query: str,
    form: str | None,
    output: str | None,
    rows: int,
    start: str,
    end: str,
    values: tuple[str, ...],
    keys: Literal["text", "bytes"] | None,
    bad: Bad,
    uncommitted: bool,
    explain: bool,
    stats: bool,
    access: Access,
) -> int:
    """Run a QUERY over topics; - reads it from standard input. Needs the extra `sql`.

    Each topic is a table: the fields of its JSON values, and _topic, _partition, _offset, _timestamp, _key and
    _headers; other values are the column _value. Bounds on _offset and _partition and the earliest _timestamp are
    applied to the read, and only the fields that the query names are parsed. Topics end where they end now.

    Further tables: millpond.topics, millpond.partitions, millpond.lag, millpond.dead_letters, and files such as
    'customers.parquet'. A topic with other signs than letters, digits and _ is written in double quotes.

    \b
    Examples:
      millpond sql "select customer, sum(amount) from orders group by 1 order by 2 desc"
      millpond sql "select count(*) from orders where _timestamp > now() - interval 1 hour" --stats
      millpond sql 'select o.*, c.name from "orders-v1" o join read_csv('"'c.csv'"') c using (id)' -o rows.parquet
      millpond sql "select * from orders" --value orders=orders.avsc --from 5m --format json
      millpond sql "select topic, sum(lag) from millpond.lag group by 1"
    """
    chosen, path = _chosen_format(form, output)
    text = _read_query(query)
    try:
        with (
            access.open(),
            _session(access, start, end, values, keys, bad, uncommitted) as session,
            _interruptible(session),
        ):
            return _explain(session, text) if explain else _run(session, text, chosen, path, rows, stats)
    except KeyboardInterrupt:
        click.echo("The query was cancelled.", err=True)
        return 130


def _session(
    access: Access,
    start: str,
    end: str,
    values: tuple[str, ...],
    keys: Literal["text", "bytes"] | None,
    bad: Bad,
    uncommitted: bool,
) -> Session:
    from millpond.remote.errors import needs

    try:
        from millpond.analysis.sql.session import Session, TableOptions
    except ImportError as fault:
        raise needs(fault.name or "pyarrow", "sql") from None
    options = TableOptions(
        start=start,
        end=end,
        values=pairs(values, "--value"),
        keys=keys,
        bad=bad,
        isolation="read_uncommitted" if uncommitted else "read_committed",
    )
    return Session({"bootstrap.servers": access.servers(), **access.extras}, options)


@contextmanager
def _interruptible(session: Session) -> Iterator[None]:
    """Ctrl-C ends the query even where its exception is lost, as in a destructor or a callback of DuckDB."""
    pressed, over = Event(), Event()

    def on_interrupt(_: int, __: FrameType | None) -> None:
        pressed.set()
        raise KeyboardInterrupt

    def insist() -> None:
        pressed.wait()
        while not over.wait(INTERRUPT_SECONDS):
            session.interrupt()

    before = signal.signal(signal.SIGINT, on_interrupt)
    insisting = Thread(target=insist, name="millpond-sql-interrupt", daemon=True)
    insisting.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        over.set()
        pressed.set()
        insisting.join()


def _explain(session: Session, query: str) -> int:
    scans, plan = session.explain(query)
    _show_scans(scans, "would be read")
    click.echo(f"\n{plan.rstrip()}")
    return 0


def _run(session: Session, query: str, form: str, path: str | None, rows: int, stats: bool) -> int:
    from millpond.analysis.sql.session import QueryCancelled

    try:
        count = write_rows(session.run(query), form, path, rows)
    except QueryCancelled:
        raise KeyboardInterrupt from None
    if path is not None:
        click.echo(f"{counted(count, 'row')} written to {path}.", err=True)
    if stats:
        _show_scans(session.scans, "read", err=True)
    return 0


def _chosen_format(form: str | None, output: str | None) -> tuple[str, str | None]:
    if form is None and output is not None:
        ending = output.rpartition(".")[2].lower()
        form = {"jsonl": "json", "ndjson": "json"}.get(ending, ending)
        if form not in FORMATS or form == "table":
            raise click.UsageError(f"--output {output}: say with --format what to write: json, csv or parquet.")
    if form == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE.")
    if output is not None and form == "table":
        raise click.UsageError("A table is for the terminal: write --output as json, csv or parquet.")
    return form or "table", output


def _read_query(query: str) -> str:
    text = sys.stdin.read(QUERY_CHARACTERS_MAX) if query == "-" else query
    if not text.strip():
        raise click.UsageError("The query is empty.")
    return text


def _show_scans(scans: Sequence[Scan], verb: str, *, err: bool = False) -> None:
    for scan in scans:
        parsed = ", values are parsed" if scan.is_parsing else ""
        click.echo(
            f"{scan.topic}: {scan.offsets:,} of {counted(scan.offsets_all, 'offset')} {verb}, "
            f"columns {', '.join(scan.columns[:RANGES_SHOWN_MAX])}{parsed}",
            err=err,
        )
        for each in scan.ranges[:RANGES_SHOWN_MAX]:
            click.echo(f"  partition {each.partition.partition}: {each.start:,} to {each.end - 1:,}", err=err)
        if len(scan.ranges) > RANGES_SHOWN_MAX:
            click.echo(f"  … and {counted(len(scan.ranges) - RANGES_SHOWN_MAX, 'more partition')}", err=err)
        if scan.filter:
            click.echo(f"  filter: {scan.filter}", err=err)
    if not scans:
        click.echo(f"No topic {'would be' if verb.startswith('would') else 'was'} read.", err=err)
