"""For every API a request, the permissions it needs, and its outcome: the table that the permission tests iterate
over.

A request is written as plain dictionaries. An admin has created what it names: a topic `pond` with records, a group
`crew` with offsets, a group `team` of the new protocol, and a transaction `tx` that is open in `pond`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.base.rights import CLUSTER_NAME, AclResource, Operation
from millpond.broker.authorization.required_rights import REFUSED
from millpond.wire import messages as m
from millpond.wire import notation
from millpond.wire.records import Record, encode_batch

Right = tuple[Operation, AclResource, str]

ANY: frozenset[int] | None = None
"""With permission the outcome depends on the state, which is not tested here."""

METADATA_TOPIC_ID = UUID(int=1)


def build(kind: type[m.Message], values: dict[str, Any]) -> Any:
    """A message from plain values: dictionaries become its structures."""
    return _filled(kind, kind, kind._schema.root, values)


def _filled(message: type[m.Message], kind: type[Any], struct: notation.Struct, values: dict[str, Any]) -> Any:
    fields = {each.name: each for each in struct.fields}
    made = {}
    for name, value in values.items():
        inner = fields[name].struct
        if inner is None or value is None:
            made[name] = value
        else:
            inner_kind = getattr(message, inner.name)
            if fields[name].is_array:
                made[name] = [_filled(message, inner_kind, inner, each) for each in value]
            else:
                made[name] = _filled(message, inner_kind, inner, value)
    return kind(**made)


@dataclass(frozen=True)
class Scene:
    """What exists when a client sends a request."""

    pond_id: UUID
    producer_id: int
    producer_epoch: int
    hmac: bytes = b""
    """Of a token that represents bob."""

    def batch(self, **fields: Any) -> bytes:
        return encode_batch([Record(0, 1_700_000_000_000, b"k", b"v")], **fields)


Values = Callable[[Scene], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One request. All `rights` are needed, in this order; or any one of `instead`."""

    key: int
    version: int
    values: Values
    rights: tuple[Right, ...]
    instead: tuple[Right, ...] = ()
    ok: frozenset[int] | None = frozenset({0})
    refused: Callable[[Any], bool] | None = None
    """How to recognize a refusal without an error code: something is left out."""
    code: ErrorCode | None = None
    """The code of a refusal, if it is not the resource's usual one."""
    title: str = ""
    is_first: bool = False
    """Whether it is sent to a node that has only its topics."""
    names: tuple[str, ...] = ("pond", "crew", "tx", "team")
    """Names in the request that must be indistinguishable from nonexistent ones."""
    with_token: bool = False
    """Whether it is about delegation tokens, which need a listener with a login."""
    is_for_nodes: bool = False
    """Whether the permission is not enough: the client has to be a node, on the nodes' listener."""
    also: tuple[Right, ...] = ()
    """Granted with the others; without them only parts of the response are missing."""

    @property
    def request(self) -> type[m.Message]:
        return m.request_class(self.key)

    @property
    def id(self) -> str:
        name = self.request.__name__.removesuffix("Request")
        return f"{name}-v{self.version}" + (f"-{self.title}" if self.title else "")


def code_of(case: Case, right: Right) -> ErrorCode:
    return case.code if case.code is not None else REFUSED[right[1]]


def codes_in(value: Any) -> Iterator[int]:
    """All error codes of a response."""
    if isinstance(value, list):
        for each in value:
            yield from codes_in(each)
    elif hasattr(value, "_names"):
        for name in value._names:
            if name.endswith("error_code"):
                yield getattr(value, name)
            else:
                yield from codes_in(getattr(value, name))


def on(operation: Operation, resource: AclResource, name: str) -> Right:
    return operation, resource, name


Op, A = Operation, AclResource
READ_POND = on(Op.READ, A.TOPIC, "pond")
WRITE_POND = on(Op.WRITE, A.TOPIC, "pond")
SEE_POND = on(Op.DESCRIBE, A.TOPIC, "pond")
READ_CREW = on(Op.READ, A.GROUP, "crew")
SEE_CREW = on(Op.DESCRIBE, A.GROUP, "crew")
WRITE_TX = on(Op.WRITE, A.TRANSACTIONAL_ID, "tx")
SEE_TX = on(Op.DESCRIBE, A.TRANSACTIONAL_ID, "tx")


