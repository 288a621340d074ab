"""The settings of a node. Names that Kafka also has mean the same here; the others are our own.

`log.*` settings that are only defaults for topics are derived from the topic settings, so that defaults and bounds
are declared once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from millpond.base.named_tuple import NamedTuple
from millpond.base.settings import (
    AnySetting,
    Registry,
    Setting,
    SettingError,
    Settings,
    Value,
    at_least,
    between,
    each_of,
    one_of,
)
from millpond.config import quota, security
from millpond.config.addresses import address_or_nothing
from millpond.config.addresses import host_and_port as host_and_port
from millpond.config.addresses import is_loopback as is_loopback
from millpond.config.listeners import ADVERTISED_LISTENER as ADVERTISED_LISTENER
from millpond.config.listeners import CONTROLLER_LISTENERS, controllers_of, listeners_of
from millpond.config.listeners import LISTEN as LISTEN
from millpond.config.listeners import SETTINGS as OF_LISTENERS
from millpond.config.quota import MAX_CONNECTIONS as MAX_CONNECTIONS
from millpond.config.topic import DAY_MS, FOREVER, MIN_INSYNC_REPLICAS, TOPIC

MIB: Final = 1024 * 1024

REPLICAS_USUAL: Final = 3
"""With three replicas, one can fail while another restarts, and no record is on one node only."""


class ClusterNode(NamedTuple):
    """A node of the cluster and the address at which the others reach it."""

    node_id: int
    host: str
    port: int


def _cluster_node(text: str) -> ClusterNode:
    node_id, at, address = text.partition("@")
    if not at or not node_id.isascii() or not node_id.isdigit() or int(node_id) >= 1 << 31:
        raise SettingError(f"{text!r} must have the form id@host:port")
    host, port = host_and_port(address)
    if not port:
        raise SettingError(f"{text!r} needs a port other than 0")
    if host in ("0.0.0.0", "::"):
        raise SettingError(f"{text!r}: other nodes cannot connect to a wildcard address")
    return ClusterNode(int(node_id), host, port)


def _cluster_nodes(value: Value) -> str | None:
    assert isinstance(value, tuple), value
    try:
        nodes = [_cluster_node(text) for text in value]
    except SettingError as fault:
        return str(fault)
    for at, node in enumerate(nodes):
        for other in nodes[:at]:
            if node.node_id == other.node_id:
                return f"two nodes have id {node.node_id}"
            if node[1:] == other[1:]:
                return f"nodes {other.node_id} and {node.node_id} have the same address"
    # A loopback address is reachable only from its own machine, so the other nodes could not connect to it.
    here = [node for node in nodes if is_loopback(node.host)]
    if here and len(here) < len(nodes):
        return f"node {here[0].node_id} has the address {here[0].host}, which nodes on other machines cannot reach"
    return None


def _cluster_contacts(value: Value) -> str | None:
    assert isinstance(value, tuple), value
    try:
        for text in value:
            _cluster_node(text)
    except SettingError as fault:
        return str(fault)
    return None


def _node_ids(value: Value) -> str | None:
    assert isinstance(value, tuple), value
    for text in value:
        if not (text.isascii() and text.isdigit()):
            return f"{text!r} is not a node id"
    return "a node is listed twice" if len(set(map(int, value))) < len(value) else None


NODE_ID = Setting("node.id", 1, "The id of this node; it must be unique in the cluster.", at_least(0), bits=32)
CLUSTER_ID = Setting(
    "cluster.id",
    "",
    "The id of the cluster that this node creates on its first start. If empty, a random id is generated.",
)
CLUSTER_NODES = Setting[tuple[str, ...]](
    "cluster.nodes",
    (),
    "All nodes of the cluster, including this one, as `1@host:port,2@host:port,3@host:port`; the same on every "
    "node. Empty for a single node.",
    _cluster_nodes,
)
CLUSTER_VOTERS = Setting[tuple[str, ...]](
    "cluster.voters",
    (),
    "The ids of the nodes in `cluster.nodes` that elect the controller and store the metadata; the same on every "
    "node. Empty for all of them. The other nodes are brokers only and may be added later.",
    _node_ids,
)
CLUSTER_CONTACTS = Setting[tuple[str, ...]](
    "cluster.contacts",
    (),
    "Nodes of a running cluster that this node joins, as `1@host:port,2@host:port`. `millpond up --join` sets it "
    "and saves it in the data folder, so later starts need no list of nodes.",
    _cluster_contacts,
)
CONTROLLER_QUORUM_VOTERS = Setting[tuple[str, ...]](
    "controller.quorum.voters",
    (),
    "The addresses of the voters on the first listener of `controller.listener.names`, as "
    "`1@host:port,2@host:port`; the same on every node. Without effect if there is no separate controller "
    "listener: then `cluster.nodes` has the addresses.",
    _cluster_nodes,
)
QUORUM_VOTERS_MAX = Setting(
    "controller.quorum.voters.max",
    5,
    "The maximum number of voters in a cluster that nodes have joined while it was running. The controller "
    "chooses an odd number of voters: three out of three or four nodes, five out of five or more.",
    between(1, 9),
    bits=32,
    live=True,
)
BROKER_DRAINED = Setting(
    "broker.drained",
    False,
    "Whether this node is about to be removed: it gets no new replicas and no vote. Set by `millpond node drain`.",
    live=True,
)
CONTROLLER_QUORUM_FETCH_TIMEOUT_MS = Setting(
    "controller.quorum.fetch.timeout.ms",
    1500,
    "How long a voter waits for the active controller before it starts an election. It does not wait if the "
    "connection breaks and a new one is refused.",
    at_least(100),
    bits=32,
)
CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS = Setting(
    "controller.quorum.election.timeout.ms",
    500,
    "How long a candidate waits for votes before it starts another election. A random time of up to the same "
    "length is added, so that two candidates rarely collide; after failed elections the wait grows up to "
    "eightfold.",
    at_least(50),
    bits=32,
)
METADATA_SNAPSHOT_BYTES = Setting(
    "metadata.log.max.record.bytes.between.snapshots",
    20 * MIB,
    "Write a snapshot of the metadata after this many bytes of metadata log, and delete the log before the "
    "previous snapshot.",
    at_least(1),
)
METADATA_SNAPSHOT_MS = Setting(
    "metadata.log.max.snapshot.interval.ms",
    60 * 60 * 1000,
    "Write a snapshot of the metadata after this time if there are new records.",
    at_least(1),
)
BROKER_RACK = Setting(
    "broker.rack",
    "",
    "The rack of this node. Replicas of a partition are spread over racks, and consumers with the same "
    "`client.rack` read from this node.",
)
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
DATA_FOLDER = Setting("data.folder", "millpond-data", "The folder that holds all data of this node.")
METRICS_LISTENER = Setting(
    "metrics.listener",
    "",
    "The host:port that serves `/metrics` for Prometheus, `/healthz` and `/readyz`. Port 0 picks a free port; "
    "empty turns it off. `millpond up` uses 127.0.0.1:9692 by default. There is no authentication: bind it only "
    "to loopback or to a network that outsiders cannot reach.",
    address_or_nothing,
)
JOURNAL_FORMAT = Setting(
    "journal.format",
    "text",
    "The format of the node's log on standard error: `text`, one line per event for people, or `json`, one object "
    "per line for machines.",
    one_of("text", "json"),
)

BROKER_HEARTBEAT_INTERVAL_MS = Setting(
    "broker.heartbeat.interval.ms",
    300,
    "How often a broker sends a heartbeat to the controller.",
    at_least(1),
    bits=32,
)
BROKER_SESSION_TIMEOUT_MS = Setting(
    "broker.session.timeout.ms",
    1500,
    "The controller fences a broker after this time without a heartbeat, and other brokers take over its "
    "partitions. A shorter time detects a stalled broker sooner; a longer one tolerates a slow broker.",
    at_least(1),
    bits=32,
)
CONTROLLED_SHUTDOWN_MS = Setting(
    "controlled.shutdown.timeout.ms",
    10_000,
    "How long a stopping broker waits for other brokers to take over its partitions.",
    at_least(0),
    bits=32,
)
AUTO_LEADER_REBALANCE_ENABLE = Setting(
    "auto.leader.rebalance.enable",
    True,
    "Whether a restarted broker becomes leader again of the partitions for which it is the preferred replica (the "
    "first one).",
)
LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS = Setting(
    "leader.imbalance.check.interval.seconds",
    30,
    "How long a restarted broker must be active before it becomes leader again of partitions for which it is the "
    "preferred replica and in sync.",
    at_least(1),
    bits=32,
)

AUTO_CREATE_TOPICS_ENABLE = Setting(
    "auto.create.topics.enable", True, "Whether a topic is created when a client first requests it."
)
DELETE_TOPIC_ENABLE = Setting("delete.topic.enable", True, "Whether topics can be deleted.")
NUM_PARTITIONS = Setting("num.partitions", 1, "The default number of partitions of new topics.", at_least(1), bits=32)
DEFAULT_REPLICATION_FACTOR = Setting(
    "default.replication.factor",
    1,
    "The default number of replicas of new topics. If it is not set, a cluster of three or more nodes uses three.",
    between(1, 32767),
    bits=32,
)
REPLICA_SELECTOR_CLASS = Setting(
    "replica.selector.class",
    RACK_AWARE_SELECTOR,
    "Which replica consumers with a `client.rack` read from. By default, an in-sync replica in the same rack "
    "(`broker.rack`), if there is one; empty makes all consumers read from leaders.",
    one_of("", RACK_AWARE_SELECTOR),
)
LEADER_THROTTLED_RATE = Setting(
    "leader.replication.throttled.rate",
    FOREVER,
    "The maximum bytes per second that this node sends in total to out-of-sync replicas listed in a topic's "
    "`leader.replication.throttled.replicas`. Set by tools that move partitions.",
    at_least(1),
    live=True,
)
FOLLOWER_THROTTLED_RATE = Setting(
    "follower.replication.throttled.rate",
    FOREVER,
    "The maximum bytes per second that out-of-sync replicas of this node listed in a topic's "
    "`follower.replication.throttled.replicas` fetch in total. Set by tools that move partitions.",
    at_least(1),
    live=True,
)
ALTER_LOG_DIRS_RATE = Setting(
    "replica.alter.log.dirs.io.max.bytes.per.second",
    FOREVER,
    "The maximum rate at which replicas move between data folders. Stored for tools but without effect, because a "
    "node has one data folder.",
    at_least(1),
    live=True,
)
REPLICA_LAG_MS_MAX = Setting(
    "replica.lag.time.max.ms",
    10_000,
    "A follower that has not caught up with its leader for this long leaves the ISR, and acks=all no longer waits "
    "for it. The replicas of a failed node leave sooner, when its session expires.",
    at_least(100),
    bits=64,
    live=True,
)
DISK_LOW_WATER_BYTES = Setting(
    "disk.low.water.bytes",
    1 << 30,
    "Log a warning when the disk of the data folder has less free space than this; 0 disables it.",
    at_least(0),
    bits=64,
    live=True,
)
DISK_RESERVE_BYTES = Setting(
    "disk.reserve.bytes",
    8 * MIB,
    "The size of a file in the data folder that reserves disk space, at most 5 % of the disk. When the disk is "
    "full, the file is released: the node then refuses writes, but topics can be deleted and settings changed, "
    "even after a restart.",
    at_least(0),
    bits=64,
)
SCRUB_BYTES_PER_SECOND = Setting(
    "log.scrub.bytes.per.second",
    4 << 20,
    "How fast a node rereads its replicated records in the background to find damage, which it repairs from "
    "another replica; 0 disables it.",
    at_least(0),
    bits=64,
    live=True,
)
MAX_PARTITIONS_PER_TOPIC = Setting(
    "max.partitions.per.topic",
    10_000,
    "The maximum number of partitions of one topic.",
    at_least(1),
    bits=32,
)
MAX_PARTITIONS = Setting(
    "max.partitions",
    100_000,
    "The maximum number of partitions in the cluster. Every partition costs memory and open files.",
    at_least(1),
    bits=32,
)

MAX_CONNECTIONS_PER_IP = Setting(
    "max.connections.per.ip",
    (1 << 31) - 1,
    "The maximum number of connections from one IP address. The last tenth of `max.connections` always stays free "
    "for other addresses.",
    at_least(1),
    live=True,
    bits=32,
)
CONNECTIONS_MAX_IDLE_MS = Setting(
    "connections.max.idle.ms",
    600_000,
    "Close connections that have been idle for this long.",
    at_least(1),
)
SOCKET_REQUEST_MAX_BYTES = Setting(
    "socket.request.max.bytes",
    100 * MIB,
    "The maximum size of a request. A connection that announces a larger one is closed.",
    at_least(1024),
    bits=32,
)
QUEUED_MAX_REQUEST_BYTES = Setting(
    "queued.max.request.bytes",
    512 * MIB,
    "The maximum memory for partly received requests. Above it, large requests are read one at a time, and one "
    "that arrives too slowly is dropped.",
    at_least(1),
)
MAX_INFLIGHT_REQUESTS_PER_CONNECTION = Setting(
    "max.inflight.requests.per.connection",
    1000,
    "Stop reading from a connection while this many of its requests await a response.",
    at_least(1),
    bits=32,
)
MAX_REQUEST_TOPICS = Setting(
    "max.request.topics", 10_000, "The maximum number of topics in one request.", at_least(1), bits=32
)
MAX_REQUEST_ITEMS = Setting(
    "max.request.items",
    50_000,
    "The maximum number of list items in one request, counting topics, partitions and settings together. A "
    "request with more is not decoded, and its connection is closed.",
    at_least(100),
    bits=32,
)
MAX_REQUEST_PLAIN_BYTES = Setting(
    "max.request.plain.bytes",
    16 * MIB,
    "The maximum size of a request without records. Such requests are decoded on the event loop, and no normal "
    "request comes near the limit. The connection of a client that sends a larger one is closed.",
    at_least(1 << 20),
    bits=32,
)
MAX_REQUEST_PARTITION_SIZE_LIMIT = Setting(
    "max.request.partition.size.limit",
    2000,
    "The maximum number of partitions in one DescribeTopicPartitions response; the client requests the rest "
    "separately.",
    at_least(1),
    bits=32,
)
NETWORK_SENDFILE = Setting(
    "network.sendfile",
    True,
    "Whether the kernel copies records directly from files to sockets.",
)

PRODUCE_WAIT_MAX_MS = Setting(
    "produce.wait.max.ms",
    300_000,
    "The longest that a produce request may wait for replicas; caps the timeout in the request.",
    at_least(1),
    bits=32,
)
PRODUCER_ID_EXPIRATION_MS = Setting(
    "producer.id.expiration.ms",
    DAY_MS,
    "Forget the sequence numbers of an idempotent producer that has written nothing for this long.",
    at_least(1),
    live=True,
    bits=32,
)
FETCH_MAX_BYTES = Setting(
    "fetch.max.bytes",
    55 * MIB,
    "The maximum size of a fetch response. If the first batch is larger, it is sent anyway.",
    at_least(1024),
    bits=32,
)
FETCH_WAIT_MAX_MS = Setting(
    "fetch.wait.max.ms",
    300_000,
    "The longest that a fetch may wait for new records; caps `fetch.max.wait.ms` of the consumer.",
    at_least(1),
    bits=32,
)
FETCH_SESSION_SLOTS = Setting(
    "max.incremental.fetch.session.cache.slots",
    1000,
    "The maximum number of fetch sessions. Consumers without a session send all their partitions in every fetch.",
    at_least(0),
    bits=32,
)

OFFSETS_TOPIC_PARTITIONS = Setting(
    "offsets.topic.num.partitions",
    50,
    "The number of partitions of `__consumer_offsets` when it is created. Groups are spread over them.",
    at_least(1),
    bits=32,
)
OFFSETS_RETENTION_MINUTES = Setting(
    "offsets.retention.minutes",
    7 * 24 * 60,
    "How long committed offsets are kept after the last member has left the group.",
    at_least(1),
    bits=32,
)
OFFSETS_RETENTION_CHECK_INTERVAL_MS = Setting(
    "offsets.retention.check.interval.ms", 600_000, "How often to look for expired offsets.", at_least(1)
)
OFFSET_METADATA_MAX_BYTES = Setting(
    "offset.metadata.max.bytes",
    4096,
    "The maximum size of the metadata that a consumer may commit with an offset.",
    bits=32,
)
GROUP_INITIAL_REBALANCE_DELAY_MS = Setting(
    "group.initial.rebalance.delay.ms",
    -1,
    "How long an empty group waits for more members before its first rebalance. With -1 the group adapts: a lone "
    "member gets its partitions after 0.3 s. If others join in that time, or a second member joins within 3 s of "
    "the first assignment, the group waits until no member has joined for 1 s. A group that had several members "
    "before waits 3 s after the first one. Other values work as in Kafka.",
    at_least(-1),
    bits=32,
)
GROUP_MIN_SESSION_TIMEOUT_MS = Setting(
    "group.min.session.timeout.ms",
    6000,
    "The minimum session timeout of members of classic groups.",
    at_least(1),
    bits=32,
)
GROUP_MAX_SESSION_TIMEOUT_MS = Setting(
    "group.max.session.timeout.ms",
    1_800_000,
    "The maximum session timeout of members of classic groups.",
    at_least(1),
    bits=32,
)
GROUP_MAX_SIZE = Setting(
    "group.max.size", 10_000, "The maximum number of members of a classic group.", at_least(1), bits=32
)
GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS = Setting(
    "group.consumer.heartbeat.interval.ms",
    5000,
    "How often members of groups of the new protocol (KIP-848) send heartbeats.",
    at_least(1),
    bits=32,
)
GROUP_CONSUMER_SESSION_TIMEOUT_MS = Setting(
    "group.consumer.session.timeout.ms",
    45_000,
    "A member of a group of the new protocol is removed after this time without a heartbeat.",
    at_least(1),
    bits=32,
)
GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS = Setting(
    "group.consumer.min.heartbeat.interval.ms",
    5000,
    "The minimum of a group's own `consumer.heartbeat.interval.ms`.",
    at_least(1),
    bits=32,
)
GROUP_CONSUMER_MAX_HEARTBEAT_INTERVAL_MS = Setting(
    "group.consumer.max.heartbeat.interval.ms",
    15_000,
    "The maximum of a group's own `consumer.heartbeat.interval.ms`.",
    at_least(1),
    bits=32,
)
GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS = Setting(
    "group.consumer.min.session.timeout.ms",
    45_000,
    "The minimum of a group's own `consumer.session.timeout.ms`.",
    at_least(1),
    bits=32,
)
GROUP_CONSUMER_MAX_SESSION_TIMEOUT_MS = Setting(
    "group.consumer.max.session.timeout.ms",
    60_000,
    "The maximum of a group's own `consumer.session.timeout.ms`.",
    at_least(1),
    bits=32,
)
GROUP_CONSUMER_MAX_SIZE = Setting(
    "group.consumer.max.size",
    10_000,
    "The maximum number of members of a group of the new protocol.",
    at_least(1),
    bits=32,
)
GROUP_CONSUMER_ASSIGNORS = Setting(
    "group.consumer.assignors",
    ("uniform", "range"),
    "The assignors that members of the new protocol may choose. The first one is the default.",
    each_of("uniform", "range"),
)
GROUP_CONSUMER_MIGRATION_POLICY = Setting(
    "group.consumer.migration.policy",
    "bidirectional",
    "Whether a group with members may switch between the classic and the new protocol.",
    one_of("disabled", "upgrade", "downgrade", "bidirectional"),
)
GROUP_SHARE_HEARTBEAT_INTERVAL_MS = Setting(
    "group.share.heartbeat.interval.ms",
    5000,
    "How often members of share groups send heartbeats.",
    at_least(1),
    bits=32,
)
GROUP_SHARE_SESSION_TIMEOUT_MS = Setting(
    "group.share.session.timeout.ms",
    45_000,
    "A member of a share group is removed after this time without a heartbeat.",
    at_least(1),
    bits=32,
)
GROUP_SHARE_MAX_SIZE = Setting(
    "group.share.max.size",
    1000,
    "The maximum number of members of a share group.",
    at_least(1),
    bits=32,
)
GROUP_SHARE_RECORD_LOCK_DURATION_MS = Setting(
    "group.share.record.lock.duration.ms",
    30_000,
    "A member of a share group holds a record for this long; then it is delivered again.",
    between(1_000, 3_600_000),
    bits=32,
)
GROUP_SHARE_DELIVERY_COUNT_LIMIT = Setting(
    "group.share.delivery.count.limit",
    5,
    "A record that was delivered this often and not accepted is archived: no member receives it again.",
    between(2, 25),
    bits=32,
)
GROUP_SHARE_PARTITION_MAX_RECORD_LOCKS = Setting(
    "group.share.partition.max.record.locks",
    2_000,
    "No new record of a partition is delivered to a share group while this many have been delivered and are not "
    "finished.",
    between(100, 10_000),
    bits=32,
)
GROUP_SHARE_MAX_SHARE_SESSIONS = Setting(
    "group.share.max.share.sessions",
    2_000,
    "The maximum number of share sessions on this node: each member of a share group has one with each leader.",
    at_least(1),
    bits=32,
)
TRANSACTION_TOPIC_PARTITIONS = Setting(
    "transaction.state.log.num.partitions",
    50,
    "The number of partitions of `__transaction_state` when it is created.",
    at_least(1),
    bits=32,
)
SHARE_STATE_TOPIC_PARTITIONS = Setting(
    "share.coordinator.state.topic.num.partitions",
    50,
    "The number of partitions of `__share_group_state` when it is created.",
    at_least(1),
    bits=32,
)
SHARE_COORDINATOR_SNAPSHOT_UPDATES = Setting(
    "share.coordinator.snapshot.update.records.per.snapshot",
    500,
    "Write the whole state of a share partition after this many changes.",
    between(0, 500),
    bits=32,
)
SHARE_COORDINATOR_PRUNE_INTERVAL_MS = Setting(
    "share.coordinator.state.topic.prune.interval.ms",
    300_000,
    "How often records of `__share_group_state` are deleted that are no longer needed.",
    at_least(1),
    bits=32,
)
SHARE_COORDINATOR_COLD_SNAPSHOT_INTERVAL_MS = Setting(
    "share.coordinator.cold.partition.snapshot.interval.ms",
    300_000,
    "Write the whole state of share partitions without changes this often, if old records are kept because of them.",
    at_least(1),
    bits=32,
)
TRANSACTION_MAX_TIMEOUT_MS = Setting(
    "transaction.max.timeout.ms",
    900_000,
    "The maximum transaction timeout that a producer may set.",
    at_least(1),
    bits=32,
)
TRANSACTIONAL_ID_EXPIRATION_MS = Setting(
    "transactional.id.expiration.ms",
    7 * DAY_MS,
    "Forget a transactional id that has not been used for this long.",
    at_least(1),
    bits=32,
)

RETENTION_CHECK_INTERVAL_MS = Setting(
    "log.retention.check.interval.ms", 300_000, "How often to look for expired segments.", at_least(1)
)
CLEANER_ENABLE = Setting("log.cleaner.enable", True, "Whether logs with the cleanup policy `compact` are compacted.")
CLEANER_DEDUPE_BUFFER_BYTES = Setting(
    "log.cleaner.dedupe.buffer.size",
    128 * MIB,
    "The memory for the keys of one compaction pass. More memory means fewer passes.",
    at_least(MIB),
    live=True,
)
CLEANER_BACKOFF_MS = Setting(
    "log.cleaner.backoff.ms", 15_000, "How long to wait when no log needs compaction.", at_least(0), live=True
)
FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS = Setting(
    "log.flush.offset.checkpoint.interval.ms",
    60_000,
    "How often to save the recovery point of each log, before which a restart need not scan it.",
    at_least(0),
    bits=32,
)


def _default_for_topics(setting: AnySetting) -> AnySetting:
    assert setting.inherits is not None, setting.name
    return replace(
        setting,
        name=setting.inherits,
        doc=f"The default of `{setting.name}` for topics.",
        inherits=None,
    )


SECTIONS: Final[Mapping[str, tuple[AnySetting, ...]]] = {
    "The node": (
        NODE_ID,
        CLUSTER_ID,
        CLUSTER_NODES,
        CLUSTER_VOTERS,
        CLUSTER_CONTACTS,
        CONTROLLER_QUORUM_VOTERS,
        BROKER_RACK,
        DATA_FOLDER,
        *OF_LISTENERS,
        METRICS_LISTENER,
        JOURNAL_FORMAT,
    ),
    "The cluster": (
        QUORUM_VOTERS_MAX,
        BROKER_DRAINED,
        CONTROLLER_QUORUM_FETCH_TIMEOUT_MS,
        CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS,
        METADATA_SNAPSHOT_BYTES,
        METADATA_SNAPSHOT_MS,
        BROKER_HEARTBEAT_INTERVAL_MS,
        BROKER_SESSION_TIMEOUT_MS,
        CONTROLLED_SHUTDOWN_MS,
        AUTO_LEADER_REBALANCE_ENABLE,
        LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS,
    ),
    "Topics": (
        AUTO_CREATE_TOPICS_ENABLE,
        DELETE_TOPIC_ENABLE,
        NUM_PARTITIONS,
        DEFAULT_REPLICATION_FACTOR,
        REPLICA_SELECTOR_CLASS,
        LEADER_THROTTLED_RATE,
        FOLLOWER_THROTTLED_RATE,
        ALTER_LOG_DIRS_RATE,
        REPLICA_LAG_MS_MAX,
        DISK_LOW_WATER_BYTES,
        DISK_RESERVE_BYTES,
        SCRUB_BYTES_PER_SECOND,
        MAX_PARTITIONS_PER_TOPIC,
        MAX_PARTITIONS,
    ),
    "Connections and requests": (
        MAX_CONNECTIONS,
        MAX_CONNECTIONS_PER_IP,
        CONNECTIONS_MAX_IDLE_MS,
        SOCKET_REQUEST_MAX_BYTES,
        QUEUED_MAX_REQUEST_BYTES,
        MAX_INFLIGHT_REQUESTS_PER_CONNECTION,
        MAX_REQUEST_TOPICS,
        MAX_REQUEST_ITEMS,
        MAX_REQUEST_PLAIN_BYTES,
        MAX_REQUEST_PARTITION_SIZE_LIMIT,
        NETWORK_SENDFILE,
    ),
    "Producing and fetching": (
        PRODUCE_WAIT_MAX_MS,
        PRODUCER_ID_EXPIRATION_MS,
        FETCH_MAX_BYTES,
        FETCH_WAIT_MAX_MS,
        FETCH_SESSION_SLOTS,
    ),
    "Groups": (
        OFFSETS_TOPIC_PARTITIONS,
        OFFSETS_RETENTION_MINUTES,
        OFFSETS_RETENTION_CHECK_INTERVAL_MS,
        OFFSET_METADATA_MAX_BYTES,
        GROUP_INITIAL_REBALANCE_DELAY_MS,
        GROUP_MIN_SESSION_TIMEOUT_MS,
        GROUP_MAX_SESSION_TIMEOUT_MS,
        GROUP_MAX_SIZE,
        GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS,
        GROUP_CONSUMER_SESSION_TIMEOUT_MS,
        GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS,
        GROUP_CONSUMER_MAX_HEARTBEAT_INTERVAL_MS,
        GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS,
        GROUP_CONSUMER_MAX_SESSION_TIMEOUT_MS,
        GROUP_CONSUMER_MAX_SIZE,
        GROUP_CONSUMER_ASSIGNORS,
        GROUP_CONSUMER_MIGRATION_POLICY,
        GROUP_SHARE_HEARTBEAT_INTERVAL_MS,
        GROUP_SHARE_SESSION_TIMEOUT_MS,
        GROUP_SHARE_MAX_SIZE,
        GROUP_SHARE_RECORD_LOCK_DURATION_MS,
        GROUP_SHARE_DELIVERY_COUNT_LIMIT,
        GROUP_SHARE_PARTITION_MAX_RECORD_LOCKS,
        GROUP_SHARE_MAX_SHARE_SESSIONS,
    ),
    "Transactions": (TRANSACTION_TOPIC_PARTITIONS, TRANSACTION_MAX_TIMEOUT_MS, TRANSACTIONAL_ID_EXPIRATION_MS),
    "Share groups": (
        SHARE_STATE_TOPIC_PARTITIONS,
        SHARE_COORDINATOR_SNAPSHOT_UPDATES,
        SHARE_COORDINATOR_COLD_SNAPSHOT_INTERVAL_MS,
        SHARE_COORDINATOR_PRUNE_INTERVAL_MS,
    ),
    "Log maintenance": (
        RETENTION_CHECK_INTERVAL_MS,
        CLEANER_ENABLE,
        CLEANER_DEDUPE_BUFFER_BYTES,
        CLEANER_BACKOFF_MS,
        FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS,
    ),
    **security.SECTIONS,
    **quota.SECTIONS,
    "Defaults for topics": tuple(_default_for_topics(setting) for setting in TOPIC if setting.inherits is not None),
}

NODE = Registry("node", (setting for section in SECTIONS.values() for setting in section))

HOUR_MS: Final = 60 * 60 * 1000
COARSE: Final[Mapping[str, tuple[str, int]]] = {
    "log.retention.minutes": ("log.retention.ms", 60 * 1000),
    "log.retention.hours": ("log.retention.ms", HOUR_MS),
    "log.roll.hours": ("log.roll.ms", HOUR_MS),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", HOUR_MS),
}
"""Aliases in coarser units, finest first: the setting each stands for, and the unit's length in milliseconds."""


