"""The topics of the cluster itself: those in which coordinators keep their state, and the history of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from millpond.base.later import Later
from millpond.broker.administration.topic_creation import try_create
from millpond.config import node as node_settings
from millpond.metadata.image import SHARE_STATE_TOPIC
from millpond.metadata.topics import NewTopic

if TYPE_CHECKING:
    from millpond.base.ports import Workers
    from millpond.base.settings import Settings
    from millpond.broker.context import MetadataContext
    from millpond.broker.coordination.coordination import Coordination
    from millpond.broker.replication.partitions import Partitions
    from millpond.broker.replication.replica_manager import ReplicaManager
    from millpond.coordinators.groups.shard import GroupShard
    from millpond.coordinators.shares.shard import ShareShard
    from millpond.coordinators.transactions.shard import TransactionShard

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPIC_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(100 << 20),
    "compression.type": "producer",
}
SHARE_STATE_CONFIG: Final = INTERNAL_TOPIC_CONFIG | {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""Never compacted: all updates of a share partition have the same key. The coordinator deletes what is superseded."""
PARTITION_COUNTS: Final = {
    OFFSETS_TOPIC: node_settings.OFFSETS_TOPIC_PARTITIONS,
    TRANSACTIONS_TOPIC: node_settings.TRANSACTION_TOPIC_PARTITIONS,
    SHARE_STATE_TOPIC: node_settings.SHARE_STATE_TOPIC_PARTITIONS,
}


class InternalTopics:
    """Creates internal topics, and opens the coordinators of those that are open here."""

    def __init__(
        self,
        *,
        workers: Workers,
        static: Settings,
        settings: Callable[[], Settings],
        metadata: MetadataContext,
        partitions: Partitions,
        replicas: ReplicaManager,
        groups: Coordination[GroupShard],
        transactions: Coordination[TransactionShard],
        shares: Coordination[ShareShard],
        load_coordinators: Callable[[], None],
    ) -> None:
        self._workers = workers
        self._static = static
        self._settings = settings
        self._metadata = metadata
        self._partitions = partitions
        self._replicas = replicas
        self._groups = groups
        self._transactions = transactions
        self._shares = shares
        self._load_coordinators = load_coordinators

    def follow(self) -> None:
        """Open the coordinators of the partitions that this node leads, and close the others."""
        # Groups first: a transaction coordinator may write markers for them while it loads.
        for coordination in (self._groups, self._transactions, self._shares):
            topic = self._metadata.image.topics.get(coordination.topic)
            # All partitions or none: a key whose partition is yet to be created would be refused.
            if topic is not None and not self._replicas.is_to_open(topic.id):
                coordination.follow(self._partitions.of_topic(topic.id), len(topic.partitions))

    def open(self, coordination: Coordination[Any]) -> Later[None]:
        """Create the topic of a coordinator; ends after the attempt."""
        if self._metadata.controller.is_alone:
            # A worker imports the code: on the loop the first group would block all other requests.
            return self._workers.run(self._load_coordinators).chain(lambda _: self._create_for(coordination))
        return self._create_for(coordination)

    def _create_for(self, coordination: Coordination[Any]) -> Later[None]:
        count = self._settings()[PARTITION_COUNTS[coordination.topic]]
        configs = dict(SHARE_STATE_CONFIG if coordination.topic == SHARE_STATE_TOPIC else INTERNAL_TOPIC_CONFIG)
        in_sync_min = node_settings.internal_in_sync_min(self._static, len(self._metadata.image.brokers))
        if in_sync_min > 1:
            configs["min.insync.replicas"] = str(in_sync_min)
        opened: Later[None] = Later()

        def end(_: None) -> None:
            # Not a step that the client could cancel: others need the coordinator, too.
            self.follow()
            opened.finish(None)

        self.create(coordination.topic, count, configs).then(end)
        return opened

    def create(self, name: str, count: int, configs: Mapping[str, str]) -> Later[None]:
        """Create an internal topic; ends after the attempt, once the logs of this node have followed."""
        replicas = node_settings.internal_replicas(self._static, len(self._metadata.image.brokers))
        topic = NewTopic(name, count, replicas, configs=tuple(configs.items()))
        # Another node may have created it first, and its partitions may not be open here yet.
        return try_create(self._metadata, [topic], by_broker=True).chain(lambda _: self._replicas.followed())
