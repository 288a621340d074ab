"""Every API: without permission it is refused as in Kafka and changes nothing; with permission it works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.support.rights_cases import CASES, Case, Right, Scene, build, code_of, codes_in

from millpond.base.errors import ErrorCode
from millpond.base.principal import Principal
from millpond.base.rights import CLUSTER_NAME, AclResource, Operation, PatternType, Permission
from millpond.broker.apis import APIS
from millpond.broker.authorization.required_rights import FREE, REFUSED
from millpond.broker.metrics.page import PageMaker
from millpond.config.listeners import SecurityProtocol
from millpond.config.security import STANDARD_AUTHORIZER
from millpond.metadata.snapshot import records_of
from millpond.wire import messages as m

ADMIN, ALICE = Principal("User", "admin"), Principal("User", "alice")
TEXTS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "delegation.token.secret.key": "hush",
}
FORBIDDEN = set(REFUSED.values())
ELSEWHERE = {"pond": "pund", "crew": "crow", "tx": "ty", "team": "teem", "weir": "wair"}
"""Names of the same length that nothing has."""


class AclNode:
    """A node with an authorizer, and the resources that the cases use."""

    def __init__(self, server: Any, *, is_first: bool = False, with_token: bool = False) -> None:
        self.server = server
        self.admin = self.caller(ADMIN)
        self.alice = self.caller(ALICE)
        pond = server.create("pond")
        server.create("weir")
        self.scene = Scene(server.broker.image.topics["pond"].id, -1, -1)
        self.ask(self.admin, 0, 9, {"acks": 1, "topic_data": [self._to_pond()]})
        assert pond.log.end_offset == 1
        if with_token:
            self._make_token()
        elif not is_first:
            self._populate()

    def caller(self, principal: Principal) -> Any:
        caller = self.server.connect()
        caller.connection.principal = principal
        return caller

    def ask(self, caller: Any, key: int, version: int, values: dict[str, Any]) -> Any:
        return caller.ask(build(m.request_class(key), values), version, within_ms=5000)

    def _to_pond(self) -> dict[str, Any]:
        records = memoryview(bytearray(self.scene.batch()))
        return {"name": "pond", "partition_data": [{"index": 0, "records": records}]}

    def _populate(self) -> None:
        for kind, key in ((0, "crew"), (1, "tx")):
            self.settled(10, 4, {"key_type": kind, "coordinator_keys": [key]})
        committed = {"partition_index": 0, "committed_offset": 1}
        topics = [{"name": "pond", "partitions": [committed]}]
        self.settled(8, 8, {"group_id": "crew", "generation_id_or_member_epoch": -1, "topics": topics})
        session = self.settled(22, 4, {"transactional_id": "tx", "transaction_timeout_ms": 60_000})
        self.scene = Scene(self.scene.pond_id, session.producer_id, session.producer_epoch)
        adds = {
            "v3_and_below_transactional_id": "tx",
            "v3_and_below_producer_id": session.producer_id,
            "v3_and_below_producer_epoch": session.producer_epoch,
            "v3_and_below_topics": [{"name": "pond", "partitions": [0]}],
        }
        self.settled(24, 3, adds)
        joins = {
            "group_id": "team",
            "member_epoch": 0,
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": ["pond"],
            "topic_partitions": [],
        }
        self.settled(68, 0, joins)

    def _make_token(self) -> None:
        for caller in (self.admin, self.alice):
            caller.connection.protocol = SecurityProtocol.SASL_SSL
        wanted = {"owner_principal_type": "User", "owner_principal_name": "bob", "max_lifetime_ms": 60_000}
        made = self.settled(38, 3, wanted | {"renewers": []})
        self.scene = Scene(self.scene.pond_id, -1, -1, hmac=made.hmac)

    def settled(self, key: int, version: int, values: dict[str, Any]) -> Any:
        """The admin's response, once there is one without an error."""
        for _ in range(50):
            reply = self.ask(self.admin, key, version, values)
            if not any(codes_in(reply)):
                return reply
            self.server.run(100)
        raise AssertionError(reply)

    # Permissions.

    def grant(self, *rights: Right, permission: Permission = Permission.ALLOW) -> None:
        creations = [
            {
                "resource_type": resource,
                "resource_name": name,
                "resource_pattern_type": PatternType.LITERAL,
                "principal": str(ALICE),
                "host": "*",
                "operation": operation,
                "permission_type": permission,
            }
            for operation, resource, name in rights
        ]
        reply = self.ask(self.admin, 30, 3, {"creations": creations})
        assert not any(codes_in(reply)), reply

    def take_all(self) -> None:
        every = {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": str(ALICE),
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
        reply = self.ask(self.admin, 31, 3, {"filters": [every]})
        assert not any(codes_in(reply)), reply

    def only(self, *rights: Right) -> None:
        self.take_all()
        if rights:
            self.grant(*rights)

    # State.

    def state(self) -> Any:
        """Everything that a request could change, except the ACLs that the test itself changes."""
        broker = self.server.broker
        kept = [each for each in records_of(broker.image) if "AccessControl" not in type(each).__name__]
        logs = {str(each.name): (each.log.start_offset, each.log.end_offset) for each in broker.partitions}
        groups = [group for home in broker.groups.shard_hosts() for group in home.shard.list_groups([], [])]
        loggers = [(each.setting.name, each.text) for each in broker.loggers.settings()]
        quorum = broker.controller.host.epoch, broker.controller.leader_id, broker.controller.voters()
        return kept, logs, repr(groups), loggers, quorum, broker.controller.kraft_version


@pytest.fixture
def make_authz(make_server: Callable[..., Any]) -> Callable[..., AclNode]:
    return lambda **options: AclNode(make_server(dict(TEXTS)), **options)


def refused_with(case: Case, reply: Any, code: ErrorCode) -> bool:
    codes = {each for each in codes_in(reply) if each}
    if case.refused is not None:
        return not codes and case.refused(reply)
    return codes == {int(code)}


def with_other_names(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {key: with_other_names(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [with_other_names(each, names) for each in value]
    return ELSEWHERE[value] if isinstance(value, str) and value in names else value


def test_every_api_has_a_case_and_a_rule() -> None:
    assert {api.key for api in APIS} <= {case.key for case in CASES}
    free = {api.name for api in APIS if api.rights is FREE}
    login = {"SaslHandshake", "SaslAuthenticate"}
    assert free - login == {"ApiVersions", "GetTelemetrySubscriptions", "PushTelemetry"}
    unneedy = {api.name for api in APIS if not api.rights.needs}
    assert unneedy - free == {"RenewDelegationToken", "ExpireDelegationToken"}, "whose token it is decides"


SERVED = {api.key for api in APIS}
HERE = [case for case in CASES if case.key in SERVED]


@pytest.mark.parametrize("case", HERE, ids=lambda case: case.id)
def test_it_is_refused_without_a_right_and_works_with_it(case: Case, make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz(is_first=case.is_first, with_token=case.with_token)
    values = case.values(authz.scene)

    def ask(named: dict[str, Any] = values) -> Any:
        return authz.ask(authz.alice, case.key, case.version, named)

    before = authz.state()
    missing = [(right, [each for each in case.rights if each is not right]) for right in case.rights]
    if case.rights:
        reply = ask()
        assert refused_with(case, reply, code_of(case, case.rights[0])), f"without any right: {reply}"
        assert authz.state() == before, "a refused request has changed something"
    for right, others in missing:
        authz.only(*others, *case.also)
        reply = ask()
        assert refused_with(case, reply, code_of(case, right)), f"without {right}: {reply}"
        assert authz.state() == before, "a refused request has changed something"
    if case.rights:
        authz.only(*case.rights, *case.also)
        authz.grant(case.rights[-1], permission=Permission.DENY)
        reply = ask()
        assert refused_with(case, reply, code_of(case, case.rights[-1])), f"denied: {reply}"
        assert authz.state() == before, "a denied request has changed something"
    named = with_other_names(values, case.names)
    if case.rights and named != values:
        authz.take_all()
        seen, unseen = (ask(each).encode(case.version) for each in (values, named))
        for name in case.names:
            seen = seen.replace(name.encode(), ELSEWHERE[name].encode())
        assert seen == unseen, "one can tell what exists"
    authz.only(*case.rights, *case.also)
    reply = ask()
    codes = set(codes_in(reply))
    if case.is_for_nodes:
        assert refused_with(case, reply, code_of(case, case.rights[0])), f"who is no node: {reply}"
        return
    assert not codes & FORBIDDEN, reply
    assert case.refused is None or not case.refused(reply), reply
    if case.ok is not None:
        assert codes <= case.ok | {0}, reply
        assert not case.ok - {0} or codes & case.ok, reply


@pytest.mark.parametrize("case", [case for case in HERE if case.instead], ids=lambda case: case.id)
def test_one_right_does_for_another(case: Case, make_authz: Callable[..., AclNode]) -> None:
    for right in case.instead:
        authz = make_authz(is_first=case.is_first, with_token=case.with_token)
        authz.only(right, *case.also)
        reply = authz.ask(authz.alice, case.key, case.version, case.values(authz.scene))
        assert not set(codes_in(reply)) & FORBIDDEN, reply
        assert case.refused is None or not case.refused(reply), reply


@pytest.mark.parametrize("case", HERE, ids=lambda case: case.id)
def test_a_super_user_may_do_everything(case: Case, make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz(is_first=case.is_first, with_token=case.with_token)
    if case.is_for_nodes:
        authz.admin.client_id = "millpond-node-2"
    reply = authz.ask(authz.admin, case.key, case.version, case.values(authz.scene))
    assert not set(codes_in(reply)) & FORBIDDEN, reply


# Cases with more than one request or resource.


def test_of_several_topics_only_those_that_may_be_seen_are_answered(make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz()
    authz.only((Operation.DESCRIBE, AclResource.TOPIC, "weir"))
    wanted = [{"name": name} for name in ("pond", "weir", "none")]
    reply = authz.ask(authz.alice, 3, 9, {"topics": wanted, "allow_auto_topic_creation": False})
    codes = {topic.name: topic.error_code for topic in reply.topics}
    assert codes == {"pond": 29, "weir": 0, "none": 29}
    everything = authz.ask(authz.alice, 3, 9, {"topics": None})
    assert [topic.name for topic in everything.topics] == ["weir"]
    partitions = [{"partition_index": 0, "timestamp": -1}]
    topics = [{"name": name, "partitions": partitions} for name in ("pond", "weir")]
    listed = authz.ask(authz.alice, 2, 9, {"replica_id": -1, "topics": topics})
    assert {topic.name: topic.partitions[0].error_code for topic in listed.topics} == {"weir": 0, "pond": 29}


def test_a_produce_request_is_served_in_part(make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz()
    authz.only((Operation.WRITE, AclResource.TOPIC, "weir"))
    records = memoryview(bytearray(authz.scene.batch()))
    topics = [{"name": name, "partition_data": [{"index": 0, "records": records}]} for name in ("pond", "weir")]
    reply = authz.ask(authz.alice, 0, 9, {"acks": -1, "timeout_ms": 1000, "topic_data": topics})
    codes = {topic.name: topic.partition_responses[0].error_code for topic in reply.responses}
    assert codes == {"pond": 29, "weir": 0}
    ends = [authz.server.broker.partitions.get(name, 0).log.end_offset for name in ("pond", "weir")]
    assert ends == [1, 1]


def test_without_acknowledgement_a_refused_batch_ends_the_connection(
    make_authz: Callable[..., AclNode],
) -> None:
    authz = make_authz()
    request = build(m.ProduceRequest, {"acks": 0, "timeout_ms": 1000, "topic_data": [authz._to_pond()]})
    with pytest.raises(Exception, match="acks=0 was refused: not authorised"):
        authz.alice.send(request, 9, is_answered=False)
    assert authz.server.broker.partitions.get("pond", 0).log.end_offset == 1


@pytest.mark.parametrize("version", [12, 17], ids=["by name", "by id"])
def test_a_right_that_is_taken_away_ends_what_a_fetch_session_reads(
    make_authz: Callable[..., AclNode], version: int
) -> None:
    authz = make_authz()
    authz.only((Operation.READ, AclResource.TOPIC, "pond"))
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000, "current_leader_epoch": -1}
    named = {"topic": "pond"} if version < 13 else {"topic_id": authz.scene.pond_id}
    begins = {
        "max_wait_ms": 0,
        "max_bytes": 1000,
        "session_epoch": 0,
        "topics": [{**named, "partitions": [partition]}],
    }
    first = authz.ask(authz.alice, 1, version, begins)
    assert first.responses[0].partitions[0].records
    authz.take_all()
    again = {"max_wait_ms": 0, "max_bytes": 1000, "session_id": first.session_id, "session_epoch": 1, "topics": []}
    second = authz.ask(authz.alice, 1, version, again)
    (partition_reply,) = second.responses[0].partitions
    assert (partition_reply.error_code, bytes(partition_reply.records or b"")) == (29, b"")
    assert partition_reply.high_watermark == -1


def test_a_fetch_session_reveals_nothing_to_other_users(make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz()
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000, "current_leader_epoch": -1}
    begins = {
        "max_wait_ms": 0,
        "max_bytes": 1000,
        "session_epoch": 0,
        "topics": [{"topic": "pond", "partitions": [partition]}],
    }
    session_id = authz.ask(authz.admin, 1, 12, begins).session_id
    goes_on = {"max_wait_ms": 0, "max_bytes": 1000, "session_id": session_id, "session_epoch": 1, "topics": []}
    stolen = authz.ask(authz.alice, 1, 12, goes_on)
    assert (stolen.error_code, stolen.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
    authz.ask(authz.alice, 1, 12, goes_on | {"session_epoch": -1})
    assert authz.ask(authz.admin, 1, 12, goes_on).error_code == 0, "nor can anybody else end it"


def test_a_fetch_that_waits_while_its_right_is_taken_away_brings_nothing(
    make_authz: Callable[..., AclNode],
) -> None:
    authz = make_authz()
    authz.only((Operation.READ, AclResource.TOPIC, "pond"))
    partition = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000, "current_leader_epoch": -1}
    waits = {
        "max_wait_ms": 60_000,
        "min_bytes": 1,
        "max_bytes": 1000,
        "session_epoch": -1,
        "topics": [{"topic": "pond", "partitions": [partition]}],
    }
    authz.alice.send(build(m.FetchRequest, waits), 12)
    authz.server.run(100)
    assert authz.alice.replies() == []
    authz.take_all()
    authz.ask(authz.admin, 0, 9, {"acks": 1, "topic_data": [authz._to_pond()]})
    authz.server.run(100)
    (reply,) = authz.alice.replies()
    (partition_reply,) = reply.responses[0].partitions
    assert (partition_reply.error_code, bytes(partition_reply.records or b"")) == (29, b"")
    assert partition_reply.high_watermark == -1


def joins(group: str, member_id: str = "") -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"what it reads"}],
    }


def test_a_pending_join_that_loses_its_right_returns_no_members(
    make_authz: Callable[..., AclNode],
) -> None:
    authz = make_authz()
    authz.only((Operation.READ, AclResource.GROUP, "herd"))
    hers = authz.ask(authz.alice, 11, 5, joins("herd")).member_id
    others = authz.ask(authz.admin, 11, 5, joins("herd")).member_id
    authz.alice.send(build(m.JoinGroupRequest, joins("herd", hers)), 5)
    authz.server.run(10)
    authz.admin.send(build(m.JoinGroupRequest, joins("herd", others)), 5)
    authz.server.run(10)
    assert authz.alice.replies() == [], "it waits for more members"
    admin = authz.caller(ADMIN)
    first, authz.admin = authz.admin, admin
    authz.take_all()
    authz.server.run(60_000)
    (reply,) = authz.alice.replies()
    assert reply.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert (reply.members, reply.leader) == ([], "")
    (joined,) = first.replies()
    assert joined.error_code == 0
    assert {each.member_id for each in joined.members} <= {hers, others}
    beat = {"group_id": "herd", "generation_id": joined.generation_id, "member_id": hers}
    assert authz.ask(authz.alice, 12, 4, beat).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_of_several_groups_each_is_answered_for_itself(make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz()
    authz.only((Operation.DESCRIBE, AclResource.GROUP, "crew"), (Operation.DESCRIBE, AclResource.TOPIC, "weir"))
    named = [{"name": each, "partition_indexes": [0]} for each in ("pond", "weir")]
    groups = [
        {"group_id": "team", "topics": named},
        {"group_id": "crew", "topics": named[:1]},
        {"group_id": "none", "topics": None},
        {"group_id": "crew", "topics": named[1:]},
        {"group_id": "crew", "topics": None},
    ]
    reply = authz.ask(authz.alice, 9, 8, {"groups": groups})
    told = [
        (each.group_id, each.error_code, [(t.name, t.partitions[0].error_code) for t in each.topics])
        for each in reply.groups
    ]
    assert sorted(told) == sorted(
        [
            ("crew", 0, [("pond", 29)]),
            ("crew", 0, [("weir", 0)]),
            ("crew", 0, []),
            ("team", 30, []),
            ("none", 30, []),
        ]
    )


def test_clients_are_told_what_they_may_do(make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz()
    authz.only((Operation.READ, AclResource.TOPIC, "pond"), (Operation.READ, AclResource.GROUP, "crew"))
    wanted = {"topics": [{"name": "pond"}], "include_topic_authorized_operations": True}
    asked = wanted | {"include_cluster_authorized_operations": True, "allow_auto_topic_creation": False}
    reply = authz.ask(authz.alice, 3, 9, asked)
    assert operations(reply.topics[0].topic_authorized_operations) == {"READ", "DESCRIBE"}
    assert reply.cluster_authorized_operations == 0
    described = authz.ask(authz.alice, 15, 5, {"groups": ["crew"], "include_authorized_operations": True})
    assert operations(described.groups[0].authorized_operations) == {"READ", "DESCRIBE"}
    cluster = authz.ask(authz.alice, 60, 1, {"include_cluster_authorized_operations": True})
    assert cluster.cluster_authorized_operations == 0
    authz.grant((Operation.ALTER, AclResource.CLUSTER, CLUSTER_NAME))
    cluster = authz.ask(authz.alice, 60, 1, {"include_cluster_authorized_operations": True})
    assert operations(cluster.cluster_authorized_operations) == {"ALTER", "DESCRIBE"}
    by_admin = authz.ask(authz.admin, 60, 1, {"include_cluster_authorized_operations": True})
    assert len(operations(by_admin.cluster_authorized_operations)) == 7


def operations(bits: int) -> set[str]:
    return {each.name for each in Operation if bits >> each & 1}


def test_who_may_create_but_not_look_is_told_no_settings(make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz()
    authz.only((Operation.CREATE, AclResource.TOPIC, "lake"))
    topic = {"name": "lake", "num_partitions": 2, "replication_factor": 1}
    (created,) = authz.ask(authz.alice, 19, 7, {"topics": [topic], "timeout_ms": 1000}).topics
    assert (created.error_code, created.topic_config_error_code) == (0, 29)
    assert (created.num_partitions, created.configs) == (-1, [])


def test_of_a_transaction_only_topics_are_told_that_one_may_see(make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz()
    authz.only((Operation.DESCRIBE, AclResource.TRANSACTIONAL_ID, "tx"))
    (state,) = authz.ask(authz.alice, 65, 0, {"transactional_ids": ["tx"]}).transaction_states
    assert (state.error_code, state.topics) == (0, [])
    authz.grant((Operation.DESCRIBE, AclResource.TOPIC, "pond"))
    (state,) = authz.ask(authz.alice, 65, 0, {"transactional_ids": ["tx"]}).transaction_states
    assert [topic.topic for topic in state.topics] == ["pond"]


@pytest.mark.parametrize(("key", "version"), [(8, 10), (28, 6)], ids=["OffsetCommit", "TxnOffsetCommit"])
def test_offsets_by_topic_id_are_refused_topic_by_topic(
    make_authz: Callable[..., AclNode], key: int, version: int
) -> None:
    authz = make_authz()
    weir_id = authz.server.broker.image.topics["weir"].id
    authz.only(
        (Operation.READ, AclResource.GROUP, "crew"),
        (Operation.WRITE, AclResource.TRANSACTIONAL_ID, "tx"),
        (Operation.READ, AclResource.TOPIC, "weir"),
    )
    ids = {
        authz.scene.pond_id: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        weir_id: ErrorCode.NONE,
        UUID(int=99): ErrorCode.UNKNOWN_TOPIC_ID,
        UUID(int=0): ErrorCode.UNKNOWN_TOPIC_ID,
    }
    partitions = [{"partition_index": 0, "committed_offset": 3}]
    values = {"group_id": "crew", "topics": [{"topic_id": each, "partitions": partitions} for each in ids]}
    if key == 28:
        producer = {"producer_id": authz.scene.producer_id, "producer_epoch": authz.scene.producer_epoch}
        values |= producer | {"transactional_id": "tx"}
    reply = authz.ask(authz.alice, key, version, values)
    assert {topic.topic_id: topic.partitions[0].error_code for topic in reply.topics} == ids


def test_all_offsets_of_a_group_are_those_of_topics_that_one_may_see(
    make_authz: Callable[..., AclNode],
) -> None:
    authz = make_authz()
    authz.only((Operation.DESCRIBE, AclResource.GROUP, "crew"))
    every = {"groups": [{"group_id": "crew", "topics": None}]}
    (group,) = authz.ask(authz.alice, 9, 8, every).groups
    assert (group.error_code, group.topics) == (0, [])
    authz.grant((Operation.DESCRIBE, AclResource.TOPIC, "pond"))
    (group,) = authz.ask(authz.alice, 9, 8, every).groups
    assert [topic.name for topic in group.topics] == ["pond"]


def test_a_group_that_is_asked_for_twice_is_told_as_its_asker_may_see_it(
    make_authz: Callable[..., AclNode],
) -> None:
    """All its offsets are read once, and each response is filtered by the permissions for its own question."""
    authz = make_authz()
    authz.only((Operation.DESCRIBE, AclResource.GROUP, "crew"))
    named = {"group_id": "crew", "topics": [{"name": "pond", "partition_indexes": [0]}]}
    whole = {"group_id": "crew", "topics": None}
    first, second = authz.ask(authz.alice, 9, 8, {"groups": [whole, named, whole]}).groups
    assert [topic.partitions[0].error_code for topic in first.topics] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert second.topics == []


def test_a_client_named_like_a_node_is_no_node_without_the_right(make_authz: Callable[..., AclNode]) -> None:
    """Clients choose their own names: nodes have a permission that clients lack."""
    authz = make_authz()
    authz.only((Operation.ALL, AclResource.TOPIC, "*"), (Operation.CREATE, AclResource.CLUSTER, CLUSTER_NAME))
    authz.alice.client_id = "millpond-node-2"
    topic = {"name": "__transaction_state", "partition_data": authz._to_pond()["partition_data"]}
    end = authz.server.broker.partitions.get("__transaction_state", 0).log.end_offset
    reply = authz.ask(authz.alice, 0, 9, {"acks": -1, "timeout_ms": 1000, "topic_data": [topic]})
    assert set(codes_in(reply)) - {0}, reply
    assert authz.server.broker.partitions.get("__transaction_state", 0).log.end_offset == end
    made = {"name": "__share_group_state", "num_partitions": 1, "replication_factor": 1}
    (created,) = authz.ask(authz.alice, 19, 7, {"topics": [made], "timeout_ms": 1000}).topics
    assert created.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_right_on_the_cluster_makes_and_deletes_no_topic_of_our_programs(
    make_authz: Callable[..., AclNode],
) -> None:
    authz = make_authz()
    authz.server.create("__millpond_state")
    on_cluster = [(each, AclResource.CLUSTER, CLUSTER_NAME) for each in (Operation.CREATE, Operation.DELETE)]
    authz.only(*on_cluster, (Operation.ALL, AclResource.TOPIC, "*"))
    configs = [{"name": "retention.ms", "value": "1"}]
    made = {"name": "__millpond_spark", "num_partitions": 1, "replication_factor": 1, "configs": configs}
    (created,) = authz.ask(authz.alice, 19, 7, {"topics": [made], "timeout_ms": 1000}).topics
    assert created.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    authz.ask(authz.alice, 3, 9, {"topics": [{"name": "__millpond_spark"}], "allow_auto_topic_creation": True})
    topics = authz.server.broker.image.topics
    assert "__millpond_spark" not in topics
    kept = topics["__millpond_state"].id
    for version, named in (
        (5, {"topic_names": ["__millpond_state"]}),
        (6, {"topics": [{"name": "__millpond_state"}]}),
        (6, {"topics": [{"name": None, "topic_id": kept}]}),
    ):
        (deleted,) = authz.ask(authz.alice, 20, version, named | {"timeout_ms": 1000}).responses
        assert deleted.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert topics["__millpond_state"].id == kept
    authz.grant((Operation.CREATE, AclResource.TOPIC, "__millpond_spark"))
    (created,) = authz.ask(authz.alice, 19, 7, {"topics": [made], "timeout_ms": 1000}).topics
    assert created.error_code == 0


def test_a_name_like_that_of_a_hidden_topic_does_not_tell_of_it(make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz()
    authz.server.create("a_b")
    authz.only((Operation.CREATE, AclResource.CLUSTER, CLUSTER_NAME))
    wanted = {"topics": [{"name": "a.b", "num_partitions": 1, "replication_factor": 1}], "timeout_ms": 1000}
    (refused,) = authz.ask(authz.alice, 19, 7, wanted).topics
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "a_b" not in refused.error_message
    authz.grant((Operation.DESCRIBE, AclResource.TOPIC, "a_b"))
    (refused,) = authz.ask(authz.alice, 19, 7, wanted).topics
    assert "a_b" in refused.error_message


def test_a_pattern_gives_a_member_no_topics_that_it_may_not_see(make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz()
    authz.only((Operation.READ, AclResource.GROUP, "herd"), (Operation.READ, AclResource.TOPIC, "weir"))
    joins = {
        "group_id": "herd",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_regex": "pond|weir",
        "topic_partitions": [],
    }
    reply = authz.ask(authz.alice, 68, 1, joins)
    topics = authz.server.broker.image.topics
    assert reply.error_code == 0, reply
    assert [each.topic_id for each in reply.assignment.topic_partitions] == [topics["weir"].id]
    authz.grant((Operation.READ, AclResource.TOPIC, "pond"))
    beats = {"group_id": "herd", "member_id": "m", "member_epoch": reply.member_epoch}
    reply = authz.ask(authz.alice, 68, 1, beats)
    assert {each.topic_id for each in reply.assignment.topic_partitions} == {topics["weir"].id, topics["pond"].id}
    authz.only((Operation.READ, AclResource.GROUP, "herd"), (Operation.READ, AclResource.TOPIC, "weir"))
    reply = authz.ask(authz.alice, 68, 1, beats | {"member_epoch": reply.member_epoch})
    assert [each.topic_id for each in reply.assignment.topic_partitions] == [topics["weir"].id]


def test_what_was_refused_is_noted_and_what_is_only_left_out_is_not(make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz()
    noted: list[str] = []
    authz.server.broker.access.note_refused = lambda who, host, operation, resource, name: noted.append(
        f"{who} {host} {operation.name} {resource.name} {name}"
    )
    authz.ask(authz.alice, 3, 9, {"topics": None, "include_cluster_authorized_operations": True})
    authz.ask(authz.alice, 16, 4, {})
    authz.ask(authz.alice, 60, 1, {"include_cluster_authorized_operations": True})
    assert noted == []
    authz.ask(authz.alice, 3, 9, {"topics": [{"name": "pond"}], "allow_auto_topic_creation": False})
    authz.ask(authz.alice, 12, 4, {"group_id": "crew", "generation_id": 1, "member_id": "m"})
    authz.ask(authz.alice, 29, 3, {"resource_type_filter": 1})
    assert noted == [
        "User:alice 10.0.0.1 DESCRIBE TOPIC pond",
        "User:alice 10.0.0.1 READ GROUP crew",
        "User:alice 10.0.0.1 DESCRIBE CLUSTER kafka-cluster",
    ]


def test_metrics_name_nothing_where_rights_are_asked_for(make_server: Callable[..., Any]) -> None:
    """Scrapers are not authenticated."""
    for texts, is_named in ((TEXTS, False), (TEXTS | {"metrics.names": "on"}, True), ({}, True)):
        authz = make_server(dict(texts))
        authz.create("secret-pond")
        pages: list[Any] = []
        authz.broker.contexts.bind(PageMaker)().page().then(pages.append)
        assert authz.sim.run_until(lambda pages=pages: bool(pages), within_ms=10_000)
        page = b"".join(pages[0].parts).decode()
        assert ("secret-pond" in page) is is_named
        assert "\nmillpond_partitions_led 1\n" in page


def test_without_an_authorizer_there_are_no_acls(make_server: Callable[..., Any]) -> None:
    caller = make_server().connect()
    one = build(m.CreateAclsRequest, {"creations": [{"resource_type": 2, "resource_name": "pond"}]})
    assert [each.error_code for each in caller.ask(one, 3).results] == [ErrorCode.SECURITY_DISABLED]
    every = build(m.DescribeAclsRequest, {"resource_type_filter": 1})
    assert caller.ask(every, 3).error_code == ErrorCode.SECURITY_DISABLED
    gone = build(m.DeleteAclsRequest, {"filters": [{"resource_type_filter": 1}]})
    assert [each.error_code for each in caller.ask(gone, 3).filter_results] == [ErrorCode.SECURITY_DISABLED]