def node_settings(texts: Mapping[str, str]) -> Settings:
    """Parse settings from a file or the command line; if a setting is given in several units, the finest wins."""
    fine = {name: text for name, text in texts.items() if name not in COARSE}
    for name, (target, unit_ms) in COARSE.items():
        if name in texts and target not in fine:
            count = Setting(name, 0, "", at_least(-1)).parse(texts[name])
            # -1 means "no limit" in every unit.
            fine[target] = str(count * unit_ms if count > 0 else count)
    own = {name: fine.pop(name) for name in list(fine) if name.startswith(security.LISTENER_PREFIX)}
    settings = Settings.parsed(NODE, fine)
    settings.overrides |= security.parsed_for_listeners(own)
    voters = cluster_voters(settings)
    controller_nodes(settings)
    return Settings(NODE, _of_several(len(voters)) | settings.overrides) if voters else settings


def _of_several(count: int) -> dict[str, Value]:
    """Replication defaults of a cluster: a record survives the loss of any one node.

    Based on the number of voters: a record need not survive more failures than the metadata that locates it.
    """
    return {
        DEFAULT_REPLICATION_FACTOR.name: min(count, REPLICAS_USUAL),
        str(MIN_INSYNC_REPLICAS.inherits): 2 if count >= REPLICAS_USUAL else 1,
    }


