# Written by tools/wire_stub.py from the schemas; do not edit.
from typing import ClassVar, TypeAlias
from uuid import UUID

from millpond.base.ports import Buffer, ReplyPart
from millpond.wire.model import Message as Message
from millpond.wire.model import Struct as Struct

Records: TypeAlias = ReplyPart | list[ReplyPart]

def request_class(api_key: int) -> type[Message]: ...
def response_class(api_key: int) -> type[Message]: ...
def names() -> list[str]: ...
def load() -> None: ...

class EndTxnMarker(Message):
    coordinator_epoch: int
    def __init__(
        self,
        *,
        coordinator_epoch: int = ...,
    ) -> None: ...

class KRaftVersionRecord(Message):
    version: int
    k_raft_version: int
    def __init__(
        self,
        *,
        version: int = ...,
        k_raft_version: int = ...,
    ) -> None: ...

class LeaderChangeMessage(Message):
    class Voter(Struct):
        voter_id: int
        voter_directory_id: UUID
        def __init__(
            self,
            *,
            voter_id: int = ...,
            voter_directory_id: UUID = ...,
        ) -> None: ...

    version: int
    leader_id: int
    voters: list[LeaderChangeMessage.Voter]
    granting_voters: list[LeaderChangeMessage.Voter]
    def __init__(
        self,
        *,
        version: int = ...,
        leader_id: int = ...,
        voters: list[LeaderChangeMessage.Voter] = ...,
        granting_voters: list[LeaderChangeMessage.Voter] = ...,
    ) -> None: ...

class QuorumStateData(Message):
    class Voter(Struct):
        voter_id: int
        def __init__(
            self,
            *,
            voter_id: int = ...,
        ) -> None: ...

    cluster_id: str
    leader_id: int
    leader_epoch: int
    voted_id: int
    voted_directory_id: UUID
    applied_offset: int
    current_voters: list[QuorumStateData.Voter] | None
    def __init__(
        self,
        *,
        cluster_id: str = ...,
        leader_id: int = ...,
        leader_epoch: int = ...,
        voted_id: int = ...,
        voted_directory_id: UUID = ...,
        applied_offset: int = ...,
        current_voters: list[QuorumStateData.Voter] | None = ...,
    ) -> None: ...

class SnapshotFooterRecord(Message):
    version: int
    def __init__(
        self,
        *,
        version: int = ...,
    ) -> None: ...

class SnapshotHeaderRecord(Message):
    version: int
    last_contained_log_timestamp: int
    def __init__(
        self,
        *,
        version: int = ...,
        last_contained_log_timestamp: int = ...,
    ) -> None: ...

class VotersRecord(Message):
    class Voter(Struct):
        voter_id: int
        voter_directory_id: UUID
        endpoints: list[VotersRecord.Endpoint]
        k_raft_version_feature: VotersRecord.KRaftVersionFeature
        def __init__(
            self,
            *,
            voter_id: int = ...,
            voter_directory_id: UUID = ...,
            endpoints: list[VotersRecord.Endpoint] = ...,
            k_raft_version_feature: VotersRecord.KRaftVersionFeature = ...,
        ) -> None: ...

    class Endpoint(Struct):
        name: str
        host: str
        port: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    class KRaftVersionFeature(Struct):
        min_supported_version: int
        max_supported_version: int
        def __init__(
            self,
            *,
            min_supported_version: int = ...,
            max_supported_version: int = ...,
        ) -> None: ...

    version: int
    voters: list[VotersRecord.Voter]
    def __init__(
        self,
        *,
        version: int = ...,
        voters: list[VotersRecord.Voter] = ...,
    ) -> None: ...

class ConsumerGroupCurrentMemberAssignmentKey(Message):
    group_id: str
    member_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
    ) -> None: ...

class ConsumerGroupCurrentMemberAssignmentValue(Message):
    class TopicPartitions(Struct):
        topic_id: UUID
        partitions: list[int]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]
    partitions_pending_revocation: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]
    def __init__(
        self,
        *,
        member_epoch: int = ...,
        previous_member_epoch: int = ...,
        state: int = ...,
        assigned_partitions: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions] = ...,
        partitions_pending_revocation: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions] = ...,
    ) -> None: ...

class ConsumerGroupMemberMetadataKey(Message):
    group_id: str
    member_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
    ) -> None: ...

class ConsumerGroupMemberMetadataValue(Message):
    class ClassicMemberMetadata(Struct):
        session_timeout_ms: int
        supported_protocols: list[ConsumerGroupMemberMetadataValue.ClassicProtocol]
        def __init__(
            self,
            *,
            session_timeout_ms: int = ...,
            supported_protocols: list[ConsumerGroupMemberMetadataValue.ClassicProtocol] = ...,
        ) -> None: ...

    class ClassicProtocol(Struct):
        name: str
        metadata: bytes
        def __init__(
            self,
            *,
            name: str = ...,
            metadata: bytes = ...,
        ) -> None: ...

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_member_metadata: ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None
    def __init__(
        self,
        *,
        instance_id: str | None = ...,
        rack_id: str | None = ...,
        client_id: str = ...,
        client_host: str = ...,
        subscribed_topic_names: list[str] = ...,
        subscribed_topic_regex: str | None = ...,
        rebalance_timeout_ms: int = ...,
        server_assignor: str | None = ...,
        classic_member_metadata: ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None = ...,
    ) -> None: ...

class ConsumerGroupMetadataKey(Message):
    group_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
    ) -> None: ...

class ConsumerGroupMetadataValue(Message):
    epoch: int
    metadata_hash: int
    def __init__(
        self,
        *,
        epoch: int = ...,
        metadata_hash: int = ...,
    ) -> None: ...

class ConsumerGroupPartitionMetadataKey(Message):
    group_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
    ) -> None: ...

class ConsumerGroupPartitionMetadataValue(Message):
    class TopicMetadata(Struct):
        topic_id: UUID
        topic_name: str
        num_partitions: int
        partition_metadata: list[ConsumerGroupPartitionMetadataValue.PartitionMetadata]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            topic_name: str = ...,
            num_partitions: int = ...,
            partition_metadata: list[ConsumerGroupPartitionMetadataValue.PartitionMetadata] = ...,
        ) -> None: ...

    class PartitionMetadata(Struct):
        partition: int
        racks: list[str]
        def __init__(
            self,
            *,
            partition: int = ...,
            racks: list[str] = ...,
        ) -> None: ...

    topics: list[ConsumerGroupPartitionMetadataValue.TopicMetadata]
    def __init__(
        self,
        *,
        topics: list[ConsumerGroupPartitionMetadataValue.TopicMetadata] = ...,
    ) -> None: ...

class ConsumerGroupRegularExpressionKey(Message):
    group_id: str
    regular_expression: str
    def __init__(
        self,
        *,
        group_id: str = ...,
        regular_expression: str = ...,
    ) -> None: ...

class ConsumerGroupRegularExpressionValue(Message):
    topics: list[str]
    version: int
    timestamp: int
    def __init__(
        self,
        *,
        topics: list[str] = ...,
        version: int = ...,
        timestamp: int = ...,
    ) -> None: ...

class ConsumerGroupTargetAssignmentMemberKey(Message):
    group_id: str
    member_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
    ) -> None: ...

class ConsumerGroupTargetAssignmentMemberValue(Message):
    class TopicPartition(Struct):
        topic_id: UUID
        partitions: list[int]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    topic_partitions: list[ConsumerGroupTargetAssignmentMemberValue.TopicPartition]
    def __init__(
        self,
        *,
        topic_partitions: list[ConsumerGroupTargetAssignmentMemberValue.TopicPartition] = ...,
    ) -> None: ...

class ConsumerGroupTargetAssignmentMetadataKey(Message):
    group_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
    ) -> None: ...

class ConsumerGroupTargetAssignmentMetadataValue(Message):
    assignment_epoch: int
    def __init__(
        self,
        *,
        assignment_epoch: int = ...,
    ) -> None: ...

class ConsumerProtocolAssignment(Message):
    class TopicPartition(Struct):
        topic: str
        partitions: list[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    assigned_partitions: list[ConsumerProtocolAssignment.TopicPartition]
    user_data: bytes | None
    def __init__(
        self,
        *,
        assigned_partitions: list[ConsumerProtocolAssignment.TopicPartition] = ...,
        user_data: bytes | None = ...,
    ) -> None: ...

class ConsumerProtocolSubscription(Message):
    class TopicPartition(Struct):
        topic: str
        partitions: list[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    topics: list[str]
    user_data: bytes | None
    owned_partitions: list[ConsumerProtocolSubscription.TopicPartition]
    generation_id: int
    rack_id: str | None
    def __init__(
        self,
        *,
        topics: list[str] = ...,
        user_data: bytes | None = ...,
        owned_partitions: list[ConsumerProtocolSubscription.TopicPartition] = ...,
        generation_id: int = ...,
        rack_id: str | None = ...,
    ) -> None: ...

class GroupMetadataKey(Message):
    group: str
    def __init__(
        self,
        *,
        group: str = ...,
    ) -> None: ...

class GroupMetadataValue(Message):
    class MemberMetadata(Struct):
        member_id: str
        group_instance_id: str | None
        client_id: str
        client_host: str
        rebalance_timeout: int
        session_timeout: int
        subscription: bytes
        assignment: bytes
        def __init__(
            self,
            *,
            member_id: str = ...,
            group_instance_id: str | None = ...,
            client_id: str = ...,
            client_host: str = ...,
            rebalance_timeout: int = ...,
            session_timeout: int = ...,
            subscription: bytes = ...,
            assignment: bytes = ...,
        ) -> None: ...

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int
    members: list[GroupMetadataValue.MemberMetadata]
    def __init__(
        self,
        *,
        protocol_type: str = ...,
        generation: int = ...,
        protocol: str | None = ...,
        leader: str | None = ...,
        current_state_timestamp: int = ...,
        members: list[GroupMetadataValue.MemberMetadata] = ...,
    ) -> None: ...

class OffsetCommitKey(Message):
    group: str
    topic: str
    partition: int
    def __init__(
        self,
        *,
        group: str = ...,
        topic: str = ...,
        partition: int = ...,
    ) -> None: ...

class OffsetCommitValue(Message):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int
    topic_id: UUID
    def __init__(
        self,
        *,
        offset: int = ...,
        leader_epoch: int = ...,
        metadata: str = ...,
        commit_timestamp: int = ...,
        expire_timestamp: int = ...,
        topic_id: UUID = ...,
    ) -> None: ...

class ShareGroupCurrentMemberAssignmentKey(Message):
    group_id: str
    member_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
    ) -> None: ...

class ShareGroupCurrentMemberAssignmentValue(Message):
    class TopicPartitions(Struct):
        topic_id: UUID
        partitions: list[int]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: list[ShareGroupCurrentMemberAssignmentValue.TopicPartitions]
    def __init__(
        self,
        *,
        member_epoch: int = ...,
        previous_member_epoch: int = ...,
        state: int = ...,
        assigned_partitions: list[ShareGroupCurrentMemberAssignmentValue.TopicPartitions] = ...,
    ) -> None: ...

class ShareGroupMemberMetadataKey(Message):
    group_id: str
    member_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
    ) -> None: ...

class ShareGroupMemberMetadataValue(Message):
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    def __init__(
        self,
        *,
        rack_id: str | None = ...,
        client_id: str = ...,
        client_host: str = ...,
        subscribed_topic_names: list[str] = ...,
    ) -> None: ...

class ShareGroupMetadataKey(Message):
    group_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
    ) -> None: ...

class ShareGroupMetadataValue(Message):
    epoch: int
    def __init__(
        self,
        *,
        epoch: int = ...,
    ) -> None: ...

class ShareGroupPartitionMetadataKey(Message):
    group_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
    ) -> None: ...

class ShareGroupPartitionMetadataValue(Message):
    class TopicMetadata(Struct):
        topic_id: UUID
        topic_name: str
        num_partitions: int
        partition_metadata: list[ShareGroupPartitionMetadataValue.PartitionMetadata]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            topic_name: str = ...,
            num_partitions: int = ...,
            partition_metadata: list[ShareGroupPartitionMetadataValue.PartitionMetadata] = ...,
        ) -> None: ...

    class PartitionMetadata(Struct):
        partition: int
        racks: list[str]
        def __init__(
            self,
            *,
            partition: int = ...,
            racks: list[str] = ...,
        ) -> None: ...

    topics: list[ShareGroupPartitionMetadataValue.TopicMetadata]
    def __init__(
        self,
        *,
        topics: list[ShareGroupPartitionMetadataValue.TopicMetadata] = ...,
    ) -> None: ...

class ShareGroupStatePartitionMetadataKey(Message):
    group_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
    ) -> None: ...

class ShareGroupStatePartitionMetadataValue(Message):
    class TopicPartitionsInfo(Struct):
        topic_id: UUID
        topic_name: str
        partitions: list[int]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            topic_name: str = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    class TopicInfo(Struct):
        topic_id: UUID
        topic_name: str
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            topic_name: str = ...,
        ) -> None: ...

    initialized_topics: list[ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo]
    deleting_topics: list[ShareGroupStatePartitionMetadataValue.TopicInfo]
    def __init__(
        self,
        *,
        initialized_topics: list[ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo] = ...,
        deleting_topics: list[ShareGroupStatePartitionMetadataValue.TopicInfo] = ...,
    ) -> None: ...

class ShareGroupTargetAssignmentMemberKey(Message):
    group_id: str
    member_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
    ) -> None: ...

class ShareGroupTargetAssignmentMemberValue(Message):
    class TopicPartition(Struct):
        topic_id: UUID
        partitions: list[int]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    topic_partitions: list[ShareGroupTargetAssignmentMemberValue.TopicPartition]
    def __init__(
        self,
        *,
        topic_partitions: list[ShareGroupTargetAssignmentMemberValue.TopicPartition] = ...,
    ) -> None: ...

class ShareGroupTargetAssignmentMetadataKey(Message):
    group_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
    ) -> None: ...

class ShareGroupTargetAssignmentMetadataValue(Message):
    assignment_epoch: int
    def __init__(
        self,
        *,
        assignment_epoch: int = ...,
    ) -> None: ...

class ShareSnapshotKey(Message):
    group_id: str
    topic_id: UUID
    partition: int
    def __init__(
        self,
        *,
        group_id: str = ...,
        topic_id: UUID = ...,
        partition: int = ...,
    ) -> None: ...

class ShareSnapshotValue(Message):
    class StateBatch(Struct):
        first_offset: int
        last_offset: int
        delivery_state: int
        delivery_count: int
        def __init__(
            self,
            *,
            first_offset: int = ...,
            last_offset: int = ...,
            delivery_state: int = ...,
            delivery_count: int = ...,
        ) -> None: ...

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    state_batches: list[ShareSnapshotValue.StateBatch]
    def __init__(
        self,
        *,
        snapshot_epoch: int = ...,
        state_epoch: int = ...,
        leader_epoch: int = ...,
        start_offset: int = ...,
        state_batches: list[ShareSnapshotValue.StateBatch] = ...,
    ) -> None: ...

class ShareUpdateKey(Message):
    group_id: str
    topic_id: UUID
    partition: int
    def __init__(
        self,
        *,
        group_id: str = ...,
        topic_id: UUID = ...,
        partition: int = ...,
    ) -> None: ...

class ShareUpdateValue(Message):
    class StateBatch(Struct):
        first_offset: int
        last_offset: int
        delivery_state: int
        delivery_count: int
        def __init__(
            self,
            *,
            first_offset: int = ...,
            last_offset: int = ...,
            delivery_state: int = ...,
            delivery_count: int = ...,
        ) -> None: ...

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    state_batches: list[ShareUpdateValue.StateBatch]
    def __init__(
        self,
        *,
        snapshot_epoch: int = ...,
        leader_epoch: int = ...,
        start_offset: int = ...,
        state_batches: list[ShareUpdateValue.StateBatch] = ...,
    ) -> None: ...

class TransactionLogKey(Message):
    transactional_id: str
    def __init__(
        self,
        *,
        transactional_id: str = ...,
    ) -> None: ...

class TransactionLogValue(Message):
    class PartitionsSchema(Struct):
        topic: str
        partition_ids: list[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            partition_ids: list[int] = ...,
        ) -> None: ...

    producer_id: int
    previous_producer_id: int
    next_producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_status: int
    transaction_partitions: list[TransactionLogValue.PartitionsSchema] | None
    transaction_last_update_timestamp_ms: int
    transaction_start_timestamp_ms: int
    client_transaction_version: int
    def __init__(
        self,
        *,
        producer_id: int = ...,
        previous_producer_id: int = ...,
        next_producer_id: int = ...,
        producer_epoch: int = ...,
        transaction_timeout_ms: int = ...,
        transaction_status: int = ...,
        transaction_partitions: list[TransactionLogValue.PartitionsSchema] | None = ...,
        transaction_last_update_timestamp_ms: int = ...,
        transaction_start_timestamp_ms: int = ...,
        client_transaction_version: int = ...,
    ) -> None: ...

class ProduceRequest(Message):
    API_KEY: ClassVar[int]
    class TopicProduceData(Struct):
        name: str
        topic_id: UUID
        partition_data: list[ProduceRequest.PartitionProduceData]
        def __init__(
            self,
            *,
            name: str = ...,
            topic_id: UUID = ...,
            partition_data: list[ProduceRequest.PartitionProduceData] = ...,
        ) -> None: ...

    class PartitionProduceData(Struct):
        index: int
        records: Buffer | None
        def __init__(
            self,
            *,
            index: int = ...,
            records: Buffer | None = ...,
        ) -> None: ...

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic_data: list[ProduceRequest.TopicProduceData]
    def __init__(
        self,
        *,
        transactional_id: str | None = ...,
        acks: int = ...,
        timeout_ms: int = ...,
        topic_data: list[ProduceRequest.TopicProduceData] = ...,
    ) -> None: ...

