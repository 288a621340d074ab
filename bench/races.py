"""The races: rows that other brokers can run, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from bench import raw
from bench.backlog import enter_catch_up, enter_cold
from bench.librdkafka import ANY_PARTITION, NoLibrary, library_path
from bench.line import LeftOut
from bench.measure import Plan, client, one_slice, per_unit, slice_of
from bench.noise import COPY, LOOP, SYNC, Measured
from bench.race import KafkaSpeaker, Race, Slice, Way
from bench.volume import fill, folder_bytes

SMALL_BYTES = 100
LARGE_BYTES = 1024
FETCH_BATCHES = 300
FETCH_BATCHES_QUICK = 100
CONSUME_BATCHES = 100
COPY_BATCHES = 20
MANY_PARTITIONS = 64
MANY = 8
WIDE_PARTITIONS = 1000
GROUPS = 100
MEMBERS_EACH = 5
GROUP_RECORDS_PER_S = 20
WORKERS = (1, 10, 100)
COMPACTED_KEYS = 1000
"""Few enough for every batch to repeat each key."""

AS_THEY_COME = Way("as they come")
"""A write with acks=all: we sync, Kafka does not, nor do NATS and RabbitMQ; Redis does once a second."""

ALL_SYNC = Way(
    "all sync",
    {
        "kafka": {"log.flush.interval.messages": "1"},
        "redis": {"appendfsync": "always"},
    },
    {
        "nats": "this version syncs by a clock alone",
        "rabbitmq": "its streams leave the sync to the operating system",
    },
)
NONE_SYNC = Way(
    "none syncs",
    {"millpond": {"flush.ack": "never"}, "millpond-2": {"flush.ack": "never"}, "redis": {"appendfsync": "no"}},
)
ALL_WAYS = (AS_THEY_COME, ALL_SYNC, NONE_SYNC)

Enter = Callable[[ExitStack, KafkaSpeaker, Plan, Mapping[str, str]], Slice]


def needs_librdkafka() -> None:
    try:
        library_path()
    except NoLibrary as reason:
        raise LeftOut(str(reason)) from reason


def _driven(load: str, of_node: Mapping[str, str] | None = None, batches: int = 0, **arguments: object) -> Enter:
    """One load against one broker with a topic, filled with this many full batches."""

    def enter(stack: ExitStack, who: KafkaSpeaker, plan: Plan, own: Mapping[str, str]) -> Slice:
        if load in ("ProduceLibrdkafka", "Crowd"):
            needs_librdkafka()
        node = stack.enter_context(who.node({**(of_node or {}), **own}))
        node.create_topic("race")
        given = dict(arguments)
        if batches:
            count = min(batches, FETCH_BATCHES_QUICK) if plan.quick else batches
            messages = fill(node, "race", count, SMALL_BYTES)
            given |= {"messages": messages} if load == "Consume" else {"batches": count}
        if load in ("ProduceLarge", "ProduceLibrdkafka", "Crowd"):
            given["bytes_max"] = plan.bytes_max
        return slice_of(node, stack.enter_context(client(load, node, topic="race", **given)))

    return enter


def _latency(acks: int, wanted: str) -> Enter:
    """`wanted` selects the latency: "arrival" at a consumer, or "answer" for the acknowledgement."""
    driven = _driven("Latency", acks=acks)

    def enter(stack: ExitStack, who: KafkaSpeaker, plan: Plan, own: Mapping[str, str]) -> Slice:
        run = driven(stack, who, plan, own)

        def one(seconds: float) -> Measured:
            found = run(seconds)
            answered = {name: value for name, value in found.items() if name.startswith("answer_")}
            for name, value in answered.items():
                del found[name]
                if wanted == "answer":
                    found[name.removeprefix("answer_")] = value
            return found

        return one

    return enter


def _groups(stack: ExitStack, who: KafkaSpeaker, plan: Plan, own: Mapping[str, str]) -> Slice:
    node = stack.enter_context(who.node({"num.partitions": str(MEMBERS_EACH), **own}))
    node.create_topic("race")
    how = {"groups": GROUPS, "members_each": MEMBERS_EACH, "records_per_s": GROUP_RECORDS_PER_S}
    return slice_of(node, stack.enter_context(client("Groups", node, topic="race", **how)))


def _copy(stack: ExitStack, who: KafkaSpeaker, plan: Plan, own: Mapping[str, str]) -> Slice:
    node = stack.enter_context(who.node(own))
    messages = fill(node, "source", COPY_BATCHES, SMALL_BYTES)
    node.create_topic("target")
    how: dict[str, object] = {"source": "source", "target": "target"}
    how |= {"messages": messages, "value_bytes": SMALL_BYTES}
    return slice_of(node, stack.enter_context(client("Copy", node, **how)))


def _compacted(stack: ExitStack, who: KafkaSpeaker, plan: Plan, own: Mapping[str, str]) -> Slice:
    """Compaction runs during the writes; ours compacts only synced data."""
    node = stack.enter_context(who.node({"log.cleaner.backoff.ms": "200", **own}))
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": str(16 << 20),
        "min.cleanable.dirty.ratio": "0.01",
        "file.delete.delay.ms": "0",
    }
    with node.connect() as asking:
        asking.make_topic("race", 1, settings)
    how: dict[str, object] = {"acks": raw.ACKS_ALL, "value_bytes": SMALL_BYTES, "keys": COMPACTED_KEYS}
    # Limited by time only: compaction soon deletes what is written.
    started = stack.enter_context(client("ProduceLarge", node, topic="race", bytes_max=8 << 30, **how))
    written = 0.0

    def one(seconds: float) -> Measured:
        nonlocal written
        found = one_slice(node, started, seconds)
        written += found["bytes"]
        return {**found, "written_mb": written / 1e6, "left_mb": folder_bytes(node.folder) / 1e6}

    return one


def _replicated(value_bytes: int) -> Enter:
    def enter(stack: ExitStack, who: KafkaSpeaker, plan: Plan, own: Mapping[str, str]) -> Slice:
        needs_librdkafka()
        if who.nodes is None:
            raise LeftOut("it is one node")
        nodes = stack.enter_context(who.nodes(own))
        nodes.create_topic("race")
        leader = nodes[nodes.leader("race")]
        how: dict[str, object] = {"acks": raw.ACKS_ALL, "value_bytes": value_bytes, "bytes_max": plan.bytes_max}
        started = stack.enter_context(client("ProduceLibrdkafka", leader, topic="race", **how))
        everyone = list(nodes.nodes.values())

        def one(seconds: float) -> Measured:
            before = sum(node.cpu_seconds() for node in everyone)
            measured = started.run(seconds)
            cpu_seconds = sum(node.cpu_seconds() for node in everyone) - before
            return per_unit(measured, cpu_seconds, sum(node.resident_bytes() for node in everyone))

        return one

    return enter


def _one(acks: int) -> Enter:
    return _driven("ProduceOne", acks=acks, connections=16)


def _bulk(load: str, value_bytes: int, acks: int, **more: object) -> Enter:
    return _driven(load, acks=acks, value_bytes=value_bytes, **more)


_CROWD = _driven(
    "Crowd",
    {"num.partitions": str(MANY_PARTITIONS)},
    producers=MANY,
    consumers=MANY,
    partitions=MANY_PARTITIONS,
    value_bytes=SMALL_BYTES,
    acks=1,
)
_WIDE = _driven(
    "ProduceLibrdkafka",
    {"num.partitions": str(WIDE_PARTITIONS)},
    acks=raw.ACKS_ALL,
    value_bytes=SMALL_BYTES,
    partition=ANY_PARTITION,
    settings={"sticky.partitioning.linger.ms": "0"},
)


def _queue(load: str, workers: int) -> Enter:
    return _driven(load, broker="kafka", workers=workers, acks=raw.ACKS_ALL)


def _transactions_note(figures: Mapping[str, float]) -> str:
    return f"{figures['transactions_per_s']:,.0f} transactions a second" if figures else ""


def _cold_note(figures: Mapping[str, float]) -> str:
    return f"{figures['written_mb_per_s']:,.0f} MB/s written meanwhile" if figures else ""


def _catch_up_note(figures: Mapping[str, float]) -> str:
    if not figures:
        return ""
    return f"alone p50 {figures['alone_p50_ms']:.2f}, p99 {figures['alone_p99_ms']:.2f} ms"


def _compacted_note(figures: Mapping[str, float]) -> str:
    return f"of {figures['written_mb']:,.0f} MB {figures['left_mb']:,.0f} are left" if figures else ""


USE: tuple[Race, ...] = (
    Race(
        "many",
        f"{MANY} producers, {MANY} consumers, {MANY_PARTITIONS} partitions",
        _CROWD,
        is_spread=True,
    ),
    Race(
        "wide",
        f"one producer, {WIDE_PARTITIONS:,} partitions, 100 B, acks=all",
        _WIDE,
        ALL_WAYS,
        SYNC,
        is_spread=True,
    ),
    Race("groups", "500 consumers in 100 groups, 20 records/s to each", _groups, figure="cpu_s_per_million"),
    Race("lz4", "produce 1 KiB, librdkafka, lz4", _bulk("ProduceLibrdkafka", LARGE_BYTES, 1, compression="lz4")),
    Race("zstd", "produce 1 KiB, librdkafka, zstd", _bulk("ProduceLibrdkafka", LARGE_BYTES, 1, compression="zstd")),
    Race(
        "transactions",
        "one message a transaction",
        _driven("Transactions"),
        ALL_WAYS,
        SYNC,
        "transactions_per_s",
        note=_transactions_note,
    ),
    Race("copy", "exactly-once copy, 1,000 messages a transaction", _copy, ALL_WAYS, SYNC, note=_transactions_note),
    Race(
        "compacted",
        "produce 100 B, raw, acks=all, compacted meanwhile",
        _compacted,
        # Without syncs our broker does not compact.
        (AS_THEY_COME, ALL_SYNC),
        SYNC,
        note=_compacted_note,
    ),
    Race(
        "cold",
        "fetch 1 KiB from the disk, while somebody writes",
        enter_cold,
        bound=COPY,
        figure="mb_per_s",
        note=_cold_note,
    ),
    Race(
        "catch-up",
        "end to end at 1,000/s, another catches up",
        enter_catch_up,
        figure="p99_ms",
        note=_catch_up_note,
    ),
)
"""Typical workloads, which are also rows of the table."""

RACES: tuple[Race, ...] = (
    Race("one", "one message a request, 16 connections, acks=1", _one(1), bound=LOOP),
    Race("one-all", "one message a request, 16 connections, acks=all", _one(-1), ALL_WAYS, SYNC),
    Race("produce", "produce 100 B, raw, acks=1", _bulk("ProduceLarge", SMALL_BYTES, 1), bound=COPY),
    Race("produce-all", "produce 100 B, raw, acks=all", _bulk("ProduceLarge", SMALL_BYTES, -1), ALL_WAYS, SYNC),
    Race("produce-librdkafka", "produce 100 B, librdkafka, acks=1", _bulk("ProduceLibrdkafka", SMALL_BYTES, 1)),
    Race(
        "produce-librdkafka-all",
        "produce 100 B, librdkafka, acks=all",
        _bulk("ProduceLibrdkafka", SMALL_BYTES, -1),
        ALL_WAYS,
        SYNC,
    ),
    Race("produce-1k-librdkafka", "produce 1 KiB, librdkafka, acks=1", _bulk("ProduceLibrdkafka", LARGE_BYTES, 1)),
    Race(
        "fetch",
        "fetch 100 B, raw",
        _driven("FetchLarge", batches=FETCH_BATCHES, value_bytes=SMALL_BYTES),
        bound=COPY,
        figure="mb_per_s",
    ),
    Race(
        "fetch-consumer",
        "fetch 100 B, confluent-kafka",
        _driven("Consume", batches=CONSUME_BATCHES, value_bytes=SMALL_BYTES),
    ),
    Race("latency", "end to end at 1,000/s, acks=1", _latency(1, "arrival"), figure="p99_ms"),
    Race("latency-all", "until acknowledged at 1,000/s, acks=all", _latency(-1, "answer"), ALL_WAYS, SYNC, "p99_ms"),
    *(
        Race(
            f"queue-{workers}",
            f"a queue, {workers} {'workers' if workers > 1 else 'worker'}",
            _queue("Jobs", workers),
        )
        for workers in WORKERS
    ),
    *(
        Race(
            f"queue-latency-{workers}",
            f"a queue at 500/s, {workers} {'workers' if workers > 1 else 'worker'}",
            _queue("PacedJobs", workers),
            figure="p99_ms",
        )
        for workers in WORKERS
    ),
    Race("replicated", "produce 100 B, librdkafka, acks=all, 3 replicas", _replicated(SMALL_BYTES)),
    *USE,
)
