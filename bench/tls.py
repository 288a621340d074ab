"""The cost of TLS: the same loads, alternately, against a node without TLS and one with it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.measure import Plan, client, medians_in_turn, slice_of
from bench.node import HOST, Node
from bench.noise import Measured
from bench.volume import fill

TOPIC = "bulk"
BATCHES = 100

LOADS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("fetch 100 B, raw", "FetchLarge", {"value_bytes": 100, "batches": BATCHES}),
    ("produce 1 KiB, raw, acks=1", "ProduceLarge", {"value_bytes": 1024, "acks": 1}),
)


def certificates(folder: Path) -> tuple[dict[str, str], str]:
    """The settings of a node with TLS, and the authority that its clients trust."""
    from millpond.node.authority import Authority

    authority = Authority.create(folder)
    authority.issue("node", "node", [HOST])
    settings = {"listen.protocol": "SSL", "ssl.keystore.location": str(folder / "node.pem")}
    return settings, str(authority.path)


def measure_tls(plan: Plan) -> Iterator[tuple[str, Measured, Measured]]:
    """Each load: its title, its figures without TLS, and with it."""
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as folder:
        settings, authority = certificates(Path(folder))
        for title, load, arguments in LOADS:
            with ExitStack() as stack:
                slices = {}
                for name, texts, trusted in (("clear", {}, ""), ("tls", settings, authority)):
                    node = stack.enter_context(Node(texts, authority=trusted))
                    fill(node, TOPIC, BATCHES, 100)
                    bounds = {"bytes_max": plan.bytes_max // 4} if load == "ProduceLarge" else {}
                    options = {"topic": TOPIC, "authority": trusted, **arguments, **bounds}
                    slices[name] = slice_of(node, stack.enter_context(client(load, node, **options)))
                medians = medians_in_turn(plan, slices)
            yield title, medians["clear"], medians["tls"]
