"""The first users of a cluster, as a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.metadata.image import Image
from millpond.metadata.initial_users import InitialUsersFault, credential_of, decide_first_users, read, written
from millpond.metadata.records import UserScramCredentialRecord
from millpond.metadata.scram import Deletion, Mechanism, decide_alter_credentials

names = st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), min_size=1, max_size=40)


@given(
    st.lists(
        st.builds(
            UserScramCredentialRecord,
            names,
            st.just(2),
            st.binary(min_size=1, max_size=9),
            st.just(b"k" * 64),
            st.just(b"s" * 64),
            st.integers(4096, 16384),
        ),
        max_size=4,
        unique_by=lambda each: each.name,
    )
)
def test_what_is_written_is_read(users) -> None:
    assert read("# the first\n\n" + written(users)) == tuple(users)


GOOD = "salt=AA==,stored_key=" + "A" * 43 + "=,server_key=" + "A" * 43 + "=,iterations=4096"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alice", "line 1 must have the form NAME MECHANISM salt="),
        ("# users\n\nalice SCRAM-SHA-256", "line 3 must have the form"),
        (f"alice SCRAM-SHA-1 {GOOD}", "must be one of SCRAM-SHA-256, SCRAM-SHA-512"),
        (f"alice SCRAM-SHA-256 {GOOD}".replace("4096", "1"), "iterations must be from 4096 to 16384"),
        (f"alice SCRAM-SHA-256 {GOOD}".replace("4096", "many"), "iterations must be from 4096 to 16384"),
        (f"alice SCRAM-SHA-256 {GOOD}".replace("salt=AA==", "salt="), "the salt must not be empty"),
        (f"alice SCRAM-SHA-256 {GOOD}".replace("salt=AA==", "salt=??"), "must be base64"),
        (f"alice SCRAM-SHA-256 {GOOD}".replace("salt=AA==,", ""), "lacks salt"),
        ("alice SCRAM-SHA-256 password=secret", "lacks salt, stored_key, server_key, iterations"),
        (f"alice SCRAM-SHA-512 {GOOD}", "each key of SCRAM-SHA-512 must have 64 bytes"),
        (f"%0A SCRAM-SHA-256 {GOOD}", "control characters"),
        (f"alice SCRAM-SHA-256 {GOOD}\nalice SCRAM-SHA-256 {GOOD}", "line 2 repeats the user and mechanism"),
        ("\n" * 2000, "2000 lines"),
    ],
)
def test_errors_do_not_contain_secrets(text: str, said: str) -> None:
    with pytest.raises(InitialUsersFault) as fault:
        read(text)
    assert said in str(fault.value)
    assert "AA" not in str(fault.value)
    assert "secret" not in str(fault.value)


def test_they_are_the_first_or_none() -> None:
    image = Image()
    users = [credential_of("admin", "pw", b"salt"), credential_of("admin", "pw", b"salt", Mechanism(1))]
    decision = decide_first_users(image, users, b"secret")
    assert decision.reply == 2
    image.replay_all(decision.records)
    assert image.scram.users() == ["admin"]
    assert image.scram.secret
    assert decide_first_users(image, [credential_of("eve", "pw", b"salt")], b"x").records == ()


def test_users_that_were_all_removed_do_not_come_back() -> None:
    image = Image()
    users = [credential_of("admin", "pw", b"salt")]
    image.replay_all(decide_first_users(image, users, b"secret").records)
    image.replay_all(decide_alter_credentials(image, [Deletion("admin", 2)], [], b"x").records)
    assert image.scram.users() == []
    assert decide_first_users(image, users, b"secret").records == ()
