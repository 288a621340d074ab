"""Delegation tokens: who may make, renew and end them, and how long they live."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import ErrorCode, Refused
from millpond.metadata.decision import OK, Decision
from millpond.metadata.features import check_level, what_needs_security
from millpond.metadata.image import Image
from millpond.metadata.records import DelegationTokenRecord, RemoveDelegationTokenRecord
from millpond.metadata.scram import Deletion, Upsertion, decide_alter_credentials
from millpond.metadata.snapshot import records_between, records_of
from millpond.metadata.tokens import (
    BYTES_OF_ONE_MAX,
    FOREVER_MS,
    RENEWERS_MAX,
    TOKENS_OF_ONE_MAX,
    CreatedToken,
    Lifetimes,
    NewToken,
    TokenTime,
    Usage,
    decide_create_token,
    decide_expire_token,
    decide_remove_expired,
    decide_renew_token,
    has_expired,
)

LIFETIMES = Lifetimes(longest_ms=1000, renewed_ms=100)


def create(image: Image, token_id: str = "t", *, renewers: tuple[str, ...] = (), lifetime_ms: int = -1) -> str:
    wanted = NewToken(token_id, "User:alice", "User:alice", renewers, lifetime_ms)
    decision = decide_create_token(image, wanted, LIFETIMES, 5000)
    image.replay_all(decision.records)
    return decision.reply.verdict.code.name


def renew(image: Image, who: str, period_ms: int = -1, *, now_ms: int, token_id: str | None = "t") -> TokenTime:
    decision = decide_renew_token(image, token_id, who, period_ms, LIFETIMES, now_ms)
    image.replay_all(decision.records)
    return decision.reply


def expire(image: Image, who: str, period_ms: int, *, now_ms: int, token_id: str | None = "t") -> TokenTime:
    decision = decide_expire_token(image, token_id, who, period_ms, now_ms)
    image.replay_all(decision.records)
    return decision.reply


def test_a_token_lives_until_it_is_not_renewed_any_more() -> None:
    image = Image()
    assert create(image, renewers=("User:bob",)) == "NONE"
    token = image.tokens.get("t")
    assert token is not None
    assert (token.issue_timestamp, token.expiration_timestamp, token.max_timestamp) == (5000, 5100, 6000)
    assert not has_expired(token, 5100)
    assert has_expired(token, 5101)
    assert renew(image, "User:bob", now_ms=5100) == TokenTime(OK, 5200)
    assert renew(image, "User:alice", 7, now_ms=5150) == TokenTime(OK, 5157)
    assert renew(image, "User:eve", now_ms=5150).verdict.code.name == "DELEGATION_TOKEN_OWNER_MISMATCH"
    assert renew(image, "User:alice", now_ms=5158).verdict.code.name == "DELEGATION_TOKEN_EXPIRED"
    assert renew(image, "User:alice", now_ms=5158, token_id=None).verdict.code.name == "DELEGATION_TOKEN_NOT_FOUND"


def test_tokens_end_with_the_last_password_of_their_owner_or_requester() -> None:
    image = Image()
    wanted = [Upsertion(user, 1, 4096, b"s" * 16, b"p" * 32) for user in ("alice", "bob")]
    wanted_more = [Upsertion("alice", 2, 4096, b"s" * 16, b"p" * 64)]
    for upsertions in (wanted, wanted_more):
        image.replay_all(decide_alter_credentials(image, [], upsertions, b"secret").records)
    for token_id, owner, requester in (("own", "alice", "alice"), ("made", "bob", "alice"), ("others", "bob", "bob")):
        token = NewToken(token_id, f"User:{owner}", f"User:{requester}", ("User:alice",), -1, needs_user=True)
        image.replay_all(decide_create_token(image, token, LIFETIMES, 5000).records)
    for mechanism, left in ((1, {"own", "made", "others"}), (2, {"others"})):
        image.replay_all(decide_alter_credentials(image, [Deletion("alice", mechanism)], [], b"secret").records)
        assert {each.token_id for each in image.tokens} == left
    late = NewToken("late", "User:bob", "User:alice", (), -1, needs_user=True)
    assert decide_create_token(image, late, LIFETIMES, 5000).reply.verdict.code.name == (
        "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"
    )
    by_certificate = NewToken("late", "User:alice", "User:alice", (), -1)
    assert decide_create_token(image, by_certificate, LIFETIMES, 5000).reply.verdict.ok


def test_no_renewal_goes_beyond_the_longest_life() -> None:
    image = Image()
    create(image, lifetime_ms=150)
    assert renew(image, "User:alice", now_ms=5090) == TokenTime(OK, 5150)
    assert expire(image, "User:alice", FOREVER_MS, now_ms=5090) == TokenTime(OK, 5150)


def test_a_token_is_ended_at_once_or_after_a_time() -> None:
    image = Image()
    create(image, renewers=("User:bob",))
    assert expire(image, "User:eve", -1, now_ms=5001).verdict.code.name == "DELEGATION_TOKEN_OWNER_MISMATCH"
    assert expire(image, "User:bob", 10, now_ms=5001) == TokenTime(OK, 5011)
    assert expire(image, "User:bob", 10, now_ms=5012).verdict.code.name == "DELEGATION_TOKEN_EXPIRED"
    assert expire(image, "User:bob", -1, now_ms=5012) == TokenTime(OK, 5012)
    assert image.tokens.get("t") is None
    assert expire(image, "User:bob", -1, now_ms=5012).verdict.code.name == "DELEGATION_TOKEN_NOT_FOUND"


def test_only_users_renew_and_not_too_many() -> None:
    image = Image()
    assert create(image, renewers=("Group:all",)) == "INVALID_PRINCIPAL_TYPE"
    assert create(image, renewers=("User:bob",) * 101) == "INVALID_REQUEST"
    assert len(image.tokens) == 0


def test_what_has_had_its_time_is_swept_a_few_at_a_time() -> None:
    image = Image()
    for number in range(5):
        create(image, f"t{number}")
    assert decide_remove_expired(image, 5100, 9).records == ()
    image.replay_all(decide_remove_expired(image, 5101, 3).records)
    assert len(image.tokens) == 2


def test_an_old_level_has_no_tokens() -> None:
    image = Image()
    create(image)
    with pytest.raises(Refused, match="upgrade it once"):
        check_level(list(image.tokens), 26)
    assert what_needs_security(image) == "delegation tokens"


ids = st.sampled_from(["a", "b", "c"])


@given(st.lists(ids), st.lists(ids), st.lists(ids))
def test_an_image_comes_back_from_its_records_and_from_the_difference(before, gone, after) -> None:
    image = Image()
    for token_id in before:
        create(image, token_id)
    old = image.copy()
    for token_id in gone:
        image.replay(RemoveDelegationTokenRecord(token_id))
    for token_id in after:
        create(image, token_id, lifetime_ms=7)
    again = Image()
    again.replay_all(list(records_of(image)))
    assert again.tokens == image.tokens
    old.replay_all(
        [
            each
            for each in records_between(old, image)
            if isinstance(each, DelegationTokenRecord | RemoveDelegationTokenRecord)
        ]
    )
    assert old.tokens == image.tokens


def test_one_user_does_not_take_the_tokens_of_all() -> None:
    image = Image()
    for number in range(TOKENS_OF_ONE_MAX):
        assert create(image, f"t-{number}") == "NONE"
    assert create(image, "one-more") == "POLICY_VIOLATION"
    wanted = NewToken("of-bob", "User:bob", "User:bob", (), -1)
    assert decide_create_token(image, wanted, LIFETIMES, 5000).reply.verdict == OK
    expire(image, "User:alice", -1, now_ms=5000, token_id="t-0")
    assert create(image, "one-more") == "NONE"


def test_one_user_does_not_fill_the_metadata_with_long_tokens() -> None:
    image = Image()
    renewers = tuple(f"User:{number:03}{'r' * 240}" for number in range(RENEWERS_MAX))

    def ask(token_id: str, user: str) -> Decision[CreatedToken]:
        return decide_create_token(image, NewToken(token_id, user, user, renewers, -1), LIFETIMES, 5000)

    count = 0
    while (decision := ask(f"t-{count}", "User:eve")).reply.verdict.ok:
        image.replay_all(decision.records)
        count += 1
    assert decision.reply.verdict.code == ErrorCode.POLICY_VIOLATION
    assert "name fewer renewers" in (decision.reply.verdict.message or "")
    assert image.tokens.usage("User:eve").bytes <= BYTES_OF_ONE_MAX
    assert ask("of-bob", "User:bob").reply.verdict.ok, "the limit is her own"
    again = Image()
    again.replay_all(list(records_of(image)))
    assert again.tokens.total == image.tokens.total == image.copy().tokens.total
    for number in range(count):
        image.replay(RemoveDelegationTokenRecord(f"t-{number}"))
    assert image.tokens.total == image.tokens.usage("User:eve") == Usage()
