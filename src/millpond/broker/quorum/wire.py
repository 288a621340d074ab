"""Quorum messages on the wire: Vote (52), BeginQuorumEpoch (53), EndQuorumEpoch (54), Fetch (1) of the metadata log
and FetchSnapshot (59).

Each request names one partition, the metadata log; a response without that partition is ignored. Voters are
identified by node id. Kafka's directory id field only says whether a voter is new and which list of voters it is
configured with. The id of the sender's data folder is in a tagged field of our own, `data_directory_id`, which
earlier versions skip; it tells two processes with the same node id apart (decision 32).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, Final, assert_never
from uuid import UUID, uuid5

from millpond.base.errors import ErrorCode, MalformedMessage
from millpond.base.ids import EpochEnd
from millpond.metadata.image import NO_DIRECTORY
from millpond.metadata.partition import METADATA_TOPIC_ID
from millpond.metadata.topics import METADATA_TOPIC
from millpond.quorum.messages import (
    NO_LEADER,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    EpochResponse,
    Fetch,
    FetchResponse,
    FetchSnapshot,
    FetchSnapshotResponse,
    ReplicaKey,
    Request,
    Response,
    SnapshotId,
    Vote,
    VoteResponse,
)
from millpond.wire import messages as m

VOTE_VERSION: Final = 2
EPOCH_VERSION: Final = 1
FETCH_VERSION: Final = 18
SNAPSHOT_VERSION: Final = 1

LOST_DIRECTORY: Final = UUID(int=1)
"""Kafka's id of a lost directory, sent by a voter that is new and may have lost its log."""


def voter_keys(node_ids: Iterable[int]) -> list[ReplicaKey]:
    """The voters by node id, with a hash of the whole list as directory id.

    Nodes with different lists must not vote together, because their majorities need not overlap.
    """
    ids = sorted(node_ids)
    list_id = uuid5(LOST_DIRECTORY, ",".join(map(str, ids))) if len(ids) > 1 else NO_DIRECTORY
    return [ReplicaKey(node_id, list_id) for node_id in ids]


FETCH_BYTES: Final = 8 << 20
REPLICA_STATE_FROM: Final = 15
EPOCH_MAX: Final = (1 << 31) - (1 << 16)
"""An epoch rises by one per election, so no cluster reaches this; a request that claims it is refused."""
_UNKNOWN: Final = -1


# Encoding requests.


def encode_request(
    request: Request, cluster_id: str | None, directory_id: UUID = NO_DIRECTORY
) -> tuple[m.Message, int]:
    """The message, and the version to send it in. `directory_id` is that of this node's data folder."""
    match request:
        case Vote():
            return _vote(request, cluster_id, directory_id), VOTE_VERSION
        case BeginQuorumEpoch():
            return _begin_epoch(request, cluster_id), EPOCH_VERSION
        case EndQuorumEpoch():
            return _end_epoch(request, cluster_id), EPOCH_VERSION
        case Fetch():
            return _fetch(request, cluster_id, directory_id), FETCH_VERSION
        case FetchSnapshot():
            return _fetch_snapshot(request, cluster_id, directory_id), SNAPSHOT_VERSION
        case _:
            assert_never(request)


def without_list(request: Request) -> Request:
    """The request without the list of voters, for a node whose log names them: any node may accept it."""
    match request:
        case Vote():
            return replace(request, candidate=_unlisted(request.candidate), voter=_unlisted(request.voter))
        case BeginQuorumEpoch():
            return replace(request, voter=_unlisted(request.voter))
        case EndQuorumEpoch():
            return replace(request, successors=tuple(map(_unlisted, request.successors)))
        case Fetch() | FetchSnapshot():
            return replace(request, replica=_unlisted(request.replica))
        case _:
            assert_never(request)


def _unlisted(replica: ReplicaKey) -> ReplicaKey:
    return ReplicaKey(replica.node_id, NO_DIRECTORY)


