"""ACLs: what they say to a question, as a plain reading of all of them would, and how they come and go."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import ErrorCode
from millpond.base.rights import AclResource, Operation, PatternType, Permission
from millpond.metadata import acls as acls_module
from millpond.metadata.acls import (
    Acl,
    AclFilter,
    Acls,
    Ruling,
    address_of,
    decide_create_acls,
    decide_delete_acls,
)
from millpond.metadata.features import SUPPORTED, FeatureUpdate, UpgradeType, check_level, decide_update_features
from millpond.metadata.image import Image
from millpond.metadata.records import AccessControlEntryRecord, FeatureLevelRecord, RemoveAccessControlEntryRecord
from millpond.metadata.snapshot import records_between, records_of

TOPIC, GROUP = AclResource.TOPIC, AclResource.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
EVERY = AclFilter(AclResource.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)


def acl(
    name: str = "pond",
    operation: Operation = Operation.READ,
    *,
    who: str = "User:alice",
    host: str = "*",
    pattern: PatternType = LITERAL,
    permission: Permission = ALLOW,
    resource: AclResource = TOPIC,
) -> Acl:
    return Acl(resource, name, pattern, who, host, operation, permission)


def acls_of(*entries: Acl) -> Acls:
    acls = Acls()
    for number, each in enumerate(entries, 1):
        acls.replay(AccessControlEntryRecord(UUID(int=number), *each))
    return acls


def asked(
    acls: Acls, operation: Operation, name: str = "pond", who: str = "User:alice", host: str = "10.0.0.1"
) -> str:
    return acls.ruling(who, host, operation, TOPIC, name).name


# What they say.


def test_nothing_is_said_of_what_has_no_acls() -> None:
    assert asked(acls_of(), Operation.READ) == "NO_ACLS"
    assert asked(acls_of(acl("lake")), Operation.READ) == "NO_ACLS"
    assert asked(acls_of(acl(resource=GROUP)), Operation.READ) == "NO_ACLS"


def test_an_acl_is_for_one_principal_one_host_and_one_operation() -> None:
    acls = acls_of(acl(host="10.0.0.1"))
    assert asked(acls, Operation.READ) == "ALLOWED"
    assert asked(acls, Operation.READ, who="User:bob") == "NOT_NAMED"
    assert asked(acls, Operation.READ, who="Group:alice") == "NOT_NAMED"
    assert asked(acls, Operation.READ, host="10.0.0.2") == "NOT_NAMED"
    assert asked(acls, Operation.WRITE) == "NOT_NAMED"


def test_a_denial_comes_before_all_else() -> None:
    for denial in (
        acl(permission=DENY),
        acl("*", permission=DENY),
        acl("po", pattern=PREFIXED, permission=DENY),
        acl(who="User:*", permission=DENY),
        acl(operation=Operation.ALL, permission=DENY),
    ):
        assert asked(acls_of(acl(), denial), Operation.READ) == "DENIED", denial
        assert asked(acls_of(denial, acl()), Operation.READ) == "DENIED", denial


@pytest.mark.parametrize("given_right", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_permission_to_read_or_change_implies_describe(given_right: Operation) -> None:
    assert asked(acls_of(acl(operation=given_right)), Operation.DESCRIBE) == "ALLOWED"
    assert asked(acls_of(acl(operation=given_right)), Operation.DESCRIBE_CONFIGS) == "NOT_NAMED"


def test_permission_to_alter_configs_implies_describe_configs() -> None:
    acls = acls_of(acl(operation=Operation.ALTER_CONFIGS))
    assert asked(acls, Operation.DESCRIBE_CONFIGS) == "ALLOWED"
    assert asked(acls, Operation.DESCRIBE) == "NOT_NAMED"


def test_that_reading_is_denied_does_not_deny_looking() -> None:
    acls = acls_of(acl(operation=Operation.READ, permission=DENY), acl(operation=Operation.WRITE))
    assert asked(acls, Operation.READ) == "DENIED"
    assert asked(acls, Operation.DESCRIBE) == "ALLOWED"


def test_a_prefix_is_for_all_that_begins_with_it_and_a_star_is_a_name_there() -> None:
    acls = acls_of(acl("po", pattern=PREFIXED))
    assert [asked(acls, Operation.READ, name) for name in ("po", "pond", "p", "lake")] == [
        "ALLOWED",
        "ALLOWED",
        "NO_ACLS",
        "NO_ACLS",
    ]
    assert asked(acls_of(acl("*", pattern=PREFIXED)), Operation.READ, "pond") == "NO_ACLS"


@pytest.mark.parametrize(
    ("written", "comes_from"),
    [("::1", "[::1]"), ("0:0:0:0:0:0:0:1", "::1"), ("10.0.0.1", "::ffff:10.0.0.1"), ("10.0.0.1", "[::ffff:a00:1]")],
)
def test_an_address_can_be_written_in_several_ways(written: str, comes_from: str) -> None:
    assert asked(acls_of(acl(host=written)), Operation.READ, host=comes_from) == "ALLOWED"
    assert address_of("not an address") == "not an address"


words = st.sampled_from(["*", "a", "ab", "abc", "b"])
who = st.sampled_from(["User:alice", "User:bob", "User:*"])
hosts = st.sampled_from(["*", "10.0.0.1", "10.0.0.2"])
operations = st.sampled_from([each for each in Operation if each is not Operation.ANY])
entries = st.builds(
    Acl,
    st.sampled_from([TOPIC, GROUP]),
    words,
    st.sampled_from([LITERAL, PREFIXED]),
    who,
    hosts,
    operations,
    st.sampled_from([ALLOW, DENY]),
)


def plain_ruling(acls: list[Acl], principal: str, host: str, operation: Operation, name: str) -> Ruling:
    """The rules one by one, over all ACLs."""
    about = [
        each
        for each in acls
        if each.resource_type == TOPIC
        and (
            (each.pattern_type == LITERAL and each.resource_name in (name, "*"))
            or (each.pattern_type == PREFIXED and name.startswith(each.resource_name))
        )
    ]
    mine = [each for each in about if each.principal in (principal, "User:*") and each.host in (host, "*")]
    same = (operation, Operation.ALL)
    if any(each.permission == DENY and each.operation in same for each in mine):
        return Ruling.DENIED
    implied: dict[Operation, tuple[Operation, ...]] = {
        Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
        Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
    }
    if any(each.permission == ALLOW and each.operation in (*same, *implied.get(operation, ())) for each in mine):
        return Ruling.ALLOWED
    return Ruling.NOT_NAMED if about else Ruling.NO_ACLS


@given(
    st.lists(entries, max_size=8, unique=True),
    st.lists(st.integers(0, 7), max_size=3),
    st.sampled_from(["User:alice", "User:bob"]),
    st.sampled_from(["10.0.0.1", "10.0.0.2"]),
    operations,
    st.sampled_from(["a", "ab", "abc", "abcd", "b", "c"]),
)
def test_the_index_says_what_a_plain_reading_says(
    made: list[Acl], removed: list[int], principal: str, host: str, operation: Operation, name: str
) -> None:
    acls = acls_of(*made)
    left = dict(enumerate(made))
    for number in removed:
        acls.replay(RemoveAccessControlEntryRecord(UUID(int=number + 1)))
        left.pop(number, None)
    told = acls.ruling(principal, host, operation, TOPIC, name)
    assert told is plain_ruling(list(left.values()), principal, host, operation, name)
    assert acls == acls_of(*made) or removed
    again = acls.copy()
    assert again == acls
    assert again.ruling(principal, host, operation, TOPIC, name) is told


@given(st.lists(entries, max_size=6, unique=True), operations)
def test_ruling_of_any_agrees_with_checking_every_name(made: list[Acl], operation: Operation) -> None:
    """Names that fit each pattern and no longer one are enough to find one that is allowed, if there is any."""
    explicit = [each for each in made if each.operation in (Operation.ALL, operation)]
    names = {each.resource_name + tail for each in explicit for tail in ("", "~")} | {"~"}
    rulings = {
        acls_of(*explicit).ruling("User:alice", "10.0.0.1", operation, TOPIC, name)
        for name in names
        if "*" not in name
    }
    starred = any(each.resource_name == "*" and each.pattern_type == PREFIXED for each in explicit)
    told = acls_of(*made).ruling_of_any("User:alice", "10.0.0.1", operation, TOPIC)
    if not starred:
        assert (told is Ruling.ALLOWED) == (Ruling.ALLOWED in rulings)


def work_of(ask: Callable[[], object]) -> int:
    """How many instructions of the interpreter a question takes, in Python alone: the same on every machine."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        ask()
    finally:
        sys.settrace(before)
    return count


