"""A cluster of nodes, each a process with its own folder and port."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from bench import raw
from bench.node import HOST, Node, free_port
from millpond.wire import messages as m

READY_SECONDS_MAX = 60.0


class Nodes:
    """Starts on entering, is wiped on leaving; nodes are numbered from 1."""

    def __init__(
        self, count: int = 3, settings: Mapping[str, str] | None = None, kind: Callable[..., Node] = Node
    ) -> None:
        ports: set[int] = set()
        while len(ports) < count:
            ports.add(free_port())
        self.nodes = self.made(dict(enumerate(sorted(ports), 1)), settings or {}, kind)
        self._stack = ExitStack()

    def made(
        self, ports: Mapping[int, int], settings: Mapping[str, str], kind: Callable[..., Node]
    ) -> dict[int, Node]:
        """The nodes, not started yet."""
        nodes = ",".join(f"{number}@{HOST}:{port}" for number, port in ports.items())
        own = {"cluster.nodes": nodes, **settings}
        return {number: kind({**own, "node.id": str(number)}, port) for number, port in ports.items()}

    def __enter__(self) -> Nodes:
        try:
            # All at once: a Kafka broker does not answer before its quorum is complete.
            with ThreadPoolExecutor(len(self.nodes)) as starters:
                list(starters.map(self._stack.enter_context, self.nodes.values()))
            self.wait_until(lambda seen: len(seen.brokers) == len(self.nodes) and seen.controller_id > 0)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic with a replica on every node, and wait until all are in sync."""
        with self.nodes[1].connect() as client:
            client.make_topic(topic, partitions)
        self.wait_until_in_sync(topic)

    def wait_until_in_sync(self, topic: str) -> None:
        self.wait_until(lambda seen: len(seen.brokers) == len(self.nodes) and is_in_sync(seen, topic))

    def wait_until(self, condition: Callable[[m.MetadataResponse], bool], among: Iterable[int] | None = None) -> None:
        """Wait until every node's metadata satisfies the condition."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        for number in among or self.nodes:
            seen: m.MetadataResponse | None = None
            while True:
                try:
                    seen = self.seen_by(number)
                    if condition(seen):
                        break
                except OSError:
                    pass
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the cluster did not come to rest; node {number} sees {seen}")
                time.sleep(0.01)

    def seen_by(self, number: int, timeout_seconds: float = 5.0) -> m.MetadataResponse:
        """The brokers and topics as one node knows them."""
        with raw.RawClient(HOST, self.nodes[number].port, timeout_seconds) as client:
            reply = client.call(m.MetadataRequest(topics=None, allow_auto_topic_creation=False), raw.METADATA_VERSION)
        assert isinstance(reply, m.MetadataResponse)
        return reply

    def leader(self, topic: str, partition: int = 0) -> int:
        seen = self.seen_by(1)
        return next(each.leader_id for each in partitions_of(seen, topic) if each.partition_index == partition)


def partitions_of(seen: m.MetadataResponse, topic: str) -> list[m.MetadataResponse.MetadataResponsePartition]:
    return [each for found in seen.topics if found.name == topic for each in found.partitions]


def is_in_sync(seen: m.MetadataResponse, topic: str) -> bool:
    found = partitions_of(seen, topic)
    return bool(found) and all(
        each.leader_id > 0 and len(each.isr_nodes) == len(each.replica_nodes) for each in found
    )
