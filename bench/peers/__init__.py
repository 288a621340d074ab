"""The brokers of comparisons. Kafka runs our loads; the others have loads in their own protocols."""

from __future__ import annotations

from collections.abc import Mapping

from bench.cluster import Nodes
from bench.cores import CoresNode
from bench.kafka_node import KafkaNode, KafkaNodes
from bench.node import Node
from bench.peers.foreign import Foreign
from bench.peers.nats import NatsNode
from bench.peers.rabbitmq import RabbitNode, RabbitQueueNode
from bench.peers.redis import RedisNode
from bench.race import OURS, Contender, KafkaSpeaker


def two_cores(settings: Mapping[str, str]) -> Node:
    return CoresNode(2, settings, is_awaited=True)


MILLPOND = KafkaSpeaker(OURS, "Millpond", Node, lambda settings: Nodes(3, settings))
TWO_CORES = KafkaSpeaker("millpond-2", "Millpond --cores 2", two_cores, is_spread=True)
KAFKA = KafkaSpeaker(
    "kafka", "Apache Kafka 4.3.1", KafkaNode, lambda settings: KafkaNodes(3, settings), warm_seconds=12.0
)

_ALL: tuple[Contender, ...] = (
    TWO_CORES,
    KAFKA,
    Foreign("redis", "Redis streams", RedisNode, "redis", queue={}),
    Foreign("nats", "NATS JetStream", NatsNode, "nats"),
    Foreign("rabbitmq", "RabbitMQ streams", RabbitNode, "rabbitmq"),
    Foreign("rabbitmq-quorum", "RabbitMQ, quorum", RabbitQueueNode, "rabbitmq", {"kind": "quorum"}, logs=False),
    Foreign("rabbitmq-classic", "RabbitMQ, classic", RabbitQueueNode, "rabbitmq", {"kind": "classic"}, logs=False),
)
PEERS: dict[str, Contender] = {each.name: each for each in _ALL}