class ProduceResponse(Message):
    API_KEY: ClassVar[int]
    class TopicProduceResponse(Struct):
        name: str
        topic_id: UUID
        partition_responses: list[ProduceResponse.PartitionProduceResponse]
        def __init__(
            self,
            *,
            name: str = ...,
            topic_id: UUID = ...,
            partition_responses: list[ProduceResponse.PartitionProduceResponse] = ...,
        ) -> None: ...

    class PartitionProduceResponse(Struct):
        index: int
        error_code: int
        base_offset: int
        log_append_time_ms: int
        log_start_offset: int
        record_errors: list[ProduceResponse.BatchIndexAndErrorMessage]
        error_message: str | None
        current_leader: ProduceResponse.LeaderIdAndEpoch
        def __init__(
            self,
            *,
            index: int = ...,
            error_code: int = ...,
            base_offset: int = ...,
            log_append_time_ms: int = ...,
            log_start_offset: int = ...,
            record_errors: list[ProduceResponse.BatchIndexAndErrorMessage] = ...,
            error_message: str | None = ...,
            current_leader: ProduceResponse.LeaderIdAndEpoch = ...,
        ) -> None: ...

    class BatchIndexAndErrorMessage(Struct):
        batch_index: int
        batch_index_error_message: str | None
        def __init__(
            self,
            *,
            batch_index: int = ...,
            batch_index_error_message: str | None = ...,
        ) -> None: ...

    class LeaderIdAndEpoch(Struct):
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class NodeEndpoint(Struct):
        node_id: int
        host: str
        port: int
        rack: str | None
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
            rack: str | None = ...,
        ) -> None: ...

    responses: list[ProduceResponse.TopicProduceResponse]
    throttle_time_ms: int
    node_endpoints: list[ProduceResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        responses: list[ProduceResponse.TopicProduceResponse] = ...,
        throttle_time_ms: int = ...,
        node_endpoints: list[ProduceResponse.NodeEndpoint] = ...,
    ) -> None: ...

class FetchRequest(Message):
    API_KEY: ClassVar[int]
    class ReplicaState(Struct):
        replica_id: int
        replica_epoch: int
        def __init__(
            self,
            *,
            replica_id: int = ...,
            replica_epoch: int = ...,
        ) -> None: ...

    class FetchTopic(Struct):
        topic: str
        topic_id: UUID
        partitions: list[FetchRequest.FetchPartition]
        def __init__(
            self,
            *,
            topic: str = ...,
            topic_id: UUID = ...,
            partitions: list[FetchRequest.FetchPartition] = ...,
        ) -> None: ...

    class FetchPartition(Struct):
        partition: int
        current_leader_epoch: int
        fetch_offset: int
        last_fetched_epoch: int
        log_start_offset: int
        partition_max_bytes: int
        replica_directory_id: UUID
        high_watermark: int
        data_directory_id: UUID
        def __init__(
            self,
            *,
            partition: int = ...,
            current_leader_epoch: int = ...,
            fetch_offset: int = ...,
            last_fetched_epoch: int = ...,
            log_start_offset: int = ...,
            partition_max_bytes: int = ...,
            replica_directory_id: UUID = ...,
            high_watermark: int = ...,
            data_directory_id: UUID = ...,
        ) -> None: ...

    class ForgottenTopic(Struct):
        topic: str
        topic_id: UUID
        partitions: list[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            topic_id: UUID = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    cluster_id: str | None
    replica_id: int
    replica_state: FetchRequest.ReplicaState
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchRequest.FetchTopic]
    forgotten_topics_data: list[FetchRequest.ForgottenTopic]
    rack_id: str
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        replica_id: int = ...,
        replica_state: FetchRequest.ReplicaState = ...,
        max_wait_ms: int = ...,
        min_bytes: int = ...,
        max_bytes: int = ...,
        isolation_level: int = ...,
        session_id: int = ...,
        session_epoch: int = ...,
        topics: list[FetchRequest.FetchTopic] = ...,
        forgotten_topics_data: list[FetchRequest.ForgottenTopic] = ...,
        rack_id: str = ...,
    ) -> None: ...

class FetchResponse(Message):
    API_KEY: ClassVar[int]
    class FetchableTopicResponse(Struct):
        topic: str
        topic_id: UUID
        partitions: list[FetchResponse.PartitionData]
        def __init__(
            self,
            *,
            topic: str = ...,
            topic_id: UUID = ...,
            partitions: list[FetchResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition_index: int
        error_code: int
        high_watermark: int
        last_stable_offset: int
        log_start_offset: int
        diverging_epoch: FetchResponse.EpochEndOffset
        current_leader: FetchResponse.LeaderIdAndEpoch
        snapshot_id: FetchResponse.SnapshotId
        aborted_transactions: list[FetchResponse.AbortedTransaction] | None
        preferred_read_replica: int
        records: Records | None
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            high_watermark: int = ...,
            last_stable_offset: int = ...,
            log_start_offset: int = ...,
            diverging_epoch: FetchResponse.EpochEndOffset = ...,
            current_leader: FetchResponse.LeaderIdAndEpoch = ...,
            snapshot_id: FetchResponse.SnapshotId = ...,
            aborted_transactions: list[FetchResponse.AbortedTransaction] | None = ...,
            preferred_read_replica: int = ...,
            records: Records | None = ...,
        ) -> None: ...

    class EpochEndOffset(Struct):
        epoch: int
        end_offset: int
        def __init__(
            self,
            *,
            epoch: int = ...,
            end_offset: int = ...,
        ) -> None: ...

    class LeaderIdAndEpoch(Struct):
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class SnapshotId(Struct):
        end_offset: int
        epoch: int
        def __init__(
            self,
            *,
            end_offset: int = ...,
            epoch: int = ...,
        ) -> None: ...

    class AbortedTransaction(Struct):
        producer_id: int
        first_offset: int
        def __init__(
            self,
            *,
            producer_id: int = ...,
            first_offset: int = ...,
        ) -> None: ...

    class NodeEndpoint(Struct):
        node_id: int
        host: str
        port: int
        rack: str | None
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
            rack: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    session_id: int
    responses: list[FetchResponse.FetchableTopicResponse]
    node_endpoints: list[FetchResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        session_id: int = ...,
        responses: list[FetchResponse.FetchableTopicResponse] = ...,
        node_endpoints: list[FetchResponse.NodeEndpoint] = ...,
    ) -> None: ...

class ListOffsetsRequest(Message):
    API_KEY: ClassVar[int]
    class ListOffsetsTopic(Struct):
        name: str
        partitions: list[ListOffsetsRequest.ListOffsetsPartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[ListOffsetsRequest.ListOffsetsPartition] = ...,
        ) -> None: ...

    class ListOffsetsPartition(Struct):
        partition_index: int
        current_leader_epoch: int
        timestamp: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            current_leader_epoch: int = ...,
            timestamp: int = ...,
        ) -> None: ...

    replica_id: int
    isolation_level: int
    topics: list[ListOffsetsRequest.ListOffsetsTopic]
    timeout_ms: int
    def __init__(
        self,
        *,
        replica_id: int = ...,
        isolation_level: int = ...,
        topics: list[ListOffsetsRequest.ListOffsetsTopic] = ...,
        timeout_ms: int = ...,
    ) -> None: ...

class ListOffsetsResponse(Message):
    API_KEY: ClassVar[int]
    class ListOffsetsTopicResponse(Struct):
        name: str
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = ...,
        ) -> None: ...

    class ListOffsetsPartitionResponse(Struct):
        partition_index: int
        error_code: int
        timestamp: int
        offset: int
        leader_epoch: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            timestamp: int = ...,
            offset: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: list[ListOffsetsResponse.ListOffsetsTopicResponse]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: list[ListOffsetsResponse.ListOffsetsTopicResponse] = ...,
    ) -> None: ...

class MetadataRequest(Message):
    API_KEY: ClassVar[int]
    class MetadataRequestTopic(Struct):
        topic_id: UUID
        name: str | None
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            name: str | None = ...,
        ) -> None: ...

    topics: list[MetadataRequest.MetadataRequestTopic] | None
    allow_auto_topic_creation: bool
    include_cluster_authorized_operations: bool
    include_topic_authorized_operations: bool
    def __init__(
        self,
        *,
        topics: list[MetadataRequest.MetadataRequestTopic] | None = ...,
        allow_auto_topic_creation: bool = ...,
        include_cluster_authorized_operations: bool = ...,
        include_topic_authorized_operations: bool = ...,
    ) -> None: ...

class MetadataResponse(Message):
    API_KEY: ClassVar[int]
    class MetadataResponseBroker(Struct):
        node_id: int
        host: str
        port: int
        rack: str | None
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
            rack: str | None = ...,
        ) -> None: ...

    class MetadataResponseTopic(Struct):
        error_code: int
        name: str | None
        topic_id: UUID
        is_internal: bool
        partitions: list[MetadataResponse.MetadataResponsePartition]
        topic_authorized_operations: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            name: str | None = ...,
            topic_id: UUID = ...,
            is_internal: bool = ...,
            partitions: list[MetadataResponse.MetadataResponsePartition] = ...,
            topic_authorized_operations: int = ...,
        ) -> None: ...

    class MetadataResponsePartition(Struct):
        error_code: int
        partition_index: int
        leader_id: int
        leader_epoch: int
        replica_nodes: list[int]
        isr_nodes: list[int]
        offline_replicas: list[int]
        def __init__(
            self,
            *,
            error_code: int = ...,
            partition_index: int = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
            replica_nodes: list[int] = ...,
            isr_nodes: list[int] = ...,
            offline_replicas: list[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    brokers: list[MetadataResponse.MetadataResponseBroker]
    cluster_id: str | None
    controller_id: int
    topics: list[MetadataResponse.MetadataResponseTopic]
    cluster_authorized_operations: int
    error_code: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        brokers: list[MetadataResponse.MetadataResponseBroker] = ...,
        cluster_id: str | None = ...,
        controller_id: int = ...,
        topics: list[MetadataResponse.MetadataResponseTopic] = ...,
        cluster_authorized_operations: int = ...,
        error_code: int = ...,
    ) -> None: ...

class OffsetCommitRequest(Message):
    API_KEY: ClassVar[int]
    class OffsetCommitRequestTopic(Struct):
        name: str
        topic_id: UUID
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition]
        def __init__(
            self,
            *,
            name: str = ...,
            topic_id: UUID = ...,
            partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition] = ...,
        ) -> None: ...

    class OffsetCommitRequestPartition(Struct):
        partition_index: int
        committed_offset: int
        committed_leader_epoch: int
        committed_metadata: str | None
        def __init__(
            self,
            *,
            partition_index: int = ...,
            committed_offset: int = ...,
            committed_leader_epoch: int = ...,
            committed_metadata: str | None = ...,
        ) -> None: ...

    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: str | None
    retention_time_ms: int
    topics: list[OffsetCommitRequest.OffsetCommitRequestTopic]
    def __init__(
        self,
        *,
        group_id: str = ...,
        generation_id_or_member_epoch: int = ...,
        member_id: str = ...,
        group_instance_id: str | None = ...,
        retention_time_ms: int = ...,
        topics: list[OffsetCommitRequest.OffsetCommitRequestTopic] = ...,
    ) -> None: ...

class OffsetCommitResponse(Message):
    API_KEY: ClassVar[int]
    class OffsetCommitResponseTopic(Struct):
        name: str
        topic_id: UUID
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition]
        def __init__(
            self,
            *,
            name: str = ...,
            topic_id: UUID = ...,
            partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition] = ...,
        ) -> None: ...

    class OffsetCommitResponsePartition(Struct):
        partition_index: int
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: list[OffsetCommitResponse.OffsetCommitResponseTopic]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: list[OffsetCommitResponse.OffsetCommitResponseTopic] = ...,
    ) -> None: ...

class OffsetFetchRequest(Message):
    API_KEY: ClassVar[int]
    class OffsetFetchRequestTopic(Struct):
        name: str
        partition_indexes: list[int]
        def __init__(
            self,
            *,
            name: str = ...,
            partition_indexes: list[int] = ...,
        ) -> None: ...

    class OffsetFetchRequestGroup(Struct):
        group_id: str
        member_id: str | None
        member_epoch: int
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None
        def __init__(
            self,
            *,
            group_id: str = ...,
            member_id: str | None = ...,
            member_epoch: int = ...,
            topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = ...,
        ) -> None: ...

    class OffsetFetchRequestTopics(Struct):
        name: str
        topic_id: UUID
        partition_indexes: list[int]
        def __init__(
            self,
            *,
            name: str = ...,
            topic_id: UUID = ...,
            partition_indexes: list[int] = ...,
        ) -> None: ...

    group_id: str
    topics: list[OffsetFetchRequest.OffsetFetchRequestTopic] | None
    groups: list[OffsetFetchRequest.OffsetFetchRequestGroup]
    require_stable: bool
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopic] | None = ...,
        groups: list[OffsetFetchRequest.OffsetFetchRequestGroup] = ...,
        require_stable: bool = ...,
    ) -> None: ...

class OffsetFetchResponse(Message):
    API_KEY: ClassVar[int]
    class OffsetFetchResponseTopic(Struct):
        name: str
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition] = ...,
        ) -> None: ...

    class OffsetFetchResponsePartition(Struct):
        partition_index: int
        committed_offset: int
        committed_leader_epoch: int
        metadata: str | None
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            committed_offset: int = ...,
            committed_leader_epoch: int = ...,
            metadata: str | None = ...,
            error_code: int = ...,
        ) -> None: ...

    class OffsetFetchResponseGroup(Struct):
        group_id: str
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopics]
        error_code: int
        def __init__(
            self,
            *,
            group_id: str = ...,
            topics: list[OffsetFetchResponse.OffsetFetchResponseTopics] = ...,
            error_code: int = ...,
        ) -> None: ...

    class OffsetFetchResponseTopics(Struct):
        name: str
        topic_id: UUID
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions]
        def __init__(
            self,
            *,
            name: str = ...,
            topic_id: UUID = ...,
            partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions] = ...,
        ) -> None: ...

    class OffsetFetchResponsePartitions(Struct):
        partition_index: int
        committed_offset: int
        committed_leader_epoch: int
        metadata: str | None
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            committed_offset: int = ...,
            committed_leader_epoch: int = ...,
            metadata: str | None = ...,
            error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: list[OffsetFetchResponse.OffsetFetchResponseTopic]
    error_code: int
    groups: list[OffsetFetchResponse.OffsetFetchResponseGroup]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopic] = ...,
        error_code: int = ...,
        groups: list[OffsetFetchResponse.OffsetFetchResponseGroup] = ...,
    ) -> None: ...

class FindCoordinatorRequest(Message):
    API_KEY: ClassVar[int]
    key: str
    key_type: int
    coordinator_keys: list[str]
    def __init__(
        self,
        *,
        key: str = ...,
        key_type: int = ...,
        coordinator_keys: list[str] = ...,
    ) -> None: ...

class FindCoordinatorResponse(Message):
    API_KEY: ClassVar[int]
    class Coordinator(Struct):
        key: str
        node_id: int
        host: str
        port: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            key: str = ...,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    node_id: int
    host: str
    port: int
    coordinators: list[FindCoordinatorResponse.Coordinator]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        node_id: int = ...,
        host: str = ...,
        port: int = ...,
        coordinators: list[FindCoordinatorResponse.Coordinator] = ...,
    ) -> None: ...

class JoinGroupRequest(Message):
    API_KEY: ClassVar[int]
    class JoinGroupRequestProtocol(Struct):
        name: str
        metadata: bytes
        def __init__(
            self,
            *,
            name: str = ...,
            metadata: bytes = ...,
        ) -> None: ...

    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str
    protocols: list[JoinGroupRequest.JoinGroupRequestProtocol]
    reason: str | None
    def __init__(
        self,
        *,
        group_id: str = ...,
        session_timeout_ms: int = ...,
        rebalance_timeout_ms: int = ...,
        member_id: str = ...,
        group_instance_id: str | None = ...,
        protocol_type: str = ...,
        protocols: list[JoinGroupRequest.JoinGroupRequestProtocol] = ...,
        reason: str | None = ...,
    ) -> None: ...

class JoinGroupResponse(Message):
    API_KEY: ClassVar[int]
    class JoinGroupResponseMember(Struct):
        member_id: str
        group_instance_id: str | None
        metadata: bytes
        def __init__(
            self,
            *,
            member_id: str = ...,
            group_instance_id: str | None = ...,
            metadata: bytes = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    skip_assignment: bool
    member_id: str
    members: list[JoinGroupResponse.JoinGroupResponseMember]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        generation_id: int = ...,
        protocol_type: str | None = ...,
        protocol_name: str | None = ...,
        leader: str = ...,
        skip_assignment: bool = ...,
        member_id: str = ...,
        members: list[JoinGroupResponse.JoinGroupResponseMember] = ...,
    ) -> None: ...

class HeartbeatRequest(Message):
    API_KEY: ClassVar[int]
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    def __init__(
        self,
        *,
        group_id: str = ...,
        generation_id: int = ...,
        member_id: str = ...,
        group_instance_id: str | None = ...,
    ) -> None: ...

class HeartbeatResponse(Message):
    API_KEY: ClassVar[int]
    throttle_time_ms: int
    error_code: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
    ) -> None: ...

class LeaveGroupRequest(Message):
    API_KEY: ClassVar[int]
    class MemberIdentity(Struct):
        member_id: str
        group_instance_id: str | None
        reason: str | None
        def __init__(
            self,
            *,
            member_id: str = ...,
            group_instance_id: str | None = ...,
            reason: str | None = ...,
        ) -> None: ...

    group_id: str
    member_id: str
    members: list[LeaveGroupRequest.MemberIdentity]
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
        members: list[LeaveGroupRequest.MemberIdentity] = ...,
    ) -> None: ...

class LeaveGroupResponse(Message):
    API_KEY: ClassVar[int]
    class MemberResponse(Struct):
        member_id: str
        group_instance_id: str | None
        error_code: int
        def __init__(
            self,
            *,
            member_id: str = ...,
            group_instance_id: str | None = ...,
            error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    members: list[LeaveGroupResponse.MemberResponse]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        members: list[LeaveGroupResponse.MemberResponse] = ...,
    ) -> None: ...

