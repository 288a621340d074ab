"""The Python client: producers, consumers and workers on librdkafka, for Millpond and any Kafka cluster."""

from __future__ import annotations

from millpond.base.ids import TopicPartition
from millpond.client.async_consumer import AsyncConsumer
from millpond.client.async_producer import AsyncProducer
from millpond.client.async_queue import AsyncQueue, AsyncQueueMessage
from millpond.client.consumer import Consumer
from millpond.client.errors import (
    BufferFull,
    ClientError,
    Closed,
    CommitFailed,
    ConfigError,
    ConsumeFailed,
    DecodeFailed,
    Fenced,
    HandlerFailed,
    LockExpired,
    MissingExtra,
    Reject,
    SendFailed,
    StoreFailed,
    Timeout,
    UnknownTopic,
)
from millpond.client.message import Delivery, Message, Send
from millpond.client.partitioner import RoundRobin, by_key, salted, unsalted
from millpond.client.payloads import registry_decoder, registry_serializer
from millpond.client.processed_ids import ProcessedIds, SqliteIds
from millpond.client.producer import Producer
from millpond.client.queue import Queue, QueueMessage
from millpond.client.redis_ids import RedisIds
from millpond.client.retry import Retry
from millpond.client.worker import Worker, run_workers, worker

__all__ = [
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncQueue",
    "AsyncQueueMessage",
    "BufferFull",
    "ClientError",
    "Closed",
    "CommitFailed",
    "ConfigError",
    "ConsumeFailed",
    "Consumer",
    "DecodeFailed",
    "Delivery",
    "Fenced",
    "HandlerFailed",
    "LockExpired",
    "Message",
    "MissingExtra",
    "ProcessedIds",
    "Producer",
    "Queue",
    "QueueMessage",
    "RedisIds",
    "Reject",
    "Retry",
    "RoundRobin",
    "Send",
    "SendFailed",
    "SqliteIds",
    "StoreFailed",
    "Timeout",
    "TopicPartition",
    "UnknownTopic",
    "Worker",
    "by_key",
    "registry_decoder",
    "registry_serializer",
    "run_workers",
    "salted",
    "unsalted",
    "worker",
]
