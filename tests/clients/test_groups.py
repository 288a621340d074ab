"""Consumer groups with three libraries and both protocols: members commit, return and resume where they were."""

from __future__ import annotations

import pytest

from millpond.wire import messages as m
from support.groups import JOINS, NODE_SETTINGS, PROTOCOLS, crew_of, fetch_offsets, partitions, share_of, write
from support.raw import Raw

SETTINGS = NODE_SETTINGS

every_client = pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture
def filled(raw, topic):
    """A topic with two partitions of ten records each."""
    raw.create_topic(topic, 2)
    write(raw, topic, 2, 10)
    return topic


def partitions_and_offsets(records):
    return sorted((each.partition, each.offset) for each in records)


EVERYTHING = [(partition, offset) for partition in range(2) for offset in range(10)]


@pytest.mark.smoke
@every_client
def test_a_consumer_goes_on_from_what_it_committed(node, raw, filled, join):
    first = join(node.bootstrap, filled, [filled])
    assert first.committed(filled, 0) is None
    assert partitions_and_offsets(first.read(20)) == EVERYTHING
    first.commit()
    first.close()
    assert fetch_offsets(raw, filled) == {(filled, 0): 10, (filled, 1): 10}
    write(raw, filled, 2, 3, first=10)
    second = join(node.bootstrap, filled, [filled])
    assert partitions_and_offsets(second.read(6)) == [
        (partition, offset) for partition in range(2) for offset in (10, 11, 12)
    ]
    second.commit_later()
    second.close()
    assert fetch_offsets(raw, filled) == {(filled, 0): 13, (filled, 1): 13}


@every_client
def test_what_was_not_committed_comes_again(node, raw, filled, join):
    first = join(node.bootstrap, filled, [filled])
    assert len(first.read(20)) == 20
    first.commit_at(filled, 0, 4, "up to four")
    first.close()
    second = join(node.bootstrap, filled, [filled])
    assert partitions_and_offsets(second.read(16)) == EVERYTHING[4:]
    second.close()


@every_client
def test_metadata_and_leader_epoch_come_back_as_they_were_committed(node, filled, join):
    member = join(node.bootstrap, filled, [filled])
    member.read(20)
    member.commit_at(filled, 1, 7, "die Mühle 水車")
    position = member.committed(filled, 1)
    assert (position.offset, position.metadata) == (7, "die Mühle 水車")
    assert position.leader_epoch in (0, None)
    assert member.committed(filled, 0) is None
    member.close()


@every_client
def test_a_second_group_reads_everything_by_itself(node, raw, filled, join):
    groups = [f"{filled}-{number}" for number in range(2)]
    for group in groups:
        member = join(node.bootstrap, group, [filled])
        assert partitions_and_offsets(member.read(20)) == EVERYTHING
        member.commit()
        member.close()
    for group in groups:
        assert fetch_offsets(raw, group) == {(filled, 0): 10, (filled, 1): 10}


@pytest.mark.parametrize("crash", [False, True], ids=["clean end", "kill -9"])
def test_committed_offsets_outlive_the_node(make_node, crash):
    node = make_node(NODE_SETTINGS)
    with Raw(node.port) as raw:
        raw.create_topic("kept", 2)
        write(raw, "kept", 2, 10)
    for name, join in JOINS.items():
        member = join(node.bootstrap, name, ["kept"])
        assert partitions_and_offsets(member.read(20)) == EVERYTHING
        member.commit_at("kept", 0, 10, f"by {name}")
        member.commit_at("kept", 1, 8, "")
        member.close()
    node.restart(crash=crash)
    for name, join in JOINS.items():
        member = join(node.bootstrap, name, ["kept"])
        assert partitions_and_offsets(member.read(2)) == EVERYTHING[18:]
        assert member.committed("kept", 0)[:2] == (10, f"by {name}")
        member.close()


@every_protocol
def test_of_ten_consumers_of_six_partitions_exactly_four_are_idle(node, raw, topic, protocol):
    raw.create_topic(topic, 6)
    written = write(raw, topic, 6, 5)
    with crew_of(node.bootstrap) as crew:
        for _ in range(10):
            crew.join(topic, [topic], protocol)
        shares = crew.poll_until_shared(partitions(topic, 6))
        assert sorted(map(len, shares)) == [0] * 4 + [1] * 6
        crew.poll_until(lambda: {(each.partition, each.value) for each in crew.seen} == written, "reading all")


@every_protocol
def test_idle_consumers_take_over_from_those_who_leave(node, raw, topic, protocol):
    raw.create_topic(topic, 2)
    with crew_of(node.bootstrap) as crew:
        members = [crew.join(topic, [topic], protocol) for _ in range(3)]
        crew.poll_until_shared(partitions(topic, 2))
        owner = next(each for each in members if share_of(each))
        crew.leave(owner)
        shares = crew.poll_until_shared(partitions(topic, 2))
        assert len(shares) == 2


@every_protocol
def test_two_topics_and_members_that_want_different_ones(node, raw, topic, protocol):
    other = f"{topic}-other"
    raw.create_topic(topic, 4)
    raw.create_topic(other, 2)
    with crew_of(node.bootstrap) as crew:
        both = crew.join(topic, [topic, other], protocol)
        crew.join(topic, [topic], protocol)
        crew.poll_until_shared(partitions(topic, 4) + partitions(other, 2))
        assert set(partitions(other, 2)) <= set(share_of(both))


@every_protocol
def test_partitions_added_while_the_group_runs_are_read(node, raw, topic, protocol):
    raw.create_topic(topic, 2)
    with crew_of(node.bootstrap) as crew:
        for _ in range(2):
            crew.join(topic, [topic], protocol)
        crew.poll_until_shared(partitions(topic, 2))
        wanted = m.CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=6, assignments=None)
        reply = raw.call(m.CreatePartitionsRequest(topics=[wanted], timeout_ms=5000, validate_only=False), 3)
        assert not reply.results[0].error_code, reply
        written = write(raw, topic, 6, 3)
        shares = crew.poll_until_shared(partitions(topic, 6))
        assert sorted(map(len, shares)) == [3, 3]
        crew.poll_until(lambda: {(each.partition, each.value) for each in crew.seen} == written, "reading all")


@every_protocol
def test_a_topic_that_comes_later_and_fits_the_pattern_is_read(node, raw, topic, protocol):
    raw.create_topic(f"{topic}.red", 2)
    raw.create_topic(f"not.{topic}.red", 1)
    with crew_of(node.bootstrap) as crew:
        # librdkafka treats a name that begins with ^ as a pattern; in the new protocol the node resolves it.
        crew.join(topic, [f"^{topic}\\.(red|blue)$"], protocol)
        crew.poll_until_shared(partitions(f"{topic}.red", 2))
        raw.create_topic(f"{topic}.green", 1)
        raw.create_topic(f"{topic}.blue", 2)
        crew.poll_until_shared(partitions(f"{topic}.red", 2) + partitions(f"{topic}.blue", 2))
        raw.call(m.DeleteTopicsRequest(topics=[], topic_names=[f"{topic}.red"], timeout_ms=5000), 5)
        crew.poll_until_shared(partitions(f"{topic}.blue", 2))
