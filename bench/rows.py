"""The rows of the table, one function each."""

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from bench import raw
from bench.clients import measure_clients
from bench.cluster import Nodes
from bench.cores import ONE, measure_core_outages, measure_cores
from bench.failover import measure_outages
from bench.librdkafka import NoLibrary, library_path
from bench.limits import measure_limits
from bench.line import LeftOut, Line, Row
from bench.loop import measure_stalls
from bench.measure import MIB, Plan, client, measure, medians_in_turn, one_slice, slice_of
from bench.metrics import measure_scrapes
from bench.node import Node
from bench.noise import COPY, SYNC, Measured, medians_of
from bench.peers import MILLPOND
from bench.race import row_of
from bench.races import USE
from bench.rebalance import AWAY_SECONDS, TITLES, measure_kind
from bench.rights import measure_rights
from bench.scale import measure_scale
from bench.seeds import measure_seeds
from bench.spark import measure_ways
from bench.syncs import Way, measure_syncs
from bench.tls import measure_tls
from bench.values import COMPILED, PLAIN, measure_values
from bench.volume import fill

SMALL_BYTES = 100
LARGE_BYTES = 1024
FETCH_BATCHES = 300
FETCH_BATCHES_QUICK = 100
CONSUME_BATCHES = 100
PARTITION_STEPS = (1, 10, 100, 1000)
PARTITION_STEPS_QUICK = (1, 10, 100)
CONNECTION_STEPS = (1, 16, 100, 1000)
MANY_PARTITIONS = (1_000, 10_000)
MANY_PARTITIONS_QUICK = (200,)
IDLE_CONNECTIONS = 10_000
DESCRIPTORS_SPARE = 200


def _acks_title(acks: int) -> str:
    return "acks=all" if acks < 0 else f"acks={acks}"


# Many messages in a request.

SMALL_PROTOTYPE: Measured = {"messages_per_s": 1.6e6, "cpu_s_per_million": 0.14}
LARGE_PROTOTYPE: Measured = {"mb_per_s": 600.0, "cpu_s_per_gb": 0.7}


def _produce(load: str, value_bytes: int, acks: int, title: str) -> Callable[[Plan], list[Line]]:
    def run(plan: Plan) -> list[Line]:
        if load == "ProduceLibrdkafka":
            try:
                library_path()
            except NoLibrary as reason:
                return [Line(title, {}, note=f"left out: {reason}")]
        with Node() as node:
            node.create_topic("bulk")
            bounds = {} if load == "ProducePython" else {"bytes_max": plan.bytes_max}
            figures = measure(node, plan, load, topic="bulk", acks=acks, value_bytes=value_bytes, **bounds)
        prototype = SMALL_PROTOTYPE if value_bytes == SMALL_BYTES else LARGE_PROTOTYPE
        if load == "ProducePython":
            # Its Python loop is the limit, not the broker: only the broker's CPU time is comparable.
            prototype = {"cpu_s_per_million": prototype["cpu_s_per_million"]}
        return [Line(f"{title}, {_acks_title(acks)}", figures, prototype)]

    return run


# Reading.

FETCH_PROTOTYPE: Measured = {"messages_per_s": 1.4e6, "cpu_s_per_gb": 0.3}


def fetch_raw(plan: Plan) -> list[Line]:
    batches = FETCH_BATCHES_QUICK if plan.quick else FETCH_BATCHES
    with Node() as node:
        fill(node, "bulk", batches, SMALL_BYTES)
        figures = measure(node, plan, "FetchLarge", topic="bulk", value_bytes=SMALL_BYTES, batches=batches)
    return [Line("fetch 100 B, raw", figures, FETCH_PROTOTYPE)]


def fetch_consumer(plan: Plan) -> list[Line]:
    with Node() as node:
        messages = fill(node, "bulk", CONSUME_BATCHES, SMALL_BYTES)
        figures = measure(node, plan, "Consume", topic="bulk", value_bytes=SMALL_BYTES, messages=messages)
    return [Line("fetch 100 B, confluent-kafka", figures, FETCH_PROTOTYPE)]


