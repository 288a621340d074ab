"""The output of `millpond top`: as a screen, as plain lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from millpond.admin.concerns import find_concerns
from millpond.admin.lag import GroupLag
from millpond.admin.pulse import Look, Pulse, Rates
from millpond.base.named_tuple import NamedTuple
from millpond.cli.status import problem
from millpond.cli.text import NOTHING, counted, safe
from millpond.cli.times import now_ms, show_span

WINDOW_SECONDS: Final = 10.0
"""Rates cover this long: auto-commits are seconds apart."""

LINES_MAX: Final = 20
"""At most this many topics, and groups, are printed as lines."""


class Table(NamedTuple):
    columns: tuple[str, ...]
    words: int
    """The number of leading columns with words."""
    rows: Sequence[tuple[str, ...]]


def headline(pulse: Pulse) -> str:
    look, rates = _known(pulse)
    nodes = look.health.nodes.nodes
    here = sum(node.address is not None for node in nodes)
    return (
        f"{here} of {counted(len(nodes), 'node')}, {counted(len(look.topics), 'topic')}, "
        f"{counted(look.partitions, 'partition')}; {_rate(rates.written_in_all)} written, "
        f"{counted(look.lag, 'record')} unread"
    )


def problems(pulse: Pulse) -> list[str]:
    look, _ = _known(pulse)
    return [problem(each) for each in find_concerns(look.health)]


def nodes_table(pulse: Pulse) -> Table:
    look, _ = _known(pulse)
    disks = {each.node_id: each for each in look.health.disks}
    rows = []
    for node in look.health.nodes.nodes:
        disk = disks.get(node.node_id)
        state = "away" if node.address is None else "controller" if node.is_controller else "ready"
        free = None if disk is None or not disk.total_bytes else disk.free_bytes
        rows.append(
            (
                str(node.node_id),
                node.address or NOTHING,
                state,
                f"{node.without_internal.leads:,}",
                f"{node.without_internal.in_sync:,}/{node.without_internal.replicas:,}",
                NOTHING if free is None or disk is None else f"{free / (disk.total_bytes or 1):.0%}",
            )
        )
    return Table(("Node", "Address", "State", "Leads", "In sync", "Disk free"), 3, rows)


def topics_table(pulse: Pulse) -> Table:
    """The busiest first."""
    look, rates = _known(pulse)
    names = sorted(look.topics, key=lambda name: (-rates.written.get(name, 0.0), -look.topics[name].offsets, name))
    rows = [
        (
            safe(name, in_line=True),
            f"{look.topics[name].partitions:,}",
            f"{look.topics[name].offsets:,}",
            _rate(rates.written.get(name)),
        )
        for name in names
    ]
    return Table(("Topic", "Partitions", "Offsets", "Written"), 1, rows)


def groups_table(pulse: Pulse) -> Table:
    """The largest lag first."""
    look, rates = _known(pulse)
    return Table(
        ("Group", "State", "Members", "Lag", "Trend", "Behind", "Read"),
        2,
        [_group_row(each, rates) for each in _by_lag(look)],
    )


def _group_row(each: GroupLag, rates: Rates) -> tuple[str, ...]:
    name = each.group.id
    return (
        safe(name, in_line=True),
        each.group.state,
        f"{len(each.group.members):,}",
        f"{each.lag:,}",
        _trend(rates.lag_growth.get(name)),
        NOTHING if each.behind_ms is None else show_span(each.behind_ms),
        _rate(rates.read.get(name)),
    )


def lines(pulse: Pulse) -> Iterator[str]:
    """For a pipe."""
    yield headline(pulse)
    for each in problems(pulse):
        yield f"! {each}"
    for table in (nodes_table(pulse), topics_table(pulse), groups_table(pulse)):
        if table.rows:
            yield ""
            yield from plain(table, LINES_MAX)


def plain(table: Table, most: int) -> Iterator[str]:
    shown = [table.columns, *table.rows[:most]]
    widths = [max(len(row[at]) for row in shown) for at in range(len(table.columns))]
    for row in shown:
        cells = [
            cell.ljust(width) if at < table.words else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
    if len(table.rows) > most:
        yield f"and {len(table.rows) - most:,} more"


def as_object(pulse: Pulse) -> dict[str, Any]:
    """Plain numbers, null for unknown."""
    look, rates = _known(pulse)
    return {
        "at_ms": now_ms(),
        "cluster_id": look.health.nodes.cluster_id,
        "written_per_second": rates.written_in_all,
        "lag": look.lag,
        "problems": problems(pulse),
        "nodes": [
            {
                "node": each.node_id,
                "address": each.address,
                "is_controller": each.is_controller,
                "leads": each.leads,
                "in_sync": each.in_sync,
                "replicas": each.replicas,
            }
            for each in look.health.nodes.nodes
        ],
        "topics": [
            {
                "topic": name,
                "partitions": each.partitions,
                "offsets": each.offsets,
                "written_per_second": rates.written.get(name),
            }
            for name, each in sorted(look.topics.items())
        ],
        "groups": [
            {
                "group": each.group.id,
                "state": each.group.state,
                "members": len(each.group.members),
                "lag": each.lag,
                "behind_ms": each.behind_ms,
                "lost": each.lost,
                "read_per_second": rates.read.get(each.group.id),
                "lag_growth_per_second": rates.lag_growth.get(each.group.id),
            }
            for each in _by_lag(look)
        ],
    }


def _known(pulse: Pulse) -> tuple[Look, Rates]:
    assert pulse.last is not None, "no sample yet"
    return pulse.last, pulse.rates or Rates()


def _by_lag(look: Look) -> Sequence[GroupLag]:
    return sorted(look.health.groups, key=lambda each: (-each.lag, each.group.id))


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return NOTHING
    return f"{per_second:,.0f}/s" if per_second >= 10 or not per_second else f"{per_second:.1f}/s"


def _trend(per_second: float | None) -> str:
    """The trend of its lag."""
    if per_second is None:
        return NOTHING
    if abs(per_second) < 0.05:
        return "steady"
    return f"{per_second:+,.0f}/s" if abs(per_second) >= 10 else f"{per_second:+.1f}/s"
