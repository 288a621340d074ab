"""Group membership: static members that return, duplicates that are fenced, assignors that change one by one."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError

from millpond.base.errors import ErrorCode, Refused
from support.groups import (
    NODE_SETTINGS,
    PROTOCOLS,
    crew_of,
    describe,
    describe_consumer,
    generation_of,
    partitions,
    share_of,
)
from support.node import eventually
from support.raw_groups import ClassicMember, assigned, assignment, subscription

SESSION_MS = 2000
SETTINGS = NODE_SETTINGS | {"group.consumer.session.timeout.ms": str(SESSION_MS)}

every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture
def crew(node):
    with crew_of(node.bootstrap) as made:
        yield made


def static(crew, group, protocol, name, **more):
    session = {} if protocol == "consumer" else {"session_timeout_ms": SESSION_MS}
    return crew.join(group, [group], protocol, group_instance_id=name, **session, **more)


def by_instance(raw, group, protocol):
    """The coordinator's view: the state, and the assignment of each instance."""
    if protocol == "consumer":
        description = describe_consumer(raw, group)
        shares = {
            each.instance_id: {part.topic_name: sorted(part.partitions) for part in each.assignment.topic_partitions}
            for each in description.members
        }
        return description.group_state, shares
    description = describe(raw, group)
    return description.group_state, {
        each.group_instance_id: assigned(each.member_assignment) for each in description.members
    }


# Static members.


@every_protocol
def test_a_static_member_that_comes_back_soon_causes_no_rebalance(raw, topic, crew, protocol):
    raw.create_topic(topic, 6)
    disturbed = []
    stays = static(
        crew,
        topic,
        protocol,
        "a",
        on_revoke=lambda *_: disturbed.append("a"),
        on_lost=lambda *_: disturbed.append("a"),
    )
    goes = static(crew, topic, protocol, "b")
    static(crew, topic, protocol, "c", on_revoke=lambda *_: disturbed.append("c"))
    crew.poll_until_shared(partitions(topic, 6))
    crew.poll_until(lambda: by_instance(raw, topic, protocol)[0] == "Stable", "being stable")
    before, generation, share = by_instance(raw, topic, protocol), generation_of(stays), share_of(goes)
    member_id = goes.memberid()
    assert sorted(before[1]) == ["a", "b", "c"]
    disturbed.clear()
    crew.leave(goes)
    crew.poll_for(0.5)
    # In the new protocol a group with a member that is temporarily away is not Stable.
    assert by_instance(raw, topic, protocol)[1] == before[1]
    back = static(crew, topic, protocol, "b")
    crew.poll_until(lambda: share_of(back) == share, "having the same again")
    crew.poll_for(0.5)
    assert back.memberid() != member_id
    assert by_instance(raw, topic, protocol) == before
    assert generation_of(stays) == generation_of(back) == generation
    assert disturbed == []


@every_protocol
def test_a_static_member_that_stays_away_is_replaced(raw, topic, crew, protocol):
    raw.create_topic(topic, 4)
    static(crew, topic, protocol, "a")
    goes = static(crew, topic, protocol, "b")
    crew.poll_until_shared(partitions(topic, 4))
    crew.leave(goes)
    left = time.monotonic()
    crew.poll_until(lambda: len(crew.shares()[0]) == 4, "taking over")
    assert time.monotonic() - left > SESSION_MS / 1000 - 0.5
    assert sorted(by_instance(raw, topic, protocol)[1]) == ["a"]


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
def test_of_two_classic_members_with_one_instance_id_the_older_is_fenced(raw, topic, crew, protocol):
    raw.create_topic(topic, 2)
    old = static(crew, topic, protocol, "same")
    crew.poll_until_shared(partitions(topic, 2))
    young = static(crew, topic, protocol, "same")
    crew.poll_until(lambda: share_of(young) == partitions(topic, 2), "the younger one having all")
    crew.poll_until(lambda: crew.errors, "the older one hearing of it")
    assert crew.errors[0].code() == KafkaError._FATAL
    assert "fenced by other consumer with same group.instance.id" in crew.errors[0].str()
    crew.members.remove(old)
    old.close()
    crew.poll_for(0.3)
    assert share_of(young) == partitions(topic, 2)
    assert list(by_instance(raw, topic, protocol)[1].values()) == [{topic: [0, 1]}]