class SyncGroupRequest(Message):
    API_KEY: ClassVar[int]
    class SyncGroupRequestAssignment(Struct):
        member_id: str
        assignment: bytes
        def __init__(
            self,
            *,
            member_id: str = ...,
            assignment: bytes = ...,
        ) -> None: ...

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: list[SyncGroupRequest.SyncGroupRequestAssignment]
    def __init__(
        self,
        *,
        group_id: str = ...,
        generation_id: int = ...,
        member_id: str = ...,
        group_instance_id: str | None = ...,
        protocol_type: str | None = ...,
        protocol_name: str | None = ...,
        assignments: list[SyncGroupRequest.SyncGroupRequestAssignment] = ...,
    ) -> None: ...

class SyncGroupResponse(Message):
    API_KEY: ClassVar[int]
    throttle_time_ms: int
    error_code: int
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        protocol_type: str | None = ...,
        protocol_name: str | None = ...,
        assignment: bytes = ...,
    ) -> None: ...

class DescribeGroupsRequest(Message):
    API_KEY: ClassVar[int]
    groups: list[str]
    include_authorized_operations: bool
    def __init__(
        self,
        *,
        groups: list[str] = ...,
        include_authorized_operations: bool = ...,
    ) -> None: ...

class DescribeGroupsResponse(Message):
    API_KEY: ClassVar[int]
    class DescribedGroup(Struct):
        error_code: int
        error_message: str | None
        group_id: str
        group_state: str
        protocol_type: str
        protocol_data: str
        members: list[DescribeGroupsResponse.DescribedGroupMember]
        authorized_operations: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            group_id: str = ...,
            group_state: str = ...,
            protocol_type: str = ...,
            protocol_data: str = ...,
            members: list[DescribeGroupsResponse.DescribedGroupMember] = ...,
            authorized_operations: int = ...,
        ) -> None: ...

    class DescribedGroupMember(Struct):
        member_id: str
        group_instance_id: str | None
        client_id: str
        client_host: str
        member_metadata: bytes
        member_assignment: bytes
        def __init__(
            self,
            *,
            member_id: str = ...,
            group_instance_id: str | None = ...,
            client_id: str = ...,
            client_host: str = ...,
            member_metadata: bytes = ...,
            member_assignment: bytes = ...,
        ) -> None: ...

    throttle_time_ms: int
    groups: list[DescribeGroupsResponse.DescribedGroup]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        groups: list[DescribeGroupsResponse.DescribedGroup] = ...,
    ) -> None: ...

class ListGroupsRequest(Message):
    API_KEY: ClassVar[int]
    states_filter: list[str]
    types_filter: list[str]
    def __init__(
        self,
        *,
        states_filter: list[str] = ...,
        types_filter: list[str] = ...,
    ) -> None: ...

class ListGroupsResponse(Message):
    API_KEY: ClassVar[int]
    class ListedGroup(Struct):
        group_id: str
        protocol_type: str
        group_state: str
        group_type: str
        def __init__(
            self,
            *,
            group_id: str = ...,
            protocol_type: str = ...,
            group_state: str = ...,
            group_type: str = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    groups: list[ListGroupsResponse.ListedGroup]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        groups: list[ListGroupsResponse.ListedGroup] = ...,
    ) -> None: ...

class SaslHandshakeRequest(Message):
    API_KEY: ClassVar[int]
    mechanism: str
    def __init__(
        self,
        *,
        mechanism: str = ...,
    ) -> None: ...

class SaslHandshakeResponse(Message):
    API_KEY: ClassVar[int]
    error_code: int
    mechanisms: list[str]
    def __init__(
        self,
        *,
        error_code: int = ...,
        mechanisms: list[str] = ...,
    ) -> None: ...

class ApiVersionsRequest(Message):
    API_KEY: ClassVar[int]
    client_software_name: str
    client_software_version: str
    cluster_id: str | None
    node_id: int
    def __init__(
        self,
        *,
        client_software_name: str = ...,
        client_software_version: str = ...,
        cluster_id: str | None = ...,
        node_id: int = ...,
    ) -> None: ...

class ApiVersionsResponse(Message):
    API_KEY: ClassVar[int]
    class ApiVersion(Struct):
        api_key: int
        min_version: int
        max_version: int
        def __init__(
            self,
            *,
            api_key: int = ...,
            min_version: int = ...,
            max_version: int = ...,
        ) -> None: ...

    class SupportedFeatureKey(Struct):
        name: str
        min_version: int
        max_version: int
        def __init__(
            self,
            *,
            name: str = ...,
            min_version: int = ...,
            max_version: int = ...,
        ) -> None: ...

    class FinalizedFeatureKey(Struct):
        name: str
        max_version_level: int
        min_version_level: int
        def __init__(
            self,
            *,
            name: str = ...,
            max_version_level: int = ...,
            min_version_level: int = ...,
        ) -> None: ...

    error_code: int
    api_keys: list[ApiVersionsResponse.ApiVersion]
    throttle_time_ms: int
    supported_features: list[ApiVersionsResponse.SupportedFeatureKey]
    finalized_features_epoch: int
    finalized_features: list[ApiVersionsResponse.FinalizedFeatureKey]
    zk_migration_ready: bool
    def __init__(
        self,
        *,
        error_code: int = ...,
        api_keys: list[ApiVersionsResponse.ApiVersion] = ...,
        throttle_time_ms: int = ...,
        supported_features: list[ApiVersionsResponse.SupportedFeatureKey] = ...,
        finalized_features_epoch: int = ...,
        finalized_features: list[ApiVersionsResponse.FinalizedFeatureKey] = ...,
        zk_migration_ready: bool = ...,
    ) -> None: ...

class CreateTopicsRequest(Message):
    API_KEY: ClassVar[int]
    class CreatableTopic(Struct):
        name: str
        num_partitions: int
        replication_factor: int
        assignments: list[CreateTopicsRequest.CreatableReplicaAssignment]
        configs: list[CreateTopicsRequest.CreatableTopicConfig]
        def __init__(
            self,
            *,
            name: str = ...,
            num_partitions: int = ...,
            replication_factor: int = ...,
            assignments: list[CreateTopicsRequest.CreatableReplicaAssignment] = ...,
            configs: list[CreateTopicsRequest.CreatableTopicConfig] = ...,
        ) -> None: ...

    class CreatableReplicaAssignment(Struct):
        partition_index: int
        broker_ids: list[int]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            broker_ids: list[int] = ...,
        ) -> None: ...

    class CreatableTopicConfig(Struct):
        name: str
        value: str | None
        def __init__(
            self,
            *,
            name: str = ...,
            value: str | None = ...,
        ) -> None: ...

    topics: list[CreateTopicsRequest.CreatableTopic]
    timeout_ms: int
    validate_only: bool
    def __init__(
        self,
        *,
        topics: list[CreateTopicsRequest.CreatableTopic] = ...,
        timeout_ms: int = ...,
        validate_only: bool = ...,
    ) -> None: ...

class CreateTopicsResponse(Message):
    API_KEY: ClassVar[int]
    class CreatableTopicResult(Struct):
        name: str
        topic_id: UUID
        error_code: int
        error_message: str | None
        topic_config_error_code: int
        num_partitions: int
        replication_factor: int
        configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None
        def __init__(
            self,
            *,
            name: str = ...,
            topic_id: UUID = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            topic_config_error_code: int = ...,
            num_partitions: int = ...,
            replication_factor: int = ...,
            configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None = ...,
        ) -> None: ...

    class CreatableTopicConfigs(Struct):
        name: str
        value: str | None
        read_only: bool
        config_source: int
        is_sensitive: bool
        def __init__(
            self,
            *,
            name: str = ...,
            value: str | None = ...,
            read_only: bool = ...,
            config_source: int = ...,
            is_sensitive: bool = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: list[CreateTopicsResponse.CreatableTopicResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: list[CreateTopicsResponse.CreatableTopicResult] = ...,
    ) -> None: ...

class DeleteTopicsRequest(Message):
    API_KEY: ClassVar[int]
    class DeleteTopicState(Struct):
        name: str | None
        topic_id: UUID
        def __init__(
            self,
            *,
            name: str | None = ...,
            topic_id: UUID = ...,
        ) -> None: ...

    topics: list[DeleteTopicsRequest.DeleteTopicState]
    topic_names: list[str]
    timeout_ms: int
    def __init__(
        self,
        *,
        topics: list[DeleteTopicsRequest.DeleteTopicState] = ...,
        topic_names: list[str] = ...,
        timeout_ms: int = ...,
    ) -> None: ...

class DeleteTopicsResponse(Message):
    API_KEY: ClassVar[int]
    class DeletableTopicResult(Struct):
        name: str | None
        topic_id: UUID
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            name: str | None = ...,
            topic_id: UUID = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    responses: list[DeleteTopicsResponse.DeletableTopicResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        responses: list[DeleteTopicsResponse.DeletableTopicResult] = ...,
    ) -> None: ...

class DeleteRecordsRequest(Message):
    API_KEY: ClassVar[int]
    class DeleteRecordsTopic(Struct):
        name: str
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[DeleteRecordsRequest.DeleteRecordsPartition] = ...,
        ) -> None: ...

    class DeleteRecordsPartition(Struct):
        partition_index: int
        offset: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            offset: int = ...,
        ) -> None: ...

    topics: list[DeleteRecordsRequest.DeleteRecordsTopic]
    timeout_ms: int
    def __init__(
        self,
        *,
        topics: list[DeleteRecordsRequest.DeleteRecordsTopic] = ...,
        timeout_ms: int = ...,
    ) -> None: ...

class DeleteRecordsResponse(Message):
    API_KEY: ClassVar[int]
    class DeleteRecordsTopicResult(Struct):
        name: str
        partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult] = ...,
        ) -> None: ...

    class DeleteRecordsPartitionResult(Struct):
        partition_index: int
        low_watermark: int
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            low_watermark: int = ...,
            error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: list[DeleteRecordsResponse.DeleteRecordsTopicResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: list[DeleteRecordsResponse.DeleteRecordsTopicResult] = ...,
    ) -> None: ...

class InitProducerIdRequest(Message):
    API_KEY: ClassVar[int]
    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int
    producer_epoch: int
    enable2_pc: bool
    keep_prepared_txn: bool
    def __init__(
        self,
        *,
        transactional_id: str | None = ...,
        transaction_timeout_ms: int = ...,
        producer_id: int = ...,
        producer_epoch: int = ...,
        enable2_pc: bool = ...,
        keep_prepared_txn: bool = ...,
    ) -> None: ...

class InitProducerIdResponse(Message):
    API_KEY: ClassVar[int]
    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int
    ongoing_txn_producer_id: int
    ongoing_txn_producer_epoch: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        producer_id: int = ...,
        producer_epoch: int = ...,
        ongoing_txn_producer_id: int = ...,
        ongoing_txn_producer_epoch: int = ...,
    ) -> None: ...

class OffsetForLeaderEpochRequest(Message):
    API_KEY: ClassVar[int]
    class OffsetForLeaderTopic(Struct):
        topic: str
        partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition] = ...,
        ) -> None: ...

    class OffsetForLeaderPartition(Struct):
        partition: int
        current_leader_epoch: int
        leader_epoch: int
        def __init__(
            self,
            *,
            partition: int = ...,
            current_leader_epoch: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    replica_id: int
    topics: list[OffsetForLeaderEpochRequest.OffsetForLeaderTopic]
    def __init__(
        self,
        *,
        replica_id: int = ...,
        topics: list[OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = ...,
    ) -> None: ...

class OffsetForLeaderEpochResponse(Message):
    API_KEY: ClassVar[int]
    class OffsetForLeaderTopicResult(Struct):
        topic: str
        partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset] = ...,
        ) -> None: ...

    class EpochEndOffset(Struct):
        error_code: int
        partition: int
        leader_epoch: int
        end_offset: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            partition: int = ...,
            leader_epoch: int = ...,
            end_offset: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: list[OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: list[OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult] = ...,
    ) -> None: ...

class AddPartitionsToTxnRequest(Message):
    API_KEY: ClassVar[int]
    class AddPartitionsToTxnTransaction(Struct):
        transactional_id: str
        producer_id: int
        producer_epoch: int
        verify_only: bool
        topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]
        def __init__(
            self,
            *,
            transactional_id: str = ...,
            producer_id: int = ...,
            producer_epoch: int = ...,
            verify_only: bool = ...,
            topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = ...,
        ) -> None: ...

    class AddPartitionsToTxnTopic(Struct):
        name: str
        partitions: list[int]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    transactions: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction]
    v3_and_below_transactional_id: str
    v3_and_below_producer_id: int
    v3_and_below_producer_epoch: int
    v3_and_below_topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]
    def __init__(
        self,
        *,
        transactions: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction] = ...,
        v3_and_below_transactional_id: str = ...,
        v3_and_below_producer_id: int = ...,
        v3_and_below_producer_epoch: int = ...,
        v3_and_below_topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = ...,
    ) -> None: ...

class AddPartitionsToTxnResponse(Message):
    API_KEY: ClassVar[int]
    class AddPartitionsToTxnResult(Struct):
        transactional_id: str
        topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]
        def __init__(
            self,
            *,
            transactional_id: str = ...,
            topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = ...,
        ) -> None: ...

    class AddPartitionsToTxnTopicResult(Struct):
        name: str
        results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult]
        def __init__(
            self,
            *,
            name: str = ...,
            results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult] = ...,
        ) -> None: ...

    class AddPartitionsToTxnPartitionResult(Struct):
        partition_index: int
        partition_error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            partition_error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    results_by_transaction: list[AddPartitionsToTxnResponse.AddPartitionsToTxnResult]
    results_by_topic_v3_and_below: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        results_by_transaction: list[AddPartitionsToTxnResponse.AddPartitionsToTxnResult] = ...,
        results_by_topic_v3_and_below: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = ...,
    ) -> None: ...

class AddOffsetsToTxnRequest(Message):
    API_KEY: ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str
    def __init__(
        self,
        *,
        transactional_id: str = ...,
        producer_id: int = ...,
        producer_epoch: int = ...,
        group_id: str = ...,
    ) -> None: ...

class AddOffsetsToTxnResponse(Message):
    API_KEY: ClassVar[int]
    throttle_time_ms: int
    error_code: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
    ) -> None: ...

class EndTxnRequest(Message):
    API_KEY: ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    def __init__(
        self,
        *,
        transactional_id: str = ...,
        producer_id: int = ...,
        producer_epoch: int = ...,
        committed: bool = ...,
    ) -> None: ...

class EndTxnResponse(Message):
    API_KEY: ClassVar[int]
    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        producer_id: int = ...,
        producer_epoch: int = ...,
    ) -> None: ...

class WriteTxnMarkersRequest(Message):
    API_KEY: ClassVar[int]
    class WritableTxnMarker(Struct):
        producer_id: int
        producer_epoch: int
        transaction_result: bool
        topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic]
        coordinator_epoch: int
        transaction_version: int
        def __init__(
            self,
            *,
            producer_id: int = ...,
            producer_epoch: int = ...,
            transaction_result: bool = ...,
            topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic] = ...,
            coordinator_epoch: int = ...,
            transaction_version: int = ...,
        ) -> None: ...

    class WritableTxnMarkerTopic(Struct):
        name: str
        partition_indexes: list[int]
        def __init__(
            self,
            *,
            name: str = ...,
            partition_indexes: list[int] = ...,
        ) -> None: ...

    markers: list[WriteTxnMarkersRequest.WritableTxnMarker]
    def __init__(
        self,
        *,
        markers: list[WriteTxnMarkersRequest.WritableTxnMarker] = ...,
    ) -> None: ...

class WriteTxnMarkersResponse(Message):
    API_KEY: ClassVar[int]
    class WritableTxnMarkerResult(Struct):
        producer_id: int
        topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult]
        def __init__(
            self,
            *,
            producer_id: int = ...,
            topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = ...,
        ) -> None: ...

    class WritableTxnMarkerTopicResult(Struct):
        name: str
        partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult] = ...,
        ) -> None: ...

    class WritableTxnMarkerPartitionResult(Struct):
        partition_index: int
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
        ) -> None: ...

    markers: list[WriteTxnMarkersResponse.WritableTxnMarkerResult]
    def __init__(
        self,
        *,
        markers: list[WriteTxnMarkersResponse.WritableTxnMarkerResult] = ...,
    ) -> None: ...

class TxnOffsetCommitRequest(Message):
    API_KEY: ClassVar[int]
    class TxnOffsetCommitRequestTopic(Struct):
        name: str
        topic_id: UUID
        partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]
        def __init__(
            self,
            *,
            name: str = ...,
            topic_id: UUID = ...,
            partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition] = ...,
        ) -> None: ...

    class TxnOffsetCommitRequestPartition(Struct):
        partition_index: int
        committed_offset: int
        committed_leader_epoch: int
        committed_metadata: str | None
        def __init__(
            self,
            *,
            partition_index: int = ...,
            committed_offset: int = ...,
            committed_leader_epoch: int = ...,
            committed_metadata: str | None = ...,
        ) -> None: ...

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    generation_id: int
    member_id: str
    group_instance_id: str | None
    topics: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic]
    def __init__(
        self,
        *,
        transactional_id: str = ...,
        group_id: str = ...,
        producer_id: int = ...,
        producer_epoch: int = ...,
        generation_id: int = ...,
        member_id: str = ...,
        group_instance_id: str | None = ...,
        topics: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = ...,
    ) -> None: ...

class TxnOffsetCommitResponse(Message):
    API_KEY: ClassVar[int]
    class TxnOffsetCommitResponseTopic(Struct):
        name: str
        topic_id: UUID
        partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition]
        def __init__(
            self,
            *,
            name: str = ...,
            topic_id: UUID = ...,
            partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition] = ...,
        ) -> None: ...

    class TxnOffsetCommitResponsePartition(Struct):
        partition_index: int
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: list[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: list[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic] = ...,
    ) -> None: ...

class DescribeAclsRequest(Message):
    API_KEY: ClassVar[int]
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int
    def __init__(
        self,
        *,
        resource_type_filter: int = ...,
        resource_name_filter: str | None = ...,
        pattern_type_filter: int = ...,
        principal_filter: str | None = ...,
        host_filter: str | None = ...,
        operation: int = ...,
        permission_type: int = ...,
    ) -> None: ...

