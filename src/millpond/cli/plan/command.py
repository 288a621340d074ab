"""`millpond plan`: how much disk, bandwidth, how many brokers and partitions a workload asks for, sum by sum."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final, TypeVar

import click

from millpond.cli.plan.estimate import Demand, Engine, Machine, Plan, make_plan
from millpond.cli.times import read_span
from millpond.cli.units import read_byte_rate, read_bytes, read_rate, show_byte_rate, show_bytes, show_number

MEASURE_SECONDS: Final = 4.0


F = TypeVar("F", bound=Callable[..., Any])
Callback = Callable[[click.Context, click.Parameter, str], Any]


def _amount(read: Callable[[str], Any]) -> Callback:
    """Reads an option's value with its unit."""

    def convert(_: click.Context, __: click.Parameter, text: str) -> Any:
        try:
            return read(text)
        except ValueError as fault:
            raise click.BadParameter(f"{fault}.") from None

    return convert


def _read_retention(text: str) -> float:
    span_ms = read_span(text.lower())
    if not span_ms:
        raise ValueError(f"{text!r} is no length of time; write it like 7d or 36h")
    return span_ms / 1000


def _positive(read: Callable[[str], float]) -> Callable[[str], float]:
    def checked(text: str) -> float:
        amount = read(text)
        if not amount > 0:
            raise ValueError(f"{text!r} must be more than nothing")
        return amount

    return checked


def _read_rate(text: str) -> tuple[float, bool]:
    amount, counts_bytes = read_rate(text)
    if not amount > 0:
        raise ValueError(f"{text!r} must be more than nothing")
    return amount, counts_bytes


SIZE: Final = _amount(_positive(read_bytes))
DATA_RATE: Final = _amount(_positive(read_byte_rate))
RATE: Final = _amount(_read_rate)
SPAN: Final = _amount(_read_retention)
TIMES: Final = click.FloatRange(min=1)


def _option(
    *names: str,
    default: object,
    help: str,
    meta: str = "N",
    read: Callback | None = None,
    kind: click.IntRange | click.FloatRange | None = None,
) -> Callable[[F], F]:
    return click.option(*names, default=default, help=help, metavar=meta, callback=read, type=kind, show_default=True)


@click.command("plan")
@_option("--rate", meta="RATE", read=RATE, default="1M/s", help="Messages (100k/s) or data (1GB/s) a second.")
@_option("--size", meta="SIZE", read=SIZE, default="1KB", help="The average message.")
@_option("--peak", kind=TIMES, default=2, help="The peak, as a multiple of the rate.")
@_option("--replication", kind=click.IntRange(1, 10), default=3, help="Copies of each message.")
@_option("--retention", meta="TIME", read=SPAN, default="7d", help="How long messages are kept.")
@_option("--groups", "--fan-out", "groups", kind=click.IntRange(0), default=2, help="Groups that read everything.")
@_option("--disk", meta="SIZE", read=SIZE, default="20TB", help="Usable disk of a broker.")
@_option("--disk-speed", meta="RATE", read=DATA_RATE, default="100MB/s", help="What that disk can write.")
@_option("--network", meta="RATE", read=DATA_RATE, default="10Gbit/s", help="A broker's network, each way.")
@_option("--per-partition", meta="RATE", read=DATA_RATE, default="10MB/s", help="What one should carry.")
@_option("--headroom", kind=TIMES, default=2, help="Partitions, as a multiple of the need.")
@_option("--batch", meta="SIZE", read=SIZE, default="100KB", help="A producer's request (with --measure).")
@_option("--cores", kind=click.IntRange(1), default=1, help="Nodes on a broker's machine (with --measure).")
@click.option(
    "--measure", "is_measuring", is_flag=True, help="Run a node here for a few seconds; use what it can do."
)
@click.option("--json", "as_json", is_flag=True, help="The numbers as one JSON object; bytes and bytes per second.")
def command(
    rate: tuple[float, bool],
    size: float,
    peak: float,
    replication: int,
    retention: float,
    groups: int,
    disk: float,
    disk_speed: float,
    network: float,
    per_partition: float,
    headroom: float,
    batch: float,
    cores: int,
    is_measuring: bool,
    as_json: bool,
) -> None:
    """Plan a cluster: storage, bandwidth, brokers and partitions, with every sum shown.

    Without options it plans a million messages of 1 KB a second. KB is 1,000 bytes, KiB 1,024. With --measure a
    node runs here for a few seconds, and what one core of it can do counts beside disks and network; a node is one
    process on one core, and --cores says how many of them share a machine.

    \b
    Examples:
      millpond plan
      millpond plan --rate 50k/s --size 400B --retention 3d --disk 2TB
      millpond plan --rate 200MB/s --size 1KiB --measure --cores 4
    """
    amount, counts_bytes = rate
    demand = Demand(
        messages_per_second=amount / size if counts_bytes else amount,
        message_bytes=size,
        peak=peak,
        replication=replication,
        retention_seconds=retention,
        groups=groups,
        partition_bytes_per_second=per_partition,
        headroom=headroom,
        batch_bytes=batch,
    )
    engine = _measured(size) if is_measuring else None
    machine = Machine(disk, disk_speed, network, cores, engine)
    plan = make_plan(demand, machine)
    if as_json:
        facts = {"demand": asdict(demand), "machine": asdict(machine), "plan": asdict(plan)}
        facts["plan"].pop("sections")
        click.echo(json.dumps(facts))
    else:
        _print(plan, engine)


def _measured(message_bytes: float) -> Engine:
    from millpond.cli.plan.measurement import measure

    click.echo(f"Measuring a node here for {MEASURE_SECONDS:g} seconds …", err=True)
    return measure(min(round(message_bytes), 500_000), MEASURE_SECONDS)


def _print(plan: Plan, engine: Engine | None) -> None:
    if engine is not None:
        click.echo(_styled("One core of a node, measured here"))
        click.echo(f"  writes     {show_byte_rate(engine.write_bytes_per_second)}")
        click.echo(f"  reads      {show_byte_rate(engine.read_bytes_per_second)}")
        click.echo(f"  answers    {show_number(round(engine.requests_per_second))} one-message requests a second")
        click.echo()
    width = max(len(line.sum) for section in plan.sections for line in section.lines)
    for section in plan.sections:
        click.echo(_styled(section.title))
        for line in section.lines:
            click.echo(f"  {line.label:<16} {line.sum:<{width}} = {line.result}")
        click.echo()
    click.echo(
        f"{plan.brokers:,} brokers, {plan.partitions:,} partitions, {show_bytes(plan.stored)} on disk; "
        f"{show_byte_rate(plan.incoming_peak)} in and {show_byte_rate(plan.outgoing_peak)} out at peak."
    )


def _styled(title: str) -> str:
    return click.style(title, bold=True)