def _vote(vote: Vote, cluster_id: str | None, directory_id: UUID) -> m.VoteRequest:
    partition = m.VoteRequest.PartitionData(
        partition_index=0,
        replica_epoch=vote.epoch,
        replica_id=vote.candidate.node_id,
        replica_directory_id=LOST_DIRECTORY if vote.is_new else vote.candidate.directory_id,
        voter_directory_id=vote.voter.directory_id,
        last_offset_epoch=vote.last_epoch,
        last_offset=vote.end_offset,
        pre_vote=vote.pre_vote,
        data_directory_id=directory_id,
    )
    topic = m.VoteRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return m.VoteRequest(cluster_id=cluster_id, voter_id=vote.voter.node_id, topics=[topic])


def _begin_epoch(begin: BeginQuorumEpoch, cluster_id: str | None) -> m.BeginQuorumEpochRequest:
    partition = m.BeginQuorumEpochRequest.PartitionData(
        partition_index=0,
        voter_directory_id=begin.voter.directory_id,
        leader_id=begin.leader_id,
        leader_epoch=begin.epoch,
    )
    topic = m.BeginQuorumEpochRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return m.BeginQuorumEpochRequest(
        cluster_id=cluster_id, voter_id=begin.voter.node_id, topics=[topic], leader_endpoints=[]
    )


def leader_endpoint(name: str, host: str, port: int) -> m.BeginQuorumEpochRequest.LeaderEndpoint:
    """The leader's address, for voters that do not know it yet."""
    return m.BeginQuorumEpochRequest.LeaderEndpoint(name=name, host=host, port=port)


def _end_epoch(end: EndQuorumEpoch, cluster_id: str | None) -> m.EndQuorumEpochRequest:
    partition = m.EndQuorumEpochRequest.PartitionData(
        partition_index=0,
        leader_id=end.leader_id,
        leader_epoch=end.epoch,
        preferred_successors=[],
        preferred_candidates=[
            m.EndQuorumEpochRequest.ReplicaInfo(candidate_id=each.node_id, candidate_directory_id=each.directory_id)
            for each in end.successors
        ],
    )
    topic = m.EndQuorumEpochRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return m.EndQuorumEpochRequest(cluster_id=cluster_id, topics=[topic], leader_endpoints=[])