class DescribeAclsResponse(Message):
    API_KEY: ClassVar[int]
    class DescribeAclsResource(Struct):
        resource_type: int
        resource_name: str
        pattern_type: int
        acls: list[DescribeAclsResponse.AclDescription]
        def __init__(
            self,
            *,
            resource_type: int = ...,
            resource_name: str = ...,
            pattern_type: int = ...,
            acls: list[DescribeAclsResponse.AclDescription] = ...,
        ) -> None: ...

    class AclDescription(Struct):
        principal: str
        host: str
        operation: int
        permission_type: int
        def __init__(
            self,
            *,
            principal: str = ...,
            host: str = ...,
            operation: int = ...,
            permission_type: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    resources: list[DescribeAclsResponse.DescribeAclsResource]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        resources: list[DescribeAclsResponse.DescribeAclsResource] = ...,
    ) -> None: ...

class CreateAclsRequest(Message):
    API_KEY: ClassVar[int]
    class AclCreation(Struct):
        resource_type: int
        resource_name: str
        resource_pattern_type: int
        principal: str
        host: str
        operation: int
        permission_type: int
        def __init__(
            self,
            *,
            resource_type: int = ...,
            resource_name: str = ...,
            resource_pattern_type: int = ...,
            principal: str = ...,
            host: str = ...,
            operation: int = ...,
            permission_type: int = ...,
        ) -> None: ...

    creations: list[CreateAclsRequest.AclCreation]
    def __init__(
        self,
        *,
        creations: list[CreateAclsRequest.AclCreation] = ...,
    ) -> None: ...

class CreateAclsResponse(Message):
    API_KEY: ClassVar[int]
    class AclCreationResult(Struct):
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    results: list[CreateAclsResponse.AclCreationResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        results: list[CreateAclsResponse.AclCreationResult] = ...,
    ) -> None: ...

class DeleteAclsRequest(Message):
    API_KEY: ClassVar[int]
    class DeleteAclsFilter(Struct):
        resource_type_filter: int
        resource_name_filter: str | None
        pattern_type_filter: int
        principal_filter: str | None
        host_filter: str | None
        operation: int
        permission_type: int
        def __init__(
            self,
            *,
            resource_type_filter: int = ...,
            resource_name_filter: str | None = ...,
            pattern_type_filter: int = ...,
            principal_filter: str | None = ...,
            host_filter: str | None = ...,
            operation: int = ...,
            permission_type: int = ...,
        ) -> None: ...

    filters: list[DeleteAclsRequest.DeleteAclsFilter]
    def __init__(
        self,
        *,
        filters: list[DeleteAclsRequest.DeleteAclsFilter] = ...,
    ) -> None: ...

class DeleteAclsResponse(Message):
    API_KEY: ClassVar[int]
    class DeleteAclsFilterResult(Struct):
        error_code: int
        error_message: str | None
        matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl]
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl] = ...,
        ) -> None: ...

    class DeleteAclsMatchingAcl(Struct):
        error_code: int
        error_message: str | None
        resource_type: int
        resource_name: str
        pattern_type: int
        principal: str
        host: str
        operation: int
        permission_type: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            resource_type: int = ...,
            resource_name: str = ...,
            pattern_type: int = ...,
            principal: str = ...,
            host: str = ...,
            operation: int = ...,
            permission_type: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    filter_results: list[DeleteAclsResponse.DeleteAclsFilterResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        filter_results: list[DeleteAclsResponse.DeleteAclsFilterResult] = ...,
    ) -> None: ...

class DescribeConfigsRequest(Message):
    API_KEY: ClassVar[int]
    class DescribeConfigsResource(Struct):
        resource_type: int
        resource_name: str
        configuration_keys: list[str] | None
        def __init__(
            self,
            *,
            resource_type: int = ...,
            resource_name: str = ...,
            configuration_keys: list[str] | None = ...,
        ) -> None: ...

    resources: list[DescribeConfigsRequest.DescribeConfigsResource]
    include_synonyms: bool
    include_documentation: bool
    def __init__(
        self,
        *,
        resources: list[DescribeConfigsRequest.DescribeConfigsResource] = ...,
        include_synonyms: bool = ...,
        include_documentation: bool = ...,
    ) -> None: ...

class DescribeConfigsResponse(Message):
    API_KEY: ClassVar[int]
    class DescribeConfigsResult(Struct):
        error_code: int
        error_message: str | None
        resource_type: int
        resource_name: str
        configs: list[DescribeConfigsResponse.DescribeConfigsResourceResult]
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            resource_type: int = ...,
            resource_name: str = ...,
            configs: list[DescribeConfigsResponse.DescribeConfigsResourceResult] = ...,
        ) -> None: ...

    class DescribeConfigsResourceResult(Struct):
        name: str
        value: str | None
        read_only: bool
        config_source: int
        is_sensitive: bool
        synonyms: list[DescribeConfigsResponse.DescribeConfigsSynonym]
        config_type: int
        documentation: str | None
        def __init__(
            self,
            *,
            name: str = ...,
            value: str | None = ...,
            read_only: bool = ...,
            config_source: int = ...,
            is_sensitive: bool = ...,
            synonyms: list[DescribeConfigsResponse.DescribeConfigsSynonym] = ...,
            config_type: int = ...,
            documentation: str | None = ...,
        ) -> None: ...

    class DescribeConfigsSynonym(Struct):
        name: str
        value: str | None
        source: int
        def __init__(
            self,
            *,
            name: str = ...,
            value: str | None = ...,
            source: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    results: list[DescribeConfigsResponse.DescribeConfigsResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        results: list[DescribeConfigsResponse.DescribeConfigsResult] = ...,
    ) -> None: ...

class AlterConfigsRequest(Message):
    API_KEY: ClassVar[int]
    class AlterConfigsResource(Struct):
        resource_type: int
        resource_name: str
        configs: list[AlterConfigsRequest.AlterableConfig]
        def __init__(
            self,
            *,
            resource_type: int = ...,
            resource_name: str = ...,
            configs: list[AlterConfigsRequest.AlterableConfig] = ...,
        ) -> None: ...

    class AlterableConfig(Struct):
        name: str
        value: str | None
        def __init__(
            self,
            *,
            name: str = ...,
            value: str | None = ...,
        ) -> None: ...

    resources: list[AlterConfigsRequest.AlterConfigsResource]
    validate_only: bool
    def __init__(
        self,
        *,
        resources: list[AlterConfigsRequest.AlterConfigsResource] = ...,
        validate_only: bool = ...,
    ) -> None: ...

class AlterConfigsResponse(Message):
    API_KEY: ClassVar[int]
    class AlterConfigsResourceResponse(Struct):
        error_code: int
        error_message: str | None
        resource_type: int
        resource_name: str
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            resource_type: int = ...,
            resource_name: str = ...,
        ) -> None: ...

    throttle_time_ms: int
    responses: list[AlterConfigsResponse.AlterConfigsResourceResponse]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        responses: list[AlterConfigsResponse.AlterConfigsResourceResponse] = ...,
    ) -> None: ...

class AlterReplicaLogDirsRequest(Message):
    API_KEY: ClassVar[int]
    class AlterReplicaLogDir(Struct):
        path: str
        topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic]
        def __init__(
            self,
            *,
            path: str = ...,
            topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic] = ...,
        ) -> None: ...

    class AlterReplicaLogDirTopic(Struct):
        name: str
        partitions: list[int]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    dirs: list[AlterReplicaLogDirsRequest.AlterReplicaLogDir]
    def __init__(
        self,
        *,
        dirs: list[AlterReplicaLogDirsRequest.AlterReplicaLogDir] = ...,
    ) -> None: ...

class AlterReplicaLogDirsResponse(Message):
    API_KEY: ClassVar[int]
    class AlterReplicaLogDirTopicResult(Struct):
        topic_name: str
        partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult] = ...,
        ) -> None: ...

    class AlterReplicaLogDirPartitionResult(Struct):
        partition_index: int
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    results: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        results: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = ...,
    ) -> None: ...

class DescribeLogDirsRequest(Message):
    API_KEY: ClassVar[int]
    class DescribableLogDirTopic(Struct):
        topic: str
        partitions: list[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    topics: list[DescribeLogDirsRequest.DescribableLogDirTopic] | None
    with_log_ends: bool
    def __init__(
        self,
        *,
        topics: list[DescribeLogDirsRequest.DescribableLogDirTopic] | None = ...,
        with_log_ends: bool = ...,
    ) -> None: ...

class DescribeLogDirsResponse(Message):
    API_KEY: ClassVar[int]
    class DescribeLogDirsResult(Struct):
        error_code: int
        log_dir: str
        topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic]
        total_bytes: int
        usable_bytes: int
        is_cordoned: bool
        def __init__(
            self,
            *,
            error_code: int = ...,
            log_dir: str = ...,
            topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic] = ...,
            total_bytes: int = ...,
            usable_bytes: int = ...,
            is_cordoned: bool = ...,
        ) -> None: ...

    class DescribeLogDirsTopic(Struct):
        name: str
        partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition]
        topic_id: UUID
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition] = ...,
            topic_id: UUID = ...,
        ) -> None: ...

    class DescribeLogDirsPartition(Struct):
        partition_index: int
        partition_size: int
        offset_lag: int
        is_future_key: bool
        last_epoch: int
        end_offset: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            partition_size: int = ...,
            offset_lag: int = ...,
            is_future_key: bool = ...,
            last_epoch: int = ...,
            end_offset: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    results: list[DescribeLogDirsResponse.DescribeLogDirsResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        results: list[DescribeLogDirsResponse.DescribeLogDirsResult] = ...,
    ) -> None: ...

class SaslAuthenticateRequest(Message):
    API_KEY: ClassVar[int]
    auth_bytes: bytes
    def __init__(
        self,
        *,
        auth_bytes: bytes = ...,
    ) -> None: ...

class SaslAuthenticateResponse(Message):
    API_KEY: ClassVar[int]
    error_code: int
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: int
    def __init__(
        self,
        *,
        error_code: int = ...,
        error_message: str | None = ...,
        auth_bytes: bytes = ...,
        session_lifetime_ms: int = ...,
    ) -> None: ...

class CreatePartitionsRequest(Message):
    API_KEY: ClassVar[int]
    class CreatePartitionsTopic(Struct):
        name: str
        count: int
        assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None
        def __init__(
            self,
            *,
            name: str = ...,
            count: int = ...,
            assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None = ...,
        ) -> None: ...

    class CreatePartitionsAssignment(Struct):
        broker_ids: list[int]
        def __init__(
            self,
            *,
            broker_ids: list[int] = ...,
        ) -> None: ...

    topics: list[CreatePartitionsRequest.CreatePartitionsTopic]
    timeout_ms: int
    validate_only: bool
    def __init__(
        self,
        *,
        topics: list[CreatePartitionsRequest.CreatePartitionsTopic] = ...,
        timeout_ms: int = ...,
        validate_only: bool = ...,
    ) -> None: ...

class CreatePartitionsResponse(Message):
    API_KEY: ClassVar[int]
    class CreatePartitionsTopicResult(Struct):
        name: str
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            name: str = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    results: list[CreatePartitionsResponse.CreatePartitionsTopicResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        results: list[CreatePartitionsResponse.CreatePartitionsTopicResult] = ...,
    ) -> None: ...

class CreateDelegationTokenRequest(Message):
    API_KEY: ClassVar[int]
    class CreatableRenewers(Struct):
        principal_type: str
        principal_name: str
        def __init__(
            self,
            *,
            principal_type: str = ...,
            principal_name: str = ...,
        ) -> None: ...

    owner_principal_type: str | None
    owner_principal_name: str | None
    renewers: list[CreateDelegationTokenRequest.CreatableRenewers]
    max_lifetime_ms: int
    def __init__(
        self,
        *,
        owner_principal_type: str | None = ...,
        owner_principal_name: str | None = ...,
        renewers: list[CreateDelegationTokenRequest.CreatableRenewers] = ...,
        max_lifetime_ms: int = ...,
    ) -> None: ...

class CreateDelegationTokenResponse(Message):
    API_KEY: ClassVar[int]
    error_code: int
    principal_type: str
    principal_name: str
    token_requester_principal_type: str
    token_requester_principal_name: str
    issue_timestamp_ms: int
    expiry_timestamp_ms: int
    max_timestamp_ms: int
    token_id: str
    hmac: bytes
    throttle_time_ms: int
    def __init__(
        self,
        *,
        error_code: int = ...,
        principal_type: str = ...,
        principal_name: str = ...,
        token_requester_principal_type: str = ...,
        token_requester_principal_name: str = ...,
        issue_timestamp_ms: int = ...,
        expiry_timestamp_ms: int = ...,
        max_timestamp_ms: int = ...,
        token_id: str = ...,
        hmac: bytes = ...,
        throttle_time_ms: int = ...,
    ) -> None: ...

class RenewDelegationTokenRequest(Message):
    API_KEY: ClassVar[int]
    hmac: bytes
    renew_period_ms: int
    def __init__(
        self,
        *,
        hmac: bytes = ...,
        renew_period_ms: int = ...,
    ) -> None: ...

class RenewDelegationTokenResponse(Message):
    API_KEY: ClassVar[int]
    error_code: int
    expiry_timestamp_ms: int
    throttle_time_ms: int
    def __init__(
        self,
        *,
        error_code: int = ...,
        expiry_timestamp_ms: int = ...,
        throttle_time_ms: int = ...,
    ) -> None: ...

class ExpireDelegationTokenRequest(Message):
    API_KEY: ClassVar[int]
    hmac: bytes
    expiry_time_period_ms: int
    def __init__(
        self,
        *,
        hmac: bytes = ...,
        expiry_time_period_ms: int = ...,
    ) -> None: ...

class ExpireDelegationTokenResponse(Message):
    API_KEY: ClassVar[int]
    error_code: int
    expiry_timestamp_ms: int
    throttle_time_ms: int
    def __init__(
        self,
        *,
        error_code: int = ...,
        expiry_timestamp_ms: int = ...,
        throttle_time_ms: int = ...,
    ) -> None: ...

class DescribeDelegationTokenRequest(Message):
    API_KEY: ClassVar[int]
    class DescribeDelegationTokenOwner(Struct):
        principal_type: str
        principal_name: str
        def __init__(
            self,
            *,
            principal_type: str = ...,
            principal_name: str = ...,
        ) -> None: ...

    owners: list[DescribeDelegationTokenRequest.DescribeDelegationTokenOwner] | None
    def __init__(
        self,
        *,
        owners: list[DescribeDelegationTokenRequest.DescribeDelegationTokenOwner] | None = ...,
    ) -> None: ...

class DescribeDelegationTokenResponse(Message):
    API_KEY: ClassVar[int]
    class DescribedDelegationToken(Struct):
        principal_type: str
        principal_name: str
        token_requester_principal_type: str
        token_requester_principal_name: str
        issue_timestamp: int
        expiry_timestamp: int
        max_timestamp: int
        token_id: str
        hmac: bytes
        renewers: list[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer]
        def __init__(
            self,
            *,
            principal_type: str = ...,
            principal_name: str = ...,
            token_requester_principal_type: str = ...,
            token_requester_principal_name: str = ...,
            issue_timestamp: int = ...,
            expiry_timestamp: int = ...,
            max_timestamp: int = ...,
            token_id: str = ...,
            hmac: bytes = ...,
            renewers: list[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer] = ...,
        ) -> None: ...

    class DescribedDelegationTokenRenewer(Struct):
        principal_type: str
        principal_name: str
        def __init__(
            self,
            *,
            principal_type: str = ...,
            principal_name: str = ...,
        ) -> None: ...

    error_code: int
    tokens: list[DescribeDelegationTokenResponse.DescribedDelegationToken]
    throttle_time_ms: int
    def __init__(
        self,
        *,
        error_code: int = ...,
        tokens: list[DescribeDelegationTokenResponse.DescribedDelegationToken] = ...,
        throttle_time_ms: int = ...,
    ) -> None: ...

class DeleteGroupsRequest(Message):
    API_KEY: ClassVar[int]
    groups_names: list[str]
    def __init__(
        self,
        *,
        groups_names: list[str] = ...,
    ) -> None: ...

class DeleteGroupsResponse(Message):
    API_KEY: ClassVar[int]
    class DeletableGroupResult(Struct):
        group_id: str
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            group_id: str = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    results: list[DeleteGroupsResponse.DeletableGroupResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        results: list[DeleteGroupsResponse.DeletableGroupResult] = ...,
    ) -> None: ...

class ElectLeadersRequest(Message):
    API_KEY: ClassVar[int]
    class TopicPartitions(Struct):
        topic: str
        partitions: list[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    election_type: int
    topic_partitions: list[ElectLeadersRequest.TopicPartitions] | None
    timeout_ms: int
    def __init__(
        self,
        *,
        election_type: int = ...,
        topic_partitions: list[ElectLeadersRequest.TopicPartitions] | None = ...,
        timeout_ms: int = ...,
    ) -> None: ...

class ElectLeadersResponse(Message):
    API_KEY: ClassVar[int]
    class ReplicaElectionResult(Struct):
        topic: str
        partition_result: list[ElectLeadersResponse.PartitionResult]
        def __init__(
            self,
            *,
            topic: str = ...,
            partition_result: list[ElectLeadersResponse.PartitionResult] = ...,
        ) -> None: ...

    class PartitionResult(Struct):
        partition_id: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            partition_id: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    replica_election_results: list[ElectLeadersResponse.ReplicaElectionResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        replica_election_results: list[ElectLeadersResponse.ReplicaElectionResult] = ...,
    ) -> None: ...

class IncrementalAlterConfigsRequest(Message):
    API_KEY: ClassVar[int]
    class AlterConfigsResource(Struct):
        resource_type: int
        resource_name: str
        configs: list[IncrementalAlterConfigsRequest.AlterableConfig]
        def __init__(
            self,
            *,
            resource_type: int = ...,
            resource_name: str = ...,
            configs: list[IncrementalAlterConfigsRequest.AlterableConfig] = ...,
        ) -> None: ...

    class AlterableConfig(Struct):
        name: str
        config_operation: int
        value: str | None
        def __init__(
            self,
            *,
            name: str = ...,
            config_operation: int = ...,
            value: str | None = ...,
        ) -> None: ...

    resources: list[IncrementalAlterConfigsRequest.AlterConfigsResource]
    validate_only: bool
    def __init__(
        self,
        *,
        resources: list[IncrementalAlterConfigsRequest.AlterConfigsResource] = ...,
        validate_only: bool = ...,
    ) -> None: ...

class IncrementalAlterConfigsResponse(Message):
    API_KEY: ClassVar[int]
    class AlterConfigsResourceResponse(Struct):
        error_code: int
        error_message: str | None
        resource_type: int
        resource_name: str
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            resource_type: int = ...,
            resource_name: str = ...,
        ) -> None: ...

    throttle_time_ms: int
    responses: list[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        responses: list[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse] = ...,
    ) -> None: ...

