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


class Play:
    def __init__(self, make_desk: Callable[..., Any], **texts: str) -> None:
        self.desk = make_desk(TEXTS | texts)
        self.set_password("alice", "pw")

    def set_password(self, user: str, password: str) -> None:
        wanted = Upsertion(user, 2, 4096, SALT, salted("sha512", password.encode(), SALT, 4096))
        self.decide([], [wanted])

    def remove(self, user: str) -> None:
        self.decide([Deletion(user, 2)], [])

    def decide(self, deletions: list[Deletion], upsertions: list[Upsertion]) -> None:
        self.desk.submit(lambda image: decide_alter_credentials(image, deletions, upsertions, b"secret"))

    def connect(self, peer: str = "10.0.0.1:5000") -> Any:
        return self.desk.connect(peer=peer, listener=LISTENER)

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
def play(make_desk: Callable[..., Any]) -> Play:
    return Play(make_desk)


def test_who_logs_in_is_served_as_himself(play: Play) -> None:
    caller = play.connect()
    assert caller.connection.principal is None
    assert play.log_in(caller).session_lifetime_ms == 0
    assert str(caller.connection.principal) == "User:alice"
    assert play.is_served(caller)


def test_before_a_login_nothing_else_is_served(play: Play) -> None:
    for key in sorted(set(range(-1, 100)) - {17, 18, 36}):
        caller = play.connect()
        with pytest.raises(IllegalLoginState, match="before a login"):
            # Includes the byte that ends a flexible header.
            caller.link.say(b"\0\0\0\x0b" + key.to_bytes(2, signed=True) + b"\0\0\0\0\0\1\xff\xff\0")


