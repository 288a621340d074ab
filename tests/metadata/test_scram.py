"""Users and their credentials: what is refused, what is written, and what a stranger cannot tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import ErrorCode, Refused
from millpond.base.scram import keys_of, salted
from millpond.metadata.features import (
    METADATA_VERSION,
    SUPPORTED,
    FeatureUpdate,
    UpgradeType,
    check_level,
    decide_update_features,
    what_needs_security,
)
from millpond.metadata.image import Image
from millpond.metadata.records import (
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from millpond.metadata.scram import (
    Deletion,
    Mechanism,
    Shape,
    Upsertion,
    decide_alter_credentials,
    describe_users,
)
from millpond.metadata.snapshot import records_between, records_of

SECRET = b"drawn once"
SALT = b"s" * 16


def upsertion(user: str = "alice", mechanism: int = 1, iterations: int = 4096, password: bytes = b"pw") -> Upsertion:
    return Upsertion(user, mechanism, iterations, SALT, salted("sha256", password, SALT, 1))


def alter(image: Image, *wanted: Upsertion | Deletion) -> dict[str, str]:
    deletions = [each for each in wanted if isinstance(each, Deletion)]
    upsertions = [each for each in wanted if isinstance(each, Upsertion)]
    decision = decide_alter_credentials(image, deletions, upsertions, SECRET)
    image.replay_all(decision.records)
    return {each.user: each.verdict.code.name for each in decision.reply}


def test_a_user_is_made_changed_and_removed() -> None:
    image = Image()
    assert alter(image, upsertion()) == {"alice": "NONE"}
    known = image.scram.get("alice", Mechanism.SCRAM_SHA_256)
    assert known is not None
    assert (known.stored_key, known.server_key) == keys_of("sha256", salted("sha256", b"pw", SALT, 1))
    assert known.iterations == 4096
    assert alter(image, upsertion(iterations=8192)) == {"alice": "NONE"}
    assert [(user.user, user.credentials) for user in describe_users(image.scram, None)] == [("alice", ((1, 8192),))]
    assert alter(image, Deletion("alice", 1)) == {"alice": "NONE"}
    assert image.scram.users() == []
    assert alter(image, Deletion("alice", 1)) == {"alice": "RESOURCE_NOT_FOUND"}


def test_one_that_is_refused_does_not_keep_the_others() -> None:
    image = Image()
    assert alter(
        image,
        upsertion("few", iterations=4095),
        upsertion("many", iterations=16385),
        upsertion("odd", mechanism=3),
        upsertion("", 1),
        upsertion("x" * 257),
        upsertion("a\nb"),
        upsertion("twice"),
        upsertion("twice", 2),
        Deletion("both", 1),
        upsertion("both"),
        upsertion("good", 2),
    ) == {
        "both": "DUPLICATE_RESOURCE",
        "few": "UNACCEPTABLE_CREDENTIAL",
        "many": "UNACCEPTABLE_CREDENTIAL",
        "odd": "UNSUPPORTED_SASL_MECHANISM",
        "": "UNACCEPTABLE_CREDENTIAL",
        "x" * 257: "UNACCEPTABLE_CREDENTIAL",
        "a\nb": "UNACCEPTABLE_CREDENTIAL",
        "twice": "DUPLICATE_RESOURCE",
        "good": "NONE",
    }
    assert image.scram.users() == ["good"]


def test_the_shared_secret_comes_with_the_first_user_and_stays() -> None:
    image = Image()
    assert image.scram.secret is None
    alter(image, upsertion())
    secret = image.scram.secret
    assert secret is not None
    assert image.scram.users() == ["alice"], "nobody is no user"
    assert image.scram.get("", Mechanism.SCRAM_SHA_512) is None
    alter(image, upsertion("bob"), Deletion("alice", 1))
    assert image.scram.secret == secret
    assert alter(image, Deletion("", 2)) == {"": "UNACCEPTABLE_CREDENTIAL"}


def test_who_does_not_exist_looks_like_most_who_do() -> None:
    image = Image()
    assert image.scram.usual_shape(1) == Shape(32, 8192)
    alter(image, upsertion("a", iterations=5000), upsertion("b", iterations=6000), upsertion("c", iterations=6000))
    assert image.scram.usual_shape(1) == Shape(16, 6000)
    alter(image, Deletion("c", 1), upsertion("d", iterations=5000))
    assert image.scram.usual_shape(1) == Shape(16, 5000)


def test_repeated_and_missing_users_are_reported() -> None:
    image = Image()
    alter(image, upsertion("a"), upsertion("b", 2))
    told = {each.user: each.verdict.code for each in describe_users(image.scram, ["a", "x", "b", "b"])}
    assert told == {
        "a": ErrorCode.NONE,
        "x": ErrorCode.RESOURCE_NOT_FOUND,
        "b": ErrorCode.DUPLICATE_RESOURCE,
    }


def test_an_old_level_has_no_users_and_is_not_gone_back_to_while_there_are_some() -> None:
    image = Image()
    records = decide_alter_credentials(image, [], [upsertion()], SECRET).records
    with pytest.raises(Refused, match="upgrade it once"):
        check_level(records, 26)
    check_level(records, 27)
    image.replay_all(records)
    assert what_needs_security(image) == "users"
    alter(image, Deletion("alice", 1))
    assert what_needs_security(image) is None
    assert image.scram.had_users
    down = FeatureUpdate(METADATA_VERSION, 26, UpgradeType.SAFE_DOWNGRADE)
    image.features[METADATA_VERSION] = 27
    image.replay_all(decide_update_features(image, [down], SUPPORTED).records)
    assert image.features[METADATA_VERSION] == 26
    assert len(image.scram) == 0, "a program of level 26 cannot read the shared secret"


def test_no_key_is_in_what_is_printed() -> None:
    image = Image()
    alter(image, upsertion())
    record = next(each for each in records_of(image) if isinstance(each, UserScramCredentialRecord) and each.name)
    for shown in (repr(record), repr(image.scram.get("alice", 1)), repr(upsertion())):
        assert "alice" in shown or "iterations" in shown
        assert "key=" not in shown
        assert "salt" not in shown


users = st.sampled_from(["a", "b", "c"])
steps = st.lists(
    st.builds(upsertion, users, st.integers(1, 2), st.integers(4096, 4100))
    | st.builds(Deletion, users, st.integers(1, 2)),
    max_size=12,
)


@given(steps, steps)
def test_an_image_comes_back_from_its_records_and_from_the_difference(before, after) -> None:
    image = Image()
    for step in before:
        alter(image, step)
    old = image.copy()
    for step in after:
        alter(image, step)
    again = Image()
    again.replay_all(list(records_of(image)))
    assert again.scram == image.scram
    old.replay_all(
        [
            each
            for each in records_between(old, image)
            if isinstance(each, UserScramCredentialRecord | RemoveUserScramCredentialRecord)
        ]
    )
    assert old.scram == image.scram
