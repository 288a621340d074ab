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
        raise SettingError(f"{text!r} is not a node of the form id@host:port")
    host, port = host_and_port(address)
    if not port:
        raise SettingError(f"{text!r} has no port that others could connect to")
    if host in ("0.0.0.0", "::"):
        raise SettingError(f"{text!r} is no address that others could connect to")
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
                return f"two nodes have the id {node.node_id}"
            if node[1:] == other[1:]:
                return f"the nodes {other.node_id} and {node.node_id} have the same address"
    # A loopback address is reachable only from its own machine, so the other nodes could not connect to it.
    here = [node for node in nodes if is_loopback(node.host)]
    if here and len(here) < len(nodes):
        return (
            f"node {here[0].node_id} has the address {here[0].host}, at which nodes on other machines cannot reach it"
        )
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
            return f"{text!r} is not the number of a node"
    return "a node is named twice" if len(set(map(int, value))) < len(value) else None


NODE_ID = Setting(
    "node.id", 1, "The number of this node, unlike that of any other in the cluster.", at_least(0), bits=32
)
CLUSTER_ID = Setting(
    "cluster.id", "", "The name of the cluster that this node founds on its first start; empty draws a random one."
)
CLUSTER_NODES = Setting[tuple[str, ...]](
    "cluster.nodes",
    (),
    "All nodes of the cluster, this one among them, as `1@host:port,2@host:port,3@host:port`, the same on each of "
    "them; empty for a node that is alone.",
    _cluster_nodes,
)
CLUSTER_VOTERS = Setting[tuple[str, ...]](
    "cluster.voters",
    (),
    "The numbers of those nodes of `cluster.nodes` that elect the controller and keep the metadata, the same on each "
    "of them; empty for all. The others are brokers alone, and may be added later.",
    _node_ids,
)
CLUSTER_CONTACTS = Setting[tuple[str, ...]](
    "cluster.contacts",
    (),
    "Nodes of a running cluster that this node joins, as `1@host:port,2@host:port`; `millpond up --join` finds them. "
    "Kept in the data folder, so that later starts need no more than that.",
    _cluster_contacts,
)
CONTROLLER_QUORUM_VOTERS = Setting[tuple[str, ...]](
    "controller.quorum.voters",
    (),
    "Where the nodes that vote are reached by the first of `controller.listener.names`, as "
    "`1@host:port,2@host:port`, the same on every node. Without effect where that is not a listener of its own: then "
    "`cluster.nodes` has these addresses.",
    _cluster_nodes,
)
QUORUM_VOTERS_MAX = Setting(
    "controller.quorum.voters.max",
    5,
    "So many nodes vote on the metadata at the most, where nodes have joined while the cluster ran. It chooses "
    "them by itself, an odd number: of three or four nodes three, of five or more five.",
    between(1, 9),
    bits=32,
    live=True,
)
BROKER_DRAINED = Setting(
    "broker.drained",
    False,
    "Whether this node gets no new replicas and no vote: it is about to be taken away. Set by `millpond node drain`.",
    live=True,
)
CONTROLLER_QUORUM_FETCH_TIMEOUT_MS = Setting(
    "controller.quorum.fetch.timeout.ms",
    1500,
    "After this long without an answer from the node that leads the metadata, the others elect another. One whose "
    "connection breaks and that refuses a new one is not waited for.",
    at_least(100),
    bits=32,
)
CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS = Setting(
    "controller.quorum.election.timeout.ms",
    500,
    "How long a node waits for votes before it stands again; at random up to as long again, so that two seldom stand "
    "at once. While one election after another comes to nothing, up to eight times as long.",
    at_least(50),
    bits=32,
)
METADATA_SNAPSHOT_BYTES = Setting(
    "metadata.log.max.record.bytes.between.snapshots",
    20 * MIB,
    "After this much has been written to the metadata log its content is written as a snapshot, and the log is cut "
    "behind the one before.",
    at_least(1),
)
METADATA_SNAPSHOT_MS = Setting(
    "metadata.log.max.snapshot.interval.ms",
    60 * 60 * 1000,
    "The same after this long, if anything has been written.",
    at_least(1),
)
BROKER_RACK = Setting(
    "broker.rack",
    "",
    "Where this node stands: replicas of one partition are spread over racks, and consumers with the same "
    "client.rack read here.",
)
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
DATA_FOLDER = Setting("data.folder", "millpond-data", "The folder in which everything that this node knows is kept.")
METRICS_LISTENER = Setting(
    "metrics.listener",
    "",
    "The host:port at which monitoring asks this node: `/metrics` for Prometheus, `/healthz`, `/readyz`; port 0 "
    "takes a free one, empty is nowhere. `millpond up` takes 127.0.0.1:9692 if nothing is said. There is no login: "
    "what is not the loopback should be a network that outsiders do not reach.",
    address_or_nothing,
)
JOURNAL_FORMAT = Setting(
    "journal.format",
    "text",
    "How the node writes its journal on standard error: `text`, a line an event for people, or `json`, an object a "
    "line for machines.",
    one_of("text", "json"),
)

