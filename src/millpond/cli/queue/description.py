"""The output of `millpond queue list` and `describe`."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from millpond.admin.queues.queue import Holder, Queue, QueuePartition, QueueRates, Totals
from millpond.admin.settings import SettingFacts
from millpond.cli.stop import stop_on
from millpond.cli.terminal import Cell, print_json, print_list, print_table
from millpond.cli.text import NOTHING, counted, safe
from millpond.cli.times import now_ms, show_span

CLEAR_SCREEN: Final = "\x1b[H\x1b[2J\x1b[3J"
HOLDERS_SHOWN_MAX: Final = 50


def print_queues(queues: Sequence[Queue], *, as_json: bool) -> None:
    print_list(
        [queue_json(each) for each in queues],
        ("Topic", "Group", "State", "Members", "Waiting", "Out", "Delayed", "Dead", "Oldest"),
        [
            (
                each.name.topic,
                each.name.group,
                each.state,
                len(each.group.members),
                NOTHING if len(each.not_started) == len(each.partitions) else each.waiting,
                _number(each.out),
                _number(each.delayed),
                _dead(each),
                _span(each.oldest_age_ms),
            )
            for each in queues
        ],
        as_json=as_json,
        words=3,
        otherwise="There are no queues yet: one exists once a member of a share group reads a topic.",
    )


def show_queue(queue: Queue, settings: Sequence[SettingFacts], *, as_json: bool) -> None:
    if as_json:
        print_json(queue_json(queue) | {"settings": {each.name: each.value for each in settings}})
        return
    print_queue(queue)
    if settings:
        click.echo()
        print_table(
            ("Setting", "Value", "From", "Meaning"),
            [(each.name, each.value or NOTHING, each.source, each.meaning) for each in settings],
            words=4,
        )


def watch_queue(look: Callable[[], Queue], every_seconds: float, *, as_json: bool) -> None:
    """Repeats until Ctrl-C, which is not a failure."""
    with stop_on(signal.SIGINT) as stop:
        while not stop.is_requested:
            queue = look()
            if as_json:
                print_json({"at_ms": now_ms()} | queue_json(queue), indent=None)
            else:
                click.echo(CLEAR_SCREEN if sys.stdout.isatty() else "", nl=False)
                click.secho(f"{time.strftime('%H:%M:%S')}  every {show_span(every_seconds * 1000)}", dim=True)
                print_queue(queue)
                if not sys.stdout.isatty():
                    click.echo()
            sys.stdout.flush()
            stop.wait(every_seconds)


# As JSON: plain numbers, times in the unit of the name, null for unknown.


def queue_json(queue: Queue) -> dict[str, Any]:
    return {
        "topic": queue.name.topic,
        "group": queue.name.group,
        "state": queue.state,
        "members": [
            {"id": each.id, "client": each.client, "host": each.host, "partitions": _assigned(queue, each.partitions)}
            for each in queue.group.members
        ],
        "waiting": queue.waiting,
        "out": queue.out,
        "delayed": queue.delayed,
        "archiving": queue.archiving,
        "unfinished": queue.unfinished,
        "oldest_age_ms": queue.oldest_age_ms,
        "next_due_ms": queue.next_due_ms,
        "dead_letter_topic": queue.dead_letter_topic,
        "dead": queue.dead,
        "is_dead_exact": queue.is_dead_exact,
        "not_started": list(queue.not_started),
        "rates": None if queue.rates is None else asdict(queue.rates),
        "totals": None if queue.totals is None else asdict(queue.totals),
        "holders": [asdict(each) for each in queue.holders],
        "partitions": [asdict(each) for each in queue.partitions],
    }


def _assigned(queue: Queue, partitions: Sequence[tuple[str, int]]) -> list[int]:
    return [index for topic, index in partitions if topic == queue.name.topic]


# For people.


def print_queue(queue: Queue) -> None:
    click.secho(f"{queue.name}: {queue.state}, {', '.join(_headline(queue))}", bold=True)
    for line in _facts(queue):
        click.echo(line)
    click.echo()
    print_table(
        ("Partition", "Start", "End", "Waiting", "Out", "Delayed", "Archiving", "Done after", "Oldest"),
        [_row(each) for each in queue.partitions],
        words=0,
    )
    if queue.holders:
        click.echo()
        _print_holders(queue.holders, queue)


def _headline(queue: Queue) -> list[str]:
    parts = [counted(len(queue.group.members), "member"), f"{queue.waiting:,} waiting"]
    parts += [f"{queue.out:,} out"] if queue.out is not None else []
    parts += [f"{queue.delayed:,} delayed"] if queue.delayed else []
    parts += [f"oldest {show_span(queue.oldest_age_ms)}"] if queue.oldest_age_ms is not None else []
    return parts


def _facts(queue: Queue) -> list[str]:
    lines = [_pace(queue.rates)] if queue.rates is not None else []
    if queue.totals is not None:
        lines.append(f"since the windows were loaded: {_sums(queue.totals)}")
    if queue.next_due_ms is not None:
        lines.append(f"the next delayed record is due in {show_span(max(queue.next_due_ms - now_ms(), 0))}")
    if queue.dead:
        more = "" if queue.is_dead_exact else "at least "
        letters = counted(queue.dead, "dead letter")
        lines.append(
            f"{more}{letters} in {queue.dead_letter_topic}: `millpond queue redrive {queue.name.topic} "
            f"--group {queue.name.group}` sends them back"
        )
    if queue.not_started:
        count = counted(len(queue.not_started), "partition")
        lines.append(f"{count} not read yet: share.auto.offset.reset says where the group begins there")
    if queue.unfinished and not queue.group.members:
        lines.append("records wait, and the group has no members")
    return lines


def _pace(rates: QueueRates) -> str:
    parts = [(rates.written, "written"), (rates.delivered, "delivered"), (rates.finished, "finished")]
    return ", ".join(f"{name} {_rate(rate)}" for rate, name in parts if rate is not None)


def _sums(totals: Totals) -> str:
    named = asdict(totals)
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in named.items() if count) or "nothing"


def _row(each: QueuePartition) -> list[Cell]:
    return [
        each.partition,
        _number(each.start),
        _number(each.end),
        _number(each.waiting),
        _number(each.out),
        _number(each.delayed),
        _number(each.archiving),
        _number(each.finished),
        _span(each.oldest_age_ms),
    ]


def _print_holders(holders: Sequence[Holder], queue: Queue) -> None:
    print_table(
        ("Member", "Client", "Host", "Holds", "Lock left"),
        [
            (
                safe(each.member, in_line=True),
                safe(each.client or NOTHING, in_line=True),
                each.host or NOTHING,
                each.records,
                show_span(each.lock_left_ms),
            )
            for each in holders[:HOLDERS_SHOWN_MAX]
        ],
        words=3,
    )
    if len(holders) > HOLDERS_SHOWN_MAX:
        click.echo(f"and {len(holders) - HOLDERS_SHOWN_MAX:,} more members hold records of {queue.name.topic}.")


def _dead(queue: Queue) -> str:
    if queue.dead is None:
        return NOTHING
    return f"{queue.dead:,}" if queue.is_dead_exact else f"{queue.dead:,}+"


def _number(number: int | None) -> Cell:
    return NOTHING if number is None else number


def _span(span_ms: int | None) -> str:
    return NOTHING if span_ms is None else show_span(span_ms)


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"
