"""Capacity planning: from a workload to storage, bandwidth, brokers and partitions.

Pure: returns the numbers and the calculations behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from millpond.base.units import show_byte_rate, show_bytes, show_number

DAY_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class Demand:
    """The workload to plan for."""

    messages_per_second: float
    message_bytes: float
    peak: float
    """The peak, as a multiple of the average."""
    replication: int
    retention_seconds: float
    groups: int
    """Consumer groups, each of which reads everything."""
    partition_bytes_per_second: float
    """Maximum throughput of a partition, so that one consumer can keep up."""
    headroom: float
    """Factor on the partitions needed today: adding partitions later moves keys."""
    batch_bytes: float = 100_000
    """Size of a produce request."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Measured performance of one core of a node."""

    write_bytes_per_second: float
    read_bytes_per_second: float
    requests_per_second: float


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of one broker."""

    disk_bytes: float
    disk_bytes_per_second: float
    network_bytes_per_second: float
    cores: int = 1
    engine: Engine | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One step of the calculation: label, formula and result."""

    label: str
    sum: str
    result: str


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class Plan:
    """The results; rates are in bytes per second."""

    incoming: float
    incoming_peak: float
    disk_writes: float
    disk_writes_peak: float
    to_consumers: float
    to_followers: float
    outgoing: float
    outgoing_peak: float
    kept_per_day: float
    kept: float
    stored: float
    brokers_by: dict[str, float]
    """Brokers needed by resource, not rounded."""
    brokers: int
    leader_writes_per_broker: float
    disk_writes_per_broker: float
    partitions_min: int
    partitions: int


def make_plan(demand: Demand, machine: Machine) -> Plan:
    incoming = demand.messages_per_second * demand.message_bytes
    incoming_peak = incoming * demand.peak
    to_consumers = incoming * demand.groups
    to_followers = incoming * (demand.replication - 1)
    outgoing = to_consumers + to_followers
    stored = incoming * demand.retention_seconds * demand.replication
    disk_writes_peak = incoming_peak * demand.replication
    outgoing_peak = outgoing * demand.peak
    brokers_by = {
        "disk": stored / machine.disk_bytes,
        "disk speed": disk_writes_peak / machine.disk_bytes_per_second,
        # Replication arrives over the network as produce requests do; in and out are separate directions.
        "network": max(disk_writes_peak, outgoing_peak) / machine.network_bytes_per_second,
        "replicas": float(demand.replication),
    }
    if machine.engine is not None:
        brokers_by["cores"] = (
            _cores(demand, machine.engine, disk_writes_peak, outgoing_peak, incoming_peak) / machine.cores
        )
    brokers = _whole(max(brokers_by.values()))
    partitions_min = _whole(incoming / demand.partition_bytes_per_second)
    return Plan(
        incoming=incoming,
        incoming_peak=incoming_peak,
        disk_writes=incoming * demand.replication,
        disk_writes_peak=disk_writes_peak,
        to_consumers=to_consumers,
        to_followers=to_followers,
        outgoing=outgoing,
        outgoing_peak=outgoing_peak,
        kept_per_day=incoming * DAY_SECONDS,
        kept=incoming * demand.retention_seconds,
        stored=stored,
        brokers_by=brokers_by,
        brokers=brokers,
        leader_writes_per_broker=incoming / brokers,
        disk_writes_per_broker=incoming * demand.replication / brokers,
        partitions_min=partitions_min,
        partitions=_whole(partitions_min * demand.headroom),
    )


def _cores(demand: Demand, engine: Engine, written: float, sent: float, incoming: float) -> float:
    """Cores needed at peak: a node is one core, shared by all its work."""
    requests = incoming / demand.batch_bytes
    return (
        written / engine.write_bytes_per_second
        + sent / engine.read_bytes_per_second
        + requests / engine.requests_per_second
    )


def _whole(number: float) -> int:
    """Round up, ignoring floating-point noise."""
    return max(1, ceil(number - 1e-9))


def sums(plan: Plan, demand: Demand, machine: Machine) -> list[Section]:
    """The calculations behind the numbers, as one would write them by hand."""
    return [
        Section("Incoming data", _written(plan, demand)),
        Section("Outgoing data", _sent(plan, demand)),
        Section("Storage", _kept(plan, demand)),
        Section("Brokers", _brokers(plan, demand, machine)),
        Section("Partitions", _partitions(plan, demand)),
    ]


def _written(plan: Plan, demand: Demand) -> list[Line]:
    rate, size = show_number(demand.messages_per_second), show_bytes(demand.message_bytes)
    incoming, peak = show_byte_rate(plan.incoming), show_byte_rate(plan.incoming_peak)
    copies = _counted(demand.replication, "replica")
    return [
        Line("incoming", f"{rate}/s × {size}", incoming),
        Line("at peak", f"{incoming} × {show_number(demand.peak)}", peak),
        Line("disk writes", f"{incoming} × {copies}", show_byte_rate(plan.disk_writes)),
        Line("at peak", f"{peak} × {copies}", show_byte_rate(plan.disk_writes_peak)),
    ]


