"""The authorizer: super users, what ACLs say, what is done where they say nothing, and what it remembers."""

from __future__ import annotations

from uuid import UUID

import pytest

from millpond.base.principal import ANONYMOUS, Principal
from millpond.base.rights import AclResource, Operation, PatternType, Permission
from millpond.broker.security import authorizer as module
from millpond.broker.security.access import EVERYBODY
from millpond.broker.security.authorizer import Authorizer, access_of
from millpond.config.node import node_settings
from millpond.config.security import STANDARD_AUTHORIZER
from millpond.metadata.image import Image
from millpond.metadata.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord

ALICE, ADMIN = Principal("User", "alice"), Principal("User", "admin")
READ, TOPIC = Operation.READ, AclResource.TOPIC


def entry(
    number: int, name: str = "pond", *, denies: bool = False, who: str = "User:alice"
) -> AccessControlEntryRecord:
    permission = Permission.DENY if denies else Permission.ALLOW
    return AccessControlEntryRecord(UUID(int=number), TOPIC, name, PatternType.LITERAL, who, "*", READ, permission)


class Play:
    def __init__(self, *, allows_unnamed: bool = False) -> None:
        self.image = Image()
        self.authorizer = Authorizer(self.image, {ADMIN}, allows_unnamed=allows_unnamed)

    def may(self, who: Principal = ALICE, name: str = "pond", operation: Operation = READ) -> bool:
        return self.authorizer.may(who, "10.0.0.1", operation, TOPIC, name)


def test_without_acls_only_super_users_may() -> None:
    play = Play()
    assert not play.may()
    assert play.may(ADMIN)
    assert play.authorizer.is_super(Principal("User", "admin", by_token=True)), "a token stands for its owner"
    assert not play.may(Principal("Group", "admin"))


def test_a_super_user_is_not_denied() -> None:
    play = Play()
    play.image.replay(entry(1, denies=True, who="User:admin"))
    assert play.may(ADMIN)


def test_what_it_remembers_ends_with_every_change() -> None:
    play = Play()
    assert not play.may()
    play.image.replay(entry(1))
    assert play.may()
    play.image.replay(entry(2, denies=True))
    assert not play.may()
    play.image.replay(RemoveAccessControlEntryRecord(UUID(int=2)))
    assert play.may()
    play.image.replay(RemoveAccessControlEntryRecord(UUID(int=1)))
    assert not play.may()


def test_a_loaded_snapshot_is_asked_though_it_has_the_same_version() -> None:
    play = Play()
    play.image.replay(entry(1))
    assert play.may()
    other = Image()
    other.replay(entry(1, "lake"))
    assert other.acls.version == play.image.acls.version
    play.image.become(other)
    assert not play.may()
    assert play.may(name="lake")


@pytest.mark.parametrize("name", ["__millpond_spark", "__group_history", "__consumer_offsets", "__transaction_state"])
@pytest.mark.parametrize("operation", [Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS])
def test_a_right_on_all_topics_is_none_on_those_with_our_own_state(name: str, operation: Operation) -> None:
    play = Play()
    every = Operation.ALL, Permission.ALLOW
    play.image.replay(AccessControlEntryRecord(UUID(int=1), TOPIC, "*", 3, "User:alice", "*", *every))
    play.image.replay(AccessControlEntryRecord(UUID(int=2), TOPIC, "_", 4, "User:alice", "*", *every))
    assert play.may(name="pond", operation=operation)
    assert play.may(name="__others", operation=operation)
    assert play.may(name=name)
    assert not play.may(name=name, operation=operation)
    play.image.replay(AccessControlEntryRecord(UUID(int=3), TOPIC, name, 3, "User:alice", "*", operation, 3))
    assert play.may(name=name, operation=operation)
    assert not play.may(name="__millpond_other", operation=operation)
    play.image.replay(AccessControlEntryRecord(UUID(int=4), TOPIC, "*", 3, "User:*", "*", operation, 2))
    assert not play.may(name=name, operation=operation), "whoever is denied all is denied this"


def test_where_unnamed_things_are_everybodys() -> None:
    play = Play(allows_unnamed=True)
    assert play.may()
    play.image.replay(entry(1, who="User:bob"))
    assert not play.may(), "somebody else has been named"
    assert play.may(name="lake")


@pytest.mark.parametrize("allows_unnamed", [False, True])
def test_whether_there_is_anything_that_one_may(allows_unnamed: bool) -> None:
    play = Play(allows_unnamed=allows_unnamed)

    def may_any(who: Principal = ALICE) -> bool:
        return play.authorizer.may_any(who, "10.0.0.1", READ, TOPIC)

    assert may_any() is allows_unnamed
    assert may_any(ADMIN)
    play.image.replay(entry(1))
    assert may_any()
    play.image.replay(entry(2, denies=True))
    assert may_any() is allows_unnamed
    play.image.replay(entry(3, "*", denies=True))
    assert not may_any()


def test_it_remembers_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWERS_MAX", 10)
    play = Play()
    play.image.replay(entry(1, "t3"))
    for number in range(100):
        assert play.may(name=f"t{number}") is (number == 3)
        assert len(play.authorizer._answers) <= 10
    assert not play.may(name="x" * 301)
    assert all(len(question[-1] or "") < 300 for question in play.authorizer._answers)


def test_it_is_on_where_it_is_named() -> None:
    assert access_of(node_settings({}), Image()) is EVERYBODY
    texts = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin;User:CN=node,O=mill"}
    access = access_of(node_settings(texts), Image())
    assert access.is_on
    assert access.is_super(Principal("User", "CN=node,O=mill"))
    assert not access.may(ANONYMOUS, "10.0.0.1", READ, TOPIC, "pond")
    open_texts = texts | {"allow.everyone.if.no.acl.found": "true"}
    assert access_of(node_settings(open_texts), Image()).may(ANONYMOUS, "10.0.0.1", READ, TOPIC, "pond")
