"""Groups as tools see them, through two libraries: list, describe, alter offsets and delete."""

from __future__ import annotations

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from millpond.wire import messages as m
from support.groups import (
    NODE_SETTINGS,
    PROTOCOLS,
    crew_of,
    describe,
    describe_consumer,
    fetch_offsets,
    generation_of,
    partitions,
    share_of,
    write,
)
from support.raw_groups import assigned, commit

SETTINGS = NODE_SETTINGS

SECONDS = 60

every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture
def admin(node):
    return AdminClient({"bootstrap.servers": node.bootstrap})


@pytest.fixture
def crew(node):
    with crew_of(node.bootstrap) as made:
        yield made


@pytest.fixture
def three_groups(raw, topic, crew):
    """A running group of each protocol, and one that only has an offset; their names by kind."""
    raw.create_topic(topic, 2)
    names = {kind: f"{topic}-{kind}" for kind in ("range", "consumer", "empty")}
    members = {kind: crew.join(names[kind], [topic], kind) for kind in ("range", "consumer")}
    crew.poll_until(lambda: all(len(share) == 2 for share in crew.shares()), "both having all")
    for kind, member in members.items():
        member.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        assert fetch_offsets(raw, names[kind]) == {(topic, 0): 3}
    assert commit(raw, names["empty"], topic, 3) == 0
    return names


def listed(raw, names, **filters):
    """The groups that pass the filters, by kind: state and type."""
    response = raw.call(m.ListGroupsRequest(**filters), 5)
    assert not response.error_code
    by_name = {each.group_id: (each.group_state, each.group_type) for each in response.groups}
    return {kind: by_name[name] for kind, name in names.items() if name in by_name}


def test_groups_are_listed_by_state_and_type(raw, three_groups):
    classic, new, empty = ("Stable", "classic"), ("Stable", "consumer"), ("Empty", "classic")
    everything = {"range": classic, "consumer": new, "empty": empty}
    assert listed(raw, three_groups) == everything
    assert listed(raw, three_groups, states_filter=["Stable"]) == {"range": classic, "consumer": new}
    assert listed(raw, three_groups, states_filter=["empty", "DEAD"]) == {"empty": empty}
    assert listed(raw, three_groups, types_filter=["consumer"]) == {"consumer": new}
    assert listed(raw, three_groups, types_filter=["Classic"], states_filter=["Stable"]) == {"range": classic}
    assert listed(raw, three_groups, states_filter=["no such state"]) == {}


def test_libraries_list_them_too(node, admin, three_groups):
    names = set(three_groups.values())
    stable = admin.list_consumer_groups(
        request_timeout=SECONDS, states={ConsumerGroupState.STABLE}, types={ConsumerGroupType.CLASSIC}
    ).result(SECONDS)
    assert {each.group_id for each in stable.valid} & names == {three_groups["range"]}
    assert not stable.errors
    python_admin = KafkaAdminClient(bootstrap_servers=node.bootstrap)
    assert names <= {each["group_id"] for each in python_admin.list_groups()}
    python_admin.close()


@every_protocol
def test_a_group_is_described_with_all_its_members(raw, admin, topic, crew, protocol):
    raw.create_topic(topic, 4)
    for number in range(2):
        crew.join(topic, [topic], protocol, client_id=f"{topic}-{number}")
    crew.poll_until_shared(partitions(topic, 4))
    members = {each.memberid(): share_of(each) for each in crew.members}

    def described():
        return admin.describe_consumer_groups([topic], request_timeout=SECONDS)[topic].result(SECONDS)

    crew.poll_until(lambda: described().state is ConsumerGroupState.STABLE, "being stable")
    description = described()
    assert description.is_simple_consumer_group is False
    assert description.partition_assignor == ("uniform" if protocol == "consumer" else protocol)
    assert description.coordinator.port == int(crew.bootstrap.rpartition(":")[2])
    assert {
        each.member_id: sorted((one.topic, one.partition) for one in each.assignment.topic_partitions)
        for each in description.members
    } == members
    assert sorted(each.client_id for each in description.members) == [f"{topic}-0", f"{topic}-1"]
    assert {each.host for each in description.members} <= {"127.0.0.1", "/127.0.0.1"}
    asked = admin.describe_consumer_groups([topic], include_authorized_operations=True, request_timeout=SECONDS)
    assert {each.name for each in asked[topic].result(SECONDS).authorized_operations} == {
        "READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"
    }  # fmt: skip


