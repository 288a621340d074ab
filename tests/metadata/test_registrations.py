"""Brokers join, live, leave and come back, as the decisions of a controller see it."""

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.base.errors import ErrorCode
from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.metadata.brokers import (
    Heartbeat,
    Registration,
    after_power_cut,
    decide_fence,
    decide_heartbeat,
    decide_register,
    decide_settle,
    decide_unregister,
)
from millpond.metadata.elections import IsrRequest, decide_alter_partitions
from millpond.metadata.image import Image
from millpond.metadata.leadership import NO_LEADER, IsrChange
from millpond.metadata.records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    LeadAnewRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    ResourceType,
    TopicRecord,
)
from millpond.metadata.topics import NewTopic, decide_create_topics
from millpond.sim.world.entropy import SeededEntropy

A = UUID(int=1)
LAYERS = NodeLayers(node_settings({}))
END_POINTS = (BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9092),)
DISK, OTHER_DISK = UUID(int=70), UUID(int=71)


class Log:
    """The metadata as a controller has it: decisions are committed as soon as they are made."""

    def __init__(self) -> None:
        self.image = Image()
        self.records: list[Record] = []
        self.incarnations = 0

    def commit(self, decision):
        for record in decision.records:
            self.image.replay(record)
            self.records.append(record)
        return decision.reply

    def add(self, *records: Record) -> None:
        for record in records:
            self.image.replay(record)
            self.records.append(record)

    def register(self, broker: int, previous: int = -1, disk: UUID = DISK, **options):
        self.incarnations += 1
        wanted = Registration(broker, UUID(int=1000 + self.incarnations), END_POINTS, None, disk, previous)
        while True:
            reply = self.commit(decide_register(self.image, LAYERS, wanted, len(self.records), **options))
            if reply.is_done:
                return reply

    def beat(self, broker: int, **wishes):
        epoch = self.image.brokers[broker].epoch
        return self.commit(
            decide_heartbeat(self.image, LAYERS, Heartbeat(broker, epoch, len(self.records), **wishes))
        )

    def up(self, *brokers: int) -> None:
        for broker in brokers:
            self.register(broker)
            self.beat(broker)

    def topic(self, count: int = 1, replicas: tuple[int, ...] = (1, 2, 3), min_isr: int = 2) -> None:
        self.add(TopicRecord("a", A), ConfigRecord(ResourceType.TOPIC, "a", "min.insync.replicas", str(min_isr)))
        for index in range(count):
            self.add(PartitionRecord(index, A, replicas, replicas, leader=replicas[index % len(replicas)]))

    @property
    def partition(self):
        return self.image.topics["a"].partitions[0]


def test_a_broker_epoch_is_the_offset_of_its_registration() -> None:
    """KAFKA-15213: exact, whatever else is in the batch."""
    log = Log()
    log.up(1, 2, 3)
    log.topic(3)
    for previous in (-1, log.image.brokers[2].epoch):
        epoch = log.register(2, previous).broker_epoch
        record = log.records[epoch]
        assert isinstance(record, RegisterBrokerRecord)
        assert (record.broker_id, record.broker_epoch, record.fenced) == (2, epoch, True)
        assert log.image.brokers[2].epoch == epoch


def test_the_same_incarnation_gets_the_same_epoch_and_another_one_waits_for_the_end_of_the_session() -> None:
    log = Log()
    log.up(1)
    known = log.image.brokers[1]
    again = Registration(1, known.incarnation_id, END_POINTS)
    decision = decide_register(log.image, LAYERS, again, len(log.records), lives=True)
    assert (decision.records, decision.reply.broker_epoch) == ((), known.epoch)
    refused = log.register(1, lives=True)
    assert refused.verdict.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert log.image.brokers[1] == known
    log.beat(1, wants_shutdown=True)
    assert log.register(1, lives=True).verdict.ok, "KAFKA-19047: it said that it leaves"


def test_a_power_cut_costs_eligibility_unless_replicas_sync_first() -> None:
    for configs, eligible in (((), ()), (("flush.ack", "always"), (2,))):
        log = Log()
        log.up(1, 2, 3)
        log.topic()
        if configs:
            log.image.replay(ConfigRecord(ResourceType.TOPIC, "a", *configs))
        for broker in (3, 2):
            log.commit(decide_fence(log.image, LAYERS, broker, log.image.brokers[broker].epoch))
        assert log.partition.elr == (2,)
        log.register(2, previous=after_power_cut(log.image.brokers[2].epoch))
        assert log.partition.elr == eligible
        log.register(2, previous=-1)
        assert log.partition.elr == (), "recovery misses something"


