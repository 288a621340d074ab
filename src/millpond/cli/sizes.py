"""How large partitions are on disk, by DescribeLogDirs, which confluent-kafka does not offer: we ask ourselves.

Where a broker does not answer, the size is simply not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millpond.base.errors import MalformedMessage
from millpond.cli.connect import Cluster
from millpond.cli.offsets import Partition
from millpond.client.errors import ConfigError
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import ClusterError
from millpond.remote.security import Security
from millpond.wire import messages as m

NEWEST: Final = 1
ANSWER_SECONDS: Final = 3.0


def sizes_on(cluster: Cluster, brokers: dict[int, tuple[str, int]]) -> dict[tuple[int, Partition], int]:
    """Bytes by broker and partition, as far as they can be known."""
    try:
        security = Security.from_settings(cluster.extras)
    except ConfigError:
        return {}
    found = {}
    for broker, (host, port) in brokers.items():
        for partition, size in _ask(host, port, security):
            found[broker, partition] = size
    return found


def _ask(host: str, port: int, security: Security) -> Iterable[tuple[Partition, int]]:
    try:
        with BrokerConnection(host, port, security=security, answer_seconds=ANSWER_SECONDS) as link:
            response = link.ask(m.DescribeLogDirsRequest(topics=None), m.DescribeLogDirsResponse, newest=NEWEST)
    except (ClusterError, MalformedMessage):
        return []
    return [
        ((topic.name, partition.partition_index), partition.partition_size)
        for result in response.results
        for topic in result.topics
        for partition in topic.partitions
        if not partition.is_future_key
    ]