def cluster_nodes(settings: Settings) -> tuple[ClusterNode, ...]:
    """All nodes of the cluster, ordered by id; empty for a single node."""
    nodes = sorted(map(_cluster_node, settings[CLUSTER_NODES]))
    node_id = settings[NODE_ID]
    if nodes and all(node.node_id != node_id for node in nodes):
        raise SettingError(
            f"node.id={node_id} is not in cluster.nodes={CLUSTER_NODES.show(settings[CLUSTER_NODES])}: "
            "give this node one of these ids, or add it there on every node"
        )
    return tuple(nodes)


def cluster_voters(settings: Settings) -> tuple[int, ...]:
    """The ids of the voters, in order; empty for a single node."""
    node_ids = [node.node_id for node in cluster_nodes(settings)]
    voter_ids = sorted(map(int, settings[CLUSTER_VOTERS]))
    for node_id in voter_ids:
        if node_id not in node_ids:
            raise SettingError(f"cluster.voters has node {node_id}, which is not in cluster.nodes")
    return tuple(voter_ids or node_ids)


def controller_nodes(settings: Settings) -> tuple[ClusterNode, ...]:
    """The voters' addresses on the controller listener, as far as configured.

    Raises SettingError if there is a separate controller listener and a voter's address on it is unknown.
    """
    listener = controllers_of(listeners_of(settings))
    if listener.is_preferred:
        return cluster_nodes(settings)
    voters = tuple(sorted(map(_cluster_node, settings[CONTROLLER_QUORUM_VOTERS])))
    missing = set(cluster_voters(settings)) - {each.node_id for each in voters}
    if missing or (settings[CLUSTER_CONTACTS] and not voters):
        voter = f"node {min(missing)}" if missing else "the voters"
        raise SettingError(
            f"{CONTROLLER_LISTENERS.name}={listener.name} is a separate listener: set "
            f"{CONTROLLER_QUORUM_VOTERS.name} to include the address of {voter} on it"
        )
    return voters


def contacts_of(texts: Iterable[str]) -> tuple[ClusterNode, ...]:
    """Parse the contact nodes of the cluster to join, each `id@host:port`."""
    return tuple(sorted(map(_cluster_node, texts)))


def internal_replicas(settings: Settings, registered: int = 1) -> int:
    """The replication factor of internal topics: by the expected nodes, not by those that are up.

    If no list names them, by the number of `registered` nodes.
    """
    return min(REPLICAS_USUAL, max(1, len(cluster_voters(settings)) or registered))


def internal_in_sync_min(settings: Settings, registered: int = 1) -> int:
    """min.insync.replicas of internal topics: whatever a coordinator acknowledged must survive
    the loss of one node.
    """
    return 2 if internal_replicas(settings, registered) >= REPLICAS_USUAL else 1


def default_replicas(settings: Settings, registered: int) -> int:
    """The replication factor of a topic created without one, given the number of registered nodes."""
    is_set = DEFAULT_REPLICATION_FACTOR.name in settings.overrides
    return settings[DEFAULT_REPLICATION_FACTOR] if is_set else min(max(registered, 1), REPLICAS_USUAL)