BROKER_HEARTBEAT_INTERVAL_MS = Setting(
    "broker.heartbeat.interval.ms",
    300,
    "How often a broker tells the controller that it lives.",
    at_least(1),
    bits=32,
)
BROKER_SESSION_TIMEOUT_MS = Setting(
    "broker.session.timeout.ms",
    1500,
    "After how long a silence a broker is fenced, so that others lead its partitions. Shorter finds one that stands "
    "still sooner; longer forgives a slow one.",
    at_least(1),
    bits=32,
)
CONTROLLED_SHUTDOWN_MS = Setting(
    "controlled.shutdown.timeout.ms",
    10_000,
    "How long a broker that shall stop waits until others lead its partitions.",
    at_least(0),
    bits=32,
)
AUTO_LEADER_REBALANCE_ENABLE = Setting(
    "auto.leader.rebalance.enable",
    True,
    "Whether a broker that came back leads again the partitions whose first replica it is.",
)
LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS = Setting(
    "leader.imbalance.check.interval.seconds",
    30,
    "How long a broker must be there again before it leads the partitions whose first replica it is, where it is in "
    "sync.",
    at_least(1),
    bits=32,
)

AUTO_CREATE_TOPICS_ENABLE = Setting(
    "auto.create.topics.enable", True, "Whether a topic is created when a client first asks for it."
)
DELETE_TOPIC_ENABLE = Setting("delete.topic.enable", True, "Whether topics can be deleted.")
NUM_PARTITIONS = Setting(
    "num.partitions", 1, "The number of partitions of a topic whose creator names none.", at_least(1), bits=32
)
DEFAULT_REPLICATION_FACTOR = Setting(
    "default.replication.factor",
    1,
    "The number of replicas of a topic whose creator names none; where it is not set, a cluster of three or more "
    "nodes has three.",
    between(1, 32767),
    bits=32,
)
REPLICA_SELECTOR_CLASS = Setting(
    "replica.selector.class",
    RACK_AWARE_SELECTOR,
    "Where consumers that name their rack (client.rack) read: by the default from a replica in sync in the same rack "
    "(broker.rack), where there is one. Empty lets everybody read from leaders.",
    one_of("", RACK_AWARE_SELECTOR),
)
LEADER_THROTTLED_RATE = Setting(
    "leader.replication.throttled.rate",
    FOREVER,
    "Bytes a second that this node sends, all together, to replicas that are not in sync and that the topics' "
    "leader.replication.throttled.replicas name. Set by tools that move partitions.",
    at_least(1),
    live=True,
)
FOLLOWER_THROTTLED_RATE = Setting(
    "follower.replication.throttled.rate",
    FOREVER,
    "Bytes a second that replicas of this node take, all together, while they are not in sync and "
    "follower.replication.throttled.replicas of their topics name them. Set by tools that move partitions.",
    at_least(1),
    live=True,
)
ALTER_LOG_DIRS_RATE = Setting(
    "replica.alter.log.dirs.io.max.bytes.per.second",
    FOREVER,
    "How fast replicas move between data folders; remembered for tools, has no effect: a node has one folder.",
    at_least(1),
    live=True,
)
REPLICA_LAG_MS_MAX = Setting(
    "replica.lag.time.max.ms",
    10_000,
    "How long a replica may lack what its leader has before it no longer counts as in sync, and acks=all goes on "
    "without it. A replica whose node is gone leaves sooner, with its node's session.",
    at_least(100),
    bits=64,
    live=True,
)
DISK_LOW_WATER_BYTES = Setting(
    "disk.low.water.bytes",
    1 << 30,
    "With less room than this on the disk of the data folder the node says in its journal that it is nearly full; 0 "
    "for never.",
    at_least(0),
    bits=64,
    live=True,
)
DISK_RESERVE_BYTES = Setting(
    "disk.reserve.bytes",
    8 * MIB,
    "The size of a file in the data folder that keeps room on the disk, at most 5 % of it. A full disk gives it up: "
    "then the node refuses writes, and topics can be deleted and settings changed, also after a restart.",
    at_least(0),
    bits=64,
)
SCRUB_BYTES_PER_SECOND = Setting(
    "log.scrub.bytes.per.second",
    4 << 20,
    "How much of its replicated records a node reads again in the background to find damage, which is then mended "
    "from another replica; 0 for none.",
    at_least(0),
    bits=64,
    live=True,
)
MAX_PARTITIONS_PER_TOPIC = Setting(
    "max.partitions.per.topic",
    10_000,
    "The largest number of partitions that one topic can have.",
    at_least(1),
    bits=32,
)
MAX_PARTITIONS = Setting(
    "max.partitions",
    100_000,
    "The largest number of partitions in the cluster; each one costs memory and open files.",
    at_least(1),
    bits=32,
)

