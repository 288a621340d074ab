"""Attacks by clients that are not nodes, or whose credentials are no longer valid."""

from __future__ import annotations

from base64 import b64encode
from uuid import UUID

import pytest
from tests.broker.security.test_secure_cluster import SecureCluster, upsertion

from millpond.base.errors import ErrorCode
from millpond.base.rights import CLUSTER_NAME, AclResource, Operation, PatternType, Permission
from millpond.base.scram import ScramClient, attributes, from_base64, mac
from millpond.sim.clients.client import SimClient
from millpond.wire import messages as m
from millpond.wire.header import encode_request_header


@pytest.fixture(scope="module")
def secure() -> SecureCluster:
    secure = SecureCluster()
    assert secure.sim.run_until(lambda: secure.active() == {1, 2, 3}, within_ms=60_000)
    admin = secure.client(secure.cluster.controller_id, "first")
    assert secure.log_in(admin, "node", "known to all nodes") == ErrorCode.NONE
    wanted = [upsertion("mallory", "hers"), upsertion("admin", "his"), upsertion("gone", "old")]
    made = secure.ask(admin, m.AlterUserScramCredentialsRequest(deletions=[], upsertions=wanted), 0)
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
    assert not secure.ask(admin, m.CreateAclsRequest(creations=[creation]), 3).results[0].error_code
    secure.sim.run_for(1_000)
    return secure


def follower(secure: SecureCluster) -> int:
    return next(each for each in secure.cluster.nodes if each != secure.cluster.controller_id)


def mallory(secure: SecureCluster, node_id: int, name: str = "millpond-node-2") -> SimClient:
    client = secure.client(node_id, name)
    assert secure.log_in(client, "mallory", "hers") == ErrorCode.NONE
    return client


def test_who_is_no_node_gets_no_envelope_opened_by_way_of_a_follower(secure: SecureCluster) -> None:
    inner = m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
    envelope = m.EnvelopeRequest(
        request_data=encode_request_header(38, 3, 1, None) + inner.encode(3),
        request_principal=b"0User:admin",
        client_host_address=b"",
    )
    before = len(secure.cluster.image.tokens)
    answer = secure.ask(mallory(secure, follower(secure)), envelope, 0)
    secure.sim.run_for(1_000)
    assert len(secure.cluster.image.tokens) == before, "the admin cannot create a token for another user"
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_who_is_no_node_reads_no_metadata_and_no_replica(secure: SecureCluster) -> None:
    for name in ("mallory", "millpond-node-2"):
        client = mallory(secure, secure.cluster.controller_id, name)
        metadata = m.FetchRequest.FetchTopic(
            topic="__cluster_metadata",
            topic_id=UUID(int=1),
            partitions=[m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
        )
        request = m.FetchRequest(
            cluster_id=secure.cluster.image.cluster_id,
            replica_state=m.FetchRequest.ReplicaState(replica_id=2, replica_epoch=-1),
            max_wait_ms=0,
            max_bytes=1 << 20,
            topics=[metadata],
        )
        assert secure.ask(client, request, 17).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_who_is_no_node_registers_none(secure: SecureCluster) -> None:
    request = m.BrokerRegistrationRequest(
        broker_id=9, cluster_id=secure.cluster.image.cluster_id, listeners=[], features=[], log_dirs=[]
    )
    for node_id in secure.cluster.nodes:
        answer = secure.ask(mallory(secure, node_id), request, 4)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert 9 not in secure.cluster.image.brokers


def test_nothing_that_a_stranger_hears_tells_whether_a_guess_at_the_nodes_password_is_right(
    secure: SecureCluster,
) -> None:
    """The salt must not be derived from the password: guesses could then be tested offline, without the many
    iterations.
    """
    client = secure.client(1, "nobody")
    secure.ask(client, m.SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
    first = ScramClient("SCRAM-SHA-512", "node", "no idea", "nonce").first()
    heard = secure.ask(client, m.SaslAuthenticateRequest(auth_bytes=first), 2).auth_bytes
    salt = from_base64(attributes(bytes(heard).decode())["s"])
    guesses = ["secret", "password", "known to all nodes", "12345"]
    result = [each for each in guesses if mac("sha512", each.encode(), b"node 2").startswith(salt)]
    assert not result


def test_a_login_that_began_before_its_user_was_removed_ends_nowhere(secure: SecureCluster) -> None:
    node_id = follower(secure)
    late = secure.client(node_id, "late")
    secure.ask(late, m.SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
    scram = ScramClient("SCRAM-SHA-512", "gone", "old", "nonce")
    proof = scram.next(secure.ask(late, m.SaslAuthenticateRequest(auth_bytes=scram.first()), 2).auth_bytes)
    assert proof is not None
    admin = secure.client(node_id, "admin")
    assert secure.log_in(admin, "admin", "his") == ErrorCode.NONE
    deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="gone", mechanism=2)
    removed = secure.ask(admin, m.AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]), 0)
    assert not removed.results[0].error_code
    answer = secure.ask(late, m.SaslAuthenticateRequest(auth_bytes=proof), 2)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize("period_ms", [0, 2_000])
def test_a_session_ends_with_its_token_also_where_that_is_ended_after_a_time(
    secure: SecureCluster, period_ms: int
) -> None:
    node_id = follower(secure)
    owner = secure.client(node_id, "owner")
    assert secure.log_in(owner, "admin", "his") == ErrorCode.NONE
    token = secure.ask(owner, m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)
    assert token.error_code == ErrorCode.NONE
    by_token = secure.client(node_id, "by-token")
    proof = b64encode(token.hmac).decode()
    assert secure.log_in(by_token, token.token_id, proof, is_token=True) == ErrorCode.NONE
    assert secure.ask(by_token, m.MetadataRequest(topics=[]), 9) is not None
    ended = m.ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=period_ms)
    assert secure.ask(owner, ended, 2).error_code == ErrorCode.NONE
    secure.sim.run_for(period_ms + 2_000)
    assert secure.ask(by_token, m.MetadataRequest(topics=[]), 9) is None


def test_a_login_by_token_is_no_node_and_gets_no_further_token(secure: SecureCluster) -> None:
    """A token expires; its holder must not be able to get another one in the name of its owner."""
    node_id = secure.cluster.controller_id
    assert node_id is not None
    owner = secure.client(node_id, "owner")
    assert secure.log_in(owner, "admin", "his") == ErrorCode.NONE
    token = secure.ask(owner, m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)
    thief = secure.client(node_id, "millpond-node-3")
    assert secure.log_in(thief, token.token_id, b64encode(token.hmac).decode(), is_token=True) == ErrorCode.NONE
    inner = m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
    refused = secure.ask(thief, inner, 3)
    assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    before = len(secure.cluster.image.tokens)
    envelope = m.EnvelopeRequest(
        request_data=encode_request_header(38, 3, 1, None) + inner.encode(3),
        request_principal=b"0User:admin",
        client_host_address=b"",
    )
    answer = secure.ask(thief, envelope, 0)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    secure.sim.run_for(1_000)
    assert len(secure.cluster.image.tokens) == before