def test_versions_are_told_to_everybody(play: Play) -> None:
    reply = play.connect().ask(m.ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
    assert {17, 36} <= {each.api_key for each in reply.api_keys}


def test_a_wrong_password_and_a_stranger_hear_the_same_after_the_same_time(play: Play) -> None:
    heard = []
    for user in ("alice", "ghost"):
        for mechanism in ("SCRAM-SHA-512", "PLAIN"):
            caller = play.connect()
            before_ms = play.desk.sim.clock.monotonic_ms()
            if mechanism == "PLAIN":
                play.greet(caller, "PLAIN")
                verdict = play.say(caller, f"\0{user}\0wrong".encode())
            else:
                verdict = play.log_in(caller, user, "wrong")
            assert verdict.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert play.desk.sim.clock.monotonic_ms() - before_ms >= 100
            assert caller.link.events[-1] == "close"
            assert caller.connection.principal is None
            heard.append((mechanism, verdict.error_message))
            with pytest.raises(RemoteError):
                play.greet(caller)
    assert heard[:2] == heard[2:]
    assert play.desk.broker.logins.counts["PLAIN", False] == 2


def test_a_mechanism_that_is_not_enabled_is_answered_with_those_that_are(play: Play) -> None:
    caller = play.connect()
    reply = caller.ask(m.SaslHandshakeRequest(mechanism="GSSAPI"), 1)
    assert reply.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert reply.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert caller.link.events[-1] == "close"


def test_where_nobody_has_to_log_in_a_login_is_refused(make_desk: Callable[..., Any]) -> None:
    caller = make_desk().connect()
    reply = caller.ask(m.SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert reply.error_code == ErrorCode.ILLEGAL_SASL_STATE
    reply = caller.ask(m.SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), 2)
    assert reply.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert caller.ask(m.MetadataRequest(topics=[]), 9).controller_id >= 0


def test_messages_without_headers_as_before_kafka_1_0(play: Play) -> None:
    caller = play.connect()
    assert caller.ask(m.SaslHandshakeRequest(mechanism="PLAIN"), 0).error_code == ErrorCode.NONE
    caller.link.say(b"\0\0\0\x09\0alice\0pw")
    play.desk.run(50)
    assert caller.link.frames() == [b""]
    assert play.is_served(caller)
    other = play.connect()
    other.ask(m.SaslHandshakeRequest(mechanism="PLAIN"), 0)
    other.link.say(b"\0\0\0\x09\0alice\0no")
    play.desk.run(500)
    assert other.link.frames() == []
    assert other.link.events[-1] == "abort"


def test_a_second_message_while_the_first_is_checked_ends_it(play: Play) -> None:
    caller = play.connect()
    play.greet(caller, "PLAIN")
    caller.send(m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0pw"), 2)
    with pytest.raises(IllegalLoginState, match="is being checked"):
        caller.send(m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0pw"), 2)


# Sessions.


def test_after_its_time_a_session_has_to_log_in_again(make_desk: Callable[..., Any]) -> None:
    play = Play(make_desk, **{"connections.max.reauth.ms": "5000"})
    caller = play.connect()
    assert play.log_in(caller).session_lifetime_ms == 5000
    play.desk.run(4000)
    assert play.is_served(caller)
    assert play.log_in(caller).session_lifetime_ms == 5000
    play.desk.run(4000)
    assert play.is_served(caller), "the second login counts"
    play.desk.run(2000)
    assert not play.is_served(caller)


def test_who_is_in_may_log_in_again_but_not_all_the_time_and_not_as_another(play: Play) -> None:
    play.set_password("bob", "pw")
    caller = play.connect()
    play.log_in(caller)
    assert play.greet(caller).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert play.is_served(caller)
    play.desk.run(100)
    assert play.log_in(caller, "bob").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert caller.link.events[-1] == "close"
    assert not play.is_served(caller)


@pytest.mark.parametrize("change", ["set_password", "remove"])
def test_a_session_ends_when_its_credential_is_taken_back(play: Play, change: str) -> None:
    play.set_password("bob", "pw")
    caller, other = play.connect(), play.connect()
    play.log_in(caller)
    play.log_in(other, "bob")
    getattr(play, change)(*(("alice", "new") if change == "set_password" else ("alice",)))
    assert not play.is_served(caller)
    play.desk.run(1000)
    assert caller.link.events[-1] == "close"
    assert play.is_served(other)


# Limits before authentication.


def test_a_newcomer_has_little_time(play: Play) -> None:
    silent, quick = play.connect(), play.connect()
    play.log_in(quick)
    play.desk.run(12_000)
    assert silent.link.events[-1] == "abort"
    assert play.is_served(quick)


def test_a_newcomer_gets_little_memory_until_he_is_none(play: Play) -> None:
    caller = play.connect()
    with pytest.raises(RemoteError, match="at most 65536 are taken"):
        caller.link.say((65_537).to_bytes(4))
    friend = play.connect()
    play.log_in(friend)
    friend.link.say((65_537).to_bytes(4))


@pytest.mark.parametrize("is_raw", [False, True])
def test_whoever_logs_in_again_shows_no_more_than_a_newcomer(play: Play, is_raw: bool) -> None:
    """The message is parsed on the loop: a hundred megabytes of commas once took seconds and gigabytes."""
    caller = play.connect()
    play.log_in(caller)
    play.desk.run(200)
    much = b"n,,n=alice,r=nonce," + b"a=," * 30_000
    caller.ask(m.SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 0 if is_raw else 1)
    if is_raw:
        caller.link.say(len(much).to_bytes(4) + much)
        play.desk.run(500)
        assert caller.link.frames() == []
        assert caller.link.events[-1] == "abort"
    else:
        assert play.say(caller, much).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert caller.link.events[-1] == "close"


def test_of_too_many_newcomers_the_oldest_goes(make_desk: Callable[..., Any]) -> None:
    play = Play(make_desk, **{"login.max.connections": "10"})
    friend = play.connect()
    play.log_in(friend)
    crowd = [play.connect(f"10.0.0.{number}:99") for number in range(2, 32)]
    newcomer = play.connect()
    assert play.log_in(newcomer).error_code == ErrorCode.NONE
    gone = [each for each in crowd if "abort" in each.link.events]
    assert gone == crowd[:21]
    assert play.is_served(friend)


def test_of_too_many_newcomers_those_of_a_crowd_go_first(make_desk: Callable[..., Any]) -> None:
    play = Play(make_desk, **{"login.max.connections": "10"})
    slow = play.connect("10.0.0.77:1")
    crowd = [play.connect(f"10.0.0.2:{number}") for number in range(1000, 1030)]
    assert "abort" not in slow.link.events
    assert [each for each in crowd if "abort" in each.link.events] == crowd[:21]
    assert play.log_in(slow).error_code == ErrorCode.NONE
    assert any("login.max.connections=10" in line for line in play.desk.node.journal_lines)


def test_what_a_crowd_shows_is_checked_in_turns(play: Play) -> None:
    crowd = [play.connect(f"10.0.0.2:{number}") for number in range(1000, 1100)]
    for each in crowd:
        play.greet(each, "PLAIN")
    for each in crowd:
        each.send(m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
    assert len(play.desk.broker.logins.queue) >= 90
    waiting = len(play.desk.broker.logins.queue)
    friend = play.connect("10.0.0.3:1")
    play.greet(friend, "PLAIN")
    friend.send(m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0pw"), 2)
    for each in crowd[50:]:
        each.link.end()
    play.desk.sim.run_until(lambda: bool(friend.link.received), within_ms=5000)
    assert waiting
    assert friend.replies()[0].error_code == ErrorCode.NONE
    play.desk.run(1000)
    assert len(play.desk.broker.logins.queue) == 0


# Users on the wire.


def test_users_are_made_shown_and_removed(play: Play) -> None:
    admin = play.connect()
    play.log_in(admin)
    wanted = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="carol", mechanism=1, iterations=4096, salt=SALT, salted_password=salted("sha256", b"x", SALT, 4096)
    )
    made = admin.ask(m.AlterUserScramCredentialsRequest(deletions=[], upsertions=[wanted]), 0)
    assert [(each.user, each.error_code) for each in made.results] == [("carol", 0)]
    told = admin.ask(m.DescribeUserScramCredentialsRequest(users=None), 0)
    assert [
        (each.user, [(one.mechanism, one.iterations) for one in each.credential_infos]) for each in told.results
    ] == [("alice", [(2, 4096)]), ("carol", [(1, 4096)])]
    caller = play.connect()
    play.greet(caller, "SCRAM-SHA-256")
    client = ScramClient("SCRAM-SHA-256", "carol", "x", "nonce")
    proof = client.next(play.say(caller, client.first()).auth_bytes)
    assert proof is not None
    assert play.say(caller, proof).error_code == ErrorCode.NONE
    goes = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="carol", mechanism=1)
    gone = admin.ask(m.AlterUserScramCredentialsRequest(deletions=[goes], upsertions=[]), 0)
    assert gone.results[0].error_code == ErrorCode.NONE


# Delegation tokens.


def token_login(play: Play, token_id: str, hmac: bytes) -> tuple[Any, Any]:
    from base64 import b64encode

    caller = play.connect()
    play.greet(caller)
    client = ScramClient("SCRAM-SHA-512", token_id, b64encode(hmac).decode(), "nonce", is_token=True)
    proof = client.next(play.say(caller, client.first()).auth_bytes)
    assert proof is not None
    return caller, play.say(caller, proof)


def test_a_token_from_its_making_to_its_end(play: Play) -> None:
    owner = play.connect()
    play.log_in(owner)
    made = owner.ask(m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=60_000), 2)
    assert (made.error_code, made.principal_name) == (0, "alice")
    assert made.max_timestamp_ms - made.issue_timestamp_ms == 60_000
    caller, verdict = token_login(play, made.token_id, made.hmac)
    assert verdict.error_code == ErrorCode.NONE
    assert 0 < verdict.session_lifetime_ms <= 60_000
    assert str(caller.connection.principal) == "User:alice"
    assert play.is_served(caller)
    again = caller.ask(m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=1), 2)
    assert again.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "a token begets no tokens"
    shown = owner.ask(m.DescribeDelegationTokenRequest(owners=None), 3)
    assert [(each.token_id, each.hmac) for each in shown.tokens] == [(made.token_id, made.hmac)]
    renewed = owner.ask(m.RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=1000), 2)
    assert renewed.error_code == ErrorCode.NONE
    wrong = owner.ask(m.RenewDelegationTokenRequest(hmac=b"x" * 64, renew_period_ms=1000), 2)
    assert wrong.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    ended = owner.ask(m.ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1), 2)
    assert ended.error_code == ErrorCode.NONE
    assert not play.is_served(caller), "its sessions end with it"
    _, refused = token_login(play, made.token_id, made.hmac)
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_what_has_expired_lets_nobody_in_and_is_swept(make_desk: Callable[..., Any]) -> None:
    play = Play(make_desk, **{"delegation.token.expiry.check.interval.ms": "10000"})
    owner = play.connect()
    play.log_in(owner)
    made = owner.ask(m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=2_000), 2)
    caller, verdict = token_login(play, made.token_id, made.hmac)
    assert verdict.session_lifetime_ms <= 2000
    play.desk.run(2500)
    assert not play.is_served(caller)
    _, refused = token_login(play, made.token_id, made.hmac)
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    play.desk.run(10_000)
    assert len(play.desk.broker.image.tokens) == 0


