"""The output of `millpond top`: as a screen, as plain lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from millpond.admin.cluster_rates import ClusterSample, Rates, RateWindow
from millpond.admin.concerns import find_concerns
from millpond.admin.lag import GroupLag
from millpond.base.named_tuple import NamedTuple
from millpond.cli.status import problem
from millpond.cli.terminal import aligned
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


def headline(window: RateWindow) -> str:
    sample, rates = _current(window)
    nodes = sample.health.nodes.nodes
    here = sum(node.address is not None for node in nodes)
    return (
        f"{here} of {counted(len(nodes), 'node')}, {counted(len(sample.topics), 'topic')}, "
        f"{counted(sample.partitions, 'partition')}; {_rate(rates.written_in_all)} written, "
        f"{counted(sample.lag, 'record')} unread"
    )


def problems(window: RateWindow) -> list[str]:
    sample, _ = _current(window)
    return [problem(each) for each in find_concerns(sample.health)]


def nodes_table(window: RateWindow) -> Table:
    sample, _ = _current(window)
    disks = {each.node_id: each for each in sample.health.disks}
    rows = []
    for node in sample.health.nodes.nodes:
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


def topics_table(window: RateWindow) -> Table:
    """The busiest first."""
    sample, rates = _current(window)
    names = sorted(
        sample.topics, key=lambda name: (-rates.written.get(name, 0.0), -sample.topics[name].offsets, name)
    )
    rows = [
        (
            safe(name, in_line=True),
            f"{sample.topics[name].partitions:,}",
            f"{sample.topics[name].offsets:,}",
            _rate(rates.written.get(name)),
        )
        for name in names
    ]
    return Table(("Topic", "Partitions", "Offsets", "Written"), 1, rows)


def groups_table(window: RateWindow) -> Table:
    """The largest lag first."""
    sample, rates = _current(window)
    return Table(
        ("Group", "State", "Members", "Lag", "Trend", "Behind", "Read"),
        2,
        [_group_row(each, rates) for each in _by_lag(sample)],
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


def lines(window: RateWindow) -> Iterator[str]:
    """For a pipe."""
    yield headline(window)
    for each in problems(window):
        yield f"! {each}"
    for table in (nodes_table(window), topics_table(window), groups_table(window)):
        if table.rows:
            yield ""
            yield from aligned(table.columns, table.rows[:LINES_MAX], table.words)
            if len(table.rows) > LINES_MAX:
                yield f"and {len(table.rows) - LINES_MAX:,} more"


def as_object(window: RateWindow) -> dict[str, Any]:
    """Plain numbers, null for unknown."""
    sample, rates = _current(window)
    return {
        "at_ms": now_ms(),
        "cluster_id": sample.health.nodes.cluster_id,
        "written_per_second": rates.written_in_all,
        "lag": sample.lag,
        "problems": problems(window),
        "nodes": [
            {
                "node": each.node_id,
                "address": each.address,
                "is_controller": each.is_controller,
                "leads": each.leads,
                "in_sync": each.in_sync,
                "replicas": each.replicas,
            }
            for each in sample.health.nodes.nodes
        ],
        "topics": [
            {
                "topic": name,
                "partitions": each.partitions,
                "offsets": each.offsets,
                "written_per_second": rates.written.get(name),
            }
            for name, each in sorted(sample.topics.items())
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
            for each in _by_lag(sample)
        ],
    }


def _current(window: RateWindow) -> tuple[ClusterSample, Rates]:
    assert window.last is not None, "no sample yet"
    return window.last, window.rates or Rates()


def _by_lag(sample: ClusterSample) -> Sequence[GroupLag]:
    return sorted(sample.health.groups, key=lambda each: (-each.lag, each.group.id))


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
