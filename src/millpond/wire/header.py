"""The headers of requests and responses.

A request's header is (api_key, api_version, correlation_id, client_id), followed by tagged fields if the request's
version is flexible. A response's header is the correlation id, likewise; ApiVersions alone never has tagged fields,
since its reader does not know the peer's versions yet.
"""

from __future__ import annotations

import struct

from millpond.base.errors import MalformedMessage
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Buffer
from millpond.wire import runtime

API_VERSIONS_KEY = 18
NEVER = 1 << 15
"""Means that no version is flexible; larger than any version."""

_FIXED = struct.Struct(">hhih")
_CORRELATION = struct.Struct(">i")

APIS: dict[int, tuple[str, int]] = {
    0: ("Produce", 9),
    1: ("Fetch", 12),
    2: ("ListOffsets", 6),
    3: ("Metadata", 9),
    8: ("OffsetCommit", 8),
    9: ("OffsetFetch", 6),
    10: ("FindCoordinator", 3),
    11: ("JoinGroup", 6),
    12: ("Heartbeat", 4),
    13: ("LeaveGroup", 4),
    14: ("SyncGroup", 4),
    15: ("DescribeGroups", 5),
    16: ("ListGroups", 3),
    17: ("SaslHandshake", NEVER),
    18: ("ApiVersions", 3),
    19: ("CreateTopics", 5),
    20: ("DeleteTopics", 4),
    21: ("DeleteRecords", 2),
    22: ("InitProducerId", 2),
    23: ("OffsetForLeaderEpoch", 4),
    24: ("AddPartitionsToTxn", 3),
    25: ("AddOffsetsToTxn", 3),
    26: ("EndTxn", 3),
    27: ("WriteTxnMarkers", 1),
    28: ("TxnOffsetCommit", 3),
    29: ("DescribeAcls", 2),
    30: ("CreateAcls", 2),
    31: ("DeleteAcls", 2),
    32: ("DescribeConfigs", 4),
    33: ("AlterConfigs", 2),
    34: ("AlterReplicaLogDirs", 2),
    35: ("DescribeLogDirs", 2),
    36: ("SaslAuthenticate", 2),
    37: ("CreatePartitions", 2),
    38: ("CreateDelegationToken", 2),
    39: ("RenewDelegationToken", 2),
    40: ("ExpireDelegationToken", 2),
    41: ("DescribeDelegationToken", 2),
    42: ("DeleteGroups", 2),
    43: ("ElectLeaders", 2),
    44: ("IncrementalAlterConfigs", 1),
    45: ("AlterPartitionReassignments", 0),
    46: ("ListPartitionReassignments", 0),
    47: ("OffsetDelete", NEVER),
    48: ("DescribeClientQuotas", 1),
    49: ("AlterClientQuotas", 1),
    50: ("DescribeUserScramCredentials", 0),
    51: ("AlterUserScramCredentials", 0),
    52: ("Vote", 0),
    53: ("BeginQuorumEpoch", 1),
    54: ("EndQuorumEpoch", 1),
    55: ("DescribeQuorum", 0),
    56: ("AlterPartition", 2),
    57: ("UpdateFeatures", 0),
    58: ("Envelope", 0),
    59: ("FetchSnapshot", 0),
    60: ("DescribeCluster", 0),
    61: ("DescribeProducers", 0),
    62: ("BrokerRegistration", 0),
    63: ("BrokerHeartbeat", 0),
    64: ("UnregisterBroker", 0),
    65: ("DescribeTransactions", 0),
    66: ("ListTransactions", 0),
    67: ("AllocateProducerIds", 0),
    68: ("ConsumerGroupHeartbeat", 0),
    69: ("ConsumerGroupDescribe", 0),
    70: ("ControllerRegistration", 0),
    71: ("GetTelemetrySubscriptions", 0),
    72: ("PushTelemetry", 0),
    74: ("ListConfigResources", 0),
    75: ("DescribeTopicPartitions", 0),
    76: ("ShareGroupHeartbeat", 1),
    77: ("ShareGroupDescribe", 1),
    78: ("ShareFetch", 1),
    79: ("ShareAcknowledge", 1),
    80: ("AddRaftVoter", 0),
    81: ("RemoveRaftVoter", 0),
    82: ("UpdateRaftVoter", 0),
    83: ("InitializeShareGroupState", 0),
    84: ("ReadShareGroupState", 0),
    85: ("WriteShareGroupState", 0),
    86: ("DeleteShareGroupState", 0),
    87: ("ReadShareGroupStateSummary", 0),
    90: ("DescribeShareGroupOffsets", 0),
    91: ("AlterShareGroupOffsets", 0),
    92: ("DeleteShareGroupOffsets", 0),
}
"""Name and first flexible version of every API, by key. Duplicated from the schemas, so that a header is read
without parsing any; a test compares the two."""

WITHOUT_SCHEMA: dict[int, str] = {
    4: "LeaderAndIsr",
    5: "StopReplica",
    6: "UpdateMetadata",
    7: "ControlledShutdown",
    73: "AssignReplicasToDirs",
    88: "StreamsGroupHeartbeat",
    89: "StreamsGroupDescribe",
    93: "StreamsGroupTopologyDescriptionUpdate",
    94: "UnregisterController",
}
"""Other keys of the protocol, past or present: known by name only."""

NAMES: dict[int, str] = {key: name for key, (name, _) in APIS.items()}
FLEXIBLE_FROM: dict[int, int] = {key: flexible_from for key, (_, flexible_from) in APIS.items()}


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int
    """The position of the request body in the frame."""


def decode_request_header(frame: Buffer) -> RequestHeader:
    """The header at the start of a frame (after the frame's length).

    The header of an unknown API is read as inflexible: its key and version are right, which is enough to refuse it.
    """
    end = len(frame)
    try:
        api_key, api_version, correlation_id, length = _FIXED.unpack_from(frame)
        position = _FIXED.size
        client_id = None
        if length >= 0:
            if length > end - position:
                raise runtime.beyond(length, end - position)
            client_id = str(frame[position : position + length], "utf-8")
            position += length
        elif length != -1:
            raise runtime.beyond(length, end - position)
        if api_version >= FLEXIBLE_FROM.get(api_key, NEVER):
            number = frame[position]
            position += 1
            if number:
                position, _ = runtime.skip_tags(memoryview(frame), position, end, number, runtime.HEADER_TAGS_MAX)
    except (runtime.Bad, struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"request header: {error}") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def encode_request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    tags = b"\0" if api_version >= FLEXIBLE_FROM.get(api_key, NEVER) else b""
    return _FIXED.pack(api_key, api_version, correlation_id, length) + name + tags


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    head = _CORRELATION.pack(correlation_id)
    return head + b"\0" if has_response_tags(api_key, api_version) else head


def has_response_tags(api_key: int, api_version: int) -> bool:
    return api_version >= FLEXIBLE_FROM.get(api_key, NEVER) and api_key != API_VERSIONS_KEY


def decode_response_header(frame: Buffer, api_key: int, api_version: int) -> tuple[int, int]:
    """The correlation id, and the position of the response body."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(frame)
        position = _CORRELATION.size
        if has_response_tags(api_key, api_version):
            number = frame[position]
            position += 1
            if number:
                position, _ = runtime.skip_tags(
                    memoryview(frame), position, len(frame), number, runtime.HEADER_TAGS_MAX
                )
    except (runtime.Bad, struct.error, IndexError) as error:
        raise MalformedMessage(f"response header: {error}") from None
    return correlation_id, position
