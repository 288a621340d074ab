"""Partitions change hands: which records brokers that go, come back and ask for another ISR are answered with."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import ErrorCode
from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.metadata import elections
from millpond.metadata.configs import ConfigChange, ResourceChanges, decide_incremental_alter
from millpond.metadata.elections import (
    ElectionType,
    IsrRequest,
    change_record,
    come_back,
    decide_alter_partitions,
    decide_elect_leaders,
    has_left,
    lead_first,
    leave,
    relieve,
)
from millpond.metadata.image import Image, Partition, Resource
from millpond.metadata.leadership import NO_LEADER, IsrChange, Loss, Rules, change
from millpond.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    ResourceType,
    TopicRecord,
)
from millpond.metadata.unclean_recovery import LogEnd, LogEnds, ReplicaLogEnd

A, B = UUID(int=1), UUID(int=2)
LAYERS = NodeLayers(node_settings({}))
THREE = (1, 2, 3)


def cluster(*partitions: PartitionRecord, min_isr: int = 2, fenced: tuple[int, ...] = ()) -> Image:
    """Three brokers with the epochs 101, 102, 103, and the partitions of topic a."""
    image = Image()
    for broker in THREE:
        image.replay(RegisterBrokerRecord(broker, UUID(int=broker), 100 + broker, (), fenced=broker in fenced))
    image.replay(TopicRecord("a", A))
    image.replay(ConfigRecord(ResourceType.TOPIC, "a", "min.insync.replicas", str(min_isr)))
    for partition in partitions:
        image.replay(partition)
    return image


def whole(index: int = 0, leader: int = 1, replicas: tuple[int, ...] = THREE) -> PartitionRecord:
    return PartitionRecord(index, A, replicas, replicas, leader=leader, leader_epoch=5, partition_epoch=10)


def fence(image: Image, *brokers: int) -> None:
    for broker in brokers:
        image.replay(BrokerRegistrationChangeRecord(broker, 100 + broker, fenced=1))


def unfence(image: Image, *brokers: int) -> None:
    for broker in brokers:
        image.replay(BrokerRegistrationChangeRecord(broker, 100 + broker, fenced=-1))


def replay(image: Image, records) -> None:
    for record in records:
        image.replay(record)


some = st.lists(st.sampled_from(THREE), unique=True, max_size=3).map(tuple)


@given(some, some, st.sampled_from([-1, *THREE]), some, some, st.booleans(), some, st.integers(1, 3), st.booleans())
def test_a_change_is_what_its_record_makes_of_the_partition(
    isr, elr, leader, last_known, alive, is_recovering, wanted, min_isr, may_elect_unclean
) -> None:
    before = Partition(THREE, isr, leader, 5, 10, elr=elr, last_known=last_known, is_recovering=is_recovering)
    after = change(before, wanted, Rules(min_isr, may_elect_unclean), lambda broker: broker in alive)
    if after != before:
        image = cluster(whole())
        image.topics["a"].partitions[0] = before
        image.replay(change_record(A, 0, before, after))
        assert image.topics["a"].partitions[0] == after


def test_a_fenced_broker_leaves_and_a_returning_one_leads_leaderless_partitions() -> None:
    image = cluster(whole(0), whole(1, leader=2), whole(2, leader=3))
    fence(image, 1)
    left = leave(image, LAYERS, 1)
    assert left.is_last
    assert left.records == [
        PartitionChangeRecord(0, A, isr=(2, 3), leader=2),
        PartitionChangeRecord(1, A, isr=(2, 3)),
        PartitionChangeRecord(2, A, isr=(2, 3)),
    ]
    replay(image, left.records)
    assert has_left(image, 1)
    assert leave(image, LAYERS, 1).records == [], "once is enough"
    fence(image, 2, 3)
    replay(image, leave(image, LAYERS, 2).records)
    replay(image, leave(image, LAYERS, 3).records)
    assert [(each.leader, each.isr, each.elr) for each in image.topics["a"].partitions] == [
        (NO_LEADER, (), (2, 3))
    ] * 3
    unfence(image, 1)
    assert come_back(image, LAYERS, 1).records == [], "two others went on without it"
    unfence(image, 3)
    replay(image, come_back(image, LAYERS, 3).records)
    assert [(each.leader, each.isr, each.elr) for each in image.topics["a"].partitions] == [(3, (3,), (2,))] * 3


def test_a_fenced_last_known_leader_is_not_elected() -> None:
    """KAFKA-19522."""
    image = cluster(PartitionRecord(0, A, THREE, (), leader=-1, last_known_elr=(2,)), fenced=(2,))
    assert come_back(image, LAYERS, 1).records == []
    unfence(image, 2)
    assert come_back(image, LAYERS, 2).records == [
        PartitionChangeRecord(0, A, isr=(2,), leader=2, leader_recovery_state=1, last_known_elr=())
    ]


def test_partitions_of_one_replica_are_left_alone() -> None:
    image = cluster(whole(0, 1, (1,)), whole(1, 1, (1, 2)))
    fence(image, 1)
    records = leave(image, LAYERS, 1).records
    assert [each.partition_id for each in records if isinstance(each, PartitionChangeRecord)] == [1]
    replay(image, records)
    assert has_left(image, 1)


def test_many_partitions_change_in_slices_that_stand_for_themselves(monkeypatch) -> None:
    monkeypatch.setattr(elections, "SLICE", 3)
    image = cluster(*(whole(index, 1 + index % 3) for index in range(7)))
    fence(image, 2)
    sizes = []
    while True:
        step = leave(image, LAYERS, 2)
        sizes.append(len(step.records))
        replay(image, step.records)
        if step.is_last:
            break
    assert sizes == [3, 3, 1]
    assert has_left(image, 2)
    assert all(each.leader in (1, 3) for each in image.topics["a"].partitions)


def test_what_becomes_of_partitions_that_are_alike_is_worked_out_once(monkeypatch) -> None:
    """And is the same as if each were looked at by itself."""
    others = [(3, 1, 2), (2, 3, 1)]
    partitions = [
        PartitionRecord(
            index,
            A,
            THREE if index % 3 else others[index % 2],
            (2, 3) if index % 5 == 0 else THREE,
            leader=2 if index % 5 == 0 else 1,
            leader_epoch=index,
            partition_epoch=2 * index,
        )
        for index in range(200)
    ]
    image = cluster(*partitions)
    fence(image, 1)
    known = list(image.topics["a"].partitions)
    looked = []
    without = elections.without
    monkeypatch.setattr(elections, "without", lambda *args, **more: looked.append(1) or without(*args, **more))
    left = leave(image, LAYERS, 1)
    assert len(looked) < 10
    alone = []
    for index, before in enumerate(known):
        after = without(before, 1, Rules(min_isr=2), image.is_active)
        if after != before:
            alone.append(change_record(A, index, before, after))
    assert left.records == alone


def test_the_work_for_a_broker_is_proportional_to_its_partitions() -> None:
    image = cluster(*(whole(index, 1, (1, 2)) for index in range(500)), whole(500, 3, (3, 1)))
    fence(image, 3)
    assert len(list(image.partitions_of(3))) == 1
    assert len(leave(image, LAYERS, 3).records) == 1


def test_who_lost_records_is_not_eligible_and_leads_on_in_no_epoch_of_before() -> None:
    """KAFKA-18106, and the last member that lost its tail and led again (KIP-966)."""
    image = cluster(
        PartitionRecord(0, A, THREE, (1,), leader=1, eligible_leader_replicas=(2,)),
        PartitionRecord(1, A, THREE, (3,), leader=3, eligible_leader_replicas=(1,)),
        PartitionRecord(2, A, THREE, (1,), leader=1),
    )
    left = leave(image, LAYERS, 1, Loss.UNSYNCED)
    replay(image, left.records)
    first, second, third = image.topics["a"].partitions
    assert (first.isr, first.elr, first.leader, first.leader_epoch) == ((2,), (), 2, 1)
    assert (second.isr, second.elr, second.leader) == ((3,), (), 3)
    assert (third.isr, third.elr, third.leader, third.last_known, third.leader_epoch) == ((), (), -1, (1,), 1)
    assert leave(image, LAYERS, 1, Loss.UNSYNCED).records == []


def test_changing_min_insync_replicas_clears_the_elr() -> None:
    """Else 2 stays eligible while 1, now enough by itself, commits without it."""
    image = cluster(
        PartitionRecord(0, A, THREE, (1,), leader=1, eligible_leader_replicas=(2,)),
        PartitionRecord(1, A, THREE, (), leader=-1, eligible_leader_replicas=(2, 3)),
        fenced=(2, 3),
    )
    lowered = ResourceChanges(Resource(ResourceType.TOPIC, "a"), (ConfigChange("min.insync.replicas", 0, "1"),))
    decision = decide_incremental_alter(image, LAYERS, [lowered])
    assert decision.records == (
        ConfigRecord(ResourceType.TOPIC, "a", "min.insync.replicas", "1"),
        PartitionChangeRecord(0, A, eligible_leader_replicas=()),
    )
    replay(image, decision.records)
    unfence(image, 2)
    replay(image, come_back(image, LAYERS, 2).records)
    partition = image.topics["a"].partitions[1]
    assert (partition.leader, partition.isr, partition.elr) == (2, (2,), ()), "3 lacks what 2 now commits alone"


# AlterPartition.


def test_where_no_broker_has_room_a_full_one_looks_at_no_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ten thousand partitions each heartbeat of a full broker held the loop of the controller for 20 ms."""
    image = cluster(whole())
    image.full_brokers = frozenset({1, 2})
    fence(image, 3)
    monkeypatch.setattr(Image, "partitions_of", lambda *_: pytest.fail("it looks at all of them"))
    assert relieve(image, LAYERS, 1) == ([], True)
    unfence(image, 3)
    monkeypatch.undo()
    assert relieve(image, LAYERS, 1).records == [PartitionChangeRecord(0, A, isr=(2, 3), leader=2)]