def test_who_comes_back_clean_stays_eligible_and_who_does_not_does_not() -> None:
    log = Log()
    log.up(1, 2, 3)
    log.topic()
    for broker in (3, 2):
        log.commit(decide_fence(log.image, LAYERS, broker, log.image.brokers[broker].epoch))
    assert (log.partition.isr, log.partition.elr) == ((1,), (2,))
    log.register(2, previous=log.image.brokers[2].epoch)
    assert (log.partition.isr, log.partition.elr) == ((1,), (2,))
    epoch = log.partition.leader_epoch
    log.register(1, previous=log.image.brokers[1].epoch - 1, disk=OTHER_DISK)
    assert (log.partition.isr, log.partition.elr, log.partition.leader) == ((), (2,), NO_LEADER), "another disk"
    assert log.partition.leader_epoch == epoch + 1
    log.register(2, previous=log.image.brokers[2].epoch - 1)
    assert (log.partition.isr, log.partition.elr) == ((), ()), "an earlier life of it than the one we know"
    log.beat(2)
    assert log.partition.leader == 2, "nobody else was trusted last"
    assert log.partition.is_recovering


def test_a_clean_copy_on_another_disk_stays_eligible() -> None:
    log = Log()
    log.up(1, 2, 3)
    log.topic()
    for broker in (3, 2):
        log.commit(decide_fence(log.image, LAYERS, broker, log.image.brokers[broker].epoch))
    log.register(2, previous=log.image.brokers[2].epoch, disk=OTHER_DISK)
    assert (log.partition.isr, log.partition.elr) == ((1,), (2,))


def create_while_only_the_first_is_active(log: Log, min_isr: int) -> None:
    log.up(1)
    log.register(2)
    log.register(3)
    wanted = NewTopic("a", assignments=((0, (1, 2, 3)),), configs=(("min.insync.replicas", str(min_isr)),))
    reply = log.commit(decide_create_topics(log.image, LAYERS, [wanted], SeededEntropy(1)))
    assert reply[0].verdict.ok
    assert (log.partition.isr, log.partition.leader) == ((1,), 1)


def test_a_new_topic_gets_a_leader_although_its_only_isr_member_lost_its_disk() -> None:
    """Seed 6029 of the upgrades: the broker was gone, disk and all, and its session had not ended yet."""
    log = Log()
    create_while_only_the_first_is_active(log, min_isr=2)
    log.beat(2)
    log.commit(decide_fence(log.image, LAYERS, 1, log.image.brokers[1].epoch))
    assert log.partition.leader == 2, "nothing can have been committed without it"
    log.register(1, disk=OTHER_DISK)
    log.beat(1)
    assert (log.partition.isr, log.partition.leader, log.partition.is_recovering) == ((2,), 2, False)


def test_an_empty_replica_does_not_lead_a_new_topic_that_the_lost_disk_could_commit_to_alone() -> None:
    log = Log()
    create_while_only_the_first_is_active(log, min_isr=1)
    log.beat(2)
    log.beat(3)
    log.register(1, disk=OTHER_DISK)
    log.beat(1)
    assert (log.partition.isr, log.partition.elr, log.partition.leader) == ((), (), NO_LEADER)


def test_a_crashed_broker_gets_a_new_leader_epoch_where_it_is_the_only_replica() -> None:
    log = Log()
    log.up(1, 2)
    log.topic(2, (1,))
    log.add(PartitionRecord(2, A, (1, 2), (1, 2), leader=1))
    log.register(1, previous=log.image.brokers[1].epoch)
    assert [each.leader_epoch for each in log.image.topics["a"].partitions] == [0, 0, 1]
    log.register(1)
    assert [each.leader_epoch for each in log.image.topics["a"].partitions] == [1, 1, 1]
    assert sum(isinstance(record, LeadAnewRecord) for record in log.records) == 1
    assert [each.leader for each in log.image.topics["a"].partitions] == [1, 1, 2]


def test_a_broker_that_is_alone_is_never_fenced() -> None:
    log = Log()
    first = log.register(1, is_alone=True)
    log.topic(2, (1,), min_isr=1)
    assert log.image.is_active(1)
    second = log.register(1, previous=first.broker_epoch, is_alone=True)
    assert not any(isinstance(record, BrokerRegistrationChangeRecord) for record in log.records)
    assert log.image.is_active(1)
    assert [each.leader_epoch for each in log.image.topics["a"].partitions] == [0, 0]
    third = log.register(1, is_alone=True)
    assert [each.leader_epoch for each in log.image.topics["a"].partitions] == [1, 1]
    assert first.broker_epoch < second.broker_epoch < third.broker_epoch


def test_a_broker_is_unfenced_once_it_has_applied_its_own_registration() -> None:
    """KAFKA-13955: it need not know what came after."""
    log = Log()
    epoch = log.register(1).broker_epoch
    for _ in range(9):
        log.register(2)
    early = log.commit(decide_heartbeat(log.image, LAYERS, Heartbeat(1, epoch, epoch)))
    assert (early.is_caught_up, early.is_fenced) == (False, True)
    on_time = log.commit(decide_heartbeat(log.image, LAYERS, Heartbeat(1, epoch, epoch + 1)))
    assert (on_time.is_caught_up, on_time.is_fenced) == (True, False)
    assert log.image.is_active(1)
    fenced = log.beat(1, wants_fence=True)
    assert fenced.is_fenced
    assert not log.image.is_active(1)


