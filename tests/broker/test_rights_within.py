"""Indirect access: by a name next to an id, a token, another protocol, or another client's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.broker.test_rights import ADMIN, HERE, TEXTS, AclNode
from tests.support.rights_cases import Case, Scene, build, codes_in

from millpond.base.errors import ErrorCode
from millpond.base.principal import Principal
from millpond.base.rights import AclResource, Operation
from millpond.broker.apis import APIS
from millpond.broker.audit.audit import CHANGE_APIS, Audit
from millpond.coordinators.groups.records import versioned
from millpond.wire import messages as m

AT_CONTROLLER = {api.key for api in APIS if api.at_controller}
OWN_SCENE = Scene(UUID(int=7), 1, 0)


@pytest.fixture
def make_authz(make_server: Callable[..., Any]) -> Callable[..., AclNode]:
    return lambda **options: AclNode(make_server(dict(TEXTS)), **options)


def test_a_name_beside_an_id_tells_nothing_of_a_hidden_topic(make_authz: Callable[..., AclNode]) -> None:
    """The partitions to be deleted are counted before the refusal: a quota must not reveal their number."""
    authz = make_authz()
    authz.server.create("many", 40)
    quota = {
        "entity": [{"entity_type": "user", "entity_name": "alice"}],
        "ops": [{"key": "controller_mutation_rate", "value": 1.0, "remove": False}],
    }
    authz.settled(49, 1, {"entries": [quota], "validate_only": False})
    replies = []
    for name in ("none", "many", "none"):
        topic = {"name": name, "topic_id": UUID(int=77)}
        reply = authz.ask(authz.alice, 20, 6, {"topics": [topic], "timeout_ms": 1000})
        replies.append((reply.throttle_time_ms, reply.responses[0].error_code))
    assert replies == [(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)] * 3


def test_a_super_users_token_registers_no_node(make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz()
    by_token = authz.caller(Principal(ADMIN.kind, ADMIN.name, by_token=True))
    by_token.connection.may_be_node = False
    wanted = {"broker_id": 9, "cluster_id": "", "listeners": [], "features": [], "log_dirs": []}
    before = authz.state()
    assert authz.ask(by_token, 62, 4, wanted).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert authz.state() == before


@pytest.mark.parametrize("case", [case for case in HERE if case.key in AT_CONTROLLER], ids=lambda case: case.id)
def test_a_node_that_became_the_controller_answers_what_it_was_to_send_on(case: Case, make_server: Any) -> None:
    """It then calls itself, and there is no connection that the request came from."""
    server = make_server()
    api = next(each for each in APIS if each.key == case.key)
    for version in range(case.version, api.versions[1] + 1):
        heard: list[Any] = []
        response = server.broker.dispatcher.ask(build(case.request, case.values(OWN_SCENE)), version)
        response.then(heard.append)
        assert server.sim.run_until(lambda heard=heard: bool(heard), within_ms=10_000)


def subscription(*topics: str, owned: tuple[str, ...] = ()) -> bytes:
    kind = m.ConsumerProtocolSubscription
    held = [kind.TopicPartition(topic=each, partitions=[0]) for each in owned]
    return versioned(kind(topics=list(topics), user_data=None, owned_partitions=held), 1)


def classic(authz: AclNode, member_id: str, metadata: bytes) -> tuple[int, bytes]:
    """Join a group of the new protocol with the classic one: the error, and the assignment."""
    joins = {
        "group_id": "team",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }
    joined = authz.ask(authz.alice, 11, 3, joins)
    if joined.error_code:
        return joined.error_code, b""
    syncs = {"group_id": "team", "generation_id": joined.generation_id, "member_id": joined.member_id}
    synced = authz.ask(authz.alice, 14, 2, syncs | {"assignments": []})
    return synced.error_code, bytes(synced.assignment)


def test_a_classic_member_of_a_new_group_hears_of_no_hidden_topic(make_authz: Callable[..., AclNode]) -> None:
    """The coordinator assigns partitions there, by the topic names that the member subscribes to."""
    replies = {}
    for name in ("weir", "none"):
        authz = make_authz()
        authz.only((Operation.READ, AclResource.GROUP, "team"))
        replies[name] = (
            classic(authz, "", subscription(name)),
            classic(authz, "new", subscription(owned=(name,))),
        )
    assert replies["weir"] == replies["none"]
    authz = make_authz()
    authz.only((Operation.READ, AclResource.GROUP, "team"), (Operation.READ, AclResource.TOPIC, "weir"))
    code, given = classic(authz, "", subscription("weir"))
    assert (code, b"weir" in given) == (0, True)


def test_a_super_user_who_calls_itself_a_node_leaves_the_same_traces(make_server: Any) -> None:
    texts = TEXTS | {"inter.broker.sasl.username": "node", "inter.broker.sasl.password": "known to all nodes"}
    authz = AclNode(make_server(texts | {"super.users": "User:admin;User:node"}), is_first=True)
    lines: list[dict[str, Any]] = []
    broker = authz.server.broker
    broker.contexts.security.audit = Audit(lambda line, _: lines.append(json.loads(line)), broker.clock, 1)
    topic = {"name": "fresh", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    authz.admin.client_id = "millpond-node-2"
    reply = authz.ask(authz.admin, 19, 7, {"topics": [topic], "timeout_ms": 1000})
    assert not any(codes_in(reply)), reply
    assert [(line["principal"], line["api"]) for line in lines] == [("User:admin", "CreateTopics")]
    forwarder = authz.caller(Principal("User", "node"))
    forwarder.client_id = "millpond-node-2"
    assert not any(codes_in(authz.ask(forwarder, 19, 7, {"topics": [topic | {"name": "sent"}], "timeout_ms": 1000})))
    assert len(lines) == 1, "a forwarded request was logged by the node that received it"


def test_a_super_user_who_does_a_nodes_work_leaves_a_trace(make_server: Any) -> None:
    """Such a request fences a node, or counts a replica as caught up."""
    texts = TEXTS | {"inter.broker.sasl.username": "node", "inter.broker.sasl.password": "known to all nodes"}
    authz = AclNode(make_server(texts | {"super.users": "User:admin;User:node"}), is_first=True)
    lines: list[dict[str, Any]] = []
    broker = authz.server.broker
    broker.contexts.security.audit = Audit(lambda line, _: lines.append(json.loads(line)), broker.clock, 1)
    authz.server.sim.run_until(lambda: False, within_ms=20_000)
    assert lines == [], "a node's own work is not told"
    authz.admin.client_id = "millpond-node-2"
    authz.ask(
        authz.admin, 63, 0, {"broker_id": 1, "broker_epoch": 1, "current_metadata_offset": 5, "want_fence": True}
    )
    authz.ask(authz.admin, 56, 2, {"broker_id": 1, "broker_epoch": 1, "topics": []})
    told = [(line["principal"], line["api"]) for line in lines]
    assert told == [("User:admin", "BrokerHeartbeat"), ("User:admin", "AlterPartition")]
    forwarder = authz.caller(Principal("User", "node"))
    forwarder.client_id = "millpond-node-2"
    authz.ask(forwarder, 63, 0, {"broker_id": 1, "broker_epoch": 1, "current_metadata_offset": 5})
    assert len(lines) == 2


def test_a_topic_that_comes_with_a_question_leaves_a_trace(make_server: Any) -> None:
    authz = AclNode(make_server(TEXTS | {"auto.create.topics.enable": "true"}), is_first=True)
    authz.only((Operation.CREATE, AclResource.TOPIC, "fresh"), (Operation.DESCRIBE, AclResource.TOPIC, "fresh"))
    lines: list[dict[str, Any]] = []
    broker = authz.server.broker
    broker.contexts.security.audit = Audit(lambda line, _: lines.append(json.loads(line)), broker.clock, 1)
    for _ in range(2):
        reply = authz.ask(authz.alice, 3, 9, {"topics": [{"name": "fresh"}], "allow_auto_topic_creation": True})
        assert not any(codes_in(reply)), reply
    (line,) = lines
    assert (line["event"], line["principal"], line["api"]) == ("changed", "User:alice", "Metadata")
    assert [each["name"] for each in line["asked"]["topics"]] == ["fresh"]


CHANGE_CASES = [case for case in HERE if case.key in CHANGE_APIS and not case.with_token]


@pytest.mark.parametrize("case", CHANGE_CASES, ids=lambda case: case.id)
def test_hanging_up_before_the_response_is_audited_all_the_same(
    case: Case, make_authz: Callable[..., AclNode]
) -> None:
    """The request is carried out all the same."""
    authz = make_authz(is_first=case.is_first)
    lines: list[dict[str, Any]] = []
    broker = authz.server.broker
    broker.contexts.security.audit = Audit(lambda line, _: lines.append(json.loads(line)), broker.clock, 1)
    authz.admin.send(build(case.request, case.values(authz.scene)), case.version)
    authz.admin.link.end()
    authz.server.run(15_000)
    assert [(line["principal"], line["api"]) for line in lines] == [("User:admin", case.request.__name__[:-7])]


def test_hanging_up_during_topic_creation_is_audited(make_server: Any) -> None:
    authz = AclNode(make_server(TEXTS | {"auto.create.topics.enable": "true"}), is_first=True)
    lines: list[dict[str, Any]] = []
    broker = authz.server.broker
    broker.contexts.security.audit = Audit(lambda line, _: lines.append(json.loads(line)), broker.clock, 1)
    wanted = {"topics": [{"name": "fresh"}], "allow_auto_topic_creation": True}
    authz.admin.send(build(m.MetadataRequest, wanted), 9)
    authz.admin.link.end()
    authz.server.run(15_000)
    assert "fresh" in broker.image.topics
    assert [line["api"] for line in lines] == ["Metadata"]
