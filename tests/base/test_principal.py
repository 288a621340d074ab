"""Who is asking, as text and back."""

from __future__ import annotations

import pytest

from millpond.base.principal import ANONYMOUS, Principal


@pytest.mark.parametrize("text", ["User:alice", "User:CN=a,O=b:c", "Group:User:x"])
def test_a_principal_is_read_as_it_is_written(text: str) -> None:
    assert str(Principal.parse(text)) == text


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:", "User"])
def test_what_has_no_kind_or_no_name_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a principal"):
        Principal.parse(text)


def test_who_came_by_a_token_is_the_same_person() -> None:
    assert Principal("User", "alice", by_token=True) == Principal("User", "alice")
    assert Principal("User", "alice") != ANONYMOUS