def test_the_new_protocol_tells_more_of_a_group(raw, topic, crew):
    raw.create_topic(topic, 4)
    by_name = crew.join(topic, [topic], "consumer", client_rack="left")
    by_pattern = crew.join(topic, [f"^{topic}$"], "consumer", group_instance_id="here")
    crew.poll_until_shared(partitions(topic, 4))
    crew.poll_until(lambda: describe_consumer(raw, topic).group_state == "Stable", "being stable")
    description = describe_consumer(raw, topic)
    assert description.group_epoch == description.assignment_epoch == generation_of(by_name)
    members = {each.member_id: each for each in description.members}
    named, patterned = members[by_name.memberid()], members[by_pattern.memberid()]
    assert (named.subscribed_topic_names, named.subscribed_topic_regex) == ([topic], None)
    assert (patterned.subscribed_topic_names, patterned.subscribed_topic_regex) == ([], f"(^{topic}$)")
    assert (named.rack_id, patterned.instance_id) == ("left", "here")
    assert {each.member_epoch for each in description.members} == {description.group_epoch}
    for each in description.members:
        assert each.assignment == each.target_assignment
        assert each.member_type == 1
    assignments = [each.assignment.topic_partitions[0].partitions for each in description.members]
    assert sorted(number for numbers in assignments for number in numbers) == [0, 1, 2, 3]


def test_a_classic_group_is_described_as_its_members_said_it(raw, topic, crew):
    raw.create_topic(topic, 2)
    member = crew.join(topic, [topic], "range", group_instance_id="here")
    crew.poll_until_shared(partitions(topic, 2))
    crew.poll_until(lambda: describe(raw, topic).group_state == "Stable", "being stable")
    description = describe(raw, topic)
    assert (description.protocol_type, description.protocol_data) == ("consumer", "range")
    (told,) = description.members
    assert (told.member_id, told.group_instance_id) == (member.memberid(), "here")
    assert assigned(told.member_assignment) == {topic: [0, 1]}
    subscribed, _ = m.ConsumerProtocolSubscription.decode(told.member_metadata, told.member_metadata[1], 2)
    assert subscribed.topics == [topic]


def error_of(future):
    with pytest.raises(KafkaException) as raised:
        future.result(SECONDS)
    return raised.value.args[0].code()


@every_protocol
def test_only_a_group_without_members_is_deleted(raw, admin, topic, crew, protocol):
    raw.create_topic(topic, 1)
    member = crew.join(topic, [topic], protocol)
    crew.poll_until_shared(partitions(topic, 1))
    member.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    assert error_of(admin.delete_consumer_groups([topic])[topic]) == KafkaError.NON_EMPTY_GROUP
    crew.leave(member)
    admin.delete_consumer_groups([topic])[topic].result(SECONDS)
    assert fetch_offsets(raw, topic) == {}
    assert error_of(admin.delete_consumer_groups([topic])[topic]) == KafkaError.GROUP_ID_NOT_FOUND
    assert listed(raw, {"it": topic}) == {}


@every_protocol
def test_offsets_are_moved_by_a_tool_and_the_group_goes_on_from_there(raw, admin, topic, crew, protocol):
    raw.create_topic(topic, 1)
    write(raw, topic, 1, 10)
    member = crew.join(topic, [topic], protocol)
    crew.poll_until(lambda: len(crew.seen) == 10, "reading all")
    member.commit(asynchronous=False)
    wanted = [ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0, 4)])]
    (refused,) = admin.alter_consumer_group_offsets(wanted)[topic].result(SECONDS).topic_partitions
    assert refused.error.code() == KafkaError.UNKNOWN_MEMBER_ID
    crew.leave(member)
    (moved,) = admin.alter_consumer_group_offsets(wanted)[topic].result(SECONDS).topic_partitions
    assert moved.error is None
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)])[topic].result(SECONDS)
    assert [(each.topic, each.partition, each.offset) for each in offsets.topic_partitions] == [(topic, 0, 4)]
    crew.seen.clear()
    crew.join(topic, [topic], protocol)
    crew.poll_until(lambda: len(crew.seen) == 6, "reading the rest")
    assert [each.offset for each in crew.seen] == [4, 5, 6, 7, 8, 9]