MAX_CONNECTIONS_PER_IP = Setting(
    "max.connections.per.ip",
    (1 << 31) - 1,
    "The largest number of connections at one time from one address; never the last tenth of `max.connections`, so "
    "that somebody else can come in.",
    at_least(1),
    live=True,
    bits=32,
)
CONNECTIONS_MAX_IDLE_MS = Setting(
    "connections.max.idle.ms",
    600_000,
    "Close a connection on which nothing has been asked for this long.",
    at_least(1),
)
SOCKET_REQUEST_MAX_BYTES = Setting(
    "socket.request.max.bytes",
    100 * MIB,
    "The largest request; the connection of a peer that announces a larger one is closed.",
    at_least(1024),
    bits=32,
)
QUEUED_MAX_REQUEST_BYTES = Setting(
    "queued.max.request.bytes",
    512 * MIB,
    "The memory for requests that have only partly arrived; over it, large ones are read one at a time, and one that "
    "then comes too slowly is given up.",
    at_least(1),
)
MAX_INFLIGHT_REQUESTS_PER_CONNECTION = Setting(
    "max.inflight.requests.per.connection",
    1000,
    "Stop reading from a connection while this many of its requests are waiting to be answered.",
    at_least(1),
    bits=32,
)
MAX_REQUEST_TOPICS = Setting(
    "max.request.topics", 10_000, "The largest number of topics that one request may name.", at_least(1), bits=32
)
MAX_REQUEST_ITEMS = Setting(
    "max.request.items",
    50_000,
    "The largest number of items that the lists of one request may have, all together: topics, their partitions, "
    "settings. What names more is not read, and its connection is closed.",
    at_least(100),
    bits=32,
)
MAX_REQUEST_PLAIN_BYTES = Setting(
    "max.request.plain.bytes",
    16 * MIB,
    "The largest request that brings no records. It is read on the loop, every name in it is looked at there, and "
    "nothing that clients need comes near. The connection of a peer that sends a larger one is closed.",
    at_least(1 << 20),
    bits=32,
)
MAX_REQUEST_PARTITION_SIZE_LIMIT = Setting(
    "max.request.partition.size.limit",
    2000,
    "The largest number of partitions in one answer of DescribeTopicPartitions; the client asks again for the rest.",
    at_least(1),
    bits=32,
)
NETWORK_SENDFILE = Setting(
    "network.sendfile",
    True,
    "Whether the kernel copies records from file to socket without passing through the broker.",
)