def tls(plan: Plan) -> list[Line]:
    """The same load with and without TLS."""
    lines = []
    for title, clear, encrypted in measure_tls(plan):
        more = encrypted["cpu_s_per_gb"] - clear["cpu_s_per_gb"]
        note = f"+{more:.2f} s/GB, x{encrypted['mb_per_s'] / clear['mb_per_s']:.2f} of its speed"
        lines.append(Line(f"{title}, in the clear", clear))
        lines.append(Line(f"{title}, TLS", {**encrypted, "tls_cpu_s_per_gb": more}, note=note))
    return lines


# One message in a request.

ONE_PROTOTYPE: Measured = {"requests_per_s": 40_000.0, "us_per_request": 25.0}


def _one_message(acks: int) -> Callable[[Plan], list[Line]]:
    def run(plan: Plan) -> list[Line]:
        with Node() as node:
            node.create_topic("one")
            figures = measure(node, plan, "ProduceOne", topic="one", acks=acks, connections=16)
        # The disk limits the rate, so only CPU time is comparable.
        prototype = ONE_PROTOTYPE if acks == raw.ACKS_LEADER else {"us_per_request": 25.0}
        return [Line(f"one message a request, {_acks_title(acks)}", figures, prototype)]

    return run


SMALL = (
    ("fetch-one", 12, 16, "fetch of one record, in a session"),
    ("fetch-full", 16, 16, "fetch of one record, without a session"),
    ("fetch-waits", 12, 64, "fetch that waits 5 ms for nothing, in a session"),
    ("fetch-full-waits", 12, 64, "fetch that waits 5 ms for nothing, without a session"),
    ("heartbeat", 4, 16, "heartbeat"),
    ("consumer-heartbeat", 1, 16, "heartbeat of the new protocol"),
    ("commit", 8, 16, "commit of one offset"),
)
"""Kinds of small requests, their version, and on how many connections."""


def small_requests(plan: Plan) -> list[Line]:
    """What consumers send while there is little to read."""
    lines = []
    for kind, version, connections, title in SMALL:
        with Node() as node:
            figures = measure(node, plan, "SmallRequests", kind=kind, version=version, connections=connections)
        lines.append(Line(title, figures))
    return lines


def metrics(plan: Plan) -> list[Line]:
    """The same load without scrapes of /metrics, and with scrapes at each interval."""
    lines = []
    loads: list[tuple[str, str, str, dict[str, object]]] = [
        ("ProduceOne", "one message a request, acks=1", "us_per_request", {"acks": 1, "connections": 16}),
        ("Latency", "end to end at 1,000/s, acks=1", "p99_ms", {"acks": 1}),
    ]
    for load, title, figure, arguments in loads:
        measured, scrapers, count = measure_scrapes(plan, load, **arguments)
        lines.append(Line(f"{title}, no scrapes", measured[""]))
        for interval, scraper in scrapers.items():
            ratio = measured[interval][figure] / measured[""][figure]
            page_ms = statistics.median(scraper.seconds) * 1000
            pages = f"pages of {scraper.page_bytes / 1e6:.1f} MB in {page_ms:.0f} ms, {count:,} partitions"
            figures = {**measured[interval], "metrics_ratio": ratio, "metrics_page_ms": page_ms}
            lines.append(Line(f"{title}, scraped {interval}", figures, note=f"x{ratio:.2f}; {pages}"))
    return lines


def rights(plan: Plan) -> list[Line]:
    """Producing and fetching without authorization, and with it."""
    lines = []
    for title, without, with_rights, ratio in measure_rights(plan, FETCH_BATCHES_QUICK):
        lines.append(Line(f"{title}, no authorization", without))
        note = f"x{ratio:.2f} CPU a request"
        lines.append(Line(f"{title}, authorized", {**with_rights, "rights_ratio": ratio}, note=note))
    return lines


def floor_lines(limits: Mapping[str, Measured]) -> list[Line]:
    sync = f"{limits['sync']['syncs_per_s']:,.0f} a second"
    return [
        Line("floor: a bare loop that only answers", limits["loop"], note="no broker at all"),
        Line("floor: memory is copied", limits["copy"], note="one thread"),
        Line("floor: 4 KiB are written and synced", limits["sync"], note=f"fdatasync, {sync}"),
    ]


