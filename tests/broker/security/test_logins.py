"""Authentication over the wire, in the simulated world: what is served before it, what ends it, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from millpond.base.errors import ErrorCode, RemoteError
from millpond.base.scram import ScramClient, salted
from millpond.broker.apis import k41_describe_delegation_token
from millpond.broker.security.login import IllegalLoginState
from millpond.metadata.decision import Decision
from millpond.metadata.features import SUPPORTED, FeatureUpdate, UpgradeType, decide_update_features
from millpond.metadata.initial_users import credential_of, written
from millpond.metadata.records import DelegationTokenRecord
from millpond.metadata.scram import Deletion, Mechanism, Upsertion, decide_alter_credentials
from millpond.wire import messages as m

SALT = b"pepper" * 5
TEXTS = {
    "listen.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "super.users": "User:alice",
}
LISTENER = "SASL_PLAINTEXT"


class LoginNode:
    def __init__(self, make_server: Callable[..., Any], **texts: str) -> None:
        self.server = make_server(TEXTS | texts)
        self.set_password("alice", "pw")

    def set_password(self, user: str, password: str) -> None:
        upsertion = Upsertion(user, 2, 4096, SALT, salted("sha512", password.encode(), SALT, 4096))
        self.decide([], [upsertion])

    def remove(self, user: str) -> None:
        self.decide([Deletion(user, 2)], [])

    def decide(self, deletions: list[Deletion], upsertions: list[Upsertion]) -> None:
        self.server.submit(lambda image: decide_alter_credentials(image, deletions, upsertions, b"secret"))

    def connect(self, peer: str = "10.0.0.1:5000") -> Any:
        return self.server.connect(peer=peer, listener=LISTENER)

    def greet(self, caller: Any, mechanism: str = "SCRAM-SHA-512") -> Any:
        return caller.ask(m.SaslHandshakeRequest(mechanism=mechanism), 1)

    def say(self, caller: Any, text: bytes) -> Any:
        return caller.ask(m.SaslAuthenticateRequest(auth_bytes=text), 2, within_ms=5000)

    def log_in(self, caller: Any, user: str = "alice", password: str = "pw") -> Any:
        assert self.greet(caller).error_code == ErrorCode.NONE
        client = ScramClient("SCRAM-SHA-512", user, password, "nonce")
        challenge = self.say(caller, client.first())
        assert challenge.error_code == ErrorCode.NONE
        proof = client.next(challenge.auth_bytes)
        assert proof is not None
        verdict = self.say(caller, proof)
        if not verdict.error_code:
            client.next(verdict.auth_bytes)
            assert client.is_over
        return verdict

    def is_served(self, caller: Any) -> bool:
        try:
            return caller.ask(m.MetadataRequest(topics=[]), 9).controller_id >= 0
        except IllegalLoginState:
            return False


@pytest.fixture
def host(make_server: Callable[..., Any]) -> LoginNode:
    return LoginNode(make_server)


def test_who_logs_in_is_served_as_himself(host: LoginNode) -> None:
    caller = host.connect()
    assert caller.connection.principal is None
    assert host.log_in(caller).session_lifetime_ms == 0
    assert str(caller.connection.principal) == "User:alice"
    assert host.is_served(caller)


def test_before_a_login_nothing_else_is_served(host: LoginNode) -> None:
    for key in sorted(set(range(-1, 100)) - {17, 18, 36}):
        caller = host.connect()
        with pytest.raises(IllegalLoginState, match="before a login"):
            # Includes the byte that ends a flexible header.
            caller.link.say(b"\0\0\0\x0b" + key.to_bytes(2, signed=True) + b"\0\0\0\0\0\1\xff\xff\0")


def test_versions_are_told_to_everybody(host: LoginNode) -> None:
    reply = host.connect().ask(m.ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
    assert {17, 36} <= {each.api_key for each in reply.api_keys}


def test_a_wrong_password_and_a_stranger_hear_the_same_after_the_same_time(host: LoginNode) -> None:
    replies = []
    for user in ("alice", "ghost"):
        for mechanism in ("SCRAM-SHA-512", "PLAIN"):
            caller = host.connect()
            before_ms = host.server.sim.clock.monotonic_ms()
            if mechanism == "PLAIN":
                host.greet(caller, "PLAIN")
                verdict = host.say(caller, f"\0{user}\0wrong".encode())
            else:
                verdict = host.log_in(caller, user, "wrong")
            assert verdict.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert host.server.sim.clock.monotonic_ms() - before_ms >= 100
            assert caller.link.events[-1] == "close"
            assert caller.connection.principal is None
            replies.append((mechanism, verdict.error_message))
            with pytest.raises(RemoteError):
                host.greet(caller)
    assert replies[:2] == replies[2:]
    assert host.server.broker.logins.counts["PLAIN", False] == 2


def test_a_mechanism_that_is_not_enabled_is_answered_with_those_that_are(host: LoginNode) -> None:
    caller = host.connect()
    reply = caller.ask(m.SaslHandshakeRequest(mechanism="GSSAPI"), 1)
    assert reply.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert reply.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert caller.link.events[-1] == "close"


def test_a_login_is_refused_where_none_is_required(make_server: Callable[..., Any]) -> None:
    caller = make_server().connect()
    reply = caller.ask(m.SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert reply.error_code == ErrorCode.ILLEGAL_SASL_STATE
    reply = caller.ask(m.SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), 2)
    assert reply.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert caller.ask(m.MetadataRequest(topics=[]), 9).controller_id >= 0


def test_messages_without_headers_as_before_kafka_1_0(host: LoginNode) -> None:
    caller = host.connect()
    assert caller.ask(m.SaslHandshakeRequest(mechanism="PLAIN"), 0).error_code == ErrorCode.NONE
    caller.link.say(b"\0\0\0\x09\0alice\0pw")
    host.server.run(50)
    assert caller.link.frames() == [b""]
    assert host.is_served(caller)
    other = host.connect()
    other.ask(m.SaslHandshakeRequest(mechanism="PLAIN"), 0)
    other.link.say(b"\0\0\0\x09\0alice\0no")
    host.server.run(500)
    assert other.link.frames() == []
    assert other.link.events[-1] == "abort"


def test_a_second_message_while_the_first_is_checked_ends_it(host: LoginNode) -> None:
    caller = host.connect()
    host.greet(caller, "PLAIN")
    caller.send(m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0pw"), 2)
    with pytest.raises(IllegalLoginState, match="is being checked"):
        caller.send(m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0pw"), 2)


# Sessions.


def test_after_its_time_a_session_has_to_log_in_again(make_server: Callable[..., Any]) -> None:
    host = LoginNode(make_server, **{"connections.max.reauth.ms": "5000"})
    caller = host.connect()
    assert host.log_in(caller).session_lifetime_ms == 5000
    host.server.run(4000)
    assert host.is_served(caller)
    assert host.log_in(caller).session_lifetime_ms == 5000
    host.server.run(4000)
    assert host.is_served(caller), "the second login counts"
    host.server.run(2000)
    assert not host.is_served(caller)


def test_who_is_in_may_log_in_again_but_not_all_the_time_and_not_as_another(host: LoginNode) -> None:
    host.set_password("bob", "pw")
    caller = host.connect()
    host.log_in(caller)
    assert host.greet(caller).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert host.is_served(caller)
    host.server.run(100)
    assert host.log_in(caller, "bob").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert caller.link.events[-1] == "close"
    assert not host.is_served(caller)


@pytest.mark.parametrize("change", ["set_password", "remove"])
def test_a_session_ends_when_its_credential_is_taken_back(host: LoginNode, change: str) -> None:
    host.set_password("bob", "pw")
    caller, other = host.connect(), host.connect()
    host.log_in(caller)
    host.log_in(other, "bob")
    getattr(host, change)(*(("alice", "new") if change == "set_password" else ("alice",)))
    assert not host.is_served(caller)
    host.server.run(1000)
    assert caller.link.events[-1] == "close"
    assert host.is_served(other)


# Limits before authentication.


def test_a_newcomer_has_little_time(host: LoginNode) -> None:
    silent, quick = host.connect(), host.connect()
    host.log_in(quick)
    host.server.run(12_000)
    assert silent.link.events[-1] == "abort"
    assert host.is_served(quick)


def test_a_newcomer_gets_little_memory_until_he_is_none(host: LoginNode) -> None:
    caller = host.connect()
    with pytest.raises(RemoteError, match="at most 65536 are accepted"):
        caller.link.say((65_537).to_bytes(4))
    friend = host.connect()
    host.log_in(friend)
    friend.link.say((65_537).to_bytes(4))


@pytest.mark.parametrize("is_raw", [False, True])
def test_a_second_login_is_limited_like_the_first(host: LoginNode, is_raw: bool) -> None:
    """The message is parsed on the loop: a hundred megabytes of commas once took seconds and gigabytes."""
    caller = host.connect()
    host.log_in(caller)
    host.server.run(200)
    much = b"n,,n=alice,r=nonce," + b"a=," * 30_000
    caller.ask(m.SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 0 if is_raw else 1)
    if is_raw:
        caller.link.say(len(much).to_bytes(4) + much)
        host.server.run(500)
        assert caller.link.frames() == []
        assert caller.link.events[-1] == "abort"
    else:
        assert host.say(caller, much).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert caller.link.events[-1] == "close"


def test_of_too_many_newcomers_the_oldest_goes(make_server: Callable[..., Any]) -> None:
    host = LoginNode(make_server, **{"login.max.connections": "10"})
    friend = host.connect()
    host.log_in(friend)
    crowd = [host.connect(f"10.0.0.{number}:99") for number in range(2, 32)]
    newcomer = host.connect()
    assert host.log_in(newcomer).error_code == ErrorCode.NONE
    gone = [each for each in crowd if "abort" in each.link.events]
    assert gone == crowd[:21]
    assert host.is_served(friend)


def test_of_too_many_newcomers_those_of_a_crowd_go_first(make_server: Callable[..., Any]) -> None:
    host = LoginNode(make_server, **{"login.max.connections": "10"})
    slow = host.connect("10.0.0.77:1")
    crowd = [host.connect(f"10.0.0.2:{number}") for number in range(1000, 1030)]
    assert "abort" not in slow.link.events
    assert [each for each in crowd if "abort" in each.link.events] == crowd[:21]
    assert host.log_in(slow).error_code == ErrorCode.NONE
    assert any("login.max.connections=10" in line for line in host.server.node.journal_lines)


def test_what_a_crowd_shows_is_checked_in_turns(host: LoginNode) -> None:
    crowd = [host.connect(f"10.0.0.2:{number}") for number in range(1000, 1100)]
    for each in crowd:
        host.greet(each, "PLAIN")
    for each in crowd:
        each.send(m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
    assert len(host.server.broker.logins.queue) >= 90
    waiting = len(host.server.broker.logins.queue)
    friend = host.connect("10.0.0.3:1")
    host.greet(friend, "PLAIN")
    friend.send(m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0pw"), 2)
    for each in crowd[50:]:
        each.link.end()
    host.server.sim.run_until(lambda: bool(friend.link.received), within_ms=5000)
    assert waiting
    assert friend.replies()[0].error_code == ErrorCode.NONE
    host.server.run(1000)
    assert len(host.server.broker.logins.queue) == 0


# Users on the wire.


def test_users_are_made_shown_and_removed(host: LoginNode) -> None:
    admin = host.connect()
    host.log_in(admin)
    upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="carol", mechanism=1, iterations=4096, salt=SALT, salted_password=salted("sha256", b"x", SALT, 4096)
    )
    made = admin.ask(m.AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]), 0)
    assert [(each.user, each.error_code) for each in made.results] == [("carol", 0)]
    response = admin.ask(m.DescribeUserScramCredentialsRequest(users=None), 0)
    assert [
        (each.user, [(one.mechanism, one.iterations) for one in each.credential_infos]) for each in response.results
    ] == [("alice", [(2, 4096)]), ("carol", [(1, 4096)])]
    caller = host.connect()
    host.greet(caller, "SCRAM-SHA-256")
    client = ScramClient("SCRAM-SHA-256", "carol", "x", "nonce")
    proof = client.next(host.say(caller, client.first()).auth_bytes)
    assert proof is not None
    assert host.say(caller, proof).error_code == ErrorCode.NONE
    goes = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="carol", mechanism=1)
    gone = admin.ask(m.AlterUserScramCredentialsRequest(deletions=[goes], upsertions=[]), 0)
    assert gone.results[0].error_code == ErrorCode.NONE


# Delegation tokens.


def token_login(host: LoginNode, token_id: str, hmac: bytes) -> tuple[Any, Any]:
    from base64 import b64encode

    caller = host.connect()
    host.greet(caller)
    client = ScramClient("SCRAM-SHA-512", token_id, b64encode(hmac).decode(), "nonce", is_token=True)
    proof = client.next(host.say(caller, client.first()).auth_bytes)
    assert proof is not None
    return caller, host.say(caller, proof)


def test_a_token_from_its_making_to_its_end(host: LoginNode) -> None:
    owner = host.connect()
    host.log_in(owner)
    made = owner.ask(m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=60_000), 2)
    assert (made.error_code, made.principal_name) == (0, "alice")
    assert made.max_timestamp_ms - made.issue_timestamp_ms == 60_000
    caller, verdict = token_login(host, made.token_id, made.hmac)
    assert verdict.error_code == ErrorCode.NONE
    assert 0 < verdict.session_lifetime_ms <= 60_000
    assert str(caller.connection.principal) == "User:alice"
    assert host.is_served(caller)
    again = caller.ask(m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=1), 2)
    assert again.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "a token begets no tokens"
    response = owner.ask(m.DescribeDelegationTokenRequest(owners=None), 3)
    assert [(each.token_id, each.hmac) for each in response.tokens] == [(made.token_id, made.hmac)]
    renewed = owner.ask(m.RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=1000), 2)
    assert renewed.error_code == ErrorCode.NONE
    wrong = owner.ask(m.RenewDelegationTokenRequest(hmac=b"x" * 64, renew_period_ms=1000), 2)
    assert wrong.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    ended = owner.ask(m.ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1), 2)
    assert ended.error_code == ErrorCode.NONE
    assert not host.is_served(caller), "its sessions end with it"
    _, refused = token_login(host, made.token_id, made.hmac)
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_expired_tokens_are_refused_and_removed(make_server: Callable[..., Any]) -> None:
    host = LoginNode(make_server, **{"delegation.token.expiry.check.interval.ms": "10000"})
    owner = host.connect()
    host.log_in(owner)
    made = owner.ask(m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=2_000), 2)
    caller, verdict = token_login(host, made.token_id, made.hmac)
    assert verdict.session_lifetime_ms <= 2000
    host.server.run(2500)
    assert not host.is_served(caller)
    _, refused = token_login(host, made.token_id, made.hmac)
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    host.server.run(10_000)
    assert len(host.server.broker.image.tokens) == 0


def test_who_is_removed_loses_tokens_and_sessions(host: LoginNode) -> None:
    host.set_password("bob", "pw")
    callers = {}
    for user in ("alice", "bob"):
        owner = host.connect()
        host.log_in(owner, user)
        made = owner.ask(m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=60_000), 2)
        assert made.error_code == ErrorCode.NONE
        bearer, verdict = token_login(host, made.token_id, made.hmac)
        assert verdict.error_code == ErrorCode.NONE
        callers[user] = owner, bearer, made
    host.remove("bob")
    for caller in callers["bob"][:2]:
        assert not host.is_served(caller)
    host.server.run(1000)
    assert all(caller.link.events[-1] == "close" for caller in callers["bob"][:2])
    assert all(host.is_served(caller) for caller in callers["alice"][:2])
    made = callers["bob"][2]
    assert token_login(host, made.token_id, made.hmac)[1].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    host.set_password("bob", "pw")
    _, refused = token_login(host, made.token_id, made.hmac)
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, "it does not come back with the name"
    made = callers["alice"][2]
    assert token_login(host, made.token_id, made.hmac)[1].error_code == ErrorCode.NONE


def test_describing_the_tokens_of_thousands_of_owners_blocks_no_one(host: LoginNode) -> None:
    """Any authenticated client may ask, and may name as many owners as a request can hold."""
    renewers = tuple(f"User:renewer-{number}" for number in range(100))
    tokens = tuple(
        DelegationTokenRecord("User:bob", "User:bob", renewers, 0, 1 << 60, 1 << 60, f"t-{number}")
        for number in range(1_000)
    )
    host.set_password("eve", "pw")
    eve = host.connect()
    host.log_in(eve, "eve")
    owner = m.DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    owners = [owner(principal_type="User", principal_name=f"somebody-{number}") for number in range(9_000)]

    def asked() -> float:
        began = time.process_time()
        assert eve.ask(m.DescribeDelegationTokenRequest(owners=owners), 3).tokens == []
        return time.process_time() - began

    without_any = asked()
    host.server.submit(lambda _: Decision(tokens, ()))
    # Searching every token for each owner would take a hundred times as long.
    assert asked() < 20 * without_any


def test_thousands_of_tokens_are_described_in_slices(host: LoginNode, monkeypatch: pytest.MonkeyPatch) -> None:
    renewers = tuple(f"User:{name}" for name in ("alice", *(f"renewer-{number}" for number in range(20))))
    tokens = tuple(
        DelegationTokenRecord("User:bob", "User:bob", renewers, 0, 1 << 60, 1 << 60, f"t-{number}")
        for number in range(1_000)
    )
    host.set_password("alice", "pw")
    alice = host.connect()
    host.log_in(alice)
    host.server.submit(lambda _: Decision(tokens, ()))
    slices: list[int] = []
    described_in = k41_describe_delegation_token._described_in
    monkeypatch.setattr(
        k41_describe_delegation_token,
        "_described_in",
        lambda *given: slices.append(len(given[3])) or described_in(*given),
    )
    response = alice.ask(m.DescribeDelegationTokenRequest(owners=None), 3)
    assert [each.token_id for each in response.tokens] == [each.token_id for each in tokens]
    assert slices == [k41_describe_delegation_token.TOKENS_AT_ONCE] * 10


def test_tokens_are_not_created_over_plaintext(make_server: Callable[..., Any]) -> None:
    caller = make_server().connect()
    made = caller.ask(m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=1), 2)
    assert made.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


# The first users.


def test_a_cluster_begins_with_the_users_of_a_file(make_server: Callable[..., Any]) -> None:
    server = make_server(TEXTS | {"initial.users.file": "first-users"})
    server.run(100)
    assert any("cannot read the initial users" in line for line in server.node.journal_lines)
    users = written([credential_of("admin", "pw", b"salt", Mechanism(2), 4096)])
    server.disk.replace("first-users", users.encode())
    for _ in range(2):
        server.node.kill()
        assert server.node.start(), server.node.journal_lines
        server.sim.run_until(lambda: server.broker.image.scram.users() == ["admin"], within_ms=5000)
    assert sum("the cluster has its first users" in line for line in server.node.journal_lines) == 1


def test_an_administrator_who_was_removed_does_not_return_with_a_restart(make_server: Callable[..., Any]) -> None:
    server = make_server(TEXTS | {"initial.users.file": "first-users"})
    server.disk.replace("first-users", written([credential_of("admin", "pw", b"salt", Mechanism(2), 4096)]).encode())
    server.node.kill()
    assert server.node.start()
    server.sim.run_until(lambda: server.broker.image.scram.users() == ["admin"], within_ms=5000)
    removed: list[Any] = []
    server.broker.controller.submit(
        lambda image: decide_alter_credentials(image, [Deletion("admin", 2)], [], b"fresh")
    ).then(removed.append)
    server.sim.run_until(lambda: bool(removed), within_ms=1000)
    server.node.kill()
    assert server.node.start()
    server.run(1000)
    assert server.broker.image.scram.users() == []
    assert any("initial users not created" in line for line in server.node.journal_lines)


def test_a_cluster_from_before_there_were_users_gets_them_when_its_level_is_raised(make_server: Any) -> None:
    server = make_server(TEXTS | {"initial.users.file": "first-users"})
    controller = server.broker.controller

    def set_level(level: int, kind: UpgradeType) -> None:
        update = FeatureUpdate("metadata.version", level, kind)
        done: list[Any] = []
        controller.submit(lambda image: decide_update_features(image, [update], SUPPORTED)).then(done.append)
        server.sim.run_until(lambda: bool(done), within_ms=1000)
        assert done[0][0].ok, done

    set_level(26, UpgradeType.SAFE_DOWNGRADE)
    users = written([credential_of("admin", "pw", b"salt", Mechanism(2), 4096)])
    server.disk.replace("first-users", users.encode())
    server.node.kill()
    assert server.node.start()
    server.run(100)
    assert any("the first users cannot be made" in line for line in server.node.journal_lines)
    controller = server.broker.controller
    set_level(27, UpgradeType.UPGRADE)
    server.sim.run_until(lambda: server.broker.image.scram.users() == ["admin"], within_ms=5000)
