"""Attacks by clients that are not nodes, or whose credentials are no longer valid."""

from __future__ import annotations

from base64 import b64encode
from uuid import UUID

import pytest
from tests.broker.security.test_secure_cluster import Play, upsertion

from millpond.base.errors import ErrorCode
from millpond.base.rights import CLUSTER_NAME, AclResource, Operation, PatternType, Permission
from millpond.base.scram import ScramClient, attributes, from_base64, mac
from millpond.sim.clients.client import SimClient
from millpond.wire import messages as m
from millpond.wire.header import encode_request_header


@pytest.fixture(scope="module")
def play() -> Play:
    play = Play()
    assert play.sim.run_until(lambda: play.active() == {1, 2, 3}, within_ms=60_000)
    admin = play.client(play.cluster.controller_id, "first")
    assert play.log_in(admin, "node", "known to all nodes") == ErrorCode.NONE
    wanted = [upsertion("mallory", "hers"), upsertion("admin", "his"), upsertion("gone", "old")]
    made = play.ask(admin, m.AlterUserScramCredentialsRequest(deletions=[], upsertions=wanted), 0)
    assert not any(each.error_code for each in made.results)
    creation = m.CreateAclsRequest.AclCreation(
        resource_type=AclResource.CLUSTER,
        resource_name=CLUSTER_NAME,
        resource_pattern_type=PatternType.LITERAL,
        principal="User:mallory",
        host="*",
        operation=Operation.CLUSTER_ACTION,
        permission_type=Permission.ALLOW,
    )
    assert not play.ask(admin, m.CreateAclsRequest(creations=[creation]), 3).results[0].error_code
    play.sim.run_for(1_000)
    return play


def follower(play: Play) -> int:
    return next(each for each in play.cluster.nodes if each != play.cluster.controller_id)


def mallory(play: Play, node_id: int, name: str = "millpond-node-2") -> SimClient:
    client = play.client(node_id, name)
    assert play.log_in(client, "mallory", "hers") == ErrorCode.NONE
    return client


def test_who_is_no_node_gets_no_envelope_opened_by_way_of_a_follower(play: Play) -> None:
    inner = m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
    envelope = m.EnvelopeRequest(
        request_data=encode_request_header(38, 3, 1, None) + inner.encode(3),
        request_principal=b"0User:admin",
        client_host_address=b"",
    )
    before = len(play.cluster.image.tokens)
    answer = play.ask(mallory(play, follower(play)), envelope, 0)
    play.sim.run_for(1_000)
    assert len(play.cluster.image.tokens) == before, "a token of the admin for somebody else"
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_who_is_no_node_reads_no_metadata_and_no_replica(play: Play) -> None:
    for name in ("mallory", "millpond-node-2"):
        client = mallory(play, play.cluster.controller_id, name)
        metadata = m.FetchRequest.FetchTopic(
            topic="__cluster_metadata",
            topic_id=UUID(int=1),
            partitions=[m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
        )
        wanted = m.FetchRequest(
            cluster_id=play.cluster.image.cluster_id,
            replica_state=m.FetchRequest.ReplicaState(replica_id=2, replica_epoch=-1),
            max_wait_ms=0,
            max_bytes=1 << 20,
            topics=[metadata],
        )
        assert play.ask(client, wanted, 17).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_who_is_no_node_registers_none(play: Play) -> None:
    wanted = m.BrokerRegistrationRequest(
        broker_id=9, cluster_id=play.cluster.image.cluster_id, listeners=[], features=[], log_dirs=[]
    )
    for node_id in play.cluster.nodes:
        answer = play.ask(mallory(play, node_id), wanted, 4)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert 9 not in play.cluster.image.brokers


def test_nothing_that_a_stranger_hears_tells_whether_a_guess_at_the_nodes_password_is_right(play: Play) -> None:
    """The salt must not be derived from the password: guesses could then be tested offline, without the many
    iterations.
    """
    client = play.client(1, "nobody")
    play.ask(client, m.SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
    first = ScramClient("SCRAM-SHA-512", "node", "no idea", "nonce").first()
    heard = play.ask(client, m.SaslAuthenticateRequest(auth_bytes=first), 2).auth_bytes
    salt = from_base64(attributes(bytes(heard).decode())["s"])
    guesses = ["secret", "password", "known to all nodes", "12345"]
    found = [each for each in guesses if mac("sha512", each.encode(), b"node 2").startswith(salt)]
    assert not found


def test_a_login_that_began_before_its_user_was_removed_ends_nowhere(play: Play) -> None:
    node_id = follower(play)
    late = play.client(node_id, "late")
    play.ask(late, m.SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
    scram = ScramClient("SCRAM-SHA-512", "gone", "old", "nonce")
    proof = scram.next(play.ask(late, m.SaslAuthenticateRequest(auth_bytes=scram.first()), 2).auth_bytes)
    assert proof is not None
    admin = play.client(node_id, "admin")
    assert play.log_in(admin, "admin", "his") == ErrorCode.NONE
    deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="gone", mechanism=2)
    removed = play.ask(admin, m.AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]), 0)
    assert not removed.results[0].error_code
    answer = play.ask(late, m.SaslAuthenticateRequest(auth_bytes=proof), 2)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize("period_ms", [0, 2_000])
def test_a_session_ends_with_its_token_also_where_that_is_ended_after_a_time(play: Play, period_ms: int) -> None:
    node_id = follower(play)
    owner = play.client(node_id, "owner")
    assert play.log_in(owner, "admin", "his") == ErrorCode.NONE
    token = play.ask(owner, m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)
    assert token.error_code == ErrorCode.NONE
    by_token = play.client(node_id, "by-token")
    proof = b64encode(token.hmac).decode()
    assert play.log_in(by_token, token.token_id, proof, is_token=True) == ErrorCode.NONE
    assert play.ask(by_token, m.MetadataRequest(topics=[]), 9) is not None
    ended = m.ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=period_ms)
    assert play.ask(owner, ended, 2).error_code == ErrorCode.NONE
    play.sim.run_for(period_ms + 2_000)
    assert play.ask(by_token, m.MetadataRequest(topics=[]), 9) is None


def test_a_token_makes_nobody_a_node_and_so_no_further_token(play: Play) -> None:
    """A token expires; its holder must not be able to get another one in the name of its owner."""
    node_id = play.cluster.controller_id
    assert node_id is not None
    owner = play.client(node_id, "owner")
    assert play.log_in(owner, "admin", "his") == ErrorCode.NONE
    token = play.ask(owner, m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)
    thief = play.client(node_id, "millpond-node-3")
    assert play.log_in(thief, token.token_id, b64encode(token.hmac).decode(), is_token=True) == ErrorCode.NONE
    inner = m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
    refused = play.ask(thief, inner, 3)
    assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    before = len(play.cluster.image.tokens)
    envelope = m.EnvelopeRequest(
        request_data=encode_request_header(38, 3, 1, None) + inner.encode(3),
        request_principal=b"0User:admin",
        client_host_address=b"",
    )
    answer = play.ask(thief, envelope, 0)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    play.sim.run_for(1_000)
    assert len(play.cluster.image.tokens) == before