def floor(plan: Plan) -> list[Line]:
    return floor_lines(measure_limits(plan))


def syncs(plan: Plan) -> list[Line]:
    """Ways to make an append durable, each compared with the first of its size."""
    lines = []
    found = {(size, way): figures for size, way, figures in measure_syncs(plan)}
    for (size, way), figures in found.items():
        first = found[size, Way.GROWING]
        ratios = {
            f"first_{name}_ratio": figures[name] / first[name] for name in ("p50_ms", "p99_ms", "us_per_request")
        }
        rate = f"{figures['syncs_per_s']:,.0f} a second"
        middle, slow, spent = (f"x{ratio:.2f}" for ratio in ratios.values())
        note = rate if figures is first else f"{rate}; p50 {middle} of the first, p99 {slow}, CPU {spent}"
        title = f"{size:,} B" if size < 1024 else f"{size >> 10} KiB"
        lines.append(Line(f"{title} {way}", {**figures, **ratios}, note=note))
    return lines


def _latency(acks: int) -> Callable[[Plan], list[Line]]:
    def run(plan: Plan) -> list[Line]:
        with Node() as node:
            node.create_topic("steady")
            figures = measure(node, plan, "Latency", topic="steady", acks=acks)
        answered = {name.removeprefix("answer_"): figures[name] for name in figures if name.startswith("answer_")}
        prototype: Measured = {"p50_ms": 0.25, "p99_ms": 0.5} if acks == raw.ACKS_LEADER else {}
        title = _acks_title(acks)
        return [
            Line(f"end to end at 1,000/s, {title}", figures, prototype),
            Line(f"until acknowledged at 1,000/s, {title}", answered),
        ]

    return run


# Costs of a node without load.

START_PROTOTYPE: Measured = {"resident_mb": 28.0, "ready_ms": 150.0}


def _start_figures(node: Node) -> Measured:
    return {
        "ready_ms": node.ready.seconds * 1000,
        "ready_cpu_ms": node.ready.cpu_seconds * 1000,
        "resident_mb": node.resident_bytes() / MIB,
    }


def start(plan: Plan) -> list[Line]:
    found = []
    # The first start may still compile modules.
    for _ in range(plan.slices + 1):
        with Node() as node:
            found.append(_start_figures(node))
    figures = medians_of(found[1:])
    return [Line("start, empty folder", figures, START_PROTOTYPE, f"{figures['ready_cpu_ms']:.0f} ms CPU")]


def many_partitions(plan: Plan) -> list[Line]:
    with Node() as empty:
        base = empty.resident_bytes()
    counts = MANY_PARTITIONS_QUICK if plan.quick else MANY_PARTITIONS
    return [line for count in counts for line in _starts_with(count, base, 1 if plan.quick else plan.slices)]


def _starts_with(count: int, base: int, times: int) -> Iterator[Line]:
    """After a clean stop and after a kill. Nothing was written before."""
    with Node() as node:
        with node.connect() as client:
            client.make_topic("wide", count)
        for name, end in (("clean", node.stop), ("killed", node.kill)):
            found = []
            for _ in range(times):
                end()
                node.start()
                found.append(_start_figures(node))
            each_kb = (statistics.median(one["resident_mb"] for one in found) * MIB - base) / count / 1024
            figures = medians_of(found)
            note = f"{figures['ready_cpu_ms']:.0f} ms CPU, {each_kb:.1f} KiB each"
            yield Line(f"start, {count:,} partitions, {name}", {**figures, "kib_each": each_kb}, note=note)


def idle_connections(plan: Plan) -> list[Line]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(IDLE_CONNECTIONS, hard - DESCRIPTORS_SPARE)
    if plan.quick:
        count = min(count, 2000)
    with Node() as node:
        base = node.resident_bytes()
        with client("Idle", node, connections=count) as crowd:
            crowd.run(0.2)
            grown = node.resident_bytes()
    each_kb = (grown - base) / count / 1024
    figures = {"resident_mb": grown / MIB, "kib_each": each_kb}
    return [Line(f"{count:,} idle connections", figures, note=f"{each_kb:.1f} KiB each")]