def _fetch(fetch: Fetch, cluster_id: str | None, directory_id: UUID) -> m.FetchRequest:
    partition = m.FetchRequest.FetchPartition(
        partition=0,
        current_leader_epoch=fetch.epoch,
        fetch_offset=fetch.offset,
        last_fetched_epoch=fetch.last_epoch,
        partition_max_bytes=FETCH_BYTES,
        replica_directory_id=LOST_DIRECTORY if fetch.is_new else fetch.replica.directory_id,
        high_watermark=fetch.high_watermark,
        data_directory_id=directory_id,
    )
    return m.FetchRequest(
        cluster_id=cluster_id,
        replica_state=m.FetchRequest.ReplicaState(replica_id=fetch.replica.node_id),
        max_wait_ms=fetch.wait_ms,
        min_bytes=0,
        max_bytes=FETCH_BYTES,
        isolation_level=0,
        topics=[m.FetchRequest.FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )


def _fetch_snapshot(fetch: FetchSnapshot, cluster_id: str | None, directory_id: UUID) -> m.FetchSnapshotRequest:
    partition = m.FetchSnapshotRequest.PartitionSnapshot(
        partition=0,
        current_leader_epoch=fetch.epoch,
        snapshot_id=m.FetchSnapshotRequest.SnapshotId(
            end_offset=fetch.snapshot.end_offset, epoch=fetch.snapshot.epoch
        ),
        position=fetch.position,
        replica_directory_id=fetch.replica.directory_id,
        data_directory_id=directory_id,
    )
    return m.FetchSnapshotRequest(
        cluster_id=cluster_id,
        replica_id=fetch.replica.node_id,
        max_bytes=FETCH_BYTES,
        topics=[m.FetchSnapshotRequest.TopicSnapshot(name=METADATA_TOPIC, partitions=[partition])],
    )


# Decoding requests.


def is_metadata_fetch(request: m.FetchRequest, version: int) -> bool:
    """Whether a quorum replica fetches the metadata log, rather than a consumer or follower of another partition."""
    return (
        version >= REPLICA_STATE_FROM
        and request.replica_state.replica_id >= 0
        and len(request.topics) == 1
        and request.topics[0].topic_id == METADATA_TOPIC_ID
    )


def fault_of(request: Request, me: ReplicaKey, voters: Collection[ReplicaKey]) -> ErrorCode:
    """Why the request cannot come from a voter; NONE if it can.

    A sender with the same list of voters, or whose log names them, may mention nodes that are still unknown here.
    """
    node_ids = {voter.node_id for voter in voters}

    def has_same_list(replica: ReplicaKey) -> bool:
        return replica.directory_id == me.directory_id

    if not 0 <= request.epoch < EPOCH_MAX:
        return ErrorCode.INVALID_REQUEST
    match request:
        case Vote():
            is_sound, is_peer = request.end_offset >= 0, has_same_list(request.candidate)
        case BeginQuorumEpoch():
            is_sound, is_peer = request.leader_id >= 0, has_same_list(request.voter)
        case EndQuorumEpoch():
            is_sound = request.leader_id >= 0
            is_peer = all(map(has_same_list, request.successors))
        case Fetch():
            is_sound = request.offset >= 0 and request.last_epoch >= 0
            is_peer = has_same_list(request.replica) or request.replica.node_id not in node_ids
        case FetchSnapshot():
            is_sound = request.position >= 0
            is_peer = has_same_list(request.replica) or request.replica.node_id not in node_ids
        case _:
            assert_never(request)
    if not is_sound:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE if is_peer else ErrorCode.INCONSISTENT_VOTER_SET


def directory_of(message: Any) -> UUID:
    """The data folder of the process that sent a Vote, Fetch or FetchSnapshot request, or that answered a Vote.

    NO_DIRECTORY from a process of an earlier version.
    """
    if len(message.topics) != 1 or len(message.topics[0].partitions) != 1:
        return NO_DIRECTORY
    directory_id: UUID = message.topics[0].partitions[0].data_directory_id
    return directory_id


def from_stranger(request: Request, directory_id: UUID) -> Request:
    """The request with the sender's own directory: it has a voter's node id but another data folder."""
    match request:
        case Vote():
            return replace(request, candidate=ReplicaKey(request.candidate.node_id, directory_id))
        case Fetch() | FetchSnapshot():
            return replace(request, replica=ReplicaKey(request.replica.node_id, directory_id))
        case BeginQuorumEpoch() | EndQuorumEpoch():
            return request
        case _:
            assert_never(request)


def decode_request(request: Any, me: ReplicaKey, *, goes_by_log: bool = False) -> Request:
    """Decode a peer's request. Raises MalformedMessage if it is not about the metadata log.

    A request in an older version does not name its recipient; it is taken to mean this replica. A node whose log
    names the voters ignores the peer's configured list.
    """
    decoded = _decode_request(request, me)
    return _decode_keys(decoded, me) if goes_by_log else decoded


def _decode_keys(request: Request, me: ReplicaKey) -> Request:
    def same(replica: ReplicaKey) -> ReplicaKey:
        return ReplicaKey(replica.node_id, me.directory_id)

    match request:
        case Vote():
            return replace(request, candidate=same(request.candidate), voter=same(request.voter))
        case BeginQuorumEpoch():
            return replace(request, voter=same(request.voter))
        case EndQuorumEpoch():
            return replace(request, successors=tuple(map(same, request.successors)))
        case Fetch() | FetchSnapshot():
            return replace(request, replica=same(request.replica))
        case _:
            assert_never(request)


def _decode_request(request: Any, me: ReplicaKey) -> Request:
    match request:
        case m.VoteRequest():
            each = _partition_of(request.topics)
            return Vote(
                epoch=each.replica_epoch,
                candidate=_replica(each.replica_id, each.replica_directory_id, me),
                voter=_voter(request.voter_id, each.voter_directory_id, me),
                last_epoch=each.last_offset_epoch,
                end_offset=each.last_offset,
                pre_vote=each.pre_vote,
                is_new=each.replica_directory_id == LOST_DIRECTORY,
            )
        case m.BeginQuorumEpochRequest():
            each = _partition_of(request.topics)
            voter = _voter(request.voter_id, each.voter_directory_id, me)
            return BeginQuorumEpoch(each.leader_epoch, each.leader_id, voter)
        case m.EndQuorumEpochRequest():
            each = _partition_of(request.topics)
            successors = tuple(
                _replica(one.candidate_id, one.candidate_directory_id, me) for one in each.preferred_candidates
            )
            return EndQuorumEpoch(each.leader_epoch, each.leader_id, successors)
        case m.FetchRequest():
            each = _partition_of(request.topics)
            return Fetch(
                epoch=each.current_leader_epoch,
                replica=_replica(request.replica_state.replica_id, each.replica_directory_id, me),
                offset=each.fetch_offset,
                last_epoch=each.last_fetched_epoch,
                high_watermark=each.high_watermark,
                wait_ms=request.max_wait_ms,
                is_new=each.replica_directory_id == LOST_DIRECTORY,
            )
        case m.FetchSnapshotRequest():
            each = _partition_of(request.topics)
            return FetchSnapshot(
                epoch=each.current_leader_epoch,
                replica=_replica(request.replica_id, each.replica_directory_id, me),
                snapshot=SnapshotId(each.snapshot_id.end_offset, each.snapshot_id.epoch),
                position=each.position,
            )
        case _:
            raise AssertionError(request)


def _replica(node_id: int, directory_id: UUID, me: ReplicaKey) -> ReplicaKey:
    """Who does not say which voters it knows is believed to know the same ones."""
    return ReplicaKey(node_id, me.directory_id if directory_id in (LOST_DIRECTORY, NO_DIRECTORY) else directory_id)


def _voter(voter_id: int, directory_id: UUID, me: ReplicaKey) -> ReplicaKey:
    return me if voter_id == _UNKNOWN else _replica(voter_id, directory_id, me)


def _partition_of(topics: Any) -> Any:
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise MalformedMessage("a quorum request must name exactly one partition")
    return topics[0].partitions[0]


# Encoding responses.


Addresses = Callable[[int], tuple[str, int] | None]
"""The address of a node; None if unknown."""


def encode_response(
    request: Request, response: Response, address_of: Addresses, directory_id: UUID = NO_DIRECTORY
) -> m.Message:
    """Encode a response; `directory_id` of this node's data folder tells which process granted a vote."""
    match response:
        case VoteResponse():
            granted = m.VoteResponse.PartitionData(
                partition_index=0,
                error_code=response.error,
                leader_id=response.leader_id,
                leader_epoch=response.epoch,
                vote_granted=response.granted,
                data_directory_id=directory_id,
            )
            vote = m.VoteResponse(topics=[m.VoteResponse.TopicData(topic_name=METADATA_TOPIC, partitions=[granted])])
            if (address := address_of(response.leader_id)) is not None:
                # The requester needs the address of the leader it is to follow.
                host, port = address
                vote.node_endpoints = [m.VoteResponse.NodeEndpoint(node_id=response.leader_id, host=host, port=port)]
            return vote
        case EpochResponse():
            kind: Any = (
                m.BeginQuorumEpochResponse if isinstance(request, BeginQuorumEpoch) else m.EndQuorumEpochResponse
            )
            partition = kind.PartitionData(
                partition_index=0,
                error_code=response.error,
                leader_id=response.leader_id,
                leader_epoch=response.epoch,
            )
            answer: m.Message = kind(topics=[kind.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])])
            return answer
        case FetchResponse():
            return _fetched(response, address_of(response.leader_id))
        case FetchSnapshotResponse():
            assert isinstance(request, FetchSnapshot)
            return _snapshot_bytes(request, response)
        case _:
            assert_never(response)