def test_heartbeats_of_other_lives_are_refused() -> None:
    log = Log()
    log.up(1)
    epoch = log.image.brokers[1].epoch
    stale = decide_heartbeat(log.image, LAYERS, Heartbeat(1, epoch - 1, 99))
    assert (stale.records, stale.reply.verdict.code) == ((), ErrorCode.STALE_BROKER_EPOCH)
    unknown = decide_heartbeat(log.image, LAYERS, Heartbeat(7, 0, 99))
    assert (unknown.records, unknown.reply.verdict.code) == ((), ErrorCode.BROKER_ID_NOT_REGISTERED)
    assert decide_fence(log.image, LAYERS, 1, epoch - 1).records == (), "a judgement about an earlier life"


def test_a_broker_that_leaves_hands_over_first_and_cannot_come_back_into_an_isr() -> None:
    log = Log()
    log.up(1, 2, 3)
    log.topic()
    first = log.beat(1, wants_shutdown=True)
    assert (first.is_fenced, first.may_shut_down) == (False, True)
    assert (log.partition.leader, log.partition.isr) == (2, (2, 3))
    members = tuple((broker, log.image.brokers[broker].epoch) for broker in (1, 2, 3))
    asked = IsrChange(
        2, log.image.brokers[2].epoch, log.partition.leader_epoch, log.partition.partition_epoch, members
    )
    refused = decide_alter_partitions(log.image, LAYERS, 2, asked.broker_epoch, [IsrRequest(A, 0, asked)])
    assert refused.records == ()
    assert log.beat(1, wants_shutdown=True).may_shut_down
    log.commit(decide_fence(log.image, LAYERS, 1, log.image.brokers[1].epoch))
    assert log.image.brokers[1].fenced
    log.register(1, previous=log.image.brokers[1].epoch)
    assert not log.image.brokers[1].in_shutdown


def test_only_a_broker_that_is_gone_can_be_forgotten() -> None:
    log = Log()
    log.up(1, 2, 3)
    log.topic()
    alive = decide_unregister(log.image, LAYERS, 2)
    assert (alive.records, alive.reply.verdict.code) == ((), ErrorCode.INVALID_REQUEST)
    log.commit(decide_fence(log.image, LAYERS, 2, log.image.brokers[2].epoch))
    assert log.commit(decide_unregister(log.image, LAYERS, 2)).verdict.ok
    assert 2 not in log.image.brokers
    assert log.partition.isr == (1, 3)
    again = decide_unregister(log.image, LAYERS, 2)
    assert again.reply.verdict.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    log.register(2, previous=0)
    assert log.partition.isr == (1, 3)


steps = st.lists(
    st.tuples(
        st.sampled_from(["clean", "unclean", "wiped", "beat", "shut down", "fence", "join", "settle"]),
        st.sampled_from([1, 2, 3]),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(steps, st.integers(1, 3))
def test_leaders_and_members_are_always_alive(history, min_isr) -> None:
    """Invariant H: a broker that leads or is in sync is registered, unfenced and not shutting down."""
    log = Log()
    log.up(1, 2, 3)
    log.topic(3, min_isr=min_isr)
    epochs: dict[int, tuple[int, int]] = {}
    for what, broker in history:
        known = log.image.brokers[broker]
        match what:
            case "clean":
                log.register(broker, previous=known.epoch)
            case "unclean":
                log.register(broker)
            case "wiped":
                log.register(broker, previous=known.epoch, disk=UUID(int=len(log.records)))
            case "beat":
                log.beat(broker)
            case "shut down":
                log.beat(broker, wants_shutdown=True)
            case "fence":
                log.commit(decide_fence(log.image, LAYERS, broker, known.epoch))
            case "settle":
                assert log.commit(decide_settle(log.image, LAYERS, broker))
            case _:
                partition = log.partition
                if partition.leader != NO_LEADER and not partition.is_recovering:
                    members = tuple((each, log.image.brokers[each].epoch) for each in {*partition.isr, broker})
                    leader = log.image.brokers[partition.leader]
                    asked = IsrChange(
                        leader.id, leader.epoch, partition.leader_epoch, partition.partition_epoch, members
                    )
                    log.commit(
                        decide_alter_partitions(log.image, LAYERS, leader.id, leader.epoch, [IsrRequest(A, 0, asked)])
                    )
        for index, partition in enumerate(log.image.topics["a"].partitions):
            assert partition.leader == NO_LEADER or partition.leader in partition.isr
            assert all(log.image.is_active(member) for member in partition.isr), (what, broker)
            assert not {*partition.isr} & {*partition.elr}
            assert len(partition.isr) < min_isr or not partition.elr
            before = epochs.get(index, (-1, NO_LEADER))
            assert partition.leader_epoch >= before[0]
            assert partition.leader == before[1] or partition.leader_epoch > before[0], "one leader an epoch"
            epochs[index] = partition.leader_epoch, partition.leader
        assert sorted({each.epoch for each in log.image.brokers.values()}) == sorted(
            each.epoch for each in log.image.brokers.values()
        )
