"""Bytes and back, and whole histories: what is replayed from the log is what was decided."""

from contextlib import suppress
from typing import get_args
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.base.errors import MalformedMessage
from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.metadata.brokers import Registration, decide_found, decide_register
from millpond.metadata.codec import (
    TYPE_NUMBERS,
    UnknownRecord,
    decode_record,
    decode_records,
    encode_record,
    encode_records,
)
from millpond.metadata.configs import (
    ConfigChange,
    ResourceChanges,
    ResourceConfigs,
    decide_alter,
    decide_incremental_alter,
)
from millpond.metadata.features import SUPPORTED
from millpond.metadata.image import Image, Resource
from millpond.metadata.producer_ids import decide_allocate_producer_ids
from millpond.metadata.records import (
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    LeadAnewRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaPart,
    Record,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from millpond.metadata.snapshot import records_of
from millpond.metadata.topics import (
    MorePartitions,
    NewTopic,
    TopicRef,
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
)
from millpond.wire import messages

A = UUID("00112233-4455-6677-8899-aabbccddeeff")
B = UUID("00112233-4455-6677-8899-aabbccddee00")


def test_bytes_are_those_of_the_format() -> None:
    framed = bytes((1, 2, 0))  # frame version, type, version
    assert encode_record(TopicRecord("foo", A)) == framed + b"\x04foo" + A.bytes + b"\x00"
    assert encode_record(ConfigRecord(2, "foo", "a", None)) == b"\x01\x04\x00" + b"\x02\x04foo\x02a\x00\x00"
    assert encode_record(NoOpRecord()) == b"\x01\x14\x00\x00"


int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
text = st.text(st.characters(codec="utf-8"), max_size=20)
ids = st.builds(UUID, int=st.integers(0, (1 << 128) - 1))
nodes = st.lists(int32, max_size=4).map(tuple)
maybe_nodes = st.none() | nodes
end_points = st.builds(BrokerEndpoint, text, text, st.integers(0, 65535), st.integers(0, 3))
features = st.builds(BrokerFeature, text, st.integers(-32768, 32767), st.integers(-32768, 32767))
records = st.one_of(
    st.builds(
        RegisterBrokerRecord,
        int32,
        ids,
        int64,
        st.lists(end_points, max_size=2).map(tuple),
        st.none() | text,
        st.booleans(),
        st.booleans(),
        st.lists(ids, max_size=2).map(tuple),
        st.lists(features, max_size=2).map(tuple),
    ),
    st.builds(BrokerRegistrationChangeRecord, int32, int64, st.sampled_from([-1, 0, 1]), st.sampled_from([-1, 0, 1])),
    st.builds(UnregisterBrokerRecord, int32, int64),
    st.builds(LeadAnewRecord, int32, int64),
    st.builds(TopicRecord, text, ids),
    st.builds(
        PartitionRecord,
        *(int32, ids, nodes, nodes, nodes, nodes, int32, int32, int32),
        *(st.integers(0, 1), maybe_nodes, maybe_nodes),
    ),
    st.builds(
        PartitionChangeRecord,
        *(int32, ids, maybe_nodes, int32, maybe_nodes, maybe_nodes, maybe_nodes),
        *(st.integers(-1, 1), maybe_nodes, maybe_nodes),
    ),
    st.builds(RemoveTopicRecord, ids),
    st.builds(ConfigRecord, st.integers(0, 127), text, text, st.none() | text),
    st.builds(FeatureLevelRecord, text, st.integers(-32768, 32767)),
    st.builds(ProducerIdsRecord, int32, int64, int64),
    st.builds(
        AccessControlEntryRecord,
        *(ids, st.integers(0, 7), text, st.integers(0, 4), text, text, st.integers(0, 15), st.integers(0, 3)),
    ),
    st.builds(RemoveAccessControlEntryRecord, ids),
    st.builds(
        ClientQuotaRecord,
        st.lists(st.builds(QuotaPart, text, st.none() | text), max_size=3).map(tuple),
        text,
        st.floats(allow_nan=False),
        st.booleans(),
    ),
    st.builds(
        UserScramCredentialRecord,
        *(text, st.integers(1, 2), st.binary(max_size=20), st.binary(max_size=64), st.binary(max_size=64), int32),
    ),
    st.builds(RemoveUserScramCredentialRecord, text, st.integers(1, 2)),
    st.builds(DelegationTokenRecord, *(text, text, st.lists(text, max_size=3).map(tuple), int64, int64, int64, text)),
    st.builds(RemoveDelegationTokenRecord, text),
    st.builds(NoOpRecord),
)


@given(records)
def test_every_record_survives_the_way_to_bytes_and_back(record) -> None:
    assert decode_record(encode_record(record)) == record


def test_records_of_earlier_versions_are_read() -> None:
    """A folder of a node that knew neither eligible replicas nor log folders."""
    partition = messages.PartitionRecord(
        partition_id=1, topic_id=A, replicas=[1], isr=[1], leader=1, leader_epoch=2, partition_epoch=3
    )
    assert decode_record(b"\x01\x03\x00" + partition.encode(0)) == PartitionRecord(
        1, A, (1,), (1,), leader=1, leader_epoch=2, partition_epoch=3
    )
    broker = messages.RegisterBrokerRecord(
        broker_id=1, incarnation_id=A, broker_epoch=4, end_points=[], rack=None, fenced=False
    )
    assert decode_record(b"\x01\x00\x01" + broker.encode(1)) == RegisterBrokerRecord(1, A, 4, (), None, fenced=False)


@given(records, st.data())
def test_bytes_that_are_cut_or_changed_are_refused_or_another_record(record, data) -> None:
    encoded = bytearray(encode_record(record))
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(MalformedMessage):
        decode_record(encoded[:cut])
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(MalformedMessage):
        decode_record(encoded)


@pytest.mark.parametrize("value", [b"", b"\x01\x02", b"\x02\x02\x00", b"\x01\x63\x00\x00", b"\x01\x14\x00\x00\x00"])
def test_what_is_no_record_of_ours_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_record(value)


few_changes = st.lists(
    st.tuples(
        st.integers(0, 5), st.sampled_from([A, B]), st.sampled_from([(1,), (2, 3)]), st.sampled_from([-2, 1])
    ).map(lambda values: PartitionChangeRecord(*values)),
    max_size=12,
)


@given(st.lists(st.one_of(few_changes, st.lists(records, max_size=2)), max_size=4))
def test_partitions_that_change_alike_are_one_record_from_level_26_on(parts) -> None:
    decided = [record for part in parts for record in part]
    before = [value for _, value in encode_records(decided, 25)]
    assert before == [encode_record(record) for record in decided]
    offsets, values = zip(*encode_records(decided, 26), strict=True) if decided else ((), ())
    assert list(offsets) == sorted(set(offsets))
    assert set(offsets) <= set(range(len(decided)))
    assert len(values) <= len(decided)
    read = [record for value in values for record in decode_records(value, 26)]
    assert sorted(map(repr, read)) == sorted(map(repr, decided))
    # Whatever happens to one partition keeps its order, and so does everything that is no change of a partition.
    for kept in {repr(each[:2]) for each in decided if isinstance(each, PartitionChangeRecord)} | {None}:
        assert [each for each in read if _subject(each) == kept] == [
            each for each in decided if _subject(each) == kept
        ]


def _subject(record) -> str | None:
    return repr(record[:2]) if isinstance(record, PartitionChangeRecord) else None


def test_a_dead_leader_of_many_partitions_is_few_records_and_an_older_program_says_so() -> None:
    changes = [PartitionChangeRecord(index, A, isr=(2, 3), leader=2 + index % 2) for index in range(1000)]
    alike = [value for _, value in encode_records(changes, 26)]
    assert len(alike) == 2
    assert sum(map(len, alike)) < sum(len(value) for _, value in encode_records(changes, 25)) / 8
    with pytest.raises(UnknownRecord, match="type 101 is unknown to this version: start the newer version"):
        decode_records(alike[0], 25)


# Histories. A step is drawn as plain values, so that a failure prints the whole story.

names = st.sampled_from(["a", "b.c", "b_c", "d", "no good"])
settings_of_topics = st.sampled_from(
    [("retention.ms", "5"), ("retention.ms", "x"), ("cleanup.policy", "compact"), ("segment.ms", "0"), ("zzz", "1")]
)
resources = st.builds(Resource, st.sampled_from([2, 4]), st.sampled_from(["a", "d", "", "1"]))
changes = st.builds(
    ConfigChange,
    st.sampled_from(["retention.ms", "cleanup.policy", "log.retention.ms", "node.id"]),
    st.integers(0, 3),
    st.none() | st.sampled_from(["5", "compact", "delete"]),
)
some_settings = st.lists(settings_of_topics, max_size=2).map(tuple)
new_topics = st.builds(NewTopic, names, st.integers(-1, 4), st.integers(-1, 2), st.just(()), some_settings)
steps = st.one_of(
    st.tuples(st.just("create"), new_topics),
    st.tuples(st.just("delete"), st.builds(TopicRef, names)),
    st.tuples(st.just("grow"), st.builds(MorePartitions, names, st.integers(0, 6))),
    st.tuples(st.just("change"), st.builds(ResourceChanges, resources, st.lists(changes, max_size=2).map(tuple))),
    st.tuples(st.just("replace"), st.builds(ResourceConfigs, resources, some_settings)),
    st.tuples(st.just("ids"), st.just(1)),
    st.tuples(st.just("restart"), st.sampled_from([1, 2])),
    st.tuples(st.just("epochs"), st.sampled_from([1, 2])),
)


class CountingEntropy:
    drawn = 0

    def uuid(self) -> UUID:
        self.drawn += 1
        return UUID(int=self.drawn)

    def below(self, bound: int) -> int:
        return self.drawn % bound


LAYERS = NodeLayers(node_settings({"max.partitions": "12"}))
END_POINTS = (BrokerEndpoint("PLAINTEXT", "localhost", 9092),)


def decide(image: Image, kind: str, argument, entropy: CountingEntropy):
    match kind:
        case "create":
            return decide_create_topics(image, LAYERS, [argument], entropy)
        case "delete":
            return decide_delete_topics(image, LAYERS, [argument])
        case "grow":
            return decide_create_partitions(image, LAYERS, [argument], entropy)
        case "change":
            return decide_incremental_alter(image, LAYERS, [argument])
        case "replace":
            return decide_alter(image, LAYERS, [argument])
        case "ids":
            return decide_allocate_producer_ids(image, argument, 0)
        case _:
            known = image.brokers.get(argument)
            previous_epoch = known.epoch if known and kind == "restart" else -1
            wanted = Registration(argument, entropy.uuid(), END_POINTS, previous_epoch=previous_epoch)
            return decide_register(image, LAYERS, wanted, known.epoch + 5 if known else 0, is_alone=True)


@settings(max_examples=150)
@given(st.lists(steps, max_size=25))
def test_a_history_read_from_its_bytes_gives_the_same_image(history) -> None:
    entropy = CountingEntropy()
    image = Image()
    log: list[bytes] = []

    def commit(decision) -> None:
        for record in decision.records:
            log.append(encode_record(record))
            image.replay(record)

    commit(decide_found(image, "pond", SUPPORTED))
    commit(decide(image, "restart", 1, entropy))
    for kind, argument in history:
        commit(decide(image, kind, argument, entropy))

    for _ in range(2):
        again = Image()
        for value in log:
            again.replay(decode_record(value))
        assert again == image
    whole = Image()
    for record in records_of(image):
        whole.replay(decode_record(encode_record(record)))
    assert whole == image
    assert image.partitions_total == sum(len(topic.partitions) for topic in image.topics.values()) <= 12
    assert image.topics_by_id == {topic.id: topic for topic in image.topics.values()}
    assert {resource.name for resource in image.configs if resource.type == 2} <= image.topics.keys()
    assert len({name.replace(".", "_") for name in image.topics}) == len(image.topics)


def test_records_that_differ_only_in_the_partition_are_not_mixed_up() -> None:
    """What follows the index is worked out once for all that are alike."""
    kinds = [
        PartitionRecord(0, UUID(int=1), (1, 2), (1,), leader=1),
        PartitionRecord(0, UUID(int=1), (1, 2), (1,), leader=1, leader_epoch=1),
        PartitionRecord(0, UUID(int=2), (1, 2), (1,), leader=1),
        PartitionChangeRecord(0, UUID(int=1), isr=(1, 2)),
        PartitionChangeRecord(0, UUID(int=1), isr=(1, 2), leader=1),
    ]
    for index in (0, 1, 300, 2**31 - 1):
        for kind in kinds:
            record = kind._replace(partition_id=index)
            encoded = encode_record(record)
            message = getattr(messages, type(record).__name__)
            decoded, _ = message.decode(memoryview(encoded), encoded[2], 3)
            assert (decoded.partition_id, decoded.topic_id) == (index, record.topic_id)
            assert decode_record(encoded) == record


def test_types_have_the_numbers_of_their_schemas() -> None:
    assert {record: getattr(messages, record.__name__).API_KEY for record in get_args(Record)} == TYPE_NUMBERS
