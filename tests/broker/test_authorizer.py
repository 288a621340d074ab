"""The authorizer: super users, ACLs, the default where no ACL matches, and the cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.principal import ANONYMOUS, Principal
from millpond.base.rights import AclResource, Operation, PatternType, Permission
from millpond.broker.security import authorizer as module
from millpond.broker.security.access import EVERYBODY
from millpond.broker.security.authorizer import Authorizer, access_of
from millpond.config.node import node_settings
from millpond.config.security import STANDARD_AUTHORIZER
from millpond.metadata.acls import Acl
from millpond.metadata.image import Image
from millpond.metadata.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord

ALICE, ADMIN = Principal("User", "alice"), Principal("User", "admin")
READ, TOPIC = Operation.READ, AclResource.TOPIC


def entry(
    number: int, name: str = "pond", *, denies: bool = False, who: str = "User:alice"
) -> AccessControlEntryRecord:
    permission = Permission.DENY if denies else Permission.ALLOW
    return AccessControlEntryRecord(UUID(int=number), TOPIC, name, PatternType.LITERAL, who, "*", READ, permission)


class AccessChecks:
    def __init__(self, *, allows_unnamed: bool = False) -> None:
        self.image = Image()
        self.authorizer = Authorizer(self.image, {ADMIN}, allows_unnamed=allows_unnamed)
        self.connection: Any = SimpleNamespace(granted=None, host="10.0.0.1")

    def may(self, who: Principal = ALICE, name: str = "pond", operation: Operation = READ) -> bool:
        """The result must be the same when it is asked for with every request of a connection."""
        result = self.authorizer.may(who, "10.0.0.1", operation, TOPIC, name)
        if operation in (READ, Operation.WRITE):
            self.connection.principal = self.connection.known = who
            for _ in range(2):
                assert self.authorizer.may_often(self.connection, operation, name) is result
        return result


def test_without_acls_only_super_users_may() -> None:
    checks = AccessChecks()
    assert not checks.may()
    assert checks.may(ADMIN)
    assert checks.authorizer.is_super(Principal("User", "admin", by_token=True)), (
        "a token has the rights of its owner"
    )
    assert not checks.may(Principal("Group", "admin"))


def test_a_super_user_is_not_denied() -> None:
    checks = AccessChecks()
    checks.image.replay(entry(1, denies=True, who="User:admin"))
    assert checks.may(ADMIN)


def test_what_it_remembers_ends_with_every_change() -> None:
    checks = AccessChecks()
    assert not checks.may()
    checks.image.replay(entry(1))
    assert checks.may()
    checks.image.replay(entry(2, denies=True))
    assert not checks.may()
    checks.image.replay(RemoveAccessControlEntryRecord(UUID(int=2)))
    assert checks.may()
    checks.image.replay(RemoveAccessControlEntryRecord(UUID(int=1)))
    assert not checks.may()


def test_a_loaded_snapshot_is_asked_though_it_has_the_same_version() -> None:
    checks = AccessChecks()
    checks.image.replay(entry(1))
    assert checks.may()
    other = Image()
    other.replay(entry(1, "lake"))
    assert other.acls.version == checks.image.acls.version
    checks.image.become(other)
    assert not checks.may()
    assert checks.may(name="lake")


@pytest.mark.parametrize("name", ["__millpond_spark", "__group_history", "__consumer_offsets", "__transaction_state"])
@pytest.mark.parametrize("operation", [Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS])
def test_a_right_on_all_topics_is_none_on_those_with_our_own_state(name: str, operation: Operation) -> None:
    checks = AccessChecks()
    every = Operation.ALL, Permission.ALLOW
    checks.image.replay(AccessControlEntryRecord(UUID(int=1), TOPIC, "*", 3, "User:alice", "*", *every))
    checks.image.replay(AccessControlEntryRecord(UUID(int=2), TOPIC, "_", 4, "User:alice", "*", *every))
    assert checks.may(name="pond", operation=operation)
    assert checks.may(name="__others", operation=operation)
    assert checks.may(name=name)
    assert not checks.may(name=name, operation=operation)
    checks.image.replay(AccessControlEntryRecord(UUID(int=3), TOPIC, name, 3, "User:alice", "*", operation, 3))
    assert checks.may(name=name, operation=operation)
    assert not checks.may(name="__millpond_other", operation=operation)
    checks.image.replay(AccessControlEntryRecord(UUID(int=4), TOPIC, "*", 3, "User:*", "*", operation, 2))
    assert not checks.may(name=name, operation=operation), "denying ALL denies every operation"


def test_where_unnamed_things_are_everybodys() -> None:
    checks = AccessChecks(allows_unnamed=True)
    assert checks.may()
    checks.image.replay(entry(1, who="User:bob"))
    assert not checks.may(), "an ACL names another principal"
    assert checks.may(name="lake")


@pytest.mark.parametrize("allows_unnamed", [False, True])
def test_whether_there_is_anything_that_one_may(allows_unnamed: bool) -> None:
    checks = AccessChecks(allows_unnamed=allows_unnamed)

    def may_any(who: Principal = ALICE) -> bool:
        return checks.authorizer.may_any(who, "10.0.0.1", READ, TOPIC)

    assert may_any() is allows_unnamed
    assert may_any(ADMIN)
    checks.image.replay(entry(1))
    assert may_any()
    checks.image.replay(entry(2, denies=True))
    assert may_any() is allows_unnamed
    checks.image.replay(entry(3, "*", denies=True))
    assert not may_any()


def test_it_remembers_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWERS_MAX", 10)
    checks = AccessChecks()
    checks.image.replay(entry(1, "t3"))
    for number in range(100):
        assert checks.may(name=f"t{number}") is (number == 3)
        assert len(checks.authorizer._answers) <= 10
    assert not checks.may(name="x" * 301)
    assert all(len(question[-1] or "") < 300 for question in checks.authorizer._answers)


# Compared with a model that caches nothing and reads all ACLs for every question.

NAMES = ["pond", "pon", "lake", "__millpond_spark", "__consumer_offsets", "__mine", "kafka-cluster"]
PATTERN_NAMES = ["*", "p", "pond", "lake", "_", "__", "__millpond", "__millpond_spark", "__consumer_offsets"]
PEOPLE = [ALICE, Principal("User", "bob"), ADMIN, Principal("Group", "alice")]
HOSTS = ["10.0.0.1", "10.0.0.2", "[::1]", "::ffff:10.0.0.1"]
KINDS = [AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER]
DEEDS = [each for each in Operation if each not in (Operation.ANY, Operation.ALL)]
SAME_HOST = {"::ffff:10.0.0.1": "10.0.0.1", "[::1]": "::1"}
CHANGING = {Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS}
IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}

acls_at_random = st.builds(
    Acl,
    st.sampled_from(KINDS),
    st.sampled_from(PATTERN_NAMES),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(["User:alice", "User:bob", "User:admin", "User:*", "Group:alice"]),
    st.sampled_from(["*", "10.0.0.1", "::1"]),
    st.sampled_from([each for each in Operation if each is not Operation.ANY]),
    st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
)
steps = st.one_of(
    acls_at_random,
    st.integers(0, 20),
    st.just("snapshot"),
    st.tuples(*(st.sampled_from(each) for each in (PEOPLE, HOSTS, DEEDS, KINDS, NAMES))),
)
"""Add an ACL; remove the n-th; load a snapshot; authorize an operation."""


def plain_answer(
    acls: list[Acl], question: tuple[Principal, str, Operation, AclResource, str], *, allows_unnamed: bool
) -> bool:
    who, host, deed, kind, name = question
    if who == ADMIN:
        return True
    about = [
        each
        for each in acls
        if each.resource_type == kind
        and (
            each.resource_name in (name, "*")
            if each.pattern_type == PatternType.LITERAL
            else name.startswith(each.resource_name)
        )
    ]
    mine = [
        each
        for each in about
        if each.principal in (str(who), "User:*") and each.host in ("*", SAME_HOST.get(host, host))
    ]
    if any(each.permission == Permission.DENY and each.operation in (deed, Operation.ALL) for each in mine):
        return False
    is_of_programs = kind is AclResource.TOPIC and name.startswith("__millpond")
    is_own = kind is AclResource.TOPIC and (is_of_programs or name == "__consumer_offsets")
    must_be_named = (is_own and deed in CHANGING) or (is_of_programs and deed == Operation.CREATE)
    enough = {deed, Operation.ALL} | IMPLIED.get(deed, set())
    if any(
        each.permission == Permission.ALLOW
        and each.operation in enough
        and (each.resource_name.startswith("__") or not must_be_named)
        for each in mine
    ):
        return True
    return allows_unnamed and not about


@given(st.lists(steps, max_size=40), st.booleans())
def test_it_answers_as_a_plain_reading_does_whatever_has_changed(made: list[object], allows_unnamed: bool) -> None:
    checks = AccessChecks(allows_unnamed=allows_unnamed)
    acls: dict[UUID, Acl] = {}
    asked = [(ALICE, "10.0.0.1", Operation.READ, AclResource.TOPIC, "pond")]
    for number, step in enumerate(made, 1):
        match step:
            case Acl():
                if step not in acls.values():
                    acls[UUID(int=number)] = step
                    checks.image.replay(AccessControlEntryRecord(UUID(int=number), *step))
            case int():
                for acl_id in list(acls)[step : step + 1]:
                    del acls[acl_id]
                    checks.image.replay(RemoveAccessControlEntryRecord(acl_id))
            case "snapshot":
                other = Image()
                for acl_id, acl in acls.items():
                    other.replay(AccessControlEntryRecord(acl_id, *acl))
                checks.image.become(other)
            case _:
                asked.append(step)  # type: ignore[arg-type]
        # Repeat earlier questions, whose answers may be cached.
        for question in asked[-6:]:
            want = plain_answer(list(acls.values()), question, allows_unnamed=allows_unnamed)
            assert checks.authorizer.may(*question) is want, (question, acls)


def test_it_is_on_where_it_is_named() -> None:
    assert access_of(node_settings({}), Image()) is EVERYBODY
    texts = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin;User:CN=node,O=mill"}
    access = access_of(node_settings(texts), Image())
    assert access.is_on
    assert access.is_super(Principal("User", "CN=node,O=mill"))
    assert not access.may(ANONYMOUS, "10.0.0.1", READ, TOPIC, "pond")
    open_texts = texts | {"allow.everyone.if.no.acl.found": "true"}
    assert access_of(node_settings(open_texts), Image()).may(ANONYMOUS, "10.0.0.1", READ, TOPIC, "pond")


def test_a_connection_remembers_some_of_its_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRANTED_MAX", 3)
    checks = AccessChecks(allows_unnamed=True)
    for number in range(10):
        assert checks.may(name=f"topic-{number}")
        assert len(checks.connection.granted.topics[READ]) <= 3


def test_a_connection_that_is_another_users_now_is_asked_anew() -> None:
    checks = AccessChecks()
    checks.image.replay(entry(1))
    assert checks.may()
    assert not checks.may(Principal("User", "bob"))
    assert checks.may()