# Flatness: the same work with more partitions or connections.


def _flat(
    steps: Sequence[int], what: str, plan: Plan, settings: Callable[[int], dict[str, str]], **load: int
) -> list[Line]:
    """A node for each step. `load` has the client's argument that is 1; the other is the step."""
    with ExitStack() as stack:
        slices = {}
        for count in steps:
            node = stack.enter_context(Node(settings(count)))
            node.create_topic("flat")
            arguments = {"connections": count, "partitions": count, **load}
            slices[f"{count:,}"] = slice_of(
                node, stack.enter_context(client("ProducePaced", node, topic="flat", **arguments))
            )
        medians = medians_in_turn(plan, slices)
    first = medians[f"{steps[0]:,}"]["us_per_request"]
    lines = []
    for count, figures in medians.items():
        ratio = figures["us_per_request"] / first
        lines.append(Line(f"{count} {what}", {**figures, "flat_ratio": ratio}, note=f"x{ratio:.2f} of {steps[0]}"))
    return lines


def flat_partitions(plan: Plan) -> list[Line]:
    steps = PARTITION_STEPS_QUICK if plan.quick else PARTITION_STEPS
    return _flat(steps, "partitions in turn", plan, lambda count: {"num.partitions": str(count)}, connections=1)


def flat_connections(plan: Plan) -> list[Line]:
    return _flat(CONNECTION_STEPS, "connections in turn", plan, lambda _: {}, partitions=1)


def rebalance(plan: Plan) -> list[Line]:
    """One line per assignor, with the worst of all restarts."""
    lines = []
    for kind, title in TITLES.items():
        restarts = measure_kind(kind, plan)
        figures = {name: max(each[name] for each in restarts) for name in restarts[0]}
        note = f"{len(restarts)} restarts, each {AWAY_SECONDS:.0f} s away"
        lines.append(Line(title, figures, note=note))
    return lines


def spark(plan: Plan) -> list[Line]:
    """Reading and writing with Spark; the CPU time is that of all of Spark's processes."""
    try:
        found = list(measure_ways(plan))
    except LeftOut as reason:
        return [Line("Spark", {}, note=f"left out: {reason}")]
    by_title = {way.title: figures for way, figures in found}
    lines = []
    for way, figures in found:
        ceiling = by_title[way.ceiling]
        speed = figures["messages_per_s"] / ceiling["messages_per_s"]
        thrift = figures["cpu_s_per_million"] / ceiling["cpu_s_per_million"]
        note = "the ceiling" if figures is ceiling else f"x{speed:.2f} of the ceiling, x{thrift:.2f} of its CPU"
        known: Measured = {} if way.known is None else {"messages_per_s": way.known}
        lines.append(Line(way.title, {**figures, "ceiling_ratio": speed, "ceiling_cpu_ratio": thrift}, known, note))
    return lines


def values(plan: Plan) -> list[Line]:
    """Values into columns for Spark, with the compiled reader and without it."""
    try:
        found = {(kind, way): figures for kind, way, figures in measure_values(plan)}
    except LeftOut as reason:
        return [Line("values into columns", {}, note=f"left out: {reason}")]
    lines = []
    for (kind, way), figures in found.items():
        ratio = found[kind, PLAIN]["cpu_s_per_million"] / figures["cpu_s_per_million"]
        note = f"x{ratio:.1f} of plain; of one core's time" if way == COMPILED else "of one core's time"
        lines.append(Line(f"{kind} into columns, {way}", {**figures, "plain_ratio": ratio}, note=note))
    return lines


def loop(plan: Plan) -> list[Line]:
    """How long a second connection waits during a large operation."""
    return [Line(each.title, {"longest_ms": each.longest_ms}, note=each.note) for each in measure_stalls(plan)]


# Three replicas.


