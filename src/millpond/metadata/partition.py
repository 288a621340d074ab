"""The partition of the cluster's metadata log: its name and its topic id, the same as Kafka's."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from millpond.base.ids import TopicPartition
from millpond.metadata.topics import METADATA_TOPIC

METADATA_PARTITION: Final = TopicPartition(METADATA_TOPIC, 0)
METADATA_TOPIC_ID: Final = UUID(int=1)