def cluster(operation: Operation) -> Right:
    return operation, A.CLUSTER, CLUSTER_NAME


ACT = (cluster(Op.CLUSTER_ACTION),)
ALTER = (cluster(Op.ALTER),)
LOOK = (cluster(Op.DESCRIBE),)
NO_NAME: tuple[str, ...] = ()

NO_SUCH_GROUP = frozenset({int(ErrorCode.GROUP_ID_NOT_FOUND)})
"""The group is of another kind."""
UNKNOWN_MEMBER = frozenset({int(ErrorCode.UNKNOWN_MEMBER_ID)})


def always(**values: Any) -> Values:
    return lambda _: values


def _produce(**named: Any) -> dict[str, Any]:
    return {"acks": -1, "timeout_ms": 1000, **named}


def _of_member(**fields: Any) -> dict[str, Any]:
    epoch = 0 if fields else 1
    return {"group_id": "crew", "member_id": "m", "share_session_epoch": epoch, **fields}


def _fetch(topic: dict[str, Any], **others: Any) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000, "current_leader_epoch": -1}
    return {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1000,
        "session_epoch": -1,
        "topics": [{**topic, "partitions": [partition]}],
        **others,
    }


def _data(scene: Scene, **fields: Any) -> list[dict[str, Any]]:
    return [{"index": 0, "records": memoryview(bytearray(scene.batch(**fields)))}]


def _transactional(scene: Scene) -> list[dict[str, Any]]:
    return _data(
        scene,
        producer_id=scene.producer_id,
        producer_epoch=scene.producer_epoch,
        base_sequence=0,
        transactional=True,
    )


