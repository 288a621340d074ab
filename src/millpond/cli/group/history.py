"""The output of `millpond group history`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import click

from millpond.admin.history import GroupRebalance, Move, RebalanceCause
from millpond.base.ids import TopicPartition
from millpond.cli.group.description import show_partitions
from millpond.cli.text import counted, safe
from millpond.cli.times import show_span
from millpond.coordinators.groups.history import Why

CAUSES_SHOWN_MAX: Final = 10
MOVES_SHOWN_MAX: Final = 20
NO_MEMBER: Final = "no member"

_UUID: Final = re.compile(r"-([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")


def print_history(group: str, rebalances: Sequence[GroupRebalance]) -> None:
    count = len(rebalances)
    click.secho(f"{group}: the last {count} rebalances" if count > 1 else f"{group}: one rebalance", bold=True)
    clients: dict[str, RebalanceCause] = {}
    for rebalance in rebalances:
        # Members that appeared before are shown by name.
        clients |= {cause.member_id: cause for cause in rebalance.causes}
        click.echo()
        click.echo("\n".join(explain(rebalance, clients)))


def explain(rebalance: GroupRebalance, clients: Mapping[str, RebalanceCause]) -> Iterable[str]:
    """Lines for one rebalance: when and at what cost, why, what moved."""
    members = rebalance.members
    facts = [f"generation {rebalance.generation}"] if rebalance.generation is not None else []
    facts += [counted(members, "member") if members else "no members left"]
    facts += [f"{rebalance.protocol}"] if rebalance.protocol else []
    paused_ms = rebalance.paused_ms
    facts += ["not finished" if paused_ms is None else f"paused {show_span(paused_ms)}" if paused_ms else "no pause"]
    yield click.style(_moment(rebalance.started_ms), bold=True) + "  " + ", ".join(facts)
    causes, rejoined = _parted(rebalance.causes)
    for cause in causes[:CAUSES_SHOWN_MAX]:
        yield "  " + _because(cause)
    if len(causes) > CAUSES_SHOWN_MAX:
        yield f"  and {len(causes) - CAUSES_SHOWN_MAX} more causes"
    if rejoined:
        yield f"  {counted(rejoined, 'member')} rejoined"
    moved = _moved(rebalance.moves)
    for (before, after), partitions in list(moved.items())[:MOVES_SHOWN_MAX]:
        yield f"  {show_partitions(partitions)}: {_named(before, clients)} → {_named(after, clients)}"
    shown = sum(len(partitions) for partitions in list(moved.values())[:MOVES_SHOWN_MAX])
    if rebalance.moves_total > shown:
        yield f"  and {rebalance.moves_total - shown:,} more partitions moved"
    elif rebalance.moves_total < 0:
        yield "  the assignments were too large to say what moved"
    elif not moved and members:
        yield "  nothing moved"


def short(member_id: str) -> str:
    """A member's id without most of its random part, but still unambiguous."""
    return safe(_UUID.sub(r"-\1", member_id), in_line=True)


def _parted(causes: Sequence[RebalanceCause]) -> tuple[Sequence[RebalanceCause], int]:
    """The causes, and how many members only rejoined because of them."""
    if not causes or causes[0].why == Why.REJOINED:
        return causes, 0
    real = [cause for cause in causes if cause.why != Why.REJOINED]
    return real, len(causes) - len(real)


def _because(cause: RebalanceCause) -> str:
    if not cause.member_id:
        return safe(cause.why, in_line=True) + _detail(cause)
    host = f" on {safe(cause.client_host, in_line=True)}" if cause.client_host else ""
    return (
        f"{_named(cause.member_id, {cause.member_id: cause})}{host}: {safe(cause.why, in_line=True)}{_detail(cause)}"
    )


def _detail(cause: RebalanceCause) -> str:
    return f" ({safe(cause.detail, in_line=True)})" if cause.detail else ""


def _named(member_id: str | None, causes: Mapping[str, RebalanceCause]) -> str:
    if member_id is None:
        return NO_MEMBER
    cause, short_id = causes.get(member_id), short(member_id)
    name = (cause.instance_id or cause.client_id) if cause else ""
    # Most clients derive the member id from the client id: show it once.
    return short_id if not name or short_id.startswith(name) else f"{safe(name, in_line=True)} ({short_id})"


def _moved(moves: Iterable[Move]) -> dict[tuple[str | None, str | None], list[TopicPartition]]:
    """Groups the partitions that moved between the same two members."""
    together: dict[tuple[str | None, str | None], list[TopicPartition]] = {}
    for move in moves:
        together.setdefault((move.before, move.after), []).append(move.partition)
    return together


def _moment(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000):%Y-%m-%d %H:%M:%S}"