def _replicated(load: str, value_bytes: int, title: str) -> Callable[[Plan], list[Line]]:
    """All nodes and the client share this machine."""

    def run(plan: Plan) -> list[Line]:
        try:
            library_path()
        except NoLibrary as reason:
            return [Line(title, {}, note=f"left out: {reason}")]
        with Nodes(3) as nodes:
            nodes.create_topic("bulk")
            leader = nodes.leader("bulk")
            followers = [node for number, node in nodes.nodes.items() if number != leader]
            with client(
                load, nodes[leader], topic="bulk", acks=-1, value_bytes=value_bytes, bytes_max=plan.bytes_max
            ) as started:

                def spent() -> tuple[float, float]:
                    return sum(node.cpu_seconds() for node in followers), started.cpu_seconds()

                before = spent()
                slices = [one_slice(nodes[leader], started, plan.slice_seconds) for _ in range(plan.slices)]
                by_followers, by_client = (after - then for after, then in zip(spent(), before, strict=True))
        gigabytes = sum(each["bytes"] for each in slices) / 1e9
        by_leader = sum(each["cpu_seconds"] for each in slices)
        figures = {
            **medians_of(slices),
            "follower_cpu_s_per_gb": by_followers / len(followers) / gigabytes,
            "client_cpu_s_per_gb": by_client / gigabytes,
            "all_cpu_s_per_gb": (by_leader + by_followers + by_client) / gigabytes,
        }
        note = (
            f"s/GB: follower {figures['follower_cpu_s_per_gb']:.2g}, "
            f"client {figures['client_cpu_s_per_gb']:.2g}, all {figures['all_cpu_s_per_gb']:.2g}"
        )
        return [Line(f"{title}, acks=all, 3 replicas", figures, note=note)]

    return run


def latency_replicated(plan: Plan) -> list[Line]:
    with Nodes(3) as nodes:
        nodes.create_topic("steady")
        leader = nodes[nodes.leader("steady")]
        figures = measure(leader, plan, "Latency", topic="steady", acks=raw.ACKS_ALL)
    answered = {name.removeprefix("answer_"): figures[name] for name in figures if name.startswith("answer_")}
    return [
        Line("end to end at 1,000/s, acks=all, 3 replicas", figures),
        Line("until acknowledged at 1,000/s, acks=all, 3 replicas", answered),
    ]


def cores(plan: Plan) -> list[Line]:
    """Many producers and consumers against one process and against two."""
    found = measure_cores(plan)
    one = found[ONE]
    lines = []
    for title, figures in found.items():
        ratios = {
            "speed_ratio": figures["messages_per_s"] / one["messages_per_s"],
            "cpu_ratio": figures["cpu_s_per_million"] / one["cpu_s_per_million"],
            "client_cpu_ratio": figures["client_cpu_s_per_million"] / one["client_cpu_s_per_million"],
        }
        read = figures["consumed"] / figures["messages"]
        note = f"{figures['records_per_fetch']:.0f} records a fetch, {read:.0%} read"
        if title != ONE:
            speed, nodes, clients = (f"x{ratio:.2f}" for ratio in ratios.values())
            note = f"{speed} of one, CPU {nodes}, clients' {clients}; {note}"
        lines.append(Line(f"40 clients, {title}", {**figures, **ratios}, note=note))
    return lines


def cores_kill(plan: Plan) -> list[Line]:
    """How long a core is unavailable after its process is killed."""
    lines = []
    for core, outages in measure_core_outages(plan).items():
        figures = {"outage_ms": statistics.median(outages), "outage_max_ms": max(outages)}
        span = f"{min(outages):,.0f} to {figures['outage_max_ms']:,.0f}"
        note = f"writes stand still for {figures['outage_ms']:,.0f} ms (median of {len(outages)}; {span})"
        lines.append(Line(f"kill -9 of core {core} of 2", figures, note=note))
    return lines


def clients(plan: Plan) -> list[Line]:
    """Client libraries compared, first for sending and then for reading."""
    lines = []
    for title, found, ratio in measure_clients(plan):
        if isinstance(found, str):
            lines.append(Line(title, {}, note=found))
        else:
            lines.append(Line(title, found, note=f"x{ratio:.2f} of confluent-kafka"))
    return lines


