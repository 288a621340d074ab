"""Three nodes whose only listener requires SASL: they authenticate to each other, and clients may use any of them."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any
from uuid import UUID

import pytest
from tests.support.rights_cases import CASES, Scene, build, code_of, codes_in

from millpond.base.errors import ErrorCode
from millpond.base.scram import ScramClient, salted
from millpond.broker.apis import APIS
from millpond.broker.audit.audit import Audit
from millpond.metadata.snapshot import records_of
from millpond.sim.clients.client import SimClient
from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.history.records import History
from millpond.sim.node import PORT
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

SALT = b"pepper" * 5
TEXTS = {
    "listen.protocol": "SASL_PLAINTEXT",
    "super.users": "User:node;User:admin",
    "inter.broker.sasl.username": "node",
    "inter.broker.sasl.password": "known to all nodes",
}
Upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion


class SecureCluster:
    def __init__(self) -> None:
        self.sim = SimWorld(7)
        self.cluster = SimCluster(self.sim, 3, History(), TEXTS)
        for node_id in self.cluster.nodes:
            assert self.cluster.start(node_id)

    def active(self) -> set[int]:
        image = self.cluster.image
        return set() if image is None else {each for each in self.cluster.nodes if image.is_active(each)}

    def client(self, node_id: int, name: str) -> SimClient:
        return SimClient(self.sim.network, f"node{node_id}", PORT, name, timeout_ms=20_000)

    def ask(self, client: SimClient, request: m.Message, version: int) -> Any:
        replies: list[Any] = []
        client.send(request, version, replies.append)
        assert self.sim.run_until(lambda: bool(replies), within_ms=30_000)
        return replies[0]

    def log_in(self, client: SimClient, user: str, password: str, *, is_token: bool = False) -> int:
        greeted = self.ask(client, m.SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
        assert greeted.error_code == ErrorCode.NONE
        scram = ScramClient("SCRAM-SHA-512", user, password, "nonce", is_token=is_token)
        challenge = self.ask(client, m.SaslAuthenticateRequest(auth_bytes=scram.first()), 2)
        proof = scram.next(challenge.auth_bytes)
        assert proof is not None
        return int(self.ask(client, m.SaslAuthenticateRequest(auth_bytes=proof), 2).error_code)


def upsertion(user: str, password: str) -> Upsertion:
    salted_password = salted("sha512", password.encode(), SALT, 4096)
    return Upsertion(name=user, mechanism=2, iterations=4096, salt=SALT, salted_password=salted_password)


@pytest.fixture(scope="module")
def secure() -> SecureCluster:
    secure = SecureCluster()
    assert secure.sim.run_until(lambda: secure.active() == {1, 2, 3}, within_ms=60_000)
    # Only the nodes have passwords so far. The users are created through a node that is not the controller.
    first = secure.client(
        next(each for each in secure.cluster.nodes if each != secure.cluster.controller_id), "first"
    )
    assert secure.log_in(first, "node", "known to all nodes") == ErrorCode.NONE
    wanted = [upsertion("alice", "hers"), upsertion("admin", "his")]
    made = secure.ask(first, m.AlterUserScramCredentialsRequest(deletions=[], upsertions=wanted), 0)
    assert {each.user: each.error_code for each in made.results} == {"alice": 0, "admin": 0}
    secure.sim.run_for(1_000)
    return secure


def test_users_and_tokens_by_any_node(secure: SecureCluster) -> None:
    first, other = (each for each in secure.cluster.nodes if each != secure.cluster.controller_id)
    alice = secure.client(first, "alice")
    assert secure.log_in(alice, "alice", "hers") == ErrorCode.NONE

    renewers = [m.CreateDelegationTokenRequest.CreatableRenewers(principal_type="User", principal_name="bob")]
    token = secure.ask(alice, m.CreateDelegationTokenRequest(renewers=renewers, max_lifetime_ms=-1), 3)
    assert (token.error_code, token.principal_name) == (0, "alice")
    assert token.token_requester_principal_name == "alice", "the controller knows who asks, not only by whom"
    forbidden = m.CreateDelegationTokenRequest(
        owner_principal_type="User", owner_principal_name="admin", renewers=[], max_lifetime_ms=-1
    )
    assert secure.ask(alice, forbidden, 3).error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    proof = b64encode(token.hmac).decode()
    secure.sim.run_for(1_000)
    by_token = secure.client(other, "by-token")
    assert secure.log_in(by_token, token.token_id, proof, is_token=True) == ErrorCode.NONE
    mallory = secure.client(first, "mallory")
    assert secure.log_in(mallory, "admin", "his") == ErrorCode.NONE
    renew = m.RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1)
    assert secure.ask(mallory, renew, 2).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert secure.ask(alice, renew, 2).error_code == ErrorCode.NONE
    ended = secure.ask(alice, m.ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1), 2)
    assert ended.error_code == ErrorCode.NONE
    secure.sim.run_for(3_000)
    assert secure.ask(by_token, m.MetadataRequest(topics=[]), 9) is None, "its session has ended, on every node"


SENT_ON = {api.key for api in APIS if api.at_controller} | {44}
"""Requests that a node forwards to the controller for its clients, under its own identity."""


def test_what_a_node_sends_on_is_asked_for_where_its_client_is_known(secure: SecureCluster) -> None:
    node_id = next(each for each in secure.cluster.nodes if each != secure.cluster.controller_id)
    alice, admin = secure.client(node_id, "alice-there"), secure.client(node_id, "admin-there")
    assert secure.log_in(alice, "alice", "hers") == ErrorCode.NONE
    assert secure.log_in(admin, "admin", "his") == ErrorCode.NONE
    before = list(records_of(secure.cluster.image))
    scene = Scene(UUID(int=5), 1, 0)
    cases = [each for each in CASES if each.key in SENT_ON and each.rights and not each.with_token]
    assert {each.key for each in cases} >= SENT_ON - {38, 39, 40}
    for case in cases:
        reply = secure.ask(alice, build(case.request, case.values(scene)), case.version)
        told = {code for code in codes_in(reply) if code}
        by_id = case.title == "by id" and told == {ErrorCode.UNKNOWN_TOPIC_ID}
        assert by_id or told == {code_of(case, case.rights[0])}, (case.id, reply)
    assert list(records_of(secure.cluster.image)) == before
    acl = m.CreateAclsRequest.AclCreation(
        resource_type=4,
        resource_name="kafka-cluster",
        resource_pattern_type=3,
        principal="User:alice",
        host="*",
        operation=5,
        permission_type=3,
    )
    made = secure.ask(admin, m.CreateAclsRequest(creations=[acl]), 3)
    assert [each.error_code for each in made.results] == [0]
    kind = m.CreateTopicsRequest.CreatableTopic
    names = ("lake", "__share_group_state", "__millpond_spark")
    topics = [kind(name=each, num_partitions=1, replication_factor=1) for each in names]
    reply = secure.ask(alice, m.CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
    assert {each.name: each.error_code for each in reply.topics} == {
        "lake": ErrorCode.NONE,
        "__share_group_state": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "__millpond_spark": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }


def test_the_password_of_the_nodes_is_needed(secure: SecureCluster) -> None:
    client = secure.client(1, "guess")
    assert secure.log_in(client, "node", "guessed") == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_an_envelope_from_a_client_is_not_opened(secure: SecureCluster) -> None:
    admin = secure.client(secure.cluster.controller_id, "admin-again")
    assert secure.log_in(admin, "admin", "his") == ErrorCode.NONE
    envelope = m.EnvelopeRequest(
        request_data=b"\0\x26\0\3\0\0\0\1\xff\xff\0\1\1\1\0\0\0\0\0\0\0\1\0",
        request_principal=b"0User:alice",
        client_host_address=b"",
    )
    assert secure.ask(admin, envelope, 0).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_node_with_another_password_is_not_let_in() -> None:
    secure = SecureCluster()
    assert secure.sim.run_until(lambda: secure.active() == {1, 2, 3}, within_ms=60_000)
    stranger = secure.cluster.nodes[3]
    stranger.kill()
    stranger.texts["inter.broker.sasl.password"] = "another"
    assert secure.sim.run_until(lambda: secure.active() == {1, 2}, within_ms=60_000)
    assert stranger.start()
    secure.sim.run_for(30_000)
    assert secure.active() == {1, 2}
    faults = {str(error) for _, error in secure.sim.network.faults}
    assert any("node user node is not let in" in each for each in faults)
    assert stranger.broker.logins.counts["SCRAM-SHA-512", True] == 0
    stranger.kill()
    stranger.texts["inter.broker.sasl.password"] = TEXTS["inter.broker.sasl.password"]
    assert stranger.start()
    assert secure.sim.run_until(lambda: secure.active() == {1, 2, 3}, within_ms=60_000)


@pytest.mark.parametrize("texts", [TEXTS, {}], ids=["with a login", "without"])
def test_what_nodes_ask_each_other_all_the_time_is_not_told(texts: dict[str, str]) -> None:
    sim = SimWorld(11)
    cluster = SimCluster(sim, 3, History(), texts)
    lines: list[dict[str, Any]] = []
    for node_id, node in cluster.nodes.items():
        assert cluster.start(node_id)
        broker = node.broker
        broker.contexts.security.audit = Audit(lambda line, _: lines.append(json.loads(line)), broker.clock, node_id)
    sim.run_for(60_000)
    image = cluster.image
    assert image is not None
    assert all(map(image.is_active, cluster.nodes))
    assert [line for line in lines if line["event"] in ("changed", "failed")] == []
