"""Indirect access: by a name next to an id, a token, another protocol, or another client's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.broker.test_rights import ADMIN, HERE, TEXTS, Stage
from tests.support.rights_cases import Case, Scene, build, codes_in

from millpond.base.errors import ErrorCode
from millpond.base.principal import Principal
from millpond.base.rights import AclResource, Operation
from millpond.broker.apis import APIS
from millpond.broker.audit.audit import DEEDS, Audit
from millpond.coordinators.groups.records import versioned
from millpond.wire import messages as m

AT_CONTROLLER = {api.key for api in APIS if api.at_controller}
OWN_SCENE = Scene(UUID(int=7), 1, 0)


@pytest.fixture
def stage(make_desk: Callable[..., Any]) -> Callable[..., Stage]:
    return lambda **options: Stage(make_desk(dict(TEXTS)), **options)


def test_a_name_beside_an_id_tells_nothing_of_a_hidden_topic(stage: Callable[..., Stage]) -> None:
    """The partitions to be deleted are counted before the refusal: a quota must not reveal their number."""
    play = stage()
    play.desk.create("many", 40)
    quota = {
        "entity": [{"entity_type": "user", "entity_name": "alice"}],
        "ops": [{"key": "controller_mutation_rate", "value": 1.0, "remove": False}],
    }
    play.settled(49, 1, {"entries": [quota], "validate_only": False})
    heard = []
    for name in ("none", "many", "none"):
        topic = {"name": name, "topic_id": UUID(int=77)}
        reply = play.ask(play.alice, 20, 6, {"topics": [topic], "timeout_ms": 1000})
        heard.append((reply.throttle_time_ms, reply.responses[0].error_code))
    assert heard == [(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)] * 3


def test_a_super_users_token_registers_no_node(stage: Callable[..., Stage]) -> None:
    play = stage()
    by_token = play.caller(Principal(ADMIN.kind, ADMIN.name, by_token=True))
    by_token.connection.may_be_node = False
    wanted = {"broker_id": 9, "cluster_id": "", "listeners": [], "features": [], "log_dirs": []}
    before = play.state()
    assert play.ask(by_token, 62, 4, wanted).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert play.state() == before


@pytest.mark.parametrize("case", [case for case in HERE if case.key in AT_CONTROLLER], ids=lambda case: case.id)
def test_a_node_that_became_the_controller_answers_what_it_was_to_send_on(case: Case, make_desk: Any) -> None:
    """It then calls itself, and there is no connection that the request came from."""
    desk = make_desk()
    api = next(each for each in APIS if each.key == case.key)
    for version in range(case.version, api.versions[1] + 1):
        heard: list[Any] = []
        asked = desk.broker.dispatcher.ask(build(case.request, case.values(OWN_SCENE)), version)
        asked.then(heard.append)
        assert desk.sim.run_until(lambda heard=heard: bool(heard), within_ms=10_000)


def subscription(*topics: str, owned: tuple[str, ...] = ()) -> bytes:
    kind = m.ConsumerProtocolSubscription
    held = [kind.TopicPartition(topic=each, partitions=[0]) for each in owned]
    return versioned(kind(topics=list(topics), user_data=None, owned_partitions=held), 1)


def classic(play: Stage, member_id: str, metadata: bytes) -> tuple[int, bytes]:
    """Join a group of the new protocol with the classic one: the error, and the assignment."""
    joins = {
        "group_id": "team",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }
    joined = play.ask(play.alice, 11, 3, joins)
    if joined.error_code:
        return joined.error_code, b""
    syncs = {"group_id": "team", "generation_id": joined.generation_id, "member_id": joined.member_id}
    synced = play.ask(play.alice, 14, 2, syncs | {"assignments": []})
    return synced.error_code, bytes(synced.assignment)


def test_a_classic_member_of_a_new_group_hears_of_no_hidden_topic(stage: Callable[..., Stage]) -> None:
    """The coordinator assigns partitions there, by the topic names that the member subscribes to."""
    heard = {}
    for name in ("weir", "none"):
        play = stage()
        play.only((Operation.READ, AclResource.GROUP, "team"))
        heard[name] = (
            classic(play, "", subscription(name)),
            classic(play, "new", subscription(owned=(name,))),
        )
    assert heard["weir"] == heard["none"]
    play = stage()
    play.only((Operation.READ, AclResource.GROUP, "team"), (Operation.READ, AclResource.TOPIC, "weir"))
    code, given = classic(play, "", subscription("weir"))
    assert (code, b"weir" in given) == (0, True)


def test_a_super_user_who_calls_itself_a_node_leaves_the_same_traces(make_desk: Any) -> None:
    texts = TEXTS | {"inter.broker.sasl.username": "node", "inter.broker.sasl.password": "known to all nodes"}
    play = Stage(make_desk(texts | {"super.users": "User:admin;User:node"}), is_first=True)
    lines: list[dict[str, Any]] = []
    broker = play.desk.broker
    broker.contexts.security.audit = Audit(lambda line, _: lines.append(json.loads(line)), broker.clock, 1)
    topic = {"name": "fresh", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    play.admin.client_id = "millpond-node-2"
    reply = play.ask(play.admin, 19, 7, {"topics": [topic], "timeout_ms": 1000})
    assert not any(codes_in(reply)), reply
    assert [(line["principal"], line["api"]) for line in lines] == [("User:admin", "CreateTopics")]
    node = play.caller(Principal("User", "node"))
    node.client_id = "millpond-node-2"
    assert not any(codes_in(play.ask(node, 19, 7, {"topics": [topic | {"name": "sent"}], "timeout_ms": 1000})))
    assert len(lines) == 1, "what a node sends on was told where its client asked"


def test_a_super_user_who_does_a_nodes_work_leaves_a_trace(make_desk: Any) -> None:
    """Such a request fences a node, or counts a replica as caught up."""
    texts = TEXTS | {"inter.broker.sasl.username": "node", "inter.broker.sasl.password": "known to all nodes"}
    play = Stage(make_desk(texts | {"super.users": "User:admin;User:node"}), is_first=True)
    lines: list[dict[str, Any]] = []
    broker = play.desk.broker
    broker.contexts.security.audit = Audit(lambda line, _: lines.append(json.loads(line)), broker.clock, 1)
    play.desk.sim.run_until(lambda: False, within_ms=20_000)
    assert lines == [], "a node's own work is not told"
    play.admin.client_id = "millpond-node-2"
    play.ask(play.admin, 63, 0, {"broker_id": 1, "broker_epoch": 1, "current_metadata_offset": 5, "want_fence": True})
    play.ask(play.admin, 56, 2, {"broker_id": 1, "broker_epoch": 1, "topics": []})
    told = [(line["principal"], line["api"]) for line in lines]
    assert told == [("User:admin", "BrokerHeartbeat"), ("User:admin", "AlterPartition")]
    node = play.caller(Principal("User", "node"))
    node.client_id = "millpond-node-2"
    play.ask(node, 63, 0, {"broker_id": 1, "broker_epoch": 1, "current_metadata_offset": 5})
    assert len(lines) == 2


def test_a_topic_that_comes_with_a_question_leaves_a_trace(make_desk: Any) -> None:
    play = Stage(make_desk(TEXTS | {"auto.create.topics.enable": "true"}), is_first=True)
    play.only((Operation.CREATE, AclResource.TOPIC, "fresh"), (Operation.DESCRIBE, AclResource.TOPIC, "fresh"))
    lines: list[dict[str, Any]] = []
    broker = play.desk.broker
    broker.contexts.security.audit = Audit(lambda line, _: lines.append(json.loads(line)), broker.clock, 1)
    for _ in range(2):
        reply = play.ask(play.alice, 3, 9, {"topics": [{"name": "fresh"}], "allow_auto_topic_creation": True})
        assert not any(codes_in(reply)), reply
    (line,) = lines
    assert (line["event"], line["principal"], line["api"]) == ("changed", "User:alice", "Metadata")
    assert [each["name"] for each in line["asked"]["topics"]] == ["fresh"]


DEED_CASES = [case for case in HERE if case.key in DEEDS and not case.with_token]


@pytest.mark.parametrize("case", DEED_CASES, ids=lambda case: case.id)
def test_whoever_hangs_up_before_the_answer_leaves_the_same_traces(case: Case, stage: Callable[..., Stage]) -> None:
    """The request is carried out all the same."""
    play = stage(is_first=case.is_first)
    lines: list[dict[str, Any]] = []
    broker = play.desk.broker
    broker.contexts.security.audit = Audit(lambda line, _: lines.append(json.loads(line)), broker.clock, 1)
    play.admin.send(build(case.request, case.values(play.scene)), case.version)
    play.admin.link.end()
    play.desk.run(15_000)
    assert [(line["principal"], line["api"]) for line in lines] == [("User:admin", case.request.__name__[:-7])]


def test_whoever_hangs_up_when_a_topic_comes_leaves_a_trace(make_desk: Any) -> None:
    play = Stage(make_desk(TEXTS | {"auto.create.topics.enable": "true"}), is_first=True)
    lines: list[dict[str, Any]] = []
    broker = play.desk.broker
    broker.contexts.security.audit = Audit(lambda line, _: lines.append(json.loads(line)), broker.clock, 1)
    wanted = {"topics": [{"name": "fresh"}], "allow_auto_topic_creation": True}
    play.admin.send(build(m.MetadataRequest, wanted), 9)
    play.admin.link.end()
    play.desk.run(15_000)
    assert "fresh" in broker.image.topics
    assert [line["api"] for line in lines] == ["Metadata"]
