"""`millpond plan`: the disks, bandwidth, brokers and partitions that a workload needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

import click

from millpond.admin.plan import Demand, Engine, Machine, Plan, Section, make_plan, sums
from millpond.admin.queue_plan import QueueDemand, make_queue_plan, queue_section
from millpond.base.spans import read_span
from millpond.base.units import read_byte_rate, read_bytes, read_rate, show_byte_rate, show_bytes, show_number
from millpond.cli.options import option, span
from millpond.cli.terminal import print_json

MEASURE_SECONDS: Final = 4.0


def _read_retention(text: str) -> float:
    span_ms = read_span(text.lower())
    if not span_ms:
        raise ValueError(f"{text!r} is not a duration; write it like 7d or 36h")
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


SIZE: Final = _positive(read_bytes)
DATA_RATE: Final = _positive(read_byte_rate)
TIMES: Final = click.FloatRange(min=1)


@click.command("plan")
@option("--rate", meta="RATE", read=_read_rate, default="1M/s", help="Messages (100k/s) or bytes (1GB/s) per second.")
@option("--size", meta="SIZE", read=SIZE, default="1KB", help="The average message size.")
@option("--peak", type=TIMES, default=2, help="The peak, as a multiple of the rate.")
@option("--replication", type=click.IntRange(1, 10), default=3, help="Copies of each message.")
@option("--retention", meta="TIME", read=_read_retention, default="7d", help="How long messages are kept.")
@option("--groups", "--fan-out", "groups", type=click.IntRange(0), default=2, help="Groups that read everything.")
@option("--disk", meta="SIZE", read=SIZE, default="20TB", help="Usable disk of a broker.")
@option("--disk-speed", meta="RATE", read=DATA_RATE, default="100MB/s", help="The write rate of that disk.")
@option("--network", meta="RATE", read=DATA_RATE, default="10Gbit/s", help="A broker's network, each way.")
@option("--per-partition", meta="RATE", read=DATA_RATE, default="10MB/s", help="The rate of one partition.")
@option("--headroom", type=TIMES, default=2, help="Partitions, as a multiple of the need.")
@option("--batch", meta="SIZE", read=SIZE, default="100KB", help="A producer's request (with --measure).")
@option("--cores", type=click.IntRange(1), default=1, help="Nodes on a broker's machine (with --measure).")
@click.option(
    "--work", metavar="SPAN", help="How long a worker needs for one message, to plan a work queue: 200ms, 5s."
)
@option(
    "--held", type=click.IntRange(1, 10_000), default=1, help="Messages that a worker holds at a time (with --work)."
)
@click.option("--measure", "is_measuring", is_flag=True, help="Measure a node here for a few seconds.")
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
    work: str | None,
    held: int,
    is_measuring: bool,
    as_json: bool,
) -> None:
    """Plan a cluster: storage, bandwidth, brokers and partitions, with every sum shown.

    Without options it plans a million messages of 1 KB a second. KB is 1,000 bytes, KiB 1,024. With --measure a node
    runs here for a few seconds, and the throughput of one core counts in addition to disks and network; a node is one
    process on one core, and --cores says how many of them share a machine. With --work it also plans the workers of a
    queue, whose number does not depend on partitions.

    \b
    Examples:
      millpond plan
      millpond plan --rate 50k/s --size 400B --retention 3d --disk 2TB
      millpond plan --rate 200MB/s --size 1KiB --measure --cores 4
      millpond plan --rate 500/s --size 2KB --work 3s --held 10
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
    queue = None if work is None else QueueDemand(demand.messages_per_second, peak, _work_seconds(work), held)
    if as_json:
        _print_object(demand, machine, plan, queue)
        return
    sections = sums(plan, demand, machine)
    if queue is None:
        _print(plan, sections, engine)
        return
    needs = make_queue_plan(queue)
    _print(plan, [*sections, queue_section(needs, queue)], engine)
    click.echo(f"{needs.workers_peak:,} workers at peak, on {max(needs.partitions, plan.partitions):,} partitions.")


def _print_object(demand: Demand, machine: Machine, plan: Plan, queue: QueueDemand | None) -> None:
    facts = {"demand": asdict(demand), "machine": asdict(machine), "plan": asdict(plan)}
    if queue is not None:
        facts["queue"] = asdict(queue) | asdict(make_queue_plan(queue))
    print_json(facts, indent=None)


def _work_seconds(text: str) -> float:
    try:
        work_ms = span(text)
    except ValueError as fault:
        raise click.UsageError(f"--work {text}: {fault}.") from None
    if not work_ms:
        raise click.UsageError(f"--work {text}: it must be more than nothing.")
    return work_ms / 1000


def _measured(message_bytes: float) -> Engine:
    from millpond.cli.plan.measurement import measure

    click.echo(f"Measuring a node here for {MEASURE_SECONDS:g} seconds …", err=True)
    return measure(min(round(message_bytes), 500_000), MEASURE_SECONDS)


def _print(plan: Plan, sections: Sequence[Section], engine: Engine | None) -> None:
    if engine is not None:
        click.secho("One core of a node, measured here", bold=True)
        click.echo(f"  writes     {show_byte_rate(engine.write_bytes_per_second)}")
        click.echo(f"  reads      {show_byte_rate(engine.read_bytes_per_second)}")
        click.echo(f"  answers    {show_number(round(engine.requests_per_second))} one-message requests a second")
        click.echo()
    width = max(len(line.sum) for section in sections for line in section.lines)
    for section in sections:
        click.secho(section.title, bold=True)
        for line in section.lines:
            click.echo(f"  {line.label:<16} {line.sum:<{width}} = {line.result}")
        click.echo()
    click.echo(
        f"{plan.brokers:,} brokers, {plan.partitions:,} partitions, {show_bytes(plan.stored)} on disk; "
        f"{show_byte_rate(plan.incoming_peak)} in and {show_byte_rate(plan.outgoing_peak)} out at peak."
    )