def _fetched(response: FetchResponse, leader_address: tuple[str, int] | None) -> m.FetchResponse:
    partition = m.FetchResponse.PartitionData(
        partition_index=0,
        error_code=response.error,
        high_watermark=response.high_watermark,
        # The metadata log has no transactions, so this field tells how far a new voter may trust the leader.
        last_stable_offset=response.high_watermark if response.is_confirmed else -1,
        current_leader=m.FetchResponse.LeaderIdAndEpoch(leader_id=response.leader_id, leader_epoch=response.epoch),
        records=response.records or b"",
    )
    if response.diverging is not None:
        partition.diverging_epoch = m.FetchResponse.EpochEndOffset(
            epoch=response.diverging.epoch, end_offset=response.diverging.end_offset
        )
    if response.snapshot is not None:
        partition.snapshot_id = m.FetchResponse.SnapshotId(
            end_offset=response.snapshot.end_offset, epoch=response.snapshot.epoch
        )
    topic = m.FetchResponse.FetchableTopicResponse(
        topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition]
    )
    answer = m.FetchResponse(responses=[topic])
    if response.error is not ErrorCode.NONE and leader_address is not None:
        host, port = leader_address
        answer.node_endpoints = [m.FetchResponse.NodeEndpoint(node_id=response.leader_id, host=host, port=port)]
    return answer