def _sent(plan: Plan, demand: Demand) -> list[Line]:
    incoming, out = show_byte_rate(plan.incoming), show_byte_rate(plan.outgoing)
    consumers, followers = show_byte_rate(plan.to_consumers), show_byte_rate(plan.to_followers)
    return [
        Line("to consumers", f"{incoming} × {_counted(demand.groups, 'group')}", consumers),
        Line("to followers", f"{incoming} × {_counted(demand.replication - 1, 'follower')}", followers),
        Line("outgoing", f"{consumers} + {followers}", out),
        Line("at peak", f"{out} × {show_number(demand.peak)}", show_byte_rate(plan.outgoing_peak)),
    ]


def _kept(plan: Plan, demand: Demand) -> list[Line]:
    incoming, kept = show_byte_rate(plan.incoming), show_bytes(plan.kept)
    days = demand.retention_seconds / DAY_SECONDS
    per_day = show_bytes(plan.kept_per_day)
    return [
        Line("a day", f"{incoming} × {DAY_SECONDS:,} s", per_day),
        Line("retention", f"{per_day} × {_counted(days, 'day')}", kept),
        Line("with replicas", f"{kept} × {demand.replication}", show_bytes(plan.stored)),
    ]


def _brokers(plan: Plan, demand: Demand, machine: Machine) -> list[Line]:
    needed = {name: show_number(number) for name, number in plan.brokers_by.items()}
    busiest = max(plan.disk_writes_peak, plan.outgoing_peak)
    network = show_byte_rate(machine.network_bytes_per_second)
    peak_writes, disk = show_byte_rate(plan.disk_writes_peak), show_byte_rate(machine.disk_bytes_per_second)
    lines = [
        Line("for the disk", f"{show_bytes(plan.stored)} ÷ {show_bytes(machine.disk_bytes)}", needed["disk"]),
        Line("for its speed", f"{peak_writes} ÷ {disk}, at peak", needed["disk speed"]),
        Line("for the network", f"{show_byte_rate(busiest)} ÷ {network}, at peak", needed["network"]),
    ]
    if machine.engine is not None:
        lines += _core_lines(plan, demand, machine, machine.engine)
    decisive = max(plan.brokers_by, key=lambda name: plan.brokers_by[name])
    brokers = f"{plan.brokers:,}"
    return [
        *lines,
        Line("brokers", f"{_RULED_BY[decisive]} decides, rounded up", brokers),
        Line(
            "each leads",
            f"{show_byte_rate(plan.incoming)} ÷ {brokers}",
            show_byte_rate(plan.leader_writes_per_broker),
        ),
        Line(
            "each writes",
            f"{show_byte_rate(plan.disk_writes)} ÷ {brokers}",
            show_byte_rate(plan.disk_writes_per_broker),
        ),
    ]


_RULED_BY: Final = {
    "disk": "the disk",
    "disk speed": "the disk's speed",
    "network": "the network",
    "replicas": "a broker for each replica",
    "cores": "the processor",
}


def _core_lines(plan: Plan, demand: Demand, machine: Machine, engine: Engine) -> list[Line]:
    """Core time at peak, by task."""
    requests = plan.incoming_peak / demand.batch_bytes
    written, sent = show_byte_rate(plan.disk_writes_peak), show_byte_rate(plan.outgoing_peak)
    rate, each = show_number(round(requests)), show_number(round(engine.requests_per_second))
    cores = plan.brokers_by["cores"] * machine.cores
    return [
        Line(
            "cores to write",
            f"{written} ÷ {show_byte_rate(engine.write_bytes_per_second)} measured",
            show_number(plan.disk_writes_peak / engine.write_bytes_per_second),
        ),
        Line(
            "cores to read",
            f"{sent} ÷ {show_byte_rate(engine.read_bytes_per_second)} measured",
            show_number(plan.outgoing_peak / engine.read_bytes_per_second),
        ),
        Line("cores to answer", f"{rate}/s ÷ {each}/s measured", show_number(requests / engine.requests_per_second)),
        Line(
            "for the cores",
            f"{show_number(cores)} ÷ {_counted(machine.cores, 'core')}",
            show_number(plan.brokers_by["cores"]),
        ),
    ]


def _partitions(plan: Plan, demand: Demand) -> list[Line]:
    incoming = show_byte_rate(plan.incoming)
    target, least = show_byte_rate(demand.partition_bytes_per_second), f"{plan.partitions_min:,}"
    each = show_byte_rate(plan.incoming / plan.partitions)
    return [
        Line("at least", f"{incoming} ÷ {target}", least),
        Line("with headroom", f"{least} × {show_number(demand.headroom)}", f"{plan.partitions:,}"),
        Line("each carries", f"{incoming} ÷ {plan.partitions:,}", each),
    ]


def _counted(number: float, word: str) -> str:
    return f"{show_number(number)} {word}" if number == 1 else f"{show_number(number)} {word}s"