def test_who_is_removed_loses_tokens_and_sessions(play: Play) -> None:
    play.set_password("bob", "pw")
    callers = {}
    for user in ("alice", "bob"):
        owner = play.connect()
        play.log_in(owner, user)
        made = owner.ask(m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=60_000), 2)
        assert made.error_code == ErrorCode.NONE
        bearer, verdict = token_login(play, made.token_id, made.hmac)
        assert verdict.error_code == ErrorCode.NONE
        callers[user] = owner, bearer, made
    play.remove("bob")
    for caller in callers["bob"][:2]:
        assert not play.is_served(caller)
    play.desk.run(1000)
    assert all(caller.link.events[-1] == "close" for caller in callers["bob"][:2])
    assert all(play.is_served(caller) for caller in callers["alice"][:2])
    made = callers["bob"][2]
    assert token_login(play, made.token_id, made.hmac)[1].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    play.set_password("bob", "pw")
    _, refused = token_login(play, made.token_id, made.hmac)
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, "it does not come back with the name"
    made = callers["alice"][2]
    assert token_login(play, made.token_id, made.hmac)[1].error_code == ErrorCode.NONE


def test_whoever_asks_for_the_tokens_of_thousands_keeps_nobody_waiting(play: Play) -> None:
    """Any authenticated client may ask, and may name as many owners as a request can hold."""
    renewers = tuple(f"User:renewer-{number}" for number in range(100))
    tokens = tuple(
        DelegationTokenRecord("User:bob", "User:bob", renewers, 0, 1 << 60, 1 << 60, f"t-{number}")
        for number in range(1_000)
    )
    play.set_password("eve", "pw")
    eve = play.connect()
    play.log_in(eve, "eve")
    owner = m.DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    owners = [owner(principal_type="User", principal_name=f"somebody-{number}") for number in range(9_000)]

    def asked() -> float:
        began = time.process_time()
        assert eve.ask(m.DescribeDelegationTokenRequest(owners=owners), 3).tokens == []
        return time.process_time() - began

    without_any = asked()
    play.desk.submit(lambda _: Decision(tokens, ()))
    # Searching every token for each owner would take a hundred times as long.
    assert asked() < 20 * without_any