def test_in_the_new_protocol_a_double_is_turned_away_while_the_first_is_there(raw, topic, crew):
    raw.create_topic(topic, 2)
    first = static(crew, topic, "consumer", "same")
    crew.poll_until_shared(partitions(topic, 2))
    epoch = generation_of(first)
    double = static(crew, topic, "consumer", "same")
    crew.poll_until(lambda: crew.errors, "the second one hearing of it")
    assert {error.code() for error in crew.errors} <= {KafkaError._FATAL, KafkaError.UNRELEASED_INSTANCE_ID}
    assert "UNRELEASED_INSTANCE_ID" in crew.errors[0].str() or "instance" in crew.errors[0].str().lower()
    assert (share_of(first), share_of(double)) == (partitions(topic, 2), [])
    assert generation_of(first) == epoch


# Assignors.


def test_assignors_change_member_by_member(raw, topic, crew):
    """range, then both, then roundrobin: the members always have an assignor in common."""
    raw.create_topic(topic, 4)
    members = [crew.join(topic, [topic], "range") for _ in range(3)]
    crew.poll_until_shared(partitions(topic, 4))
    assert describe(raw, topic).protocol_data == "range"
    for strategy in ("roundrobin,range", "roundrobin"):
        for index in range(3):
            crew.leave(members[index])
            members[index] = crew.join(topic, [topic], strategy)
            crew.poll_until_shared(partitions(topic, 4))
            crew.poll_until(lambda: describe(raw, topic).group_state == "Stable", "being stable")
    assert describe(raw, topic).protocol_data == "roundrobin"
    assert not crew.errors


def test_a_member_that_knows_no_common_assignor_is_turned_away(raw, topic, crew):
    raw.create_topic(topic, 2)
    first = crew.join(topic, [topic], "range")
    crew.poll_until_shared(partitions(topic, 2))
    crew.join(topic, [topic], "cooperative-sticky")
    crew.poll_until(lambda: crew.errors, "an error")
    assert crew.errors[0].code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
    assert share_of(first) == partitions(topic, 2)


def rebalanced(topic, *joining):
    """The first member rejoins, which makes the others rejoin; the leader assigns. Returns the chosen assignor."""
    for index, (member, known) in enumerate(joining):
        assert not index or eventually(lambda it=member: it.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)
        member.ask_to_join({name: subscription([topic]) for name in known})
    members = [member for member, _ in joining]
    replies = [member.joined() for member in members]
    assert [reply.error_code for reply in replies] == [0] * len(members)
    assert len({member.generation for member in members}) == 1
    shares = {member.member_id: assignment({topic: [number]}) for number, member in enumerate(members)}
    for member in sorted(members, key=lambda each: not each.is_leader):
        assert not member.sync(shares if member.is_leader else None).error_code
    (chosen,) = {reply.protocol_name for reply in replies}
    return chosen


def test_eager_to_cooperative_in_two_rounds_as_java_consumers_do_it(node, raw, topic):
    """Only Java consumers may list an eager and a cooperative assignor together, so the test plays the members."""
    raw.create_topic(topic, 2)
    old, both, new = ["range"], ["cooperative-sticky", "range"], ["cooperative-sticky"]
    with ClassicMember(node.port, topic) as one, ClassicMember(node.port, topic) as two:
        assert rebalanced(topic, (one, old)) == "range"
        assert rebalanced(topic, (two, old), (one, old)) == "range"
        assert rebalanced(topic, (one, both), (two, old)) == "range"
        assert rebalanced(topic, (two, both), (one, both)) == "cooperative-sticky"
        assert rebalanced(topic, (one, new), (two, both)) == "cooperative-sticky"
        assert rebalanced(topic, (two, new), (one, new)) == "cooperative-sticky"
        with ClassicMember(node.port, topic) as late:
            with pytest.raises(Refused) as refused:
                late.join({"range": subscription([topic])})
            assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert [member.heartbeat() for member in (one, two)] == [0, 0]
