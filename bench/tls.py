"""What TLS costs: the same loads by the clear listener and by the encrypted one, in turns, against two nodes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench import raw
from bench.measure import Plan, client, one_slice
from bench.node import HOST, Node
from bench.noise import Measured, medians_of

TOPIC = "bulk"
BATCHES = 100

LOADS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("fetch 100 B, raw", "FetchLarge", {"value_bytes": 100, "batches": BATCHES}),
    ("produce 1 KiB, raw, acks=1", "ProduceLarge", {"value_bytes": 1024, "acks": 1}),
)


def certificates(folder: Path) -> tuple[dict[str, str], str]:
    """The settings of a node that speaks TLS, and whom its clients believe."""
    from millpond.node.authority import Authority

    authority = Authority.create(folder)
    authority.issue("node", "node", [HOST])
    settings = {"listen.protocol": "SSL", "ssl.keystore.location": str(folder / "node.pem")}
    return settings, str(authority.path)


def fill(node: Node) -> None:
    node.create_topic(TOPIC)
    records, _ = raw.full_batch(100)
    frame = raw.produce_frame(TOPIC, 0, records, raw.ACKS_LEADER)
    with node.connect() as writer:
        for _ in range(BATCHES):
            writer.send(frame)
            raw.check_produced(writer.receive())


def measure_tls(plan: Plan) -> Iterator[tuple[str, Measured, Measured]]:
    """Each load: its title, in the clear, and by TLS."""
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as folder:
        settings, authority = certificates(Path(folder))
        for title, load, arguments in LOADS:
            with ExitStack() as stack:
                pairs = []
                for texts, believed in (({}, ""), (settings, authority)):
                    node = stack.enter_context(Node(texts, authority=believed))
                    fill(node)
                    bounds = {"bytes_max": plan.bytes_max // 4} if load == "ProduceLarge" else {}
                    how = {"topic": TOPIC, "authority": believed, **arguments, **bounds}
                    pairs.append((node, stack.enter_context(client(load, node, **how))))
                slices: tuple[list[Measured], list[Measured]] = ([], [])
                # In turns, so that a noisy moment hits both alike.
                for _ in range(plan.slices):
                    for (node, started), found in zip(pairs, slices, strict=True):
                        found.append(one_slice(node, started, plan.slice_seconds))
            yield title, medians_of(slices[0]), medians_of(slices[1])