class AlterPartitionReassignmentsRequest(Message):
    API_KEY: ClassVar[int]
    class ReassignableTopic(Struct):
        name: str
        partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition] = ...,
        ) -> None: ...

    class ReassignablePartition(Struct):
        partition_index: int
        replicas: list[int] | None
        def __init__(
            self,
            *,
            partition_index: int = ...,
            replicas: list[int] | None = ...,
        ) -> None: ...

    timeout_ms: int
    allow_replication_factor_change: bool
    topics: list[AlterPartitionReassignmentsRequest.ReassignableTopic]
    def __init__(
        self,
        *,
        timeout_ms: int = ...,
        allow_replication_factor_change: bool = ...,
        topics: list[AlterPartitionReassignmentsRequest.ReassignableTopic] = ...,
    ) -> None: ...

class AlterPartitionReassignmentsResponse(Message):
    API_KEY: ClassVar[int]
    class ReassignableTopicResponse(Struct):
        name: str
        partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse] = ...,
        ) -> None: ...

    class ReassignablePartitionResponse(Struct):
        partition_index: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    allow_replication_factor_change: bool
    error_code: int
    error_message: str | None
    responses: list[AlterPartitionReassignmentsResponse.ReassignableTopicResponse]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        allow_replication_factor_change: bool = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        responses: list[AlterPartitionReassignmentsResponse.ReassignableTopicResponse] = ...,
    ) -> None: ...

class ListPartitionReassignmentsRequest(Message):
    API_KEY: ClassVar[int]
    class ListPartitionReassignmentsTopics(Struct):
        name: str
        partition_indexes: list[int]
        def __init__(
            self,
            *,
            name: str = ...,
            partition_indexes: list[int] = ...,
        ) -> None: ...

    timeout_ms: int
    topics: list[ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics] | None
    def __init__(
        self,
        *,
        timeout_ms: int = ...,
        topics: list[ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics] | None = ...,
    ) -> None: ...

class ListPartitionReassignmentsResponse(Message):
    API_KEY: ClassVar[int]
    class OngoingTopicReassignment(Struct):
        name: str
        partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment] = ...,
        ) -> None: ...

    class OngoingPartitionReassignment(Struct):
        partition_index: int
        replicas: list[int]
        adding_replicas: list[int]
        removing_replicas: list[int]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            replicas: list[int] = ...,
            adding_replicas: list[int] = ...,
            removing_replicas: list[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    topics: list[ListPartitionReassignmentsResponse.OngoingTopicReassignment]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        topics: list[ListPartitionReassignmentsResponse.OngoingTopicReassignment] = ...,
    ) -> None: ...

class OffsetDeleteRequest(Message):
    API_KEY: ClassVar[int]
    class OffsetDeleteRequestTopic(Struct):
        name: str
        partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition] = ...,
        ) -> None: ...

    class OffsetDeleteRequestPartition(Struct):
        partition_index: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
        ) -> None: ...

    group_id: str
    topics: list[OffsetDeleteRequest.OffsetDeleteRequestTopic]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: list[OffsetDeleteRequest.OffsetDeleteRequestTopic] = ...,
    ) -> None: ...

class OffsetDeleteResponse(Message):
    API_KEY: ClassVar[int]
    class OffsetDeleteResponseTopic(Struct):
        name: str
        partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition] = ...,
        ) -> None: ...

    class OffsetDeleteResponsePartition(Struct):
        partition_index: int
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
        ) -> None: ...

    error_code: int
    throttle_time_ms: int
    topics: list[OffsetDeleteResponse.OffsetDeleteResponseTopic]
    def __init__(
        self,
        *,
        error_code: int = ...,
        throttle_time_ms: int = ...,
        topics: list[OffsetDeleteResponse.OffsetDeleteResponseTopic] = ...,
    ) -> None: ...

class DescribeClientQuotasRequest(Message):
    API_KEY: ClassVar[int]
    class ComponentData(Struct):
        entity_type: str
        match_type: int
        match: str | None
        def __init__(
            self,
            *,
            entity_type: str = ...,
            match_type: int = ...,
            match: str | None = ...,
        ) -> None: ...

    components: list[DescribeClientQuotasRequest.ComponentData]
    strict: bool
    def __init__(
        self,
        *,
        components: list[DescribeClientQuotasRequest.ComponentData] = ...,
        strict: bool = ...,
    ) -> None: ...

class DescribeClientQuotasResponse(Message):
    API_KEY: ClassVar[int]
    class EntryData(Struct):
        entity: list[DescribeClientQuotasResponse.EntityData]
        values: list[DescribeClientQuotasResponse.ValueData]
        def __init__(
            self,
            *,
            entity: list[DescribeClientQuotasResponse.EntityData] = ...,
            values: list[DescribeClientQuotasResponse.ValueData] = ...,
        ) -> None: ...

    class EntityData(Struct):
        entity_type: str
        entity_name: str | None
        def __init__(
            self,
            *,
            entity_type: str = ...,
            entity_name: str | None = ...,
        ) -> None: ...

    class ValueData(Struct):
        key: str
        value: float
        def __init__(
            self,
            *,
            key: str = ...,
            value: float = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    entries: list[DescribeClientQuotasResponse.EntryData] | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        entries: list[DescribeClientQuotasResponse.EntryData] | None = ...,
    ) -> None: ...

class AlterClientQuotasRequest(Message):
    API_KEY: ClassVar[int]
    class EntryData(Struct):
        entity: list[AlterClientQuotasRequest.EntityData]
        ops: list[AlterClientQuotasRequest.OpData]
        def __init__(
            self,
            *,
            entity: list[AlterClientQuotasRequest.EntityData] = ...,
            ops: list[AlterClientQuotasRequest.OpData] = ...,
        ) -> None: ...

    class EntityData(Struct):
        entity_type: str
        entity_name: str | None
        def __init__(
            self,
            *,
            entity_type: str = ...,
            entity_name: str | None = ...,
        ) -> None: ...

    class OpData(Struct):
        key: str
        value: float
        remove: bool
        def __init__(
            self,
            *,
            key: str = ...,
            value: float = ...,
            remove: bool = ...,
        ) -> None: ...

    entries: list[AlterClientQuotasRequest.EntryData]
    validate_only: bool
    def __init__(
        self,
        *,
        entries: list[AlterClientQuotasRequest.EntryData] = ...,
        validate_only: bool = ...,
    ) -> None: ...

class AlterClientQuotasResponse(Message):
    API_KEY: ClassVar[int]
    class EntryData(Struct):
        error_code: int
        error_message: str | None
        entity: list[AlterClientQuotasResponse.EntityData]
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            entity: list[AlterClientQuotasResponse.EntityData] = ...,
        ) -> None: ...

    class EntityData(Struct):
        entity_type: str
        entity_name: str | None
        def __init__(
            self,
            *,
            entity_type: str = ...,
            entity_name: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    entries: list[AlterClientQuotasResponse.EntryData]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        entries: list[AlterClientQuotasResponse.EntryData] = ...,
    ) -> None: ...

class DescribeUserScramCredentialsRequest(Message):
    API_KEY: ClassVar[int]
    class UserName(Struct):
        name: str
        def __init__(
            self,
            *,
            name: str = ...,
        ) -> None: ...

    users: list[DescribeUserScramCredentialsRequest.UserName] | None
    def __init__(
        self,
        *,
        users: list[DescribeUserScramCredentialsRequest.UserName] | None = ...,
    ) -> None: ...