PRODUCE_WAIT_MAX_MS = Setting(
    "produce.wait.max.ms",
    300_000,
    "The longest that a write waits for its replicas, whatever the producer asks for.",
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
    "The largest answer to one fetch; a first batch that is larger is still sent whole.",
    at_least(1024),
    bits=32,
)
FETCH_WAIT_MAX_MS = Setting(
    "fetch.wait.max.ms",
    300_000,
    "The longest that a fetch waits for new records, whatever the consumer asks for.",
    at_least(1),
    bits=32,
)
FETCH_SESSION_SLOTS = Setting(
    "max.incremental.fetch.session.cache.slots",
    1000,
    "How many fetch sessions are remembered at one time; consumers without one send their whole list each time.",
    at_least(0),
    bits=32,
)

OFFSETS_TOPIC_PARTITIONS = Setting(
    "offsets.topic.num.partitions",
    50,
    "The number of partitions of __consumer_offsets when it is created; groups are spread over them.",
    at_least(1),
    bits=32,
)
OFFSETS_RETENTION_MINUTES = Setting(
    "offsets.retention.minutes",
    7 * 24 * 60,
    "How long the offsets of a group are kept after its last member has left.",
    at_least(1),
    bits=32,
)
OFFSETS_RETENTION_CHECK_INTERVAL_MS = Setting(
    "offsets.retention.check.interval.ms", 600_000, "How often to look for offsets past their retention.", at_least(1)
)
OFFSET_METADATA_MAX_BYTES = Setting(
    "offset.metadata.max.bytes", 4096, "The largest text that a consumer may commit with an offset.", bits=32
)
GROUP_INITIAL_REBALANCE_DELAY_MS = Setting(
    "group.initial.rebalance.delay.ms",
    -1,
    "How long an empty group waits for more members before its first rebalance. -1 lets the group choose: a member "
    "that is alone gets its partitions after 0.3 s; if others join in that time, the group waits until nobody has "
    "joined for 1 s, also if the second member joins within 3 s of the first one's assignment. A group that had "
    "several members before waits 3 s for the first of them. Any other value is Kafka's setting.",
    at_least(-1),
    bits=32,
)
GROUP_MIN_SESSION_TIMEOUT_MS = Setting(
    "group.min.session.timeout.ms",
    6000,
    "The shortest session timeout that a member may ask for.",
    at_least(1),
    bits=32,
)
GROUP_MAX_SESSION_TIMEOUT_MS = Setting(
    "group.max.session.timeout.ms",
    1_800_000,
    "The longest session timeout that a member may ask for.",
    at_least(1),
    bits=32,
)
GROUP_MAX_SIZE = Setting(
    "group.max.size", 10_000, "The largest number of members of a classic group.", at_least(1), bits=32
)
GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS = Setting(
    "group.consumer.heartbeat.interval.ms",
    5000,
    "How often members of groups of the new protocol shall say that they are alive.",
    at_least(1),
    bits=32,
)
GROUP_CONSUMER_SESSION_TIMEOUT_MS = Setting(
    "group.consumer.session.timeout.ms",
    45_000,
    "After how long a silence a member of a group of the new protocol is thought gone.",
    at_least(1),
    bits=32,
)
GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS = Setting(
    "group.consumer.min.heartbeat.interval.ms",
    5000,
    "The shortest heartbeat interval that a group of the new protocol may have of its own.",
    at_least(1),
    bits=32,
)
GROUP_CONSUMER_MAX_HEARTBEAT_INTERVAL_MS = Setting(
    "group.consumer.max.heartbeat.interval.ms",
    15_000,
    "The longest heartbeat interval that a group of the new protocol may have of its own.",
    at_least(1),
    bits=32,
)
GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS = Setting(
    "group.consumer.min.session.timeout.ms",
    45_000,
    "The shortest session timeout that a group of the new protocol may have of its own.",
    at_least(1),
    bits=32,
)
GROUP_CONSUMER_MAX_SESSION_TIMEOUT_MS = Setting(
    "group.consumer.max.session.timeout.ms",
    60_000,
    "The longest session timeout that a group of the new protocol may have of its own.",
    at_least(1),
    bits=32,
)
GROUP_CONSUMER_MAX_SIZE = Setting(
    "group.consumer.max.size",
    10_000,
    "The largest number of members of a group of the new protocol.",
    at_least(1),
    bits=32,
)
GROUP_CONSUMER_ASSIGNORS = Setting(
    "group.consumer.assignors",
    ("uniform", "range"),
    "The assignors that members of the new protocol may ask for; the first one serves those who ask for none.",
    each_of("uniform", "range"),
)
GROUP_CONSUMER_MIGRATION_POLICY = Setting(
    "group.consumer.migration.policy",
    "bidirectional",
    "Whether a live group may change from the classic to the new protocol and back.",
    one_of("disabled", "upgrade", "downgrade", "bidirectional"),
)
TRANSACTION_TOPIC_PARTITIONS = Setting(
    "transaction.state.log.num.partitions",
    50,
    "The number of partitions of __transaction_state when it is created.",
    at_least(1),
    bits=32,
)
TRANSACTION_MAX_TIMEOUT_MS = Setting(
    "transaction.max.timeout.ms",
    900_000,
    "The longest timeout that a producer may ask for its transactions.",
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
    "log.retention.check.interval.ms", 300_000, "How often to look for segments past their retention.", at_least(1)
)
CLEANER_ENABLE = Setting("log.cleaner.enable", True, "Whether logs with the policy 'compact' are compacted.")
CLEANER_DEDUPE_BUFFER_BYTES = Setting(
    "log.cleaner.dedupe.buffer.size",
    128 * MIB,
    "The memory for the keys of one compaction pass; more memory means fewer passes.",
    at_least(MIB),
    live=True,
)
CLEANER_BACKOFF_MS = Setting(
    "log.cleaner.backoff.ms", 15_000, "How long to rest when no log needs compaction.", at_least(0), live=True
)
FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS = Setting(
    "log.flush.offset.checkpoint.interval.ms",
    60_000,
    "How often to write down how far each log has been forced to disk, so that a restart need not check more.",
    at_least(0),
    bits=32,
)


