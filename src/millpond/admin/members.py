"""The members of a cluster: every registered node, what it holds, and its vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from millpond.admin.errors import Refused
from millpond.admin.moves import DRAINED
from millpond.admin.nodes import NodeFacts, describe_nodes
from millpond.admin.settings import EVERY_NODE, Subject, alter_settings
from millpond.base.errors import ErrorCode
from millpond.base.ids import NO_TOPIC_ID
from millpond.metadata.features import SUPPORTED, features_to_record
from millpond.remote.cluster import Cluster
from millpond.remote.errors import check
from millpond.wire import messages as m

METADATA_TOPIC: Final = "__cluster_metadata"

SILENT_MS_MAX: Final = 3_000
REGISTRATION_VERSION: Final = 4


@dataclass(frozen=True, slots=True)
class Member:
    facts: NodeFacts
    is_registered: bool
    """False if it was removed but still has replicas, or is about to join."""
    is_fenced: bool
    """Whether it is down, or not unfenced yet."""
    is_voter: bool
    directory_id: UUID
    metadata_lag: int | None
    """How many metadata records it lacks, as the leader knows; None if unknown."""

    @property
    def node_id(self) -> int:
        return self.facts.node_id

    @property
    def is_active(self) -> bool:
        return self.is_registered and not self.is_fenced


@dataclass(frozen=True, slots=True)
class Members:
    cluster_id: str
    nodes: tuple[Member, ...]

    def get(self, node_id: int) -> Member | None:
        return next((each for each in self.nodes if each.node_id == node_id), None)


def describe_members(cluster: Cluster) -> Members:
    """All of them in the order of their ids."""
    return cluster.retrying("ask for the nodes", lambda: _members(cluster))


def _members(cluster: Cluster) -> Members:
    request = m.DescribeClusterRequest(endpoint_type=1, include_fenced_brokers=True)
    described = cluster.any().ask(request, m.DescribeClusterResponse)
    check(described.error_code, "the cluster does not describe itself", described.error_message)
    registered = {each.broker_id: each for each in described.brokers}
    voters, observers, end_offset = _quorum(cluster)
    newest_fetch_ms = max((each.last_fetch_timestamp for each in voters.values()), default=0)
    observers = {
        node_id: each
        for node_id, each in observers.items()
        # The quorum remembers recent observers; a joining node fetches all the time.
        if node_id in registered or newest_fetch_ms - each.last_fetch_timestamp < SILENT_MS_MAX
    }
    states = {**observers, **voters}
    facts = describe_nodes(cluster, {*registered, *states})

    def lag(node_id: int) -> int | None:
        state = states.get(node_id)
        return None if state is None or state.log_end_offset < 0 else max(end_offset - state.log_end_offset, 0)

    nodes = []
    for each in facts.nodes:
        broker, state = registered.get(each.node_id), states.get(each.node_id)
        nodes.append(
            Member(
                each,
                is_registered=broker is not None,
                is_fenced=broker is None or broker.is_fenced,
                is_voter=each.node_id in voters,
                directory_id=NO_TOPIC_ID if state is None else state.replica_directory_id,
                metadata_lag=lag(each.node_id),
            )
        )
    return Members(facts.cluster_id, tuple(nodes))


_States = dict[int, m.DescribeQuorumResponse.ReplicaState]


def _quorum(cluster: Cluster) -> tuple[_States, _States, int]:
    """Voters, observers, and the end of the metadata log."""
    kind = m.DescribeQuorumRequest
    topic = kind.TopicData(topic_name=METADATA_TOPIC, partitions=[kind.PartitionData(partition_index=0)])
    response = cluster.any().ask(kind(topics=[topic]), m.DescribeQuorumResponse)
    check(response.error_code, "the cluster does not report its voters", response.error_message)
    partition = response.topics[0].partitions[0]
    check(partition.error_code, "the cluster does not report its voters", partition.error_message)
    voters = {each.replica_id: each for each in partition.current_voters}
    observers = {each.replica_id: each for each in partition.observers}
    leader = voters.get(partition.leader_id) or observers.get(partition.leader_id)
    return voters, observers, partition.high_watermark if leader is None else leader.log_end_offset


def cluster_id_of(cluster: Cluster) -> str:
    """The cluster's id according to the answering node; empty if it knows none yet."""
    response = cluster.any().ask(m.DescribeClusterRequest(endpoint_type=1), m.DescribeClusterResponse)
    return response.cluster_id


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A node that is about to join: its incarnation, data folder and address."""

    incarnation_id: UUID
    directory_id: UUID
    host: str
    port: int
    rack: str | None = None


def take_number(cluster: Cluster, number: int, newcomer: Newcomer) -> bool:
    """Registers a node before it starts, to reserve its number; False if another node has it by now.

    Otherwise two nodes could choose the same number at the same time, and the quorum could not tell them apart.
    """
    kind = m.BrokerRegistrationRequest
    request = kind(
        broker_id=number,
        incarnation_id=newcomer.incarnation_id,
        listeners=[kind.Listener(name="PLAINTEXT", host=newcomer.host, port=newcomer.port, security_protocol=0)],
        features=[
            kind.Feature(
                name=each.name,
                min_supported_version=each.min_supported_version,
                max_supported_version=each.max_supported_version,
            )
            for each in features_to_record(SUPPORTED)
        ],
        rack=newcomer.rack,
        log_dirs=[newcomer.directory_id],
        previous_broker_epoch=-1,
    )

    def attempt() -> bool:
        response = cluster.any().ask_as_node(request, m.BrokerRegistrationResponse, REGISTRATION_VERSION)
        if response.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            return False
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            raise Refused(
                "This program does not support what the cluster has agreed on: install the version that its nodes "
                "run (`millpond cluster features` shows what each supports)."
            )
        check(response.error_code, f"the cluster refused to register node {number}")
        return True

    return cluster.retrying("register the node", attempt)


def set_drained(cluster: Cluster, node_id: int, is_drained: bool) -> None:
    """Marks a node as drained, so that it gets nothing new, or removes the mark."""
    alter_settings(
        cluster, Subject("node", str(node_id)), {DRAINED: "true" if is_drained else "false"}, at_node=False
    )


def require_in_sync(cluster: Cluster, count: int) -> None:
    """Sets the default of min.insync.replicas, for topics that do not override it."""
    alter_settings(cluster, Subject("node", EVERY_NODE), {"min.insync.replicas": str(count)})


def remove_voter(cluster: Cluster, member: Member) -> None:
    """Removes its vote; returns once that is committed."""
    request = m.RemoveRaftVoterRequest(voter_id=member.node_id, voter_directory_id=member.directory_id)

    def attempt() -> None:
        response = cluster.any().ask(request, m.RemoveRaftVoterResponse)
        if response.error_code != ErrorCode.VOTER_NOT_FOUND:
            check(response.error_code, f"node {member.node_id} keeps its vote", response.error_message)

    cluster.retrying("remove the voter", attempt)


def forget_node(cluster: Cluster, node_id: int) -> None:
    """Unregisters a node that has been stopped."""

    def attempt() -> None:
        response = cluster.any().ask(m.UnregisterBrokerRequest(broker_id=node_id), m.UnregisterBrokerResponse)
        if response.error_code != ErrorCode.BROKER_ID_NOT_REGISTERED:
            check(response.error_code, f"node {node_id} was not unregistered", response.error_message)

    cluster.retrying("unregister the node", attempt)