def failover(plan: Plan) -> list[Line]:
    """How long writes stall: the median and the 99th percentile of all trials."""
    lines = []
    for scenario, outages in measure_outages(plan):
        figures: Measured = {}
        for what in ("moved", "others"):
            values = sorted(getattr(outage, f"{what}_ms") for outage in outages)
            figures[f"{what}_p50_ms"] = statistics.median(values)
            figures[f"{what}_p99_ms"] = values[min(len(values) - 1, int(len(values) * 0.99))]
        lines.append(Line(scenario.title, figures, note=f"{len(outages)} trials"))
    return lines


def scale(plan: Plan) -> list[Line]:
    """What blocks the event loops of three nodes with ten thousand partitions."""
    lines = []
    for busy in measure_scale(plan):
        figures: Measured = {
            "seconds": busy.seconds,
            "turn_cpu_ms": busy.turn_cpu_ms,
            "turn_wall_ms": busy.turn_wall_ms,
            "gc_ms": busy.gc_ms,
            "long_turns": busy.long_turns,
            "cpu_seconds": busy.cpu_seconds,
        }
        lines.append(Line(busy.title, figures))
    return lines


def seeds(plan: Plan) -> list[Line]:
    """The number of simulated runs per hour of one core."""
    return [
        Line(f"simulated: {title}", {"seeds_per_hour": count}, note=f"{count:,.0f} seeds an hour of one core")
        for title, count in measure_seeds(plan.slices * plan.slice_seconds)
    ]


ROWS: tuple[Row, ...] = (
    Row("floor", floor),
    Row("one", _one_message(raw.ACKS_LEADER)),
    Row("one-all", _one_message(raw.ACKS_ALL), SYNC),
    Row("small", small_requests),
    Row("produce", _produce("ProduceLarge", SMALL_BYTES, 1, "produce 100 B, raw"), COPY),
    Row("produce-all", _produce("ProduceLarge", SMALL_BYTES, -1, "produce 100 B, raw"), SYNC),
    Row("produce-librdkafka", _produce("ProduceLibrdkafka", SMALL_BYTES, 1, "produce 100 B, librdkafka")),
    Row("produce-librdkafka-all", _produce("ProduceLibrdkafka", SMALL_BYTES, -1, "produce 100 B, librdkafka"), SYNC),
    Row("produce-python", _produce("ProducePython", SMALL_BYTES, 1, "produce 100 B, confluent-kafka")),
    Row("produce-1k", _produce("ProduceLarge", LARGE_BYTES, 1, "produce 1 KiB, raw"), COPY),
    Row("produce-1k-librdkafka", _produce("ProduceLibrdkafka", LARGE_BYTES, 1, "produce 1 KiB, librdkafka")),
    Row("fetch", fetch_raw, COPY),
    Row("fetch-consumer", fetch_consumer),
    Row("tls", tls),
    Row("latency", _latency(raw.ACKS_LEADER)),
    Row("latency-all", _latency(raw.ACKS_ALL), SYNC),
    Row("syncs", syncs, SYNC),
    Row("metrics", metrics),
    Row("rights", rights),
    Row("partitions", flat_partitions),
    Row("connections", flat_connections),
    Row("start", start),
    Row("start-many", many_partitions),
    Row("idle", idle_connections),
    Row("cores", cores),
    Row("cores-kill", cores_kill),
    Row("replicated", _replicated("ProduceLibrdkafka", SMALL_BYTES, "produce 100 B, librdkafka")),
    Row("replicated-1k", _replicated("ProduceLibrdkafka", LARGE_BYTES, "produce 1 KiB, librdkafka")),
    Row("latency-replicated", latency_replicated),
    *(row_of(race, MILLPOND) for race in USE),
    Row("clients", clients),
    Row("failover", failover),
    Row("rebalance", rebalance),
    Row("loop", loop),
    Row("scale", scale),
    Row("seeds", seeds),
    Row("values", values),
    Row("spark", spark),
)