class DescribeUserScramCredentialsResponse(Message):
    API_KEY: ClassVar[int]
    class DescribeUserScramCredentialsResult(Struct):
        user: str
        error_code: int
        error_message: str | None
        credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo]
        def __init__(
            self,
            *,
            user: str = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo] = ...,
        ) -> None: ...

    class CredentialInfo(Struct):
        mechanism: int
        iterations: int
        def __init__(
            self,
            *,
            mechanism: int = ...,
            iterations: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    results: list[DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        results: list[DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult] = ...,
    ) -> None: ...

class AlterUserScramCredentialsRequest(Message):
    API_KEY: ClassVar[int]
    class ScramCredentialDeletion(Struct):
        name: str
        mechanism: int
        def __init__(
            self,
            *,
            name: str = ...,
            mechanism: int = ...,
        ) -> None: ...

    class ScramCredentialUpsertion(Struct):
        name: str
        mechanism: int
        iterations: int
        salt: bytes
        salted_password: bytes
        def __init__(
            self,
            *,
            name: str = ...,
            mechanism: int = ...,
            iterations: int = ...,
            salt: bytes = ...,
            salted_password: bytes = ...,
        ) -> None: ...

    deletions: list[AlterUserScramCredentialsRequest.ScramCredentialDeletion]
    upsertions: list[AlterUserScramCredentialsRequest.ScramCredentialUpsertion]
    def __init__(
        self,
        *,
        deletions: list[AlterUserScramCredentialsRequest.ScramCredentialDeletion] = ...,
        upsertions: list[AlterUserScramCredentialsRequest.ScramCredentialUpsertion] = ...,
    ) -> None: ...

class AlterUserScramCredentialsResponse(Message):
    API_KEY: ClassVar[int]
    class AlterUserScramCredentialsResult(Struct):
        user: str
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            user: str = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    results: list[AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        results: list[AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult] = ...,
    ) -> None: ...

class VoteRequest(Message):
    API_KEY: ClassVar[int]
    class TopicData(Struct):
        topic_name: str
        partitions: list[VoteRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: list[VoteRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition_index: int
        replica_epoch: int
        replica_id: int
        replica_directory_id: UUID
        voter_directory_id: UUID
        last_offset_epoch: int
        last_offset: int
        pre_vote: bool
        data_directory_id: UUID
        def __init__(
            self,
            *,
            partition_index: int = ...,
            replica_epoch: int = ...,
            replica_id: int = ...,
            replica_directory_id: UUID = ...,
            voter_directory_id: UUID = ...,
            last_offset_epoch: int = ...,
            last_offset: int = ...,
            pre_vote: bool = ...,
            data_directory_id: UUID = ...,
        ) -> None: ...

    cluster_id: str | None
    voter_id: int
    topics: list[VoteRequest.TopicData]
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        voter_id: int = ...,
        topics: list[VoteRequest.TopicData] = ...,
    ) -> None: ...

class VoteResponse(Message):
    API_KEY: ClassVar[int]
    class TopicData(Struct):
        topic_name: str
        partitions: list[VoteResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: list[VoteResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition_index: int
        error_code: int
        leader_id: int
        leader_epoch: int
        vote_granted: bool
        data_directory_id: UUID
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
            vote_granted: bool = ...,
            data_directory_id: UUID = ...,
        ) -> None: ...

    class NodeEndpoint(Struct):
        node_id: int
        host: str
        port: int
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    error_code: int
    topics: list[VoteResponse.TopicData]
    node_endpoints: list[VoteResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        error_code: int = ...,
        topics: list[VoteResponse.TopicData] = ...,
        node_endpoints: list[VoteResponse.NodeEndpoint] = ...,
    ) -> None: ...

class BeginQuorumEpochRequest(Message):
    API_KEY: ClassVar[int]
    class TopicData(Struct):
        topic_name: str
        partitions: list[BeginQuorumEpochRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: list[BeginQuorumEpochRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition_index: int
        voter_directory_id: UUID
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            voter_directory_id: UUID = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class LeaderEndpoint(Struct):
        name: str
        host: str
        port: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    cluster_id: str | None
    voter_id: int
    topics: list[BeginQuorumEpochRequest.TopicData]
    leader_endpoints: list[BeginQuorumEpochRequest.LeaderEndpoint]
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        voter_id: int = ...,
        topics: list[BeginQuorumEpochRequest.TopicData] = ...,
        leader_endpoints: list[BeginQuorumEpochRequest.LeaderEndpoint] = ...,
    ) -> None: ...

class BeginQuorumEpochResponse(Message):
    API_KEY: ClassVar[int]
    class TopicData(Struct):
        topic_name: str
        partitions: list[BeginQuorumEpochResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: list[BeginQuorumEpochResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition_index: int
        error_code: int
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class NodeEndpoint(Struct):
        node_id: int
        host: str
        port: int
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    error_code: int
    topics: list[BeginQuorumEpochResponse.TopicData]
    node_endpoints: list[BeginQuorumEpochResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        error_code: int = ...,
        topics: list[BeginQuorumEpochResponse.TopicData] = ...,
        node_endpoints: list[BeginQuorumEpochResponse.NodeEndpoint] = ...,
    ) -> None: ...

class EndQuorumEpochRequest(Message):
    API_KEY: ClassVar[int]
    class TopicData(Struct):
        topic_name: str
        partitions: list[EndQuorumEpochRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: list[EndQuorumEpochRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition_index: int
        leader_id: int
        leader_epoch: int
        preferred_successors: list[int]
        preferred_candidates: list[EndQuorumEpochRequest.ReplicaInfo]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
            preferred_successors: list[int] = ...,
            preferred_candidates: list[EndQuorumEpochRequest.ReplicaInfo] = ...,
        ) -> None: ...

    class ReplicaInfo(Struct):
        candidate_id: int
        candidate_directory_id: UUID
        def __init__(
            self,
            *,
            candidate_id: int = ...,
            candidate_directory_id: UUID = ...,
        ) -> None: ...

    class LeaderEndpoint(Struct):
        name: str
        host: str
        port: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    cluster_id: str | None
    topics: list[EndQuorumEpochRequest.TopicData]
    leader_endpoints: list[EndQuorumEpochRequest.LeaderEndpoint]
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        topics: list[EndQuorumEpochRequest.TopicData] = ...,
        leader_endpoints: list[EndQuorumEpochRequest.LeaderEndpoint] = ...,
    ) -> None: ...

class EndQuorumEpochResponse(Message):
    API_KEY: ClassVar[int]
    class TopicData(Struct):
        topic_name: str
        partitions: list[EndQuorumEpochResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: list[EndQuorumEpochResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition_index: int
        error_code: int
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class NodeEndpoint(Struct):
        node_id: int
        host: str
        port: int
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    error_code: int
    topics: list[EndQuorumEpochResponse.TopicData]
    node_endpoints: list[EndQuorumEpochResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        error_code: int = ...,
        topics: list[EndQuorumEpochResponse.TopicData] = ...,
        node_endpoints: list[EndQuorumEpochResponse.NodeEndpoint] = ...,
    ) -> None: ...

class DescribeQuorumRequest(Message):
    API_KEY: ClassVar[int]
    class TopicData(Struct):
        topic_name: str
        partitions: list[DescribeQuorumRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: list[DescribeQuorumRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition_index: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
        ) -> None: ...

    topics: list[DescribeQuorumRequest.TopicData]
    def __init__(
        self,
        *,
        topics: list[DescribeQuorumRequest.TopicData] = ...,
    ) -> None: ...

class DescribeQuorumResponse(Message):
    API_KEY: ClassVar[int]
    class TopicData(Struct):
        topic_name: str
        partitions: list[DescribeQuorumResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: list[DescribeQuorumResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition_index: int
        error_code: int
        error_message: str | None
        leader_id: int
        leader_epoch: int
        high_watermark: int
        current_voters: list[DescribeQuorumResponse.ReplicaState]
        observers: list[DescribeQuorumResponse.ReplicaState]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
            high_watermark: int = ...,
            current_voters: list[DescribeQuorumResponse.ReplicaState] = ...,
            observers: list[DescribeQuorumResponse.ReplicaState] = ...,
        ) -> None: ...

    class ReplicaState(Struct):
        replica_id: int
        replica_directory_id: UUID
        log_end_offset: int
        last_fetch_timestamp: int
        last_caught_up_timestamp: int
        def __init__(
            self,
            *,
            replica_id: int = ...,
            replica_directory_id: UUID = ...,
            log_end_offset: int = ...,
            last_fetch_timestamp: int = ...,
            last_caught_up_timestamp: int = ...,
        ) -> None: ...

    class Node(Struct):
        node_id: int
        listeners: list[DescribeQuorumResponse.Listener]
        def __init__(
            self,
            *,
            node_id: int = ...,
            listeners: list[DescribeQuorumResponse.Listener] = ...,
        ) -> None: ...

    class Listener(Struct):
        name: str
        host: str
        port: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    error_code: int
    error_message: str | None
    topics: list[DescribeQuorumResponse.TopicData]
    nodes: list[DescribeQuorumResponse.Node]
    def __init__(
        self,
        *,
        error_code: int = ...,
        error_message: str | None = ...,
        topics: list[DescribeQuorumResponse.TopicData] = ...,
        nodes: list[DescribeQuorumResponse.Node] = ...,
    ) -> None: ...

class AlterPartitionRequest(Message):
    API_KEY: ClassVar[int]
    class TopicData(Struct):
        topic_id: UUID
        partitions: list[AlterPartitionRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[AlterPartitionRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition_index: int
        leader_epoch: int
        new_isr: list[int]
        new_isr_with_epochs: list[AlterPartitionRequest.BrokerState]
        leader_recovery_state: int
        partition_epoch: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            leader_epoch: int = ...,
            new_isr: list[int] = ...,
            new_isr_with_epochs: list[AlterPartitionRequest.BrokerState] = ...,
            leader_recovery_state: int = ...,
            partition_epoch: int = ...,
        ) -> None: ...

    class BrokerState(Struct):
        broker_id: int
        broker_epoch: int
        def __init__(
            self,
            *,
            broker_id: int = ...,
            broker_epoch: int = ...,
        ) -> None: ...

    broker_id: int
    broker_epoch: int
    topics: list[AlterPartitionRequest.TopicData]
    def __init__(
        self,
        *,
        broker_id: int = ...,
        broker_epoch: int = ...,
        topics: list[AlterPartitionRequest.TopicData] = ...,
    ) -> None: ...

class AlterPartitionResponse(Message):
    API_KEY: ClassVar[int]
    class TopicData(Struct):
        topic_id: UUID
        partitions: list[AlterPartitionResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[AlterPartitionResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition_index: int
        error_code: int
        leader_id: int
        leader_epoch: int
        isr: list[int]
        leader_recovery_state: int
        partition_epoch: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
            isr: list[int] = ...,
            leader_recovery_state: int = ...,
            partition_epoch: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    topics: list[AlterPartitionResponse.TopicData]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        topics: list[AlterPartitionResponse.TopicData] = ...,
    ) -> None: ...

class UpdateFeaturesRequest(Message):
    API_KEY: ClassVar[int]
    class FeatureUpdateKey(Struct):
        feature: str
        max_version_level: int
        allow_downgrade: bool
        upgrade_type: int
        def __init__(
            self,
            *,
            feature: str = ...,
            max_version_level: int = ...,
            allow_downgrade: bool = ...,
            upgrade_type: int = ...,
        ) -> None: ...

    timeout_ms: int
    feature_updates: list[UpdateFeaturesRequest.FeatureUpdateKey]
    validate_only: bool
    def __init__(
        self,
        *,
        timeout_ms: int = ...,
        feature_updates: list[UpdateFeaturesRequest.FeatureUpdateKey] = ...,
        validate_only: bool = ...,
    ) -> None: ...

class UpdateFeaturesResponse(Message):
    API_KEY: ClassVar[int]
    class UpdatableFeatureResult(Struct):
        feature: str
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            feature: str = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    results: list[UpdateFeaturesResponse.UpdatableFeatureResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        results: list[UpdateFeaturesResponse.UpdatableFeatureResult] = ...,
    ) -> None: ...

class EnvelopeRequest(Message):
    API_KEY: ClassVar[int]
    request_data: bytes
    request_principal: bytes | None
    client_host_address: bytes
    def __init__(
        self,
        *,
        request_data: bytes = ...,
        request_principal: bytes | None = ...,
        client_host_address: bytes = ...,
    ) -> None: ...

class EnvelopeResponse(Message):
    API_KEY: ClassVar[int]
    response_data: bytes | None
    error_code: int
    def __init__(
        self,
        *,
        response_data: bytes | None = ...,
        error_code: int = ...,
    ) -> None: ...

class FetchSnapshotRequest(Message):
    API_KEY: ClassVar[int]
    class TopicSnapshot(Struct):
        name: str
        partitions: list[FetchSnapshotRequest.PartitionSnapshot]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[FetchSnapshotRequest.PartitionSnapshot] = ...,
        ) -> None: ...

    class PartitionSnapshot(Struct):
        partition: int
        current_leader_epoch: int
        snapshot_id: FetchSnapshotRequest.SnapshotId
        position: int
        replica_directory_id: UUID
        data_directory_id: UUID
        def __init__(
            self,
            *,
            partition: int = ...,
            current_leader_epoch: int = ...,
            snapshot_id: FetchSnapshotRequest.SnapshotId = ...,
            position: int = ...,
            replica_directory_id: UUID = ...,
            data_directory_id: UUID = ...,
        ) -> None: ...

    class SnapshotId(Struct):
        end_offset: int
        epoch: int
        def __init__(
            self,
            *,
            end_offset: int = ...,
            epoch: int = ...,
        ) -> None: ...

    cluster_id: str | None
    replica_id: int
    max_bytes: int
    topics: list[FetchSnapshotRequest.TopicSnapshot]
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        replica_id: int = ...,
        max_bytes: int = ...,
        topics: list[FetchSnapshotRequest.TopicSnapshot] = ...,
    ) -> None: ...

class FetchSnapshotResponse(Message):
    API_KEY: ClassVar[int]
    class TopicSnapshot(Struct):
        name: str
        partitions: list[FetchSnapshotResponse.PartitionSnapshot]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[FetchSnapshotResponse.PartitionSnapshot] = ...,
        ) -> None: ...

    class PartitionSnapshot(Struct):
        index: int
        error_code: int
        snapshot_id: FetchSnapshotResponse.SnapshotId
        current_leader: FetchSnapshotResponse.LeaderIdAndEpoch
        size: int
        position: int
        unaligned_records: Records
        def __init__(
            self,
            *,
            index: int = ...,
            error_code: int = ...,
            snapshot_id: FetchSnapshotResponse.SnapshotId = ...,
            current_leader: FetchSnapshotResponse.LeaderIdAndEpoch = ...,
            size: int = ...,
            position: int = ...,
            unaligned_records: Records = ...,
        ) -> None: ...

    class SnapshotId(Struct):
        end_offset: int
        epoch: int
        def __init__(
            self,
            *,
            end_offset: int = ...,
            epoch: int = ...,
        ) -> None: ...

    class LeaderIdAndEpoch(Struct):
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class NodeEndpoint(Struct):
        node_id: int
        host: str
        port: int
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    topics: list[FetchSnapshotResponse.TopicSnapshot]
    node_endpoints: list[FetchSnapshotResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        topics: list[FetchSnapshotResponse.TopicSnapshot] = ...,
        node_endpoints: list[FetchSnapshotResponse.NodeEndpoint] = ...,
    ) -> None: ...

class DescribeClusterRequest(Message):
    API_KEY: ClassVar[int]
    include_cluster_authorized_operations: bool
    endpoint_type: int
    include_fenced_brokers: bool
    def __init__(
        self,
        *,
        include_cluster_authorized_operations: bool = ...,
        endpoint_type: int = ...,
        include_fenced_brokers: bool = ...,
    ) -> None: ...

class DescribeClusterResponse(Message):
    API_KEY: ClassVar[int]
    class DescribeClusterBroker(Struct):
        broker_id: int
        host: str
        port: int
        rack: str | None
        is_fenced: bool
        def __init__(
            self,
            *,
            broker_id: int = ...,
            host: str = ...,
            port: int = ...,
            rack: str | None = ...,
            is_fenced: bool = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    endpoint_type: int
    cluster_id: str
    controller_id: int
    brokers: list[DescribeClusterResponse.DescribeClusterBroker]
    cluster_authorized_operations: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        endpoint_type: int = ...,
        cluster_id: str = ...,
        controller_id: int = ...,
        brokers: list[DescribeClusterResponse.DescribeClusterBroker] = ...,
        cluster_authorized_operations: int = ...,
    ) -> None: ...

class DescribeProducersRequest(Message):
    API_KEY: ClassVar[int]
    class TopicRequest(Struct):
        name: str
        partition_indexes: list[int]
        def __init__(
            self,
            *,
            name: str = ...,
            partition_indexes: list[int] = ...,
        ) -> None: ...

    topics: list[DescribeProducersRequest.TopicRequest]
    def __init__(
        self,
        *,
        topics: list[DescribeProducersRequest.TopicRequest] = ...,
    ) -> None: ...

class DescribeProducersResponse(Message):
    API_KEY: ClassVar[int]
    class TopicResponse(Struct):
        name: str
        partitions: list[DescribeProducersResponse.PartitionResponse]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: list[DescribeProducersResponse.PartitionResponse] = ...,
        ) -> None: ...

    class PartitionResponse(Struct):
        partition_index: int
        error_code: int
        error_message: str | None
        active_producers: list[DescribeProducersResponse.ProducerState]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            active_producers: list[DescribeProducersResponse.ProducerState] = ...,
        ) -> None: ...

    class ProducerState(Struct):
        producer_id: int
        producer_epoch: int
        last_sequence: int
        last_timestamp: int
        coordinator_epoch: int
        current_txn_start_offset: int
        def __init__(
            self,
            *,
            producer_id: int = ...,
            producer_epoch: int = ...,
            last_sequence: int = ...,
            last_timestamp: int = ...,
            coordinator_epoch: int = ...,
            current_txn_start_offset: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: list[DescribeProducersResponse.TopicResponse]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: list[DescribeProducersResponse.TopicResponse] = ...,
    ) -> None: ...

class BrokerRegistrationRequest(Message):
    API_KEY: ClassVar[int]
    class Listener(Struct):
        name: str
        host: str
        port: int
        security_protocol: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
            security_protocol: int = ...,
        ) -> None: ...

    class Feature(Struct):
        name: str
        min_supported_version: int
        max_supported_version: int
        def __init__(
            self,
            *,
            name: str = ...,
            min_supported_version: int = ...,
            max_supported_version: int = ...,
        ) -> None: ...

    broker_id: int
    cluster_id: str
    incarnation_id: UUID
    listeners: list[BrokerRegistrationRequest.Listener]
    features: list[BrokerRegistrationRequest.Feature]
    rack: str | None
    is_migrating_zk_broker: bool
    log_dirs: list[UUID]
    previous_broker_epoch: int
    def __init__(
        self,
        *,
        broker_id: int = ...,
        cluster_id: str = ...,
        incarnation_id: UUID = ...,
        listeners: list[BrokerRegistrationRequest.Listener] = ...,
        features: list[BrokerRegistrationRequest.Feature] = ...,
        rack: str | None = ...,
        is_migrating_zk_broker: bool = ...,
        log_dirs: list[UUID] = ...,
        previous_broker_epoch: int = ...,
    ) -> None: ...

class BrokerRegistrationResponse(Message):
    API_KEY: ClassVar[int]
    throttle_time_ms: int
    error_code: int
    broker_epoch: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        broker_epoch: int = ...,
    ) -> None: ...

class BrokerHeartbeatRequest(Message):
    API_KEY: ClassVar[int]
    broker_id: int
    broker_epoch: int
    current_metadata_offset: int
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: list[UUID]
    cordoned_log_dirs: list[UUID] | None
    def __init__(
        self,
        *,
        broker_id: int = ...,
        broker_epoch: int = ...,
        current_metadata_offset: int = ...,
        want_fence: bool = ...,
        want_shut_down: bool = ...,
        offline_log_dirs: list[UUID] = ...,
        cordoned_log_dirs: list[UUID] | None = ...,
    ) -> None: ...

class BrokerHeartbeatResponse(Message):
    API_KEY: ClassVar[int]
    throttle_time_ms: int
    error_code: int
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        is_caught_up: bool = ...,
        is_fenced: bool = ...,
        should_shut_down: bool = ...,
    ) -> None: ...

class UnregisterBrokerRequest(Message):
    API_KEY: ClassVar[int]
    broker_id: int
    def __init__(
        self,
        *,
        broker_id: int = ...,
    ) -> None: ...

class UnregisterBrokerResponse(Message):
    API_KEY: ClassVar[int]
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
    ) -> None: ...

class DescribeTransactionsRequest(Message):
    API_KEY: ClassVar[int]
    transactional_ids: list[str]
    def __init__(
        self,
        *,
        transactional_ids: list[str] = ...,
    ) -> None: ...

class DescribeTransactionsResponse(Message):
    API_KEY: ClassVar[int]
    class TransactionState(Struct):
        error_code: int
        transactional_id: str
        transaction_state: str
        transaction_timeout_ms: int
        transaction_start_time_ms: int
        producer_id: int
        producer_epoch: int
        topics: list[DescribeTransactionsResponse.TopicData]
        def __init__(
            self,
            *,
            error_code: int = ...,
            transactional_id: str = ...,
            transaction_state: str = ...,
            transaction_timeout_ms: int = ...,
            transaction_start_time_ms: int = ...,
            producer_id: int = ...,
            producer_epoch: int = ...,
            topics: list[DescribeTransactionsResponse.TopicData] = ...,
        ) -> None: ...

    class TopicData(Struct):
        topic: str
        partitions: list[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    transaction_states: list[DescribeTransactionsResponse.TransactionState]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        transaction_states: list[DescribeTransactionsResponse.TransactionState] = ...,
    ) -> None: ...

class ListTransactionsRequest(Message):
    API_KEY: ClassVar[int]
    state_filters: list[str]
    producer_id_filters: list[int]
    duration_filter: int
    transactional_id_pattern: str | None
    def __init__(
        self,
        *,
        state_filters: list[str] = ...,
        producer_id_filters: list[int] = ...,
        duration_filter: int = ...,
        transactional_id_pattern: str | None = ...,
    ) -> None: ...

class ListTransactionsResponse(Message):
    API_KEY: ClassVar[int]
    class TransactionState(Struct):
        transactional_id: str
        producer_id: int
        transaction_state: str
        def __init__(
            self,
            *,
            transactional_id: str = ...,
            producer_id: int = ...,
            transaction_state: str = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    unknown_state_filters: list[str]
    transaction_states: list[ListTransactionsResponse.TransactionState]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        unknown_state_filters: list[str] = ...,
        transaction_states: list[ListTransactionsResponse.TransactionState] = ...,
    ) -> None: ...

class AllocateProducerIdsRequest(Message):
    API_KEY: ClassVar[int]
    broker_id: int
    broker_epoch: int
    def __init__(
        self,
        *,
        broker_id: int = ...,
        broker_epoch: int = ...,
    ) -> None: ...

class AllocateProducerIdsResponse(Message):
    API_KEY: ClassVar[int]
    throttle_time_ms: int
    error_code: int
    producer_id_start: int
    producer_id_len: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        producer_id_start: int = ...,
        producer_id_len: int = ...,
    ) -> None: ...

class ConsumerGroupHeartbeatRequest(Message):
    API_KEY: ClassVar[int]
    class TopicPartitions(Struct):
        topic_id: UUID
        partitions: list[int]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    subscribed_topic_names: list[str] | None
    subscribed_topic_regex: str | None
    server_assignor: str | None
    topic_partitions: list[ConsumerGroupHeartbeatRequest.TopicPartitions] | None
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
        member_epoch: int = ...,
        instance_id: str | None = ...,
        rack_id: str | None = ...,
        rebalance_timeout_ms: int = ...,
        subscribed_topic_names: list[str] | None = ...,
        subscribed_topic_regex: str | None = ...,
        server_assignor: str | None = ...,
        topic_partitions: list[ConsumerGroupHeartbeatRequest.TopicPartitions] | None = ...,
    ) -> None: ...

class ConsumerGroupHeartbeatResponse(Message):
    API_KEY: ClassVar[int]
    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions]
        def __init__(
            self,
            *,
            topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions] = ...,
        ) -> None: ...

    class TopicPartitions(Struct):
        topic_id: UUID
        partitions: list[int]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    member_id: str | None
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: ConsumerGroupHeartbeatResponse.Assignment | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        member_id: str | None = ...,
        member_epoch: int = ...,
        heartbeat_interval_ms: int = ...,
        assignment: ConsumerGroupHeartbeatResponse.Assignment | None = ...,
    ) -> None: ...

class ConsumerGroupDescribeRequest(Message):
    API_KEY: ClassVar[int]
    group_ids: list[str]
    include_authorized_operations: bool
    def __init__(
        self,
        *,
        group_ids: list[str] = ...,
        include_authorized_operations: bool = ...,
    ) -> None: ...

class ConsumerGroupDescribeResponse(Message):
    API_KEY: ClassVar[int]
    class DescribedGroup(Struct):
        error_code: int
        error_message: str | None
        group_id: str
        group_state: str
        group_epoch: int
        assignment_epoch: int
        assignor_name: str
        members: list[ConsumerGroupDescribeResponse.Member]
        authorized_operations: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            group_id: str = ...,
            group_state: str = ...,
            group_epoch: int = ...,
            assignment_epoch: int = ...,
            assignor_name: str = ...,
            members: list[ConsumerGroupDescribeResponse.Member] = ...,
            authorized_operations: int = ...,
        ) -> None: ...

    class Member(Struct):
        member_id: str
        instance_id: str | None
        rack_id: str | None
        member_epoch: int
        client_id: str
        client_host: str
        subscribed_topic_names: list[str]
        subscribed_topic_regex: str | None
        assignment: ConsumerGroupDescribeResponse.Assignment
        target_assignment: ConsumerGroupDescribeResponse.Assignment
        member_type: int
        def __init__(
            self,
            *,
            member_id: str = ...,
            instance_id: str | None = ...,
            rack_id: str | None = ...,
            member_epoch: int = ...,
            client_id: str = ...,
            client_host: str = ...,
            subscribed_topic_names: list[str] = ...,
            subscribed_topic_regex: str | None = ...,
            assignment: ConsumerGroupDescribeResponse.Assignment = ...,
            target_assignment: ConsumerGroupDescribeResponse.Assignment = ...,
            member_type: int = ...,
        ) -> None: ...

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions]
        def __init__(
            self,
            *,
            topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions] = ...,
        ) -> None: ...

    class TopicPartitions(Struct):
        topic_id: UUID
        topic_name: str
        partitions: list[int]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            topic_name: str = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    groups: list[ConsumerGroupDescribeResponse.DescribedGroup]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        groups: list[ConsumerGroupDescribeResponse.DescribedGroup] = ...,
    ) -> None: ...

class ControllerRegistrationRequest(Message):
    API_KEY: ClassVar[int]
    class Listener(Struct):
        name: str
        host: str
        port: int
        security_protocol: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
            security_protocol: int = ...,
        ) -> None: ...

    class Feature(Struct):
        name: str
        min_supported_version: int
        max_supported_version: int
        def __init__(
            self,
            *,
            name: str = ...,
            min_supported_version: int = ...,
            max_supported_version: int = ...,
        ) -> None: ...

    controller_id: int
    incarnation_id: UUID
    zk_migration_ready: bool
    listeners: list[ControllerRegistrationRequest.Listener]
    features: list[ControllerRegistrationRequest.Feature]
    def __init__(
        self,
        *,
        controller_id: int = ...,
        incarnation_id: UUID = ...,
        zk_migration_ready: bool = ...,
        listeners: list[ControllerRegistrationRequest.Listener] = ...,
        features: list[ControllerRegistrationRequest.Feature] = ...,
    ) -> None: ...

