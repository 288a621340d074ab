"""Whom we are measured beside: Kafka speaks our protocol and runs our loads; others have small loads of their own."""

from __future__ import annotations

from collections.abc import Mapping

from bench.cluster import Nodes
from bench.cores import CoresNode
from bench.kafka_node import KafkaNode, KafkaNodes
from bench.node import Node
from bench.peers.nats import nats
from bench.peers.rabbitmq import rabbitmq
from bench.peers.redis import redis
from bench.race import OURS, Contender, KafkaSpeaker


def two_cores(settings: Mapping[str, str]) -> Node:
    return CoresNode(2, settings, is_awaited=True)


MILLPOND = KafkaSpeaker(OURS, "Millpond", Node, lambda settings: Nodes(3, settings))
TWO_CORES = KafkaSpeaker("millpond-2", "Millpond --cores 2", two_cores, is_spread=True)
KAFKA = KafkaSpeaker(
    "kafka", "Apache Kafka 4.3.1", KafkaNode, lambda settings: KafkaNodes(3, settings), warm_seconds=12.0
)

PEERS: dict[str, Contender] = {each.name: each for each in (TWO_CORES, KAFKA, redis(), nats(), rabbitmq())}