def _snapshot_bytes(request: FetchSnapshot, response: FetchSnapshotResponse) -> m.FetchSnapshotResponse:
    partition = m.FetchSnapshotResponse.PartitionSnapshot(
        index=0,
        error_code=response.error,
        snapshot_id=m.FetchSnapshotResponse.SnapshotId(
            end_offset=request.snapshot.end_offset, epoch=request.snapshot.epoch
        ),
        current_leader=m.FetchSnapshotResponse.LeaderIdAndEpoch(
            leader_id=response.leader_id, leader_epoch=response.epoch
        ),
        size=response.size,
        position=response.position,
        unaligned_records=response.data,
    )
    topic = m.FetchSnapshotResponse.TopicSnapshot(name=METADATA_TOPIC, partitions=[partition])
    return m.FetchSnapshotResponse(topics=[topic])


# Decoding responses.


def decode_response(response: Any) -> Response | None:
    """Decode a peer's response; None if it lacks the metadata log: the peer is starting or in another cluster."""
    topics: Any = response.responses if isinstance(response, m.FetchResponse) else response.topics
    if response.error_code or len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    each: Any = topics[0].partitions[0]
    error = ErrorCode(each.error_code)
    match response:
        case m.VoteResponse():
            return VoteResponse(error, each.leader_epoch, each.leader_id, each.vote_granted)
        case m.BeginQuorumEpochResponse() | m.EndQuorumEpochResponse():
            return EpochResponse(error, each.leader_epoch, each.leader_id)
        case m.FetchResponse():
            leader = each.current_leader
            diverging, snapshot = each.diverging_epoch, each.snapshot_id
            return FetchResponse(
                error,
                leader.leader_epoch,
                leader.leader_id,
                each.high_watermark,
                EpochEnd(diverging.epoch, diverging.end_offset) if diverging.end_offset >= 0 else None,
                SnapshotId(snapshot.end_offset, snapshot.epoch) if snapshot.end_offset >= 0 else None,
                bytes(each.records) if each.records else None,
                each.last_stable_offset >= 0,
            )
        case m.FetchSnapshotResponse():
            leader = each.current_leader
            data = bytes(each.unaligned_records or b"")
            return FetchSnapshotResponse(error, leader.leader_epoch, leader.leader_id, each.size, each.position, data)
        case _:
            raise AssertionError(response)


def says_other_voters(response: Any) -> bool:
    """Whether a peer refused a request because its list of voters differs."""
    errors = [response.error_code]
    if not isinstance(response, m.FetchResponse):
        errors += [each.error_code for topic in response.topics for each in topic.partitions]
    return ErrorCode.INCONSISTENT_VOTER_SET in errors or ErrorCode.INVALID_VOTER_KEY in errors


def refusal(request: Request, error: ErrorCode) -> m.Message:
    """A response that refuses the request as a whole."""
    match request:
        case Vote():
            return m.VoteResponse(error_code=error, topics=[])
        case BeginQuorumEpoch():
            return m.BeginQuorumEpochResponse(error_code=error, topics=[])
        case EndQuorumEpoch():
            return m.EndQuorumEpochResponse(error_code=error, topics=[])
        case Fetch():
            return m.FetchResponse(error_code=error, responses=[])
        case FetchSnapshot():
            return m.FetchSnapshotResponse(error_code=error, topics=[])
        case _:
            assert_never(request)


assert NO_LEADER == _UNKNOWN, "the protocol's value for no leader"