def crowd(count: int) -> list[Acl]:
    """So many ACLs, of all kinds in equal parts: own topics, prefixes, everybody on one topic, hosts, denials."""
    kinds: list[Callable[[int], Acl]] = [
        lambda n: acl(f"topic-{n}", who=f"User:u{n}"),
        lambda n: acl(f"app{n:05}-", who=f"User:u{n}", pattern=PREFIXED),
        lambda n: acl("pond", who=f"User:v{n}"),
        lambda n: acl("pond", who="User:*", host=f"10.1.{n >> 8}.{n & 255}"),
        lambda n: acl(f"lake-{n}", who="User:alice", operation=Operation.WRITE),
        lambda n: acl(f"hidden-{n}", who="User:alice", permission=DENY),
        lambda n: acl(f"crew-{n}", who="User:alice", resource=GROUP),
        lambda n: acl(f"sea{n:05}", who="User:*", operation=Operation.ALL, pattern=PREFIXED, permission=DENY),
    ]
    return [kinds[number % len(kinds)](number // len(kinds)) for number in range(count)]


QUESTIONS: dict[str, Callable[[Acls], object]] = {
    "allowed by name": lambda acls: acls.ruling("User:u0", "10.0.0.1", Operation.READ, TOPIC, "topic-0"),
    "allowed by a prefix": lambda acls: acls.ruling("User:u0", "10.0.0.1", Operation.READ, TOPIC, "app00000-x"),
    "one of many on a topic": lambda acls: acls.ruling("User:v0", "10.0.0.1", Operation.READ, TOPIC, "pond"),
    "one of many hosts": lambda acls: acls.ruling("User:w", "10.1.0.0", Operation.READ, TOPIC, "pond"),
    "named nowhere": lambda acls: acls.ruling("User:w", "10.0.0.1", Operation.READ, TOPIC, "no-such-topic"),
    "denied by a prefix": lambda acls: acls.ruling("User:alice", "10.0.0.1", Operation.READ, TOPIC, "sea00000-1"),
    "anything to write to": lambda acls: acls.ruling_of_any("User:alice", "10.0.0.1", Operation.WRITE, TOPIC),
    "anything to alter": lambda acls: acls.ruling_of_any("User:alice", "10.0.0.1", Operation.ALTER, TOPIC),
    "anything of a kind without ACLs": lambda acls: acls.ruling_of_any(
        "User:alice", "10.0.0.1", Operation.WRITE, AclResource.TRANSACTIONAL_ID
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_takes_the_same_work_with_ten_thousand_acls(question: str) -> None:
    ask = QUESTIONS[question]
    few, many = acls_of(*crowd(16)), acls_of(*crowd(10_000))
    assert (len(few), len(many)) == (16, 10_000)
    assert ask(few) is ask(many)
    assert work_of(lambda: ask(few)) == work_of(lambda: ask(many)) < 2_000


def test_so_does_a_change() -> None:
    few, many = acls_of(*crowd(16)), acls_of(*crowd(10_000))
    added = AccessControlEntryRecord(UUID(int=99_999), *acl("new"))
    removed = RemoveAccessControlEntryRecord(UUID(int=7))
    for record in (added, removed):
        assert work_of(lambda: few.replay(record)) == work_of(lambda: many.replay(record)) < 1_000  # noqa: B023


def test_of_two_that_say_the_same_the_later_stands() -> None:
    """No controller writes them. Were both kept, one that denies could go on to be shown, and deny nothing."""
    acls = acls_of(acl(permission=DENY), acl(permission=DENY))
    assert list(acls.by_id) == [UUID(int=2)]
    acls.replay(RemoveAccessControlEntryRecord(UUID(int=1)))
    assert asked(acls, Operation.READ) == "DENIED"
    acls.replay(RemoveAccessControlEntryRecord(UUID(int=2)))
    assert asked(acls, Operation.READ) == "NO_ACLS"
    assert acls == Acls()


# Coming and going.


def create(image: Image, entropy: Any, *wanted: Acl) -> list[str]:
    decision = decide_create_acls(image, wanted, entropy)
    image.replay_all(decision.records)
    return ["ok" if each.ok else f"{each.code.name}: {each.message}" for each in decision.reply]


def test_acls_are_made_once_and_removed_by_filters(entropy: Any) -> None:
    image = Image()
    read, write, prefix = acl(), acl(operation=Operation.WRITE), acl("po", pattern=PREFIXED)
    assert create(image, entropy, read, write, read) == ["ok", "ok", "ok"]
    assert create(image, entropy, read, prefix) == ["ok", "ok"]
    assert list(image.acls.by_id.values()) == [read, write, prefix]
    matching = EVERY._replace(resource_type=TOPIC, resource_name="pond", pattern_type=PatternType.MATCH)
    by_operation = EVERY._replace(operation=Operation.READ)
    decision = decide_delete_acls(image, [matching, by_operation, EVERY._replace(principal="User:bob")])
    assert [each.acls for each in decision.reply] == [(read, write, prefix), (read, prefix), ()]
    assert len(decision.records) == 3
    image.replay_all(decision.records)
    assert image.acls == Acls()
    assert image.acls.version > 3


def test_one_request_deletes_by_so_many_filters_only(entropy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand filters that fit anything, held against ten thousand ACLs, would take minutes of the loop."""
    monkeypatch.setattr(acls_module, "LOOKS_MAX", 15)
    image = Image()
    wanted = [acl(f"topic-{number}") for number in range(10)]
    image.replay_all(decide_create_acls(image, wanted, entropy).records)
    one = EVERY._replace(resource_type=TOPIC, resource_name="topic-1", pattern_type=LITERAL)
    decision = decide_delete_acls(image, [one, EVERY, EVERY, one])
    assert [len(each.acls) for each in decision.reply] == [1, 10, 0, 0]
    assert [each.verdict.ok for each in decision.reply] == [True, True, False, False]
    assert len(decision.records) == 10


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        (acl(resource=AclResource.ANY), "not supported for resource type 1"),
        (acl()._replace(resource_type=9), "not supported for resource type 9"),
        (acl(pattern=PatternType.MATCH), "LITERAL or PREFIXED"),
        (acl(operation=Operation.ANY), "unknown operation 1"),
        (acl()._replace(operation=77), "unknown operation 77"),
        (acl(permission=Permission.ANY), "must be ALLOW or DENY"),
        (acl(""), "must name a resource"),
        (acl("the-cluster", resource=AclResource.CLUSTER), "the cluster resource must be named kafka-cluster"),
        (acl(who="alice"), "must have the form User:name"),
        (acl(who="User:"), "must have the form User:name"),
        (acl(host=""), r"must name a host, or \*"),
        (acl("x" * 1001), "at most 1000 characters"),
    ],
)
def test_what_no_acl_can_say_is_refused(entropy: Any, wanted: Acl, fault: str) -> None:
    image = Image()
    decision = decide_create_acls(image, [wanted, acl()], entropy)
    refused, made = decision.reply
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert re.search(fault, refused.message or ""), refused
    assert made.ok
    assert len(decision.records) == 1


@pytest.mark.parametrize(
    ("name", "pattern", "fits"),
    [
        (None, PatternType.ANY, {"literal", "star", "prefix", "other"}),
        ("pond", PatternType.ANY, {"literal"}),
        ("pond", PatternType.LITERAL, {"literal"}),
        ("pond", PatternType.PREFIXED, set()),
        ("po", PatternType.PREFIXED, {"prefix"}),
        ("pond", PatternType.MATCH, {"literal", "star", "prefix"}),
        (None, PatternType.LITERAL, {"literal", "star", "other"}),
        ("*", PatternType.LITERAL, {"star"}),
    ],
)
def test_filters_by_name_and_pattern(name: str | None, pattern: PatternType, fits: set[str]) -> None:
    known = {
        "literal": acl(),
        "star": acl("*"),
        "prefix": acl("po", pattern=PREFIXED),
        "other": acl("lake"),
    }
    acls = acls_of(*known.values())
    for resource in (AclResource.ANY, TOPIC):
        wanted = EVERY._replace(resource_type=resource, resource_name=name, pattern_type=pattern)
        assert {key for key, each in known.items() if each in [found for _, found in acls.fitting(wanted)]} == fits
    assert acls.fitting(EVERY._replace(resource_type=GROUP, resource_name=name, pattern_type=pattern)) == []


def test_a_filter_of_what_does_not_exist_is_refused() -> None:
    image = Image()
    filters = [EVERY._replace(operation=99), EVERY._replace(permission=0), EVERY._replace(pattern_type=9)]
    decision = decide_delete_acls(image, [*filters, EVERY._replace(resource_type=0)])
    assert {each.verdict.code for each in decision.reply} == {ErrorCode.INVALID_REQUEST}
    assert not decision.records


# In the image.


def test_they_survive_in_snapshots_and_copies(entropy: Any) -> None:
    image = Image()
    create(image, entropy, acl(), acl("po", pattern=PREFIXED), acl(permission=DENY, host="10.0.0.1"))
    again = Image()
    again.replay_all(list(records_of(image)))
    assert again == image
    assert again.acls.ruling("User:alice", "10.0.0.1", Operation.READ, TOPIC, "pond") is Ruling.DENIED
    older = image.copy()
    assert older == image
    image.replay_all(decide_delete_acls(image, [EVERY._replace(permission=DENY)]).records)
    create(image, entropy, acl("lake"))
    assert older != image
    assert asked(older.acls, Operation.READ, host="10.0.0.1") == "DENIED"
    older.replay_all(list(records_between(older, image)))
    assert older == image


def test_an_older_level_of_the_metadata_has_none(entropy: Any) -> None:
    image = Image()
    image.replay(FeatureLevelRecord("metadata.version", 27))
    create(image, entropy, acl())
    down = FeatureUpdate("metadata.version", 26, UpgradeType.UNSAFE_DOWNGRADE)
    (verdict,) = decide_update_features(image, [down], SUPPORTED, kraft_version=1, is_dry=True).reply
    assert not verdict.ok
    assert "ACLs" in (verdict.message or "")
    with pytest.raises(Exception, match=r"metadata\.version is at 26"):
        check_level([AccessControlEntryRecord(UUID(int=1), *acl())], 26)