def asked(isr: dict[int, int], *, broker: int = 1, leader_epoch: int = 5, partition_epoch: int = 10) -> IsrRequest:
    return IsrRequest(A, 0, IsrChange(broker, 100 + broker, leader_epoch, partition_epoch, tuple(isr.items())))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (asked({1: 101, 2: 102}), ErrorCode.NONE),
        (asked({1: 101, 2: -1}), ErrorCode.NONE),
        (asked({1: 101, 2: 99}), ErrorCode.INELIGIBLE_REPLICA),  # KIP-903: a life of before
        (asked({1: 101, 3: 103}), ErrorCode.INELIGIBLE_REPLICA),  # KAFKA-13916: it is fenced
        (asked({1: 101}, leader_epoch=6), ErrorCode.NOT_CONTROLLER),  # KAFKA-14154: we are the stale ones
        (asked({1: 101}, partition_epoch=11), ErrorCode.NOT_CONTROLLER),
        (asked({1: 101}, leader_epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
        (asked({1: 101}, partition_epoch=9), ErrorCode.INVALID_UPDATE_VERSION),
        (asked({2: 102}, broker=2), ErrorCode.INVALID_REQUEST),
        (asked({}), ErrorCode.INVALID_REQUEST),
        (asked({1: 101, 4: 104}), ErrorCode.INVALID_REQUEST),
        (IsrRequest(B, 0, asked({1: 101}).change), ErrorCode.UNKNOWN_TOPIC_ID),
        (IsrRequest(A, 1, asked({1: 101}).change), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_leader_asks_for_another_isr(request_: IsrRequest, code: ErrorCode) -> None:
    image = cluster(whole(), fenced=(3,))
    broker = request_.change.broker
    decision = decide_alter_partitions(image, LAYERS, broker, 100 + broker, [request_])
    assert isinstance(decision.reply, tuple)
    assert [reply.code for reply in decision.reply] == [code]
    if code is ErrorCode.NONE:
        replay(image, decision.records)
        assert image.topics["a"].partitions[0] == decision.reply[0].partition
        assert image.topics["a"].partitions[0].isr == (1, 2)
    else:
        assert decision.records == ()


@pytest.mark.parametrize(("broker", "epoch"), [(1, 100), (9, 109), (3, 103)])
def test_only_a_live_broker_that_we_know_may_ask(broker: int, epoch: int) -> None:
    image = cluster(whole(), fenced=(3,))
    decision = decide_alter_partitions(image, LAYERS, broker, epoch, [asked({1: 101})])
    assert (decision.records, decision.reply) == ((), ErrorCode.STALE_BROKER_EPOCH)


def test_a_partition_that_is_named_twice_changes_once() -> None:
    image = cluster(whole())
    twice = [asked({1: 101, 2: 102}), asked({1: 101})]
    decision = decide_alter_partitions(image, LAYERS, 1, 101, twice)
    assert isinstance(decision.reply, tuple)
    assert [reply.code for reply in decision.reply] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert len(decision.records) == 1


# ElectLeaders.


def test_the_preferred_leader_is_elected_where_it_is_in_sync() -> None:
    """KAFKA-9866: not where it is not."""
    image = cluster(
        whole(0, leader=2),
        PartitionRecord(1, A, THREE, (2, 3), leader=2),
        whole(2, leader=1),
    )
    decision = decide_elect_leaders(
        image, LAYERS, ElectionType.PREFERRED, [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("a", 0)]
    )
    assert [(each.index, each.verdict.code) for each in decision.reply] == [
        (0, ErrorCode.NONE),
        (1, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (2, ErrorCode.ELECTION_NOT_NEEDED),
        (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert decision.records == (PartitionChangeRecord(0, A, leader=1),)
    names = [("a", 0), ("a", 1), ("a", 2), ("gone", 0)]
    of_all = decide_elect_leaders(image, LAYERS, ElectionType.PREFERRED, names, changes_only=True)
    assert [(each.index, each.verdict.code) for each in of_all.reply] == [(0, ErrorCode.NONE)]
    assert of_all.records == decision.records == tuple(lead_first(image, LAYERS, 1).records)
    assert lead_first(image, LAYERS, 2).records == []


def reported(**ends: tuple[int, int]) -> LogEnds:
    """What brokers say of partition a-0, as b1=(last epoch, end offset); each in its present life."""
    return {("a", 0): {int(name[1:]): ReplicaLogEnd(100 + int(name[1:]), LogEnd(*end)) for name, end in ends.items()}}


def test_an_unclean_leader_is_elected_only_when_somebody_asks_for_it() -> None:
    lost = PartitionRecord(0, A, THREE, (), leader=-1, eligible_leader_replicas=(2,), leader_epoch=5)
    image = cluster(lost, whole(1), fenced=(2, 3))
    assert come_back(image, LAYERS, 1).records == []
    ends = reported(b1=(0, 0))
    decision = decide_elect_leaders(image, LAYERS, ElectionType.UNCLEAN, [("a", 0), ("a", 1)], ends)
    assert [each.verdict.code for each in decision.reply] == [ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED]
    replay(image, decision.records)
    partition = image.topics["a"].partitions[0]
    assert (partition.leader, partition.isr, partition.elr, partition.is_recovering) == (1, (1,), (), True)
    assert (partition.leader_epoch, partition.partition_epoch) == (6, 1)
    nobody = cluster(lost, fenced=THREE)
    decision = decide_elect_leaders(nobody, LAYERS, ElectionType.UNCLEAN, [("a", 0)], ends)
    (elected,) = decision.reply
    assert elected.verdict.code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert elected.verdict.message == "none of the brokers [1, 2, 3] is active"
    assert decision.records == ()


@pytest.mark.parametrize(
    ("ends", "leader"),
    [
        pytest.param({"b1": (3, 10), "b2": (3, 11)}, 2, id="the longer log"),
        pytest.param({"b1": (3, 99), "b2": (4, 11)}, 2, id="the later epoch first"),
        pytest.param({"b1": (3, 11), "b2": (3, 11)}, 1, id="equal logs go by the order of the replicas"),
        pytest.param({"b2": (-1, 0)}, 2, id="only those that report"),
        pytest.param({"b1": (3, 10), "b2": (3, 11), "b3": (9, 99)}, 2, id="fenced brokers do not count"),
    ],
)
def test_an_unclean_election_compares_the_logs(ends: dict[str, tuple[int, int]], leader: int) -> None:
    lost = PartitionRecord(0, A, THREE, (3,), leader=-1)
    image = cluster(lost, fenced=(3,))
    decision = decide_elect_leaders(image, LAYERS, ElectionType.UNCLEAN, [("a", 0)], reported(**ends))
    replay(image, decision.records)
    assert image.topics["a"].partitions[0].leader == leader


def test_an_unclean_election_without_reports_elects_no_leader() -> None:
    lost = PartitionRecord(0, A, THREE, (3,), leader=-1)
    image = cluster(lost, fenced=(3,))
    earlier_life = {("a", 0): {1: ReplicaLogEnd(7, LogEnd(3, 10))}}
    for ends in ({}, earlier_life):
        decision = decide_elect_leaders(image, LAYERS, ElectionType.UNCLEAN, [("a", 0)], ends)
        (elected,) = decision.reply
        assert elected.verdict.code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        assert "none of the live replicas [1, 2] reported its log end offset" in (elected.verdict.message or "")
        assert decision.records == ()


def test_a_replica_that_can_lead_cleanly_wins_over_a_longer_log() -> None:
    """It came back between the question and the decision."""
    image = cluster(PartitionRecord(0, A, THREE, (2,), leader=-1))
    ends = reported(b1=(3, 11), b2=(3, 10), b3=(3, 12))
    decision = decide_elect_leaders(image, LAYERS, ElectionType.UNCLEAN, [("a", 0)], ends)
    replay(image, decision.records)
    partition = image.topics["a"].partitions[0]
    assert (partition.leader, partition.is_recovering) == (2, False)