ACL = {
    "resource_type": 2,
    "resource_name": "pond",
    "resource_pattern_type": 3,
    "principal": "User:bob",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ACL_FILTER = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
COMMITTED = [{"name": "pond", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
SETTING = {"name": "retention.ms", "value": "12345"}
NODE_SETTING = {"name": "log.cleaner.backoff.ms", "value": "12345"}
GROUP_SETTING = {"name": "consumer.session.timeout.ms", "value": "50000"}
LETTERS_SETTING = {"name": "errors.deadletterqueue.topic.name", "value": "pond"}
SET = {"config_operation": 0}
METADATA_TOPIC = "__cluster_metadata"
LEADS = [
    {
        "topic_name": METADATA_TOPIC,
        "partitions": [{"partition_index": 0, "leader_id": 2, "leader_epoch": 999}],
    }
]
"""A stranger claims to lead the metadata."""


def _share_state(scene: Scene, partition: dict[str, Any]) -> dict[str, Any]:
    return {"group_id": "crew", "topics": [{"topic_id": scene.pond_id, "partitions": [partition]}]}


CASES: tuple[Case, ...] = (
    Case(
        0,
        9,
        lambda scene: _produce(topic_data=[{"name": "pond", "partition_data": _data(scene)}]),
        (WRITE_POND,),
    ),
    Case(
        0,
        13,
        lambda scene: _produce(topic_data=[{"topic_id": scene.pond_id, "partition_data": _data(scene)}]),
        (WRITE_POND,),
        title="by id",
        names=NO_NAME,
    ),
    Case(
        0,
        11,
        lambda scene: _produce(
            transactional_id="tx", topic_data=[{"name": "pond", "partition_data": _transactional(scene)}]
        ),
        (WRITE_TX, WRITE_POND),
        title="in a transaction",
    ),
    Case(1, 12, lambda _: _fetch({"topic": "pond"}), (READ_POND,)),
    Case(1, 17, lambda scene: _fetch({"topic_id": scene.pond_id}), (READ_POND,), title="by id", names=NO_NAME),
    Case(
        1,
        17,
        lambda scene: _fetch({"topic_id": scene.pond_id}, replica_state={"replica_id": 2, "replica_epoch": 1}),
        ACT,
        is_for_nodes=True,
        ok=ANY,
        code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        title="as a replica",
        names=NO_NAME,
    ),
    Case(
        1,
        12,
        lambda _: _fetch({"topic": "pond"}, replica_id=2),
        ACT,
        is_for_nodes=True,
        ok=ANY,
        code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        title="as an old replica",
    ),
    Case(
        1,
        17,
        lambda _: _fetch({"topic_id": METADATA_TOPIC_ID}, replica_state={"replica_id": 2, "replica_epoch": 1}),
        ACT,
        is_for_nodes=True,
        ok=ANY,
        title="of the metadata",
        names=NO_NAME,
    ),
    Case(
        2,
        9,
        always(replica_id=-1, topics=[{"name": "pond", "partitions": [{"partition_index": 0, "timestamp": -1}]}]),
        (SEE_POND,),
    ),
    Case(3, 9, always(topics=[{"name": "pond"}], allow_auto_topic_creation=False), (SEE_POND,)),
    Case(
        3,
        12,
        lambda scene: {"topics": [{"name": None, "topic_id": scene.pond_id}]},
        (SEE_POND,),
        title="by id",
        names=NO_NAME,
    ),
    Case(
        3,
        9,
        always(topics=None),
        (SEE_POND,),
        refused=lambda reply: reply.topics == [],
        title="all",
        names=NO_NAME,
    ),
    Case(
        3,
        0,
        always(topics=[]),
        (SEE_POND,),
        refused=lambda reply: reply.topics == [],
        title="all",
        names=NO_NAME,
    ),
    Case(
        3,
        9,
        always(topics=[{"name": "lake"}], allow_auto_topic_creation=True),
        (on(Op.DESCRIBE, A.TOPIC, "lake"), on(Op.CREATE, A.TOPIC, "lake")),
        title="a new one",
        names=NO_NAME,
    ),
    Case(
        8,
        8,
        always(group_id="crew", generation_id_or_member_epoch=-1, topics=COMMITTED),
        (READ_CREW, READ_POND),
    ),
    Case(
        8,
        10,
        lambda scene: {
            "group_id": "crew",
            "generation_id_or_member_epoch": -1,
            "topics": [
                {"topic_id": scene.pond_id, "partitions": [{"partition_index": 0, "committed_offset": 1}]},
            ],
        },
        (READ_CREW, READ_POND),
        title="by id",
        names=("crew",),
    ),
    Case(9, 7, always(group_id="crew", topics=[{"name": "pond", "partition_indexes": [0]}]), (SEE_CREW, SEE_POND)),
    Case(
        9,
        1,
        always(group_id="crew", topics=[{"name": "pond", "partition_indexes": [0]}]),
        (SEE_CREW, SEE_POND),
    ),
    Case(
        9,
        8,
        always(groups=[{"group_id": "crew", "topics": [{"name": "pond", "partition_indexes": [0]}]}]),
        (SEE_CREW, SEE_POND),
    ),
    Case(
        9,
        10,
        lambda scene: {
            "groups": [{"group_id": "crew", "topics": [{"topic_id": scene.pond_id, "partition_indexes": [0]}]}]
        },
        (SEE_CREW, SEE_POND),
        title="by id",
        names=("crew",),
    ),
    Case(10, 4, always(key_type=0, coordinator_keys=["crew"]), (SEE_CREW,), is_first=True),
    Case(10, 3, always(key_type=0, key="crew"), (SEE_CREW,), is_first=True),
    Case(10, 4, always(key_type=1, coordinator_keys=["tx"]), (SEE_TX,), title="transaction", is_first=True),
    Case(
        10,
        6,
        always(key_type=2, coordinator_keys=["share"]),
        ACT,
        ok=ANY,
        title="share group",
        is_first=True,
    ),
    Case(
        11,
        5,
        always(
            group_id="crew",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        ),
        (READ_CREW,),
        ok=frozenset({int(ErrorCode.MEMBER_ID_REQUIRED)}),
    ),
    Case(12, 4, always(group_id="crew", generation_id=1, member_id="m"), (READ_CREW,), ok=UNKNOWN_MEMBER),
    Case(
        13,
        4,
        always(group_id="crew", members=[{"member_id": "m"}]),
        (READ_CREW,),
        ok=UNKNOWN_MEMBER,
    ),
    Case(14, 4, always(group_id="crew", generation_id=1, member_id="m"), (READ_CREW,), ok=UNKNOWN_MEMBER),
    Case(15, 5, always(groups=["crew"], include_authorized_operations=True), (SEE_CREW,)),
    Case(
        16,
        4,
        always(),
        (SEE_CREW,),
        instead=LOOK,
        refused=lambda reply: reply.groups == [],
        names=NO_NAME,
    ),
    Case(17, 1, always(mechanism="SCRAM-SHA-512"), (), ok=ANY),
    Case(18, 3, always(client_software_name="a", client_software_version="1"), ()),
    Case(
        19,
        7,
        always(topics=[{"name": "lake", "num_partitions": 1, "replication_factor": 1}], timeout_ms=1000),
        (on(Op.CREATE, A.TOPIC, "lake"),),
        also=(on(Op.DESCRIBE_CONFIGS, A.TOPIC, "lake"),),
        instead=(cluster(Op.CREATE),),
        names=NO_NAME,
    ),
    Case(20, 4, always(topic_names=["pond"], timeout_ms=1000), (on(Op.DELETE, A.TOPIC, "pond"),)),
    Case(
        20,
        6,
        always(topics=[{"name": "pond"}], timeout_ms=1000),
        (on(Op.DELETE, A.TOPIC, "pond"),),
        instead=(cluster(Op.DELETE),),
    ),
    Case(
        20,
        6,
        lambda scene: {"topics": [{"name": None, "topic_id": scene.pond_id}], "timeout_ms": 1000},
        (on(Op.DELETE, A.TOPIC, "pond"),),
        title="by id",
        names=NO_NAME,
    ),
    Case(
        21,
        2,
        always(topics=[{"name": "pond", "partitions": [{"partition_index": 0, "offset": 1}]}], timeout_ms=1000),
        (on(Op.DELETE, A.TOPIC, "pond"),),
    ),
    Case(
        22,
        4,
        always(transactional_id="tx", transaction_timeout_ms=1000),
        (WRITE_TX,),
        ok=ANY,
        title="transactional",
    ),
    Case(
        22,
        4,
        always(transactional_id=None, transaction_timeout_ms=0),
        (cluster(Op.IDEMPOTENT_WRITE),),
        instead=(WRITE_POND, on(Op.WRITE, A.TOPIC, "no such topic")),
        names=NO_NAME,
    ),
    Case(
        23,
        4,
        always(
            replica_id=-1,
            topics=[{"topic": "pond", "partitions": [{"partition": 0, "current_leader_epoch": -1}]}],
        ),
        (SEE_POND,),
        instead=ACT,
    ),
    Case(
        24,
        3,
        lambda scene: {
            "v3_and_below_transactional_id": "tx",
            "v3_and_below_producer_id": scene.producer_id,
            "v3_and_below_producer_epoch": scene.producer_epoch,
            "v3_and_below_topics": [{"name": "weir", "partitions": [0]}],
        },
        (WRITE_TX, on(Op.WRITE, A.TOPIC, "weir")),
        names=("tx", "weir"),
    ),
    Case(
        24,
        4,
        lambda scene: {
            "transactions": [
                {
                    "transactional_id": "tx",
                    "producer_id": scene.producer_id,
                    "producer_epoch": scene.producer_epoch,
                    "topics": [{"name": "weir", "partitions": [0]}],
                }
            ]
        },
        ACT,
        is_for_nodes=True,
        ok=ANY,
    ),
    Case(
        25,
        3,
        lambda scene: {
            "transactional_id": "tx",
            "producer_id": scene.producer_id,
            "producer_epoch": scene.producer_epoch,
            "group_id": "crew",
        },
        (WRITE_TX, READ_CREW),
    ),
    Case(
        26,
        3,
        lambda scene: {
            "transactional_id": "tx",
            "producer_id": scene.producer_id,
            "producer_epoch": scene.producer_epoch,
            "committed": True,
        },
        (WRITE_TX,),
    ),
    Case(
        27,
        1,
        lambda scene: {
            "markers": [
                {
                    "producer_id": scene.producer_id,
                    "producer_epoch": scene.producer_epoch,
                    "transaction_result": False,
                    "topics": [{"name": "pond", "partition_indexes": [0]}],
                    "coordinator_epoch": 0,
                }
            ]
        },
        ALTER,
        ok=ANY,
    ),
    Case(
        28,
        3,
        lambda scene: {
            "transactional_id": "tx",
            "group_id": "crew",
            "producer_id": scene.producer_id,
            "producer_epoch": scene.producer_epoch,
            "generation_id": -1,
            "topics": COMMITTED,
        },
        (WRITE_TX, READ_CREW, READ_POND),
        ok=ANY,
    ),
    Case(
        28,
        6,
        lambda scene: {
            "transactional_id": "tx",
            "group_id": "crew",
            "producer_id": scene.producer_id,
            "producer_epoch": scene.producer_epoch,
            "generation_id": -1,
            "topics": [
                {"topic_id": scene.pond_id, "partitions": [{"partition_index": 0, "committed_offset": 1}]},
            ],
        },
        (WRITE_TX, READ_CREW, READ_POND),
        title="by id",
        names=("tx", "crew"),
    ),
    Case(29, 3, always(**ACL_FILTER), LOOK, names=NO_NAME),
    Case(30, 3, always(creations=[ACL]), ALTER, names=NO_NAME),
    Case(31, 3, always(filters=[ACL_FILTER | {"principal_filter": "User:carol"}]), ALTER, names=NO_NAME),
    Case(
        32,
        4,
        always(resources=[{"resource_type": 2, "resource_name": "pond", "configuration_keys": None}]),
        (on(Op.DESCRIBE_CONFIGS, A.TOPIC, "pond"),),
    ),
    Case(
        32,
        4,
        always(resources=[{"resource_type": 4, "resource_name": "1", "configuration_keys": None}]),
        (cluster(Op.DESCRIBE_CONFIGS),),
        title="of a node",
    ),
    Case(
        32,
        4,
        always(resources=[{"resource_type": 8, "resource_name": "1", "configuration_keys": None}]),
        (cluster(Op.DESCRIBE_CONFIGS),),
        title="of loggers",
    ),
    Case(
        32,
        4,
        always(resources=[{"resource_type": 16, "resource_name": "metrics", "configuration_keys": None}]),
        (cluster(Op.DESCRIBE_CONFIGS),),
        title="of client metrics",
    ),
    Case(
        32,
        4,
        always(resources=[{"resource_type": 32, "resource_name": "crew", "configuration_keys": None}]),
        (on(Op.DESCRIBE_CONFIGS, A.GROUP, "crew"),),
        title="of a group",
    ),
    Case(
        33,
        2,
        always(resources=[{"resource_type": 2, "resource_name": "pond", "configs": [SETTING]}]),
        (on(Op.ALTER_CONFIGS, A.TOPIC, "pond"),),
    ),
    Case(
        33,
        2,
        always(resources=[{"resource_type": 4, "resource_name": "", "configs": [NODE_SETTING]}]),
        (cluster(Op.ALTER_CONFIGS),),
        title="of all nodes",
    ),
    Case(
        44,
        1,
        always(resources=[{"resource_type": 2, "resource_name": "pond", "configs": [SETTING | SET]}]),
        (on(Op.ALTER_CONFIGS, A.TOPIC, "pond"),),
    ),
    Case(
        44,
        1,
        always(resources=[{"resource_type": 4, "resource_name": "", "configs": [NODE_SETTING | SET]}]),
        (cluster(Op.ALTER_CONFIGS),),
        title="of all nodes",
    ),
    Case(
        44,
        1,
        always(
            resources=[
                {"resource_type": 8, "resource_name": "1", "configs": [{"name": "root", "value": "DEBUG"} | SET]}
            ]
        ),
        (cluster(Op.ALTER_CONFIGS),),
        ok=ANY,
        title="of loggers",
    ),
    Case(
        44,
        1,
        always(resources=[{"resource_type": 32, "resource_name": "crew", "configs": [GROUP_SETTING | SET]}]),
        (on(Op.ALTER_CONFIGS, A.GROUP, "crew"),),
        title="of a group",
    ),
    Case(
        44,
        1,
        always(resources=[{"resource_type": 32, "resource_name": "crew", "configs": [LETTERS_SETTING | SET]}]),
        (on(Op.ALTER_CONFIGS, A.GROUP, "crew"), on(Op.WRITE, A.TOPIC, "pond")),
        title="of the dead-letter topic of a group",
    ),
    Case(
        33,
        2,
        always(resources=[{"resource_type": 32, "resource_name": "crew", "configs": [LETTERS_SETTING]}]),
        (on(Op.ALTER_CONFIGS, A.GROUP, "crew"), on(Op.WRITE, A.TOPIC, "pond")),
        title="of the dead-letter topic of a group",
    ),
    Case(35, 4, always(topics=None), LOOK, names=NO_NAME),
    Case(36, 2, always(auth_bytes=b"n,,n=alice,r=abc"), (), ok=ANY),
    Case(
        38,
        3,
        always(owner_principal_type="User", owner_principal_name="bob", renewers=[], max_lifetime_ms=60_000),
        (on(Op.CREATE_TOKENS, A.USER, "User:bob"),),
        names=NO_NAME,
        with_token=True,
    ),
    Case(
        39,
        2,
        lambda scene: {"hmac": scene.hmac, "renew_period_ms": 60_000},
        (),
        ok=frozenset({int(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)}),
        with_token=True,
    ),
    Case(
        40,
        2,
        lambda scene: {"hmac": scene.hmac, "expiry_time_period_ms": -1},
        (),
        ok=frozenset({int(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)}),
        with_token=True,
    ),
    Case(
        41,
        3,
        always(owners=None),
        (on(Op.DESCRIBE_TOKENS, A.USER, "User:bob"),),
        refused=lambda reply: reply.tokens == [],
        names=NO_NAME,
        with_token=True,
    ),
    Case(
        37,
        3,
        always(topics=[{"name": "pond", "count": 3, "assignments": None}], timeout_ms=1000),
        (on(Op.ALTER, A.TOPIC, "pond"),),
    ),
    Case(42, 3, always(groups_names=["crew"]), (on(Op.DELETE, A.GROUP, "crew"),)),
    Case(
        43,
        2,
        always(election_type=0, topic_partitions=[{"topic": "pond", "partitions": [0]}], timeout_ms=1000),
        ALTER,
        ok=frozenset({int(ErrorCode.ELECTION_NOT_NEEDED)}),
    ),
    Case(
        45,
        0,
        always(topics=[{"name": "pond", "partitions": [{"partition_index": 0, "replicas": [1]}]}], timeout_ms=1000),
        ALTER,
    ),
    Case(46, 0, always(topics=None, timeout_ms=1000), LOOK, names=NO_NAME),
    Case(
        47,
        0,
        always(group_id="crew", topics=[{"name": "pond", "partitions": [{"partition_index": 0}]}]),
        (on(Op.DELETE, A.GROUP, "crew"), READ_POND),
    ),
    Case(
        48,
        1,
        always(components=[{"entity_type": "user", "match_type": 0, "match": "bob"}], strict=False),
        (cluster(Op.DESCRIBE_CONFIGS),),
        names=NO_NAME,
    ),
    Case(
        49,
        1,
        always(
            entries=[
                {
                    "entity": [{"entity_type": "user", "entity_name": "bob"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}],
                }
            ],
            validate_only=False,
        ),
        (cluster(Op.ALTER_CONFIGS),),
        names=NO_NAME,
    ),
    Case(
        50,
        0,
        always(users=[{"name": "nobody"}]),
        LOOK,
        ok=frozenset({int(ErrorCode.RESOURCE_NOT_FOUND)}),
        names=NO_NAME,
    ),
    Case(
        51,
        0,
        always(
            deletions=[],
            upsertions=[
                {
                    "name": "bob",
                    "mechanism": 2,
                    "iterations": 4096,
                    "salt": b"salt",
                    "salted_password": b"p" * 64,
                }
            ],
        ),
        ALTER,
        names=NO_NAME,
    ),
    Case(
        52,
        1,
        always(
            cluster_id=None,
            topics=[
                {
                    "topic_name": METADATA_TOPIC,
                    "partitions": [{"partition_index": 0, "replica_epoch": 999, "replica_id": 2}],
                }
            ],
        ),
        ACT,
        is_for_nodes=True,
        ok=ANY,
        names=NO_NAME,
    ),
    Case(53, 1, always(cluster_id=None, topics=LEADS), ACT, is_for_nodes=True, ok=ANY, names=NO_NAME),
    Case(54, 1, always(cluster_id=None, topics=LEADS), ACT, is_for_nodes=True, ok=ANY, names=NO_NAME),
    Case(55, 1, always(topics=[]), LOOK, ok=ANY, names=NO_NAME),
    Case(56, 3, always(broker_id=2, broker_epoch=7, topics=[]), ACT, is_for_nodes=True, ok=ANY, names=NO_NAME),
    Case(
        57,
        1,
        always(
            feature_updates=[{"feature": "group.version", "max_version_level": 0, "upgrade_type": 3}],
            timeout_ms=1000,
        ),
        ALTER,
        names=NO_NAME,
    ),
    Case(
        58,
        0,
        always(request_data=b"\0\x12\0\0\0\0\0\1\xff\xff", request_principal=b"0User:admin", client_host_address=b""),
        ACT,
        ok=None,
        code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        is_for_nodes=True,
        names=NO_NAME,
    ),
    Case(
        59,
        1,
        always(topics=[{"name": METADATA_TOPIC, "partitions": [{"partition": 0, "current_leader_epoch": 1}]}]),
        ACT,
        is_for_nodes=True,
        ok=ANY,
        names=NO_NAME,
    ),
    Case(60, 1, always(include_cluster_authorized_operations=True), (), names=NO_NAME),
    Case(61, 0, always(topics=[{"name": "pond", "partition_indexes": [0]}]), (READ_POND,)),
    Case(
        62,
        4,
        always(
            broker_id=2,
            cluster_id="",
            incarnation_id=UUID(int=5),
            listeners=[{"name": "PLAINTEXT", "host": "evil", "port": 9092, "security_protocol": 0}],
            previous_broker_epoch=-1,
        ),
        ACT,
        is_for_nodes=True,
        ok=ANY,
        names=NO_NAME,
    ),
    Case(63, 1, always(broker_id=2, broker_epoch=7), ACT, is_for_nodes=True, ok=ANY, names=NO_NAME),
    Case(64, 0, always(broker_id=7), ALTER, ok=ANY, names=NO_NAME),
    Case(65, 0, always(transactional_ids=["tx"]), (SEE_TX,)),
    Case(
        66,
        0,
        always(),
        (SEE_TX,),
        refused=lambda reply: reply.transaction_states == [],
        names=NO_NAME,
    ),
    Case(67, 0, always(broker_id=1, broker_epoch=0), ACT, is_for_nodes=True, ok=ANY, names=NO_NAME),
    Case(
        68,
        0,
        always(
            group_id="crew",
            member_id="",
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=["pond"],
            topic_partitions=[],
        ),
        (READ_CREW, SEE_POND),
    ),
    Case(69, 0, always(group_ids=["team"]), (on(Op.DESCRIBE, A.GROUP, "team"), SEE_POND)),
    Case(71, 0, always(), (), ok=ANY),
    Case(72, 0, always(), (), ok=ANY),
    Case(74, 1, always(resource_types=[]), (cluster(Op.DESCRIBE_CONFIGS),), names=NO_NAME),
    Case(75, 0, always(topics=[{"name": "pond"}], response_partition_limit=10), (SEE_POND,)),
    Case(
        75,
        0,
        always(topics=[], response_partition_limit=10),
        (SEE_POND,),
        refused=lambda reply: reply.topics == [],
        title="all",
        names=NO_NAME,
    ),
    Case(
        76,
        1,
        always(group_id="crew", member_id=str(UUID(int=9)), member_epoch=0, subscribed_topic_names=["pond"]),
        (READ_CREW, SEE_POND),
        ok=NO_SUCH_GROUP,
    ),
    Case(77, 1, always(group_ids=["crew"]), (SEE_CREW,), ok=NO_SUCH_GROUP),
    Case(
        78,
        2,
        lambda scene: _of_member(
            max_wait_ms=0,
            max_bytes=1000,
            max_records=10,
            topics=[{"topic_id": scene.pond_id, "partitions": [{"partition_index": 0}]}],
        ),
        (READ_CREW, READ_POND),
    ),
    Case(79, 2, lambda _: _of_member(), (READ_CREW,), ok={ErrorCode.SHARE_SESSION_NOT_FOUND}, names=NO_NAME),
    Case(
        80,
        0,
        always(voter_id=2, voter_directory_id=UUID(int=3), timeout_ms=1000),
        ALTER,
        ok=ANY,
        names=NO_NAME,
    ),
    Case(81, 0, always(voter_id=2, voter_directory_id=UUID(int=3)), ALTER, ok=ANY, names=NO_NAME),
    Case(82, 0, always(voter_id=2, voter_directory_id=UUID(int=3)), ACT, is_for_nodes=True, ok=ANY, names=NO_NAME),
    Case(
        83,
        0,
        lambda scene: _share_state(scene, {"partition": 0, "state_epoch": 1, "start_offset": 0}),
        ACT,
        is_for_nodes=True,
        ok=ANY,
        names=NO_NAME,
    ),
    Case(
        84,
        0,
        lambda scene: _share_state(scene, {"partition": 0, "leader_epoch": 1}),
        ACT,
        is_for_nodes=True,
        ok=ANY,
        names=NO_NAME,
    ),
    Case(
        85,
        0,
        lambda scene: _share_state(
            scene, {"partition": 0, "state_epoch": 1, "leader_epoch": 1, "start_offset": 0, "state_batches": []}
        ),
        ACT,
        is_for_nodes=True,
        ok=ANY,
        names=NO_NAME,
    ),
    Case(
        86,
        0,
        lambda scene: _share_state(scene, {"partition": 0}),
        ACT,
        is_for_nodes=True,
        ok=ANY,
        names=NO_NAME,
    ),
    Case(
        87,
        0,
        lambda scene: _share_state(scene, {"partition": 0, "leader_epoch": 1}),
        ACT,
        is_for_nodes=True,
        ok=ANY,
        names=NO_NAME,
    ),
    Case(
        90,
        0,
        always(groups=[{"group_id": "crew", "topics": [{"topic_name": "pond", "partitions": [0]}]}]),
        (SEE_CREW, SEE_POND),
    ),
    Case(
        91,
        0,
        always(
            group_id="crew",
            topics=[{"topic_name": "pond", "partitions": [{"partition_index": 0, "start_offset": 0}]}],
        ),
        (READ_CREW, READ_POND),
        ok=NO_SUCH_GROUP,
    ),
    Case(
        92,
        0,
        always(group_id="crew", topics=[{"topic_name": "pond"}]),
        (on(Op.DELETE, A.GROUP, "crew"), READ_POND),
        ok=NO_SUCH_GROUP,
    ),
)
