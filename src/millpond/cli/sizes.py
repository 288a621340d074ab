"""How large partitions are on disk, by DescribeLogDirs, which confluent-kafka does not offer: we ask ourselves.

Only where brokers can be spoken to plainly; where that fails the size is simply not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millpond.base.errors import MalformedMessage
from millpond.cli.connect import Cluster
from millpond.cli.offsets import Partition
from millpond.cli.wire_client import Unsupported, WireClient
from millpond.wire import messages as m

VERSIONS: Final = (1, 1)
ANSWER_SECONDS: Final = 3.0


def sizes_on(cluster: Cluster, brokers: dict[int, tuple[str, int]]) -> dict[tuple[int, Partition], int]:
    """Bytes by broker and partition, as far as they can be known."""
    if "security.protocol" in cluster.extras:
        return {}
    found = {}
    for broker, (host, port) in brokers.items():
        for partition, size in _ask(host, port):
            found[broker, partition] = size
    return found


def _ask(host: str, port: int) -> Iterable[tuple[Partition, int]]:
    try:
        with WireClient(host, port, ANSWER_SECONDS) as client:
            response = client.ask(m.DescribeLogDirsRequest(topics=None), m.DescribeLogDirsResponse, VERSIONS)
    except (OSError, MalformedMessage, Unsupported):
        return []
    return [
        ((topic.name, partition.partition_index), partition.partition_size)
        for result in response.results
        for topic in result.topics
        for partition in topic.partitions
        if not partition.is_future_key
    ]