class ControllerRegistrationResponse(Message):
    API_KEY: ClassVar[int]
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
    ) -> None: ...

class GetTelemetrySubscriptionsRequest(Message):
    API_KEY: ClassVar[int]
    client_instance_id: UUID
    def __init__(
        self,
        *,
        client_instance_id: UUID = ...,
    ) -> None: ...

class GetTelemetrySubscriptionsResponse(Message):
    API_KEY: ClassVar[int]
    throttle_time_ms: int
    error_code: int
    client_instance_id: UUID
    subscription_id: int
    accepted_compression_types: list[int]
    push_interval_ms: int
    telemetry_max_bytes: int
    delta_temporality: bool
    requested_metrics: list[str]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        client_instance_id: UUID = ...,
        subscription_id: int = ...,
        accepted_compression_types: list[int] = ...,
        push_interval_ms: int = ...,
        telemetry_max_bytes: int = ...,
        delta_temporality: bool = ...,
        requested_metrics: list[str] = ...,
    ) -> None: ...

class PushTelemetryRequest(Message):
    API_KEY: ClassVar[int]
    client_instance_id: UUID
    subscription_id: int
    terminating: bool
    compression_type: int
    metrics: bytes
    def __init__(
        self,
        *,
        client_instance_id: UUID = ...,
        subscription_id: int = ...,
        terminating: bool = ...,
        compression_type: int = ...,
        metrics: bytes = ...,
    ) -> None: ...

class PushTelemetryResponse(Message):
    API_KEY: ClassVar[int]
    throttle_time_ms: int
    error_code: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
    ) -> None: ...

class ListConfigResourcesRequest(Message):
    API_KEY: ClassVar[int]
    resource_types: list[int]
    def __init__(
        self,
        *,
        resource_types: list[int] = ...,
    ) -> None: ...

class ListConfigResourcesResponse(Message):
    API_KEY: ClassVar[int]
    class ConfigResource(Struct):
        resource_name: str
        resource_type: int
        def __init__(
            self,
            *,
            resource_name: str = ...,
            resource_type: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    config_resources: list[ListConfigResourcesResponse.ConfigResource]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        config_resources: list[ListConfigResourcesResponse.ConfigResource] = ...,
    ) -> None: ...

class DescribeTopicPartitionsRequest(Message):
    API_KEY: ClassVar[int]
    class TopicRequest(Struct):
        name: str
        def __init__(
            self,
            *,
            name: str = ...,
        ) -> None: ...

    class Cursor(Struct):
        topic_name: str
        partition_index: int
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partition_index: int = ...,
        ) -> None: ...

    topics: list[DescribeTopicPartitionsRequest.TopicRequest]
    response_partition_limit: int
    cursor: DescribeTopicPartitionsRequest.Cursor | None
    def __init__(
        self,
        *,
        topics: list[DescribeTopicPartitionsRequest.TopicRequest] = ...,
        response_partition_limit: int = ...,
        cursor: DescribeTopicPartitionsRequest.Cursor | None = ...,
    ) -> None: ...

class DescribeTopicPartitionsResponse(Message):
    API_KEY: ClassVar[int]
    class DescribeTopicPartitionsResponseTopic(Struct):
        error_code: int
        name: str | None
        topic_id: UUID
        is_internal: bool
        partitions: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition]
        topic_authorized_operations: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            name: str | None = ...,
            topic_id: UUID = ...,
            is_internal: bool = ...,
            partitions: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition] = ...,
            topic_authorized_operations: int = ...,
        ) -> None: ...

    class DescribeTopicPartitionsResponsePartition(Struct):
        error_code: int
        partition_index: int
        leader_id: int
        leader_epoch: int
        replica_nodes: list[int]
        isr_nodes: list[int]
        eligible_leader_replicas: list[int] | None
        last_known_elr: list[int] | None
        offline_replicas: list[int]
        def __init__(
            self,
            *,
            error_code: int = ...,
            partition_index: int = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
            replica_nodes: list[int] = ...,
            isr_nodes: list[int] = ...,
            eligible_leader_replicas: list[int] | None = ...,
            last_known_elr: list[int] | None = ...,
            offline_replicas: list[int] = ...,
        ) -> None: ...

    class Cursor(Struct):
        topic_name: str
        partition_index: int
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partition_index: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic]
    next_cursor: DescribeTopicPartitionsResponse.Cursor | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic] = ...,
        next_cursor: DescribeTopicPartitionsResponse.Cursor | None = ...,
    ) -> None: ...

class ShareGroupHeartbeatRequest(Message):
    API_KEY: ClassVar[int]
    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None
    subscribed_topic_names: list[str] | None
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
        member_epoch: int = ...,
        rack_id: str | None = ...,
        subscribed_topic_names: list[str] | None = ...,
    ) -> None: ...

class ShareGroupHeartbeatResponse(Message):
    API_KEY: ClassVar[int]
    class Assignment(Struct):
        topic_partitions: list[ShareGroupHeartbeatResponse.TopicPartitions]
        def __init__(
            self,
            *,
            topic_partitions: list[ShareGroupHeartbeatResponse.TopicPartitions] = ...,
        ) -> None: ...

    class TopicPartitions(Struct):
        topic_id: UUID
        partitions: list[int]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    member_id: str | None
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: ShareGroupHeartbeatResponse.Assignment | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        member_id: str | None = ...,
        member_epoch: int = ...,
        heartbeat_interval_ms: int = ...,
        assignment: ShareGroupHeartbeatResponse.Assignment | None = ...,
    ) -> None: ...

class ShareGroupDescribeRequest(Message):
    API_KEY: ClassVar[int]
    group_ids: list[str]
    include_authorized_operations: bool
    def __init__(
        self,
        *,
        group_ids: list[str] = ...,
        include_authorized_operations: bool = ...,
    ) -> None: ...

class ShareGroupDescribeResponse(Message):
    API_KEY: ClassVar[int]
    class DescribedGroup(Struct):
        error_code: int
        error_message: str | None
        group_id: str
        group_state: str
        group_epoch: int
        assignment_epoch: int
        assignor_name: str
        members: list[ShareGroupDescribeResponse.Member]
        authorized_operations: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            group_id: str = ...,
            group_state: str = ...,
            group_epoch: int = ...,
            assignment_epoch: int = ...,
            assignor_name: str = ...,
            members: list[ShareGroupDescribeResponse.Member] = ...,
            authorized_operations: int = ...,
        ) -> None: ...

    class Member(Struct):
        member_id: str
        rack_id: str | None
        member_epoch: int
        client_id: str
        client_host: str
        subscribed_topic_names: list[str]
        assignment: ShareGroupDescribeResponse.Assignment
        def __init__(
            self,
            *,
            member_id: str = ...,
            rack_id: str | None = ...,
            member_epoch: int = ...,
            client_id: str = ...,
            client_host: str = ...,
            subscribed_topic_names: list[str] = ...,
            assignment: ShareGroupDescribeResponse.Assignment = ...,
        ) -> None: ...

    class Assignment(Struct):
        topic_partitions: list[ShareGroupDescribeResponse.TopicPartitions]
        def __init__(
            self,
            *,
            topic_partitions: list[ShareGroupDescribeResponse.TopicPartitions] = ...,
        ) -> None: ...

    class TopicPartitions(Struct):
        topic_id: UUID
        topic_name: str
        partitions: list[int]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            topic_name: str = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    groups: list[ShareGroupDescribeResponse.DescribedGroup]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        groups: list[ShareGroupDescribeResponse.DescribedGroup] = ...,
    ) -> None: ...

class ShareFetchRequest(Message):
    API_KEY: ClassVar[int]
    class FetchTopic(Struct):
        topic_id: UUID
        partitions: list[ShareFetchRequest.FetchPartition]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[ShareFetchRequest.FetchPartition] = ...,
        ) -> None: ...

    class FetchPartition(Struct):
        partition_index: int
        acknowledgement_batches: list[ShareFetchRequest.AcknowledgementBatch]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            acknowledgement_batches: list[ShareFetchRequest.AcknowledgementBatch] = ...,
        ) -> None: ...

    class AcknowledgementBatch(Struct):
        first_offset: int
        last_offset: int
        acknowledge_types: list[int]
        def __init__(
            self,
            *,
            first_offset: int = ...,
            last_offset: int = ...,
            acknowledge_types: list[int] = ...,
        ) -> None: ...

    class ForgottenTopic(Struct):
        topic_id: UUID
        partitions: list[int]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    group_id: str | None
    member_id: str | None
    share_session_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    share_acquire_mode: int
    is_renew_ack: bool
    topics: list[ShareFetchRequest.FetchTopic]
    forgotten_topics_data: list[ShareFetchRequest.ForgottenTopic]
    def __init__(
        self,
        *,
        group_id: str | None = ...,
        member_id: str | None = ...,
        share_session_epoch: int = ...,
        max_wait_ms: int = ...,
        min_bytes: int = ...,
        max_bytes: int = ...,
        max_records: int = ...,
        batch_size: int = ...,
        share_acquire_mode: int = ...,
        is_renew_ack: bool = ...,
        topics: list[ShareFetchRequest.FetchTopic] = ...,
        forgotten_topics_data: list[ShareFetchRequest.ForgottenTopic] = ...,
    ) -> None: ...

class ShareFetchResponse(Message):
    API_KEY: ClassVar[int]
    class ShareFetchableTopicResponse(Struct):
        topic_id: UUID
        partitions: list[ShareFetchResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[ShareFetchResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition_index: int
        error_code: int
        error_message: str | None
        acknowledge_error_code: int
        acknowledge_error_message: str | None
        current_leader: ShareFetchResponse.LeaderIdAndEpoch
        records: Records
        acquired_records: list[ShareFetchResponse.AcquiredRecords]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            acknowledge_error_code: int = ...,
            acknowledge_error_message: str | None = ...,
            current_leader: ShareFetchResponse.LeaderIdAndEpoch = ...,
            records: Records = ...,
            acquired_records: list[ShareFetchResponse.AcquiredRecords] = ...,
        ) -> None: ...

    class LeaderIdAndEpoch(Struct):
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class AcquiredRecords(Struct):
        first_offset: int
        last_offset: int
        delivery_count: int
        def __init__(
            self,
            *,
            first_offset: int = ...,
            last_offset: int = ...,
            delivery_count: int = ...,
        ) -> None: ...

    class NodeEndpoint(Struct):
        node_id: int
        host: str
        port: int
        rack: str | None
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
            rack: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    acquisition_lock_timeout_ms: int
    responses: list[ShareFetchResponse.ShareFetchableTopicResponse]
    node_endpoints: list[ShareFetchResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        acquisition_lock_timeout_ms: int = ...,
        responses: list[ShareFetchResponse.ShareFetchableTopicResponse] = ...,
        node_endpoints: list[ShareFetchResponse.NodeEndpoint] = ...,
    ) -> None: ...

class ShareAcknowledgeRequest(Message):
    API_KEY: ClassVar[int]
    class AcknowledgeTopic(Struct):
        topic_id: UUID
        partitions: list[ShareAcknowledgeRequest.AcknowledgePartition]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[ShareAcknowledgeRequest.AcknowledgePartition] = ...,
        ) -> None: ...

    class AcknowledgePartition(Struct):
        partition_index: int
        acknowledgement_batches: list[ShareAcknowledgeRequest.AcknowledgementBatch]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            acknowledgement_batches: list[ShareAcknowledgeRequest.AcknowledgementBatch] = ...,
        ) -> None: ...

    class AcknowledgementBatch(Struct):
        first_offset: int
        last_offset: int
        acknowledge_types: list[int]
        def __init__(
            self,
            *,
            first_offset: int = ...,
            last_offset: int = ...,
            acknowledge_types: list[int] = ...,
        ) -> None: ...

    group_id: str | None
    member_id: str | None
    share_session_epoch: int
    is_renew_ack: bool
    topics: list[ShareAcknowledgeRequest.AcknowledgeTopic]
    def __init__(
        self,
        *,
        group_id: str | None = ...,
        member_id: str | None = ...,
        share_session_epoch: int = ...,
        is_renew_ack: bool = ...,
        topics: list[ShareAcknowledgeRequest.AcknowledgeTopic] = ...,
    ) -> None: ...

class ShareAcknowledgeResponse(Message):
    API_KEY: ClassVar[int]
    class ShareAcknowledgeTopicResponse(Struct):
        topic_id: UUID
        partitions: list[ShareAcknowledgeResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[ShareAcknowledgeResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition_index: int
        error_code: int
        error_message: str | None
        current_leader: ShareAcknowledgeResponse.LeaderIdAndEpoch
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            current_leader: ShareAcknowledgeResponse.LeaderIdAndEpoch = ...,
        ) -> None: ...

    class LeaderIdAndEpoch(Struct):
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class NodeEndpoint(Struct):
        node_id: int
        host: str
        port: int
        rack: str | None
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
            rack: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    acquisition_lock_timeout_ms: int
    responses: list[ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse]
    node_endpoints: list[ShareAcknowledgeResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        acquisition_lock_timeout_ms: int = ...,
        responses: list[ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse] = ...,
        node_endpoints: list[ShareAcknowledgeResponse.NodeEndpoint] = ...,
    ) -> None: ...

class AddRaftVoterRequest(Message):
    API_KEY: ClassVar[int]
    class Listener(Struct):
        name: str
        host: str
        port: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    cluster_id: str | None
    timeout_ms: int
    voter_id: int
    voter_directory_id: UUID
    listeners: list[AddRaftVoterRequest.Listener]
    ack_when_committed: bool
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        timeout_ms: int = ...,
        voter_id: int = ...,
        voter_directory_id: UUID = ...,
        listeners: list[AddRaftVoterRequest.Listener] = ...,
        ack_when_committed: bool = ...,
    ) -> None: ...

class AddRaftVoterResponse(Message):
    API_KEY: ClassVar[int]
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
    ) -> None: ...

class RemoveRaftVoterRequest(Message):
    API_KEY: ClassVar[int]
    cluster_id: str | None
    voter_id: int
    voter_directory_id: UUID
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        voter_id: int = ...,
        voter_directory_id: UUID = ...,
    ) -> None: ...

class RemoveRaftVoterResponse(Message):
    API_KEY: ClassVar[int]
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
    ) -> None: ...

class UpdateRaftVoterRequest(Message):
    API_KEY: ClassVar[int]
    class Listener(Struct):
        name: str
        host: str
        port: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    class KRaftVersionFeature(Struct):
        min_supported_version: int
        max_supported_version: int
        def __init__(
            self,
            *,
            min_supported_version: int = ...,
            max_supported_version: int = ...,
        ) -> None: ...

    cluster_id: str | None
    current_leader_epoch: int
    voter_id: int
    voter_directory_id: UUID
    listeners: list[UpdateRaftVoterRequest.Listener]
    k_raft_version_feature: UpdateRaftVoterRequest.KRaftVersionFeature
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        current_leader_epoch: int = ...,
        voter_id: int = ...,
        voter_directory_id: UUID = ...,
        listeners: list[UpdateRaftVoterRequest.Listener] = ...,
        k_raft_version_feature: UpdateRaftVoterRequest.KRaftVersionFeature = ...,
    ) -> None: ...

class UpdateRaftVoterResponse(Message):
    API_KEY: ClassVar[int]
    class CurrentLeader(Struct):
        leader_id: int
        leader_epoch: int
        host: str
        port: int
        def __init__(
            self,
            *,
            leader_id: int = ...,
            leader_epoch: int = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    current_leader: UpdateRaftVoterResponse.CurrentLeader
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        current_leader: UpdateRaftVoterResponse.CurrentLeader = ...,
    ) -> None: ...

class InitializeShareGroupStateRequest(Message):
    API_KEY: ClassVar[int]
    class InitializeStateData(Struct):
        topic_id: UUID
        partitions: list[InitializeShareGroupStateRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[InitializeShareGroupStateRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition: int
        state_epoch: int
        start_offset: int
        def __init__(
            self,
            *,
            partition: int = ...,
            state_epoch: int = ...,
            start_offset: int = ...,
        ) -> None: ...

    group_id: str
    topics: list[InitializeShareGroupStateRequest.InitializeStateData]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: list[InitializeShareGroupStateRequest.InitializeStateData] = ...,
    ) -> None: ...

class InitializeShareGroupStateResponse(Message):
    API_KEY: ClassVar[int]
    class InitializeStateResult(Struct):
        topic_id: UUID
        partitions: list[InitializeShareGroupStateResponse.PartitionResult]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[InitializeShareGroupStateResponse.PartitionResult] = ...,
        ) -> None: ...

    class PartitionResult(Struct):
        partition: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            partition: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    results: list[InitializeShareGroupStateResponse.InitializeStateResult]
    def __init__(
        self,
        *,
        results: list[InitializeShareGroupStateResponse.InitializeStateResult] = ...,
    ) -> None: ...

