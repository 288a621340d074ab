"""A consumer far behind: its effect on up-to-date consumers, and reads from the disk during writes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import ExitStack

from bench import raw
from bench.measure import Plan, Slice, client, per_unit
from bench.noise import Measured
from bench.race import KafkaSpeaker
from bench.volume import fill, forget_pages

VALUE_BYTES = 1024
COLD_BYTES = 1 << 30
COLD_BYTES_QUICK = 128 << 20
SLICE_SECONDS_MAX = 60.0
"""A reader that needs longer is stopped; what it has read counts."""

LIVE_SECONDS = 1.0


def _batches(total: int) -> int:
    records, _ = raw.full_batch(VALUE_BYTES)
    return max(2, total // len(records))


def enter_catch_up(stack: ExitStack, who: KafkaSpeaker, plan: Plan, own: Mapping[str, str]) -> Slice:
    """Live traffic alone, and then while a consumer reads a large topic from its beginning."""
    node = stack.enter_context(who.node(own))
    batches = _batches(plan.backlog_bytes)
    fill(node, "old", batches, VALUE_BYTES)
    node.create_topic("live")
    live = stack.enter_context(client("Latency", node, topic="live", acks=1))
    reader = stack.enter_context(client("FetchOn", node, topic="old", value_bytes=VALUE_BYTES, batches=batches))

    def one(seconds: float) -> Measured:
        alone = live.run(min(seconds, LIVE_SECONDS))
        before = node.cpu_seconds()
        reader.begin(SLICE_SECONDS_MAX)
        beside = [live.run(LIVE_SECONDS if plan.backlog_bytes > 1e9 else LIVE_SECONDS / 4)]
        while not reader.is_done():
            beside.append(live.run(LIVE_SECONDS))
        read = reader.finish()
        found = per_unit(read, node.cpu_seconds() - before, node.resident_bytes())
        for name in ("p50_ms", "p99_ms", "p999_ms"):
            found[name] = statistics.median(each[name] for each in beside)
            found[f"alone_{name}"] = alone[name]
        return found

    return one


def enter_cold(stack: ExitStack, who: KafkaSpeaker, plan: Plan, own: Mapping[str, str]) -> Slice:
    """One client reads a topic that is not in the page cache, while another writes full batches to a second topic."""
    node = stack.enter_context(who.node(own))
    batches = _batches(COLD_BYTES_QUICK if plan.quick else COLD_BYTES)
    fill(node, "old", batches, VALUE_BYTES)
    node.create_topic("new")
    reader = stack.enter_context(client("FetchOn", node, topic="old", value_bytes=VALUE_BYTES, batches=batches))
    how: dict[str, object] = {"acks": 1, "value_bytes": VALUE_BYTES, "bytes_max": plan.bytes_max}
    writer = stack.enter_context(client("ProduceLarge", node, topic="new", **how))

    def one(seconds: float) -> Measured:
        forget_pages(node.folder)
        before = node.cpu_seconds()
        writer.begin(seconds)
        reader.begin(SLICE_SECONDS_MAX)
        read, wrote = reader.finish(), writer.finish()
        found = per_unit(read, node.cpu_seconds() - before, node.resident_bytes())
        return {**found, "written_mb_per_s": wrote["bytes"] / 1e6 / wrote["seconds"]}

    return one
