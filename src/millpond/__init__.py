"""Millpond: a log-based message queue that speaks the Kafka wire protocol.

The client's names (`Producer`, `Consumer`, `Worker`, …) are here too, and those that read and write topics as tables
(`arrow`, `write_arrow`). All are loaded at the first use: a node needs none of them, and librdkafka takes its time.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

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
    "__version__",
    "arrow",
    "by_key",
    "registry_decoder",
    "registry_serializer",
    "run_workers",
    "salted",
    "unsalted",
    "worker",
    "write_arrow",
]

_TABLES = ("arrow", "write_arrow")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Named as text, so that the rooms below do not depend on the client by importing their own package.
    exported = getattr(import_module("millpond.analysis" if name in _TABLES else "millpond.client"), name)
    globals()[name] = exported
    return exported


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