def _default_for_topics(setting: AnySetting) -> AnySetting:
    assert setting.inherits is not None, setting.name
    return replace(
        setting,
        name=setting.inherits,
        doc=f"`{setting.name}` of topics that have none of their own.",
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
    ),
    "Transactions": (TRANSACTION_TOPIC_PARTITIONS, TRANSACTION_MAX_TIMEOUT_MS, TRANSACTIONAL_ID_EXPIRATION_MS),
    "Looking after the logs": (
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
    for name, (meant, unit_ms) in COARSE.items():
        if name in texts and meant not in fine:
            count = Setting(name, 0, "", at_least(-1)).parse(texts[name])
            # -1 means "no limit" in every unit.
            fine[meant] = str(count * unit_ms if count > 0 else count)
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
            "give this node the number of one of them, or add it there on every node"
        )
    return tuple(nodes)


def cluster_voters(settings: Settings) -> tuple[int, ...]:
    """The ids of the voters, in order; empty for a single node."""
    known = [node.node_id for node in cluster_nodes(settings)]
    named = sorted(map(int, settings[CLUSTER_VOTERS]))
    for node_id in named:
        if node_id not in known:
            raise SettingError(f"cluster.voters names the node {node_id}, which cluster.nodes does not have")
    return tuple(named or known)


def controller_nodes(settings: Settings) -> tuple[ClusterNode, ...]:
    """The voters' addresses on the controller listener, as far as configured.

    Raises SettingError if there is a separate controller listener and a voter's address on it is unknown.
    """
    listener = controllers_of(listeners_of(settings))
    if listener.is_preferred:
        return cluster_nodes(settings)
    named = tuple(sorted(map(_cluster_node, settings[CONTROLLER_QUORUM_VOTERS])))
    missing = set(cluster_voters(settings)) - {each.node_id for each in named}
    if missing or (settings[CLUSTER_CONTACTS] and not named):
        who = f"the node {min(missing)}" if missing else "a node that votes"
        raise SettingError(
            f"{CONTROLLER_LISTENERS.name}={listener.name} has addresses of its own: say with "
            f"{CONTROLLER_QUORUM_VOTERS.name} where {who} is reached by it"
        )
    return named


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
    is_told = DEFAULT_REPLICATION_FACTOR.name in settings.overrides
    return settings[DEFAULT_REPLICATION_FACTOR] if is_told else min(max(registered, 1), REPLICAS_USUAL)
