"""A running group changes its protocol, member by member and back again, and keeps reading without interruption."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from support.groups import (
    NODE_SETTINGS,
    Crew,
    crew_of,
    describe,
    describe_consumer,
    fetch_offsets,
    partitions,
    share_of,
)
from support.raw import Raw, batch

SETTINGS = NODE_SETTINGS

PARTITIONS = 6
MEMBERS = 3


class Writer(threading.Thread):
    """Writes to all partitions in turn until it is stopped."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__()
        self.topic = topic
        self.written: set[tuple[int, int]] = set()
        """Partition and offset of all acknowledged records."""
        self._raw = Raw(port)
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.005):
            for partition in range(PARTITIONS):
                reply = self._raw.produce(self.topic, partition, batch(b"1", b"2"), acks=1)
                assert not reply.error_code
                self.written |= {(partition, reply.base_offset), (partition, reply.base_offset + 1)}

    def stop(self) -> None:
        self._over.set()
        self.join()
        self._raw.close()


@pytest.fixture
def writer(node, raw, topic):
    raw.create_topic(topic, PARTITIONS)
    made = Writer(node.port, topic)
    made.start()
    yield made
    made.stop()


class Committer:
    """Commits what a member has read before its partitions are revoked, as a careful application does."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.refused: list[KafkaError] = []

    def on_revoke(self, consumer, revoked):
        reached = self.crew.next[consumer]
        theirs = [(each.topic, each.partition) for each in revoked if (each.topic, each.partition) in reached]
        try:
            if theirs:
                wanted = [TopicPartition(*each, reached.pop(each)) for each in theirs]
                consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            # librdkafka does not propagate an exception from a callback.
            self.refused.append(error.args[0])


def kind_of(raw, group):
    if not describe(raw, group).error_code:
        return "classic"
    return "mixed" if 0 in {each.member_type for each in describe_consumer(raw, group).members} else "consumer"


def state_of(raw, group):
    classic = describe(raw, group)
    return classic.group_state if not classic.error_code else describe_consumer(raw, group).group_state


@pytest.mark.parametrize("classic", ["range", "cooperative-sticky"])
def test_a_live_group_becomes_a_new_one_and_turns_back_without_skipping_a_record(node, raw, topic, writer, classic):
    with crew_of(node.bootstrap) as crew:
        committer = Committer(crew)

        def join(protocol):
            return crew.join(topic, [topic], protocol, on_revoke=committer.on_revoke)

        members = [join(classic) for _ in range(MEMBERS)]
        crew.poll_until_shared(partitions(topic, PARTITIONS))
        kinds = [kind_of(raw, topic)]
        for protocol in ("consumer", classic):
            for index in range(MEMBERS):
                crew.leave(members[index])
                members[index] = join(protocol)
                crew.poll_until_shared(partitions(topic, PARTITIONS))
                # A member that has yet to learn of the last change would be behind when the next one comes; and
                # librdkafka, closed before it has reported an assignment, leaves first and revokes afterwards.
                crew.poll_until(lambda: state_of(raw, topic) == "Stable", "all being in one epoch")
                crew.poll_for(0.2)
                kinds.append(kind_of(raw, topic))
        assert kinds == ["classic", "mixed", "mixed", "consumer", "mixed", "mixed", "classic"]
        writer.stop()
        crew.poll_until(
            lambda: writer.written <= {(each.partition, each.offset) for each in crew.seen},
            "reading all that was written",
        )
        # A member that had joined and was waiting for the others when the group changed its protocol gets an error,
        # as from Kafka, and joins again; librdkafka reports it to the application as well. It takes a slow new
        # member.
        assert {error.code() for error in crew.errors} <= {KafkaError.REBALANCE_IN_PROGRESS}
        for member in members:
            committer.on_revoke(member, [TopicPartition(*each) for each in share_of(member)])
    ends = {(topic, partition): 0 for partition in range(PARTITIONS)}
    for partition, offset in writer.written:
        ends[topic, partition] = max(ends[topic, partition], offset + 1)
    assert fetch_offsets(raw, topic) == ends
    # The change alone removes no member: all could commit before their partitions were revoked, so nothing is read
    # twice.
    assert committer.refused == []
    assert len(crew.seen) == len(writer.written)


def test_a_member_that_waits_for_the_others_joins_the_new_group_instead(node, raw, topic, writer):
    with crew_of(node.bootstrap) as crew:
        committer = Committer(crew)
        members = [crew.join(topic, [topic], "range", on_revoke=committer.on_revoke) for _ in range(MEMBERS)]
        crew.poll_until_shared(partitions(topic, PARTITIONS))
        crew.leave(members.pop())
        # It does not give up its partitions yet, so the other one has to wait.
        idle, waiting = members
        crew.members.remove(idle)
        crew.poll_until(lambda: not share_of(waiting), "letting go")
        crew.poll_for(0.2)
        assert state_of(raw, topic) == "PreparingRebalance"
        crew.join(topic, [topic], "consumer", on_revoke=committer.on_revoke)
        crew.poll_until(lambda: crew.errors, "hearing that it waits in vain")
        crew.members.append(idle)
        crew.poll_until_shared(partitions(topic, PARTITIONS))
        crew.poll_until(lambda: state_of(raw, topic) == "Stable", "all being in one epoch")
        assert kind_of(raw, topic) == "mixed"
        writer.stop()
        crew.poll_until(
            lambda: writer.written <= {(each.partition, each.offset) for each in crew.seen},
            "reading all that was written",
        )
        assert [error.code() for error in crew.errors] == [KafkaError.REBALANCE_IN_PROGRESS]
        assert committer.refused == []
        assert len(crew.seen) == len(writer.written)


def test_where_the_policy_forbids_it_groups_stay_what_they_are(make_node):
    node = make_node(NODE_SETTINGS | {"group.consumer.migration.policy": "disabled"})
    with Raw(node.port) as raw, crew_of(node.bootstrap) as crew:
        raw.create_topic("t", 2)
        stays = crew.join("g", ["t"], "range")
        crew.poll_until_shared(partitions("t", 2))
        crew.join("g", ["t"], "consumer")
        crew.poll_until(lambda: crew.errors, "being turned away")
        crew.poll_for(0.3)
        assert share_of(stays) == partitions("t", 2)
        assert kind_of(raw, "g") == "classic"
