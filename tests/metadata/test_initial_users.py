"""The first users of a cluster, as a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.metadata.image import Image
from millpond.metadata.initial_users import InitialUsersFault, credential_of, decide_first_users, read, written
from millpond.metadata.records import UserScramCredentialRecord
from millpond.metadata.scram import Mechanism

names = st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), min_size=1, max_size=40)


@given(
    st.lists(
        st.builds(
            UserScramCredentialRecord,
            names,
            st.sampled_from([1, 2]),
            st.binary(min_size=1, max_size=9),
            st.just(b"k" * 64),
            st.just(b"s" * 64),
            st.integers(4096, 16384),
        ),
        max_size=4,
    )
)
def test_what_is_written_is_read(users) -> None:
    assert read("# the first\n\n" + written(users)) == tuple(users)


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        "alice SCRAM-SHA-1 salt=AA==,stored_key=AA==,server_key=AA==,iterations=4096",
        "alice SCRAM-SHA-256 salt=AA==,stored_key=AA==,server_key=AA==,iterations=1",
        "alice SCRAM-SHA-256 salt=,stored_key=AA==,server_key=AA==,iterations=4096",
        "alice SCRAM-SHA-256 salt=??,stored_key=AA==,server_key=AA==,iterations=4096",
        "alice SCRAM-SHA-256 stored_key=AA==,server_key=AA==,iterations=4096",
        "%0A SCRAM-SHA-256 salt=AA==,stored_key=AA==,server_key=AA==,iterations=4096",
        "\n" * 2000,
    ],
)
def test_what_is_wrong_is_told_without_what_is_secret(text: str) -> None:
    with pytest.raises(InitialUsersFault) as fault:
        read(text)
    assert "AA==" not in str(fault.value)


def test_they_are_the_first_or_none() -> None:
    image = Image()
    users = [credential_of("admin", "pw", b"salt"), credential_of("admin", "pw", b"salt", Mechanism(1))]
    decision = decide_first_users(image, users, b"secret")
    assert decision.reply == 2
    image.replay_all(decision.records)
    assert image.scram.users() == ["admin"]
    assert image.scram.secret
    assert decide_first_users(image, [credential_of("eve", "pw", b"salt")], b"x").records == ()