def test_thousands_of_tokens_are_described_in_slices(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    renewers = tuple(f"User:{name}" for name in ("alice", *(f"renewer-{number}" for number in range(20))))
    tokens = tuple(
        DelegationTokenRecord("User:bob", "User:bob", renewers, 0, 1 << 60, 1 << 60, f"t-{number}")
        for number in range(1_000)
    )
    play.set_password("alice", "pw")
    alice = play.connect()
    play.log_in(alice)
    play.desk.submit(lambda _: Decision(tokens, ()))
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


def test_nobody_makes_tokens_in_the_clear(make_desk: Callable[..., Any]) -> None:
    caller = make_desk().connect()
    made = caller.ask(m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=1), 2)
    assert made.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


# The first users.


def test_a_cluster_begins_with_the_users_of_a_file(make_desk: Callable[..., Any]) -> None:
    desk = make_desk(TEXTS | {"initial.users.file": "first-users"})
    desk.run(100)
    assert any("the first users cannot be read" in line for line in desk.node.journal_lines)
    users = written([credential_of("admin", "pw", b"salt", Mechanism(2), 4096)])
    desk.disk.replace("first-users", users.encode())
    for _ in range(2):
        desk.node.kill()
        assert desk.node.start(), desk.node.journal_lines
        desk.sim.run_until(lambda: desk.broker.image.scram.users() == ["admin"], within_ms=5000)
    assert sum("the cluster has its first users" in line for line in desk.node.journal_lines) == 1


def test_an_administrator_who_was_removed_does_not_return_with_a_restart(make_desk: Callable[..., Any]) -> None:
    desk = make_desk(TEXTS | {"initial.users.file": "first-users"})
    desk.disk.replace("first-users", written([credential_of("admin", "pw", b"salt", Mechanism(2), 4096)]).encode())
    desk.node.kill()
    assert desk.node.start()
    desk.sim.run_until(lambda: desk.broker.image.scram.users() == ["admin"], within_ms=5000)
    removed: list[Any] = []
    desk.broker.controller.submit(
        lambda image: decide_alter_credentials(image, [Deletion("admin", 2)], [], b"fresh")
    ).then(removed.append)
    desk.sim.run_until(lambda: bool(removed), within_ms=1000)
    desk.node.kill()
    assert desk.node.start()
    desk.run(1000)
    assert desk.broker.image.scram.users() == []
    assert any("initial users not created" in line for line in desk.node.journal_lines)


def test_a_cluster_from_before_there_were_users_gets_them_when_its_level_is_raised(make_desk: Any) -> None:
    desk = make_desk(TEXTS | {"initial.users.file": "first-users"})
    controller = desk.broker.controller

    def set_level(level: int, kind: UpgradeType) -> None:
        update = FeatureUpdate("metadata.version", level, kind)
        done: list[Any] = []
        controller.submit(lambda image: decide_update_features(image, [update], SUPPORTED)).then(done.append)
        desk.sim.run_until(lambda: bool(done), within_ms=1000)
        assert done[0][0].ok, done

    set_level(26, UpgradeType.SAFE_DOWNGRADE)
    users = written([credential_of("admin", "pw", b"salt", Mechanism(2), 4096)])
    desk.disk.replace("first-users", users.encode())
    desk.node.kill()
    assert desk.node.start()
    desk.run(100)
    assert any("the first users cannot be made" in line for line in desk.node.journal_lines)
    controller = desk.broker.controller
    set_level(27, UpgradeType.UPGRADE)
    desk.sim.run_until(lambda: desk.broker.image.scram.users() == ["admin"], within_ms=5000)