class ReadShareGroupStateRequest(Message):
    API_KEY: ClassVar[int]
    class ReadStateData(Struct):
        topic_id: UUID
        partitions: list[ReadShareGroupStateRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[ReadShareGroupStateRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition: int
        leader_epoch: int
        def __init__(
            self,
            *,
            partition: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    group_id: str
    topics: list[ReadShareGroupStateRequest.ReadStateData]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: list[ReadShareGroupStateRequest.ReadStateData] = ...,
    ) -> None: ...

class ReadShareGroupStateResponse(Message):
    API_KEY: ClassVar[int]
    class ReadStateResult(Struct):
        topic_id: UUID
        partitions: list[ReadShareGroupStateResponse.PartitionResult]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[ReadShareGroupStateResponse.PartitionResult] = ...,
        ) -> None: ...

    class PartitionResult(Struct):
        partition: int
        error_code: int
        error_message: str | None
        state_epoch: int
        start_offset: int
        state_batches: list[ReadShareGroupStateResponse.StateBatch]
        def __init__(
            self,
            *,
            partition: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            state_epoch: int = ...,
            start_offset: int = ...,
            state_batches: list[ReadShareGroupStateResponse.StateBatch] = ...,
        ) -> None: ...

    class StateBatch(Struct):
        first_offset: int
        last_offset: int
        delivery_state: int
        delivery_count: int
        def __init__(
            self,
            *,
            first_offset: int = ...,
            last_offset: int = ...,
            delivery_state: int = ...,
            delivery_count: int = ...,
        ) -> None: ...

    results: list[ReadShareGroupStateResponse.ReadStateResult]
    def __init__(
        self,
        *,
        results: list[ReadShareGroupStateResponse.ReadStateResult] = ...,
    ) -> None: ...

class WriteShareGroupStateRequest(Message):
    API_KEY: ClassVar[int]
    class WriteStateData(Struct):
        topic_id: UUID
        partitions: list[WriteShareGroupStateRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[WriteShareGroupStateRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition: int
        state_epoch: int
        leader_epoch: int
        start_offset: int
        delivery_complete_count: int
        state_batches: list[WriteShareGroupStateRequest.StateBatch]
        def __init__(
            self,
            *,
            partition: int = ...,
            state_epoch: int = ...,
            leader_epoch: int = ...,
            start_offset: int = ...,
            delivery_complete_count: int = ...,
            state_batches: list[WriteShareGroupStateRequest.StateBatch] = ...,
        ) -> None: ...

    class StateBatch(Struct):
        first_offset: int
        last_offset: int
        delivery_state: int
        delivery_count: int
        def __init__(
            self,
            *,
            first_offset: int = ...,
            last_offset: int = ...,
            delivery_state: int = ...,
            delivery_count: int = ...,
        ) -> None: ...

    group_id: str
    topics: list[WriteShareGroupStateRequest.WriteStateData]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: list[WriteShareGroupStateRequest.WriteStateData] = ...,
    ) -> None: ...

class WriteShareGroupStateResponse(Message):
    API_KEY: ClassVar[int]
    class WriteStateResult(Struct):
        topic_id: UUID
        partitions: list[WriteShareGroupStateResponse.PartitionResult]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[WriteShareGroupStateResponse.PartitionResult] = ...,
        ) -> None: ...

    class PartitionResult(Struct):
        partition: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            partition: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    results: list[WriteShareGroupStateResponse.WriteStateResult]
    def __init__(
        self,
        *,
        results: list[WriteShareGroupStateResponse.WriteStateResult] = ...,
    ) -> None: ...

class DeleteShareGroupStateRequest(Message):
    API_KEY: ClassVar[int]
    class DeleteStateData(Struct):
        topic_id: UUID
        partitions: list[DeleteShareGroupStateRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[DeleteShareGroupStateRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition: int
        def __init__(
            self,
            *,
            partition: int = ...,
        ) -> None: ...

    group_id: str
    topics: list[DeleteShareGroupStateRequest.DeleteStateData]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: list[DeleteShareGroupStateRequest.DeleteStateData] = ...,
    ) -> None: ...

class DeleteShareGroupStateResponse(Message):
    API_KEY: ClassVar[int]
    class DeleteStateResult(Struct):
        topic_id: UUID
        partitions: list[DeleteShareGroupStateResponse.PartitionResult]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[DeleteShareGroupStateResponse.PartitionResult] = ...,
        ) -> None: ...

    class PartitionResult(Struct):
        partition: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            partition: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    results: list[DeleteShareGroupStateResponse.DeleteStateResult]
    def __init__(
        self,
        *,
        results: list[DeleteShareGroupStateResponse.DeleteStateResult] = ...,
    ) -> None: ...

class ReadShareGroupStateSummaryRequest(Message):
    API_KEY: ClassVar[int]
    class ReadStateSummaryData(Struct):
        topic_id: UUID
        partitions: list[ReadShareGroupStateSummaryRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[ReadShareGroupStateSummaryRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Struct):
        partition: int
        leader_epoch: int
        def __init__(
            self,
            *,
            partition: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    group_id: str
    topics: list[ReadShareGroupStateSummaryRequest.ReadStateSummaryData]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: list[ReadShareGroupStateSummaryRequest.ReadStateSummaryData] = ...,
    ) -> None: ...

class ReadShareGroupStateSummaryResponse(Message):
    API_KEY: ClassVar[int]
    class ReadStateSummaryResult(Struct):
        topic_id: UUID
        partitions: list[ReadShareGroupStateSummaryResponse.PartitionResult]
        def __init__(
            self,
            *,
            topic_id: UUID = ...,
            partitions: list[ReadShareGroupStateSummaryResponse.PartitionResult] = ...,
        ) -> None: ...

    class PartitionResult(Struct):
        partition: int
        error_code: int
        error_message: str | None
        state_epoch: int
        leader_epoch: int
        start_offset: int
        delivery_complete_count: int
        def __init__(
            self,
            *,
            partition: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            state_epoch: int = ...,
            leader_epoch: int = ...,
            start_offset: int = ...,
            delivery_complete_count: int = ...,
        ) -> None: ...

    results: list[ReadShareGroupStateSummaryResponse.ReadStateSummaryResult]
    def __init__(
        self,
        *,
        results: list[ReadShareGroupStateSummaryResponse.ReadStateSummaryResult] = ...,
    ) -> None: ...

class DescribeShareGroupOffsetsRequest(Message):
    API_KEY: ClassVar[int]
    class DescribeShareGroupOffsetsRequestGroup(Struct):
        group_id: str
        topics: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic] | None
        def __init__(
            self,
            *,
            group_id: str = ...,
            topics: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic] | None = ...,
        ) -> None: ...

    class DescribeShareGroupOffsetsRequestTopic(Struct):
        topic_name: str
        partitions: list[int]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: list[int] = ...,
        ) -> None: ...

    groups: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup]
    def __init__(
        self,
        *,
        groups: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup] = ...,
    ) -> None: ...

class DescribeShareGroupOffsetsResponse(Message):
    API_KEY: ClassVar[int]
    class DescribeShareGroupOffsetsResponseGroup(Struct):
        group_id: str
        topics: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic]
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            group_id: str = ...,
            topics: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic] = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    class DescribeShareGroupOffsetsResponseTopic(Struct):
        topic_name: str
        topic_id: UUID
        partitions: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            topic_id: UUID = ...,
            partitions: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition] = ...,
        ) -> None: ...

    class DescribeShareGroupOffsetsResponsePartition(Struct):
        partition_index: int
        start_offset: int
        leader_epoch: int
        lag: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            partition_index: int = ...,
            start_offset: int = ...,
            leader_epoch: int = ...,
            lag: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    groups: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        groups: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup] = ...,
    ) -> None: ...

class AlterShareGroupOffsetsRequest(Message):
    API_KEY: ClassVar[int]
    class AlterShareGroupOffsetsRequestTopic(Struct):
        topic_name: str
        partitions: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition] = ...,
        ) -> None: ...

    class AlterShareGroupOffsetsRequestPartition(Struct):
        partition_index: int
        start_offset: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            start_offset: int = ...,
        ) -> None: ...

    group_id: str
    topics: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic] = ...,
    ) -> None: ...

class AlterShareGroupOffsetsResponse(Message):
    API_KEY: ClassVar[int]
    class AlterShareGroupOffsetsResponseTopic(Struct):
        topic_name: str
        topic_id: UUID
        partitions: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            topic_id: UUID = ...,
            partitions: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition] = ...,
        ) -> None: ...

    class AlterShareGroupOffsetsResponsePartition(Struct):
        partition_index: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    responses: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        responses: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic] = ...,
    ) -> None: ...

class DeleteShareGroupOffsetsRequest(Message):
    API_KEY: ClassVar[int]
    class DeleteShareGroupOffsetsRequestTopic(Struct):
        topic_name: str
        def __init__(
            self,
            *,
            topic_name: str = ...,
        ) -> None: ...

    group_id: str
    topics: list[DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: list[DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic] = ...,
    ) -> None: ...

class DeleteShareGroupOffsetsResponse(Message):
    API_KEY: ClassVar[int]
    class DeleteShareGroupOffsetsResponseTopic(Struct):
        topic_name: str
        topic_id: UUID
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            topic_name: str = ...,
            topic_id: UUID = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    responses: list[DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        responses: list[DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic] = ...,
    ) -> None: ...

class AbortTransactionRecord(Message):
    API_KEY: ClassVar[int]
    reason: str | None
    def __init__(
        self,
        *,
        reason: str | None = ...,
    ) -> None: ...

class AccessControlEntryRecord(Message):
    API_KEY: ClassVar[int]
    id: UUID
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int
    def __init__(
        self,
        *,
        id: UUID = ...,
        resource_type: int = ...,
        resource_name: str = ...,
        pattern_type: int = ...,
        principal: str = ...,
        host: str = ...,
        operation: int = ...,
        permission_type: int = ...,
    ) -> None: ...

class AlikePartitionsRecord(Message):
    API_KEY: ClassVar[int]
    first: bytes
    others: list[int]
    def __init__(
        self,
        *,
        first: bytes = ...,
        others: list[int] = ...,
    ) -> None: ...

class BeginTransactionRecord(Message):
    API_KEY: ClassVar[int]
    name: str | None
    def __init__(
        self,
        *,
        name: str | None = ...,
    ) -> None: ...

class BrokerRegistrationChangeRecord(Message):
    API_KEY: ClassVar[int]
    broker_id: int
    broker_epoch: int
    fenced: int
    in_controlled_shutdown: int
    log_dirs: list[UUID]
    def __init__(
        self,
        *,
        broker_id: int = ...,
        broker_epoch: int = ...,
        fenced: int = ...,
        in_controlled_shutdown: int = ...,
        log_dirs: list[UUID] = ...,
    ) -> None: ...

class ClientQuotaRecord(Message):
    API_KEY: ClassVar[int]
    class EntityData(Struct):
        entity_type: str
        entity_name: str | None
        def __init__(
            self,
            *,
            entity_type: str = ...,
            entity_name: str | None = ...,
        ) -> None: ...

    entity: list[ClientQuotaRecord.EntityData]
    key: str
    value: float
    remove: bool
    def __init__(
        self,
        *,
        entity: list[ClientQuotaRecord.EntityData] = ...,
        key: str = ...,
        value: float = ...,
        remove: bool = ...,
    ) -> None: ...

class ConfigRecord(Message):
    API_KEY: ClassVar[int]
    resource_type: int
    resource_name: str
    name: str
    value: str | None
    def __init__(
        self,
        *,
        resource_type: int = ...,
        resource_name: str = ...,
        name: str = ...,
        value: str | None = ...,
    ) -> None: ...

class DelegationTokenRecord(Message):
    API_KEY: ClassVar[int]
    owner: str
    requester: str
    renewers: list[str]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int
    token_id: str
    def __init__(
        self,
        *,
        owner: str = ...,
        requester: str = ...,
        renewers: list[str] = ...,
        issue_timestamp: int = ...,
        max_timestamp: int = ...,
        expiration_timestamp: int = ...,
        token_id: str = ...,
    ) -> None: ...

class EndTransactionRecord(Message):
    API_KEY: ClassVar[int]
    def __init__(self) -> None: ...

class FeatureLevelRecord(Message):
    API_KEY: ClassVar[int]
    name: str
    feature_level: int
    def __init__(
        self,
        *,
        name: str = ...,
        feature_level: int = ...,
    ) -> None: ...

class FenceBrokerRecord(Message):
    API_KEY: ClassVar[int]
    id: int
    epoch: int
    def __init__(
        self,
        *,
        id: int = ...,
        epoch: int = ...,
    ) -> None: ...

class LeadAnewRecord(Message):
    API_KEY: ClassVar[int]
    broker_id: int
    broker_epoch: int
    def __init__(
        self,
        *,
        broker_id: int = ...,
        broker_epoch: int = ...,
    ) -> None: ...

class NoOpRecord(Message):
    API_KEY: ClassVar[int]
    def __init__(self) -> None: ...

class PartitionChangeRecord(Message):
    API_KEY: ClassVar[int]
    partition_id: int
    topic_id: UUID
    isr: list[int] | None
    leader: int
    replicas: list[int] | None
    removing_replicas: list[int] | None
    adding_replicas: list[int] | None
    leader_recovery_state: int
    directories: list[UUID] | None
    eligible_leader_replicas: list[int] | None
    last_known_elr: list[int] | None
    def __init__(
        self,
        *,
        partition_id: int = ...,
        topic_id: UUID = ...,
        isr: list[int] | None = ...,
        leader: int = ...,
        replicas: list[int] | None = ...,
        removing_replicas: list[int] | None = ...,
        adding_replicas: list[int] | None = ...,
        leader_recovery_state: int = ...,
        directories: list[UUID] | None = ...,
        eligible_leader_replicas: list[int] | None = ...,
        last_known_elr: list[int] | None = ...,
    ) -> None: ...

class PartitionRecord(Message):
    API_KEY: ClassVar[int]
    partition_id: int
    topic_id: UUID
    replicas: list[int]
    isr: list[int]
    removing_replicas: list[int]
    adding_replicas: list[int]
    leader: int
    leader_recovery_state: int
    leader_epoch: int
    partition_epoch: int
    directories: list[UUID]
    eligible_leader_replicas: list[int] | None
    last_known_elr: list[int] | None
    def __init__(
        self,
        *,
        partition_id: int = ...,
        topic_id: UUID = ...,
        replicas: list[int] = ...,
        isr: list[int] = ...,
        removing_replicas: list[int] = ...,
        adding_replicas: list[int] = ...,
        leader: int = ...,
        leader_recovery_state: int = ...,
        leader_epoch: int = ...,
        partition_epoch: int = ...,
        directories: list[UUID] = ...,
        eligible_leader_replicas: list[int] | None = ...,
        last_known_elr: list[int] | None = ...,
    ) -> None: ...

class ProducerIdsRecord(Message):
    API_KEY: ClassVar[int]
    broker_id: int
    broker_epoch: int
    next_producer_id: int
    def __init__(
        self,
        *,
        broker_id: int = ...,
        broker_epoch: int = ...,
        next_producer_id: int = ...,
    ) -> None: ...

class RegisterBrokerRecord(Message):
    API_KEY: ClassVar[int]
    class BrokerEndpoint(Struct):
        name: str
        host: str
        port: int
        security_protocol: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
            security_protocol: int = ...,
        ) -> None: ...

    class BrokerFeature(Struct):
        name: str
        min_supported_version: int
        max_supported_version: int
        def __init__(
            self,
            *,
            name: str = ...,
            min_supported_version: int = ...,
            max_supported_version: int = ...,
        ) -> None: ...

    broker_id: int
    is_migrating_zk_broker: bool
    incarnation_id: UUID
    broker_epoch: int
    end_points: list[RegisterBrokerRecord.BrokerEndpoint]
    features: list[RegisterBrokerRecord.BrokerFeature]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: list[UUID]
    def __init__(
        self,
        *,
        broker_id: int = ...,
        is_migrating_zk_broker: bool = ...,
        incarnation_id: UUID = ...,
        broker_epoch: int = ...,
        end_points: list[RegisterBrokerRecord.BrokerEndpoint] = ...,
        features: list[RegisterBrokerRecord.BrokerFeature] = ...,
        rack: str | None = ...,
        fenced: bool = ...,
        in_controlled_shutdown: bool = ...,
        log_dirs: list[UUID] = ...,
    ) -> None: ...

class RegisterControllerRecord(Message):
    API_KEY: ClassVar[int]
    class ControllerEndpoint(Struct):
        name: str
        host: str
        port: int
        security_protocol: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
            security_protocol: int = ...,
        ) -> None: ...

    class ControllerFeature(Struct):
        name: str
        min_supported_version: int
        max_supported_version: int
        def __init__(
            self,
            *,
            name: str = ...,
            min_supported_version: int = ...,
            max_supported_version: int = ...,
        ) -> None: ...

    controller_id: int
    incarnation_id: UUID
    zk_migration_ready: bool
    end_points: list[RegisterControllerRecord.ControllerEndpoint]
    features: list[RegisterControllerRecord.ControllerFeature]
    def __init__(
        self,
        *,
        controller_id: int = ...,
        incarnation_id: UUID = ...,
        zk_migration_ready: bool = ...,
        end_points: list[RegisterControllerRecord.ControllerEndpoint] = ...,
        features: list[RegisterControllerRecord.ControllerFeature] = ...,
    ) -> None: ...

class RemoveAccessControlEntryRecord(Message):
    API_KEY: ClassVar[int]
    id: UUID
    def __init__(
        self,
        *,
        id: UUID = ...,
    ) -> None: ...

class RemoveDelegationTokenRecord(Message):
    API_KEY: ClassVar[int]
    token_id: str
    def __init__(
        self,
        *,
        token_id: str = ...,
    ) -> None: ...

class RemoveTopicRecord(Message):
    API_KEY: ClassVar[int]
    topic_id: UUID
    def __init__(
        self,
        *,
        topic_id: UUID = ...,
    ) -> None: ...

class RemoveUserScramCredentialRecord(Message):
    API_KEY: ClassVar[int]
    name: str
    mechanism: int
    def __init__(
        self,
        *,
        name: str = ...,
        mechanism: int = ...,
    ) -> None: ...

class TopicRecord(Message):
    API_KEY: ClassVar[int]
    name: str
    topic_id: UUID
    def __init__(
        self,
        *,
        name: str = ...,
        topic_id: UUID = ...,
    ) -> None: ...

class UnfenceBrokerRecord(Message):
    API_KEY: ClassVar[int]
    id: int
    epoch: int
    def __init__(
        self,
        *,
        id: int = ...,
        epoch: int = ...,
    ) -> None: ...

class UnregisterBrokerRecord(Message):
    API_KEY: ClassVar[int]
    broker_id: int
    broker_epoch: int
    def __init__(
        self,
        *,
        broker_id: int = ...,
        broker_epoch: int = ...,
    ) -> None: ...

class UserScramCredentialRecord(Message):
    API_KEY: ClassVar[int]
    name: str
    mechanism: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int
    def __init__(
        self,
        *,
        name: str = ...,
        mechanism: int = ...,
        salt: bytes = ...,
        stored_key: bytes = ...,
        server_key: bytes = ...,
        iterations: int = ...,
    ) -> None: ...
