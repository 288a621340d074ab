"""The audit log: which actions and refusals it records, and what it never contains."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from millpond.base.errors import ErrorCode
from millpond.base.principal import Principal
from millpond.base.rights import AclResource, Operation, PatternType, Permission
from millpond.broker.audit.audit import (
    CHANGE_APIS,
    FROM_ONE_MAX,
    ITEMS_MAX,
    KEPT_BYTES,
    REPEAT_MS,
    REPEATED_MAX,
    Audit,
    Chapter,
)
from millpond.broker.audit.audit_budget import BURST_SECONDS, FILL_SECONDS, OF_ONE
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m
from millpond.wire.header import NAMES

ALICE = Principal("User", "alice")


class Asker:
    """The parts of a call that are logged."""

    principal = ALICE
    client_host = "10.0.0.7"
    client_id = "tool"


def audit_lines() -> tuple[Audit, VirtualClock, list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    clock = VirtualClock()
    return Audit(lambda line, _: lines.append(json.loads(line)), clock, 3), clock, lines


def test_without_a_place_to_write_nothing_is_noted() -> None:
    audit = Audit(None, VirtualClock(), 1)
    assert not audit.is_on
    audit.refused(ALICE, "h", Operation.READ, AclResource.TOPIC, "t")
    audit.flush()


def test_who_was_refused_what() -> None:
    audit, _, lines = audit_lines()
    audit.refused(ALICE, "10.0.0.7", Operation.READ, AclResource.TOPIC, "salaries")
    (line,) = lines
    assert line.pop("time").endswith("Z")
    assert line == {
        "node": 3,
        "event": "refused",
        "principal": "User:alice",
        "host": "10.0.0.7",
        "operation": "READ",
        "resource": "TOPIC",
        "name": "salaries",
    }


def test_what_comes_again_is_counted() -> None:
    audit, clock, lines = audit_lines()
    for _ in range(1_000):
        audit.refused(ALICE, "h", Operation.READ, AclResource.TOPIC, "salaries")
    audit.refused(ALICE, "h", Operation.WRITE, AclResource.TOPIC, "salaries")
    assert [line.get("operation") for line in lines] == ["READ", "WRITE"]
    clock.run_for(REPEAT_MS)
    assert [(line["operation"], line["times_more"]) for line in lines[2:]] == [("READ", 999)]
    audit.refused(ALICE, "h", Operation.READ, AclResource.TOPIC, "salaries")
    assert len(lines) == 4, "a new interval reports it again, at once"
    clock.run_for(REPEAT_MS)
    assert len(lines) == 4, "what came once is not told twice"


def test_a_stranger_with_many_names_cannot_fill_the_memory_or_the_disk() -> None:
    audit, clock, lines = audit_lines()
    for number in range(FROM_ONE_MAX + 500):
        audit.not_logged_in(f"user-{number}", "h", "SASL_SSL", "SCRAM-SHA-512", "wrong user or password")
    assert len(lines) == FROM_ONE_MAX
    clock.run_for(REPEAT_MS)
    assert (lines[-1]["event"], lines[-1]["of"], lines[-1]["host"]) == ("others", "login_failed", "h")
    assert lines[-1]["times_more"] == 500
    del lines[:]
    for number in range(REPEATED_MAX + 500):
        audit.not_logged_in("x", f"h-{number}", "SASL_SSL", "SCRAM-SHA-512", "wrong user or password")
    assert len(lines) == REPEATED_MAX


def test_a_stranger_with_many_names_hides_nothing_by_them() -> None:
    audit, _, lines = audit_lines()
    for number in range(REPEATED_MAX + 500):
        audit.not_logged_in(f"user-{number}", f"h-{number % 20}", "SASL_SSL", "SCRAM-SHA-512", "wrong")
    del lines[:]
    audit.logged_in(ALICE, "h-1", "SASL_SSL", "SCRAM-SHA-512")
    audit.refused(ALICE, "h-1", Operation.READ, AclResource.TOPIC, "salaries")
    assert [line["event"] for line in lines] == ["login", "refused"]


def test_a_name_that_is_long_or_breaks_lines_stays_in_its_line() -> None:
    written: list[str] = []
    audit = Audit(lambda line, _: written.append(line), VirtualClock(), 1)
    audit.not_logged_in("x" * 100_000, "h", "L", "PLAIN", "no")
    audit.refused(ALICE, "h", Operation.READ, AclResource.GROUP, 'a\n{"event":"login"}\u2028')
    assert all(len(line) < 1_000 and "\n" not in line and line.isascii() for line in written)
    assert json.loads(written[1])["name"] == 'a\n{"event":"login"}\u2028'


def asked(request: m.Message, response: m.Message | None = None) -> dict[str, Any]:
    audit, _, lines = audit_lines()
    key = request.API_KEY
    assert key in CHANGE_APIS
    tell = audit.begin_change(Asker(), key, NAMES[key], request)  # type: ignore[arg-type]
    assert not lines, "what is not done yet is not told"
    tell(response or m.response_class(key)())
    (line,) = lines
    return line


def test_what_was_changed_and_what_came_of_it() -> None:
    topic, other = (m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=3) for name in ("orders", "b"))
    result = m.CreateTopicsResponse.CreatableTopicResult
    line = asked(
        m.CreateTopicsRequest(topics=[topic, other]),
        m.CreateTopicsResponse(
            topics=[result(name="orders"), result(name="b", error_code=36, error_message="there")]
        ),
    )
    assert (line["event"], line["api"], line["principal"]) == ("failed", "CreateTopics", "User:alice")
    assert line["asked"]["topics"][0] == {"name": "orders", "num_partitions": 3, "replication_factor": 0}
    assert line["errors"] == {"b": "TOPIC_ALREADY_EXISTS"}


def test_refused_and_public_requests_cannot_flush_the_audit_log() -> None:
    """Files rotate: a client that could fill them would push out the oldest one, and with it the record of its
    actions.
    """
    by_chapter: dict[Chapter, list[dict[str, Any]]] = {each: [] for each in Chapter}
    clock = VirtualClock()
    audit = Audit(lambda line, chapter: by_chapter[chapter].append(json.loads(line)), clock, 3)
    lines = by_chapter[Chapter.ACCESS]
    renewal, deletion = m.RenewDelegationTokenRequest(hmac=b"SECRET"), m.DeleteTopicsRequest(topics=[])
    failure = m.DeleteTopicsResponse.DeletableTopicResult
    for number in range(10_000):
        audit.begin_change(Asker(), 39, "RenewDelegationToken", renewal)(m.RenewDelegationTokenResponse())  # type: ignore[arg-type]
        failed = m.DeleteTopicsResponse(responses=[failure(name=f"topic-{number}", error_code=3)])
        audit.begin_change(Asker(), 20, "DeleteTopics", deletion)(failed)  # type: ignore[arg-type]
    assert len(lines) == FROM_ONE_MAX
    clock.run_for(REPEAT_MS)
    (others,) = lines[FROM_ONE_MAX:]
    tokens = by_chapter[Chapter.TOKENS]
    assert [each["event"] for each in tokens] == ["changed"] * 10_000, (
        "each one is logged, as these need no other space"
    )
    assert by_chapter[Chapter.CHANGES] == []
    assert (others["of"], others["principal"], others["times_more"]) == (
        "failed",
        "User:alice",
        10_000 - FROM_ONE_MAX,
    )
    for _ in range(1_000):
        audit.begin_change(Asker(), 20, "DeleteTopics", deletion)(m.DeleteTopicsResponse())  # type: ignore[arg-type]
    assert len(by_chapter[Chapter.CHANGES]) == 1_000, "actions that need a right are logged each time"


def written(kept_bytes: int = KEPT_BYTES) -> tuple[Audit, VirtualClock, dict[Chapter, list[str]]]:
    lines: dict[Chapter, list[str]] = {each: [] for each in Chapter}
    clock = VirtualClock()
    return Audit(lambda line, chapter: lines[chapter].append(line), clock, 3, kept_bytes), clock, lines


def test_one_user_fills_little_of_the_files_and_none_of_what_was_changed() -> None:
    audit, clock, lines = written()
    topic = m.CreateTopicsRequest(topics=[m.CreateTopicsRequest.CreatableTopic(name="first")])
    audit.begin_change(Asker(), 19, "CreateTopics", topic)(m.CreateTopicsResponse())  # type: ignore[arg-type]
    for step in range(60):
        for number in range(FROM_ONE_MAX):
            audit.refused(ALICE, "h", Operation.READ, AclResource.TOPIC, f"{'x' * 200}-{step}-{number}")
        clock.run_for(REPEAT_MS)
    size = sum(map(len, lines[Chapter.ACCESS]))
    assert size < KEPT_BYTES / FILL_SECONDS / OF_ONE * (BURST_SECONDS + 600) + 10_000
    assert size < KEPT_BYTES / 500
    assert len(lines[Chapter.CHANGES]) == 1


def test_very_many_strangers_take_days_to_fill_the_files_and_users_are_told_of_meanwhile() -> None:
    audit, clock, lines = written()
    for step in range(30):
        for number in range(REPEATED_MAX):
            audit.not_logged_in("y" * 200, f"10.{step}.{number // 250}.{number % 250}", "L", "PLAIN", "wrong")
        clock.run_for(REPEAT_MS)
    size = sum(map(len, lines[Chapter.ACCESS]))
    assert size < KEPT_BYTES / FILL_SECONDS * (BURST_SECONDS + 300) + 10_000
    audit.refused(ALICE, "10.0.0.1", Operation.READ, AclResource.TOPIC, "salaries")
    assert json.loads(lines[Chapter.ACCESS][-1])["name"] == "salaries", "at once"


def test_what_was_not_told_is_counted_with_its_first_and_last_time() -> None:
    audit, clock, lines = written(kept_bytes=1 << 20)
    for _ in range(360):
        for number in range(20):
            audit.refused(ALICE, "h", Operation.READ, AclResource.TOPIC, f"topic-{number}")
        clock.run_for(REPEAT_MS)
    audit.flush()
    entries = [json.loads(line) for line in lines[Chapter.ACCESS]]
    counts = Counter(line["name"] for line in entries)
    assert counts.keys() == {f"topic-{number}" for number in range(20)}, "each by its name"
    for name in counts:
        assert sum(1 + line.get("times_more", 0) for line in entries if line["name"] == name) == 360, "none is lost"
    folded = [line for line in entries if line.get("times_more", 0) > 1]
    assert folded
    assert all(line["first"] < line["last"] <= line["time"] for line in folded)
    assert sum(map(len, lines[Chapter.ACCESS])) < 20_000


def test_some_users_with_many_names_hide_nothing_of_what_others_do() -> None:
    audit, clock, lines = written()
    for step in range(40):
        for number in range(REPEATED_MAX):
            mallory = Principal("User", f"mallory-{number % 12}")
            audit.refused(mallory, "h", Operation.READ, AclResource.TOPIC, f"{'x' * 200}-{step}-{number}")
        clock.run_for(REPEAT_MS)
    audit.refused(ALICE, "h", Operation.READ, AclResource.TOPIC, "salaries")
    clock.run_for(10 * REPEAT_MS)
    assert any('"salaries"' in line for line in lines[Chapter.ACCESS]), "by its name"
    audit.flush()
    entries = [json.loads(line) for line in lines[Chapter.ACCESS]]
    assert sum(line.get("times_more", 0) + (line["event"] == "refused") for line in entries) == 40 * REPEATED_MAX + 1


def test_addresses_of_one_network_count_as_one() -> None:
    audit, clock, lines = written()
    for step in range(60):
        for number in range(200):
            audit.not_logged_in("z" * 200, f"2001:db8::{step:x}:{number:x}", "L", "PLAIN", "wrong")
        clock.run_for(REPEAT_MS)
    assert sum(map(len, lines[Chapter.ACCESS])) < KEPT_BYTES / FILL_SECONDS / OF_ONE * (BURST_SECONDS + 600) + 10_000


def test_what_was_done_in_part_or_perhaps_is_told_each_time_and_in_full() -> None:
    """A request that half failed has changed the other half; one that timed out may still be carried out."""
    audit, _, lines = written()
    result = m.CreateTopicsResponse.CreatableTopicResult
    creation = m.CreateTopicsRequest(topics=[m.CreateTopicsRequest.CreatableTopic(name="a")])

    def tell(*codes: ErrorCode) -> None:
        response = m.CreateTopicsResponse(topics=[result(name=str(n), error_code=c) for n, c in enumerate(codes)])
        audit.begin_change(Asker(), 19, "CreateTopics", creation)(response)  # type: ignore[arg-type]

    for _ in range(1_000):
        tell(ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        tell(ErrorCode.REQUEST_TIMED_OUT)
        tell(ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_PARTITIONS)
    assert len(lines[Chapter.CHANGES]) == 2_000
    assert len(lines[Chapter.ACCESS]) == 1
    # A top-level error code, with others nested inside.
    moves = m.AlterPartitionReassignmentsResponse
    inner = moves.ReassignableTopicResponse(
        name="t", partitions=[moves.ReassignablePartitionResponse(error_code=ErrorCode.INVALID_REPLICA_ASSIGNMENT)]
    )
    audit.begin_change(Asker(), 45, "AlterPartitionReassignments", m.AlterPartitionReassignmentsRequest())(  # type: ignore[arg-type]
        moves(responses=[inner])
    )
    assert len(lines[Chapter.CHANGES]) == 2_000


def test_an_acl_is_told_in_words() -> None:
    creation = m.CreateAclsRequest.AclCreation(
        resource_type=AclResource.TOPIC,
        resource_name="orders",
        resource_pattern_type=PatternType.PREFIXED,
        principal="User:bob",
        host="*",
        operation=Operation.READ,
        permission_type=Permission.ALLOW,
    )
    line = asked(m.CreateAclsRequest(creations=[creation]))
    assert line["event"] == "changed"
    assert line["asked"]["creations"] == [
        {
            "resource_type": "TOPIC",
            "resource_name": "orders",
            "resource_pattern_type": "PREFIXED",
            "principal": "User:bob",
            "host": "*",
            "operation": "READ",
            "permission_type": "ALLOW",
        }
    ]


def test_no_secret_is_told() -> None:
    upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="bob", mechanism=2, iterations=4096, salt=b"SECRET", salted_password=b"SECRET"
    )
    request = m.AlterUserScramCredentialsRequest(upsertions=[upsertion])
    line = asked(request)
    assert line["asked"]["upsertions"] == [
        {
            "name": "bob",
            "mechanism": "SCRAM-SHA-512",
            "iterations": 4096,
            "salt": "(hidden)",
            "salted_password": "(hidden)",
        }
    ]
    assert "SECRET" not in repr(request), "nor in the repr of the request itself"
    config = m.IncrementalAlterConfigsRequest.AlterableConfig
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=4,
        resource_name="1",
        configs=[config(name="ssl.key.password", value="SECRET"), config(name="num.partitions", value="3")],
    )
    line = asked(m.IncrementalAlterConfigsRequest(resources=[resource]))
    assert "SECRET" not in json.dumps(line)
    assert line["asked"]["resources"][0]["resource_type"] == "broker"
    assert [each["value"] for each in line["asked"]["resources"][0]["configs"]] == ["(hidden)", "3"]


def test_unknown_broker_settings_are_treated_as_secrets() -> None:
    audit, _, lines = audit_lines()
    kind = m.IncrementalAlterConfigsRequest
    settings = {"my.plugin.pin": "1234", "log.cleaner.backoff.ms": "5000"}
    configs = [kind.AlterableConfig(name=name, config_operation=0, value=text) for name, text in settings.items()]
    resource = kind.AlterConfigsResource(resource_type=4, resource_name="3", configs=configs)
    audit.begin_change(Asker(), 44, "IncrementalAlterConfigs", kind(resources=[resource]))(  # type: ignore[arg-type]
        m.IncrementalAlterConfigsResponse(responses=[])
    )
    told = {each["name"]: each["value"] for each in lines[0]["asked"]["resources"][0]["configs"]}
    assert told == {"my.plugin.pin": "(hidden)", "log.cleaner.backoff.ms": "5000"}


def test_what_was_changed_is_named_however_many_there_are() -> None:
    """A hundred harmless changes must not hide the one that matters."""
    audit, _, lines = audit_lines()
    names = [f"group-{number}" for number in range(250)]
    told = audit.begin_change(Asker(), 42, "DeleteGroups", m.DeleteGroupsRequest(groups_names=names))  # type: ignore[arg-type]
    told(m.DeleteGroupsResponse())
    assert [each["asked"]["groups_names"] for each in lines] == [names[:100], names[100:200], names[200:]]
    assert [(each["event"], each["part"], each["parts"]) for each in lines] == [
        ("changed", number, 3) for number in (1, 2, 3)
    ]


def test_things_of_many_parts_stay_whole_and_each_list_is_told() -> None:
    audit, _, lines = audit_lines()
    kind = m.IncrementalAlterConfigsRequest
    config = kind.AlterConfigsResource
    resources = [
        config(
            resource_type=2,
            resource_name=name,
            configs=[kind.AlterableConfig(name=f"{number}", value="1") for number in range(count)],
        )
        for name, count in (("a", 60), ("b", 60), ("large", 300), ("c", 1), ("d", 2))
    ]
    request = kind(resources=resources, validate_only=True)
    audit.begin_change(Asker(), 44, "IncrementalAlterConfigs", request)(  # type: ignore[arg-type]
        m.IncrementalAlterConfigsResponse()
    )
    told = [[(each["resource_name"], len(each["configs"])) for each in line["asked"]["resources"]] for line in lines]
    assert told == [[("a", 60)], [("b", 60)], [("large", 300)], [("c", 1), ("d", 2)]]
    assert all(line["asked"]["validate_only"] for line in lines)


def test_a_request_that_failed_with_very_many_names_is_cut() -> None:
    line = asked(
        m.DeleteGroupsRequest(groups_names=[f"group-{number}" for number in range(5_000)]),
        m.DeleteGroupsResponse(results=[m.DeleteGroupsResponse.DeletableGroupResult(group_id="x", error_code=69)]),
    )
    assert line["asked"]["groups_names"][-1] == f"and {5_000 - ITEMS_MAX} more"
    assert len(json.dumps(line)) < 10_000
