"""What a rescue changes in the metadata, and what it reports as lost: on values alone."""

from __future__ import annotations

from uuid import UUID

import pytest

from millpond.broker.data_folder.identity import Identity, cluster_name, is_outlived
from millpond.broker.rescue.plan import EPOCHS_AHEAD, Fate, Plan, Wish, choose_source, plan_rescue
from millpond.broker.rescue.survivor import CannotRescue, Held, Survivor
from millpond.metadata.image import Image
from millpond.metadata.records import (
    BrokerEndpoint,
    ConfigRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    ResourceType,
    TopicRecord,
)
from millpond.quorum.ports import Election

POND = UUID(int=7)


def image_with(
    isr: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 3), elr: tuple[int, ...] = (), **config: str
) -> Image:
    image = Image()
    for node_id in range(1, 6):
        image.replay(
            RegisterBrokerRecord(
                broker_id=node_id,
                incarnation_id=UUID(int=node_id),
                broker_epoch=node_id,
                end_points=(BrokerEndpoint("PLAINTEXT", "10.0.0.1", 9000 + node_id),),
                fenced=False,
                log_dirs=(UUID(int=100 + node_id),),
            )
        )
    image.replay(TopicRecord("pond", POND))
    image.replay(
        PartitionRecord(
            0,
            POND,
            replicas,
            isr,
            leader=isr[0] if isr else -1,
            leader_epoch=4,
            eligible_leader_replicas=elr or None,
        )
    )
    for name, value in config.items():
        image.replay(ConfigRecord(ResourceType.TOPIC, "pond", name.replace("_", "."), value))
    return image


def survivor(node_id: int, image: Image, has: Held | None = None, *, end: int = 50, epoch: int = 3) -> Survivor:
    return Survivor(
        folder=f"/node{node_id}",
        identity=Identity(node_id, UUID(int=100 + node_id), "here"),
        election=Election(epoch + 1),
        image=image,
        end_offset=end,
        last_epoch=epoch,
        committed_offset=end - 5,
        voters=(1, 2, 3, 4, 5),
        replicas={} if has is None else {(POND, 0): has},
    )


def planned(*survivors: Survivor, wish: Wish | None = None) -> Plan:
    return plan_rescue(survivors, choose_source(survivors), "now", wish=wish)


def test_a_replica_in_sync_or_eligible_goes_on_with_the_partition() -> None:
    for image in (image_with((1, 2, 3)), image_with((3,)), image_with((1,), elr=(3,)), image_with((), elr=(3,))):
        plan = planned(survivor(3, image))
        (fate,) = plan.partitions
        assert (fate.fate, fate.leader) == (Fate.KEPT, 3), image.topics["pond"].partitions
        after = plan.image.topics["pond"].partitions[0]
        assert (after.leader, after.isr, after.elr) == (3, (3,), ())
        (record,) = [each for each in plan.records() if isinstance(each, PartitionRecord)]
        assert record.leader_epoch >= 4 + EPOCHS_AHEAD, "clients may have heard of more than the survivor"


def test_one_that_was_behind_stays_offline_unless_it_is_asked_to_lead() -> None:
    image = image_with((1, 2))
    here = survivor(3, image, Held(5, 4, 1000, high_watermark=7))
    (fate,) = planned(here).partitions
    assert (fate.fate, fate.leader, fate.missing_min, fate.was_in_sync) == (Fate.BEHIND, -1, 2, (1, 2))
    assert planned(here).image.topics["pond"].partitions[0].leader == -1
    plan = planned(here, wish=Wish(unclean=frozenset({"pond"})))
    after = plan.image.topics["pond"].partitions[0]
    assert (plan.partitions[0].fate, after.leader, after.isr, after.is_recovering) == (Fate.LED_BEHIND, 3, (3,), True)
    (fate,) = planned(survivor(3, image_with((1, 2), unclean_leader_election_enable="true"))).partitions
    assert (fate.fate, fate.leader) == (Fate.LED_BEHIND, 3), "the topic itself allows it"


def test_the_one_of_the_latest_epoch_leads_not_the_longest() -> None:
    image = image_with((1,), replicas=(1, 2, 3))
    survivors = survivor(2, image, Held(90, 3, 0, 0)), survivor(3, image, Held(20, 4, 0, 0))
    plan = planned(*survivors, wish=Wish(unclean=frozenset({"pond"})))
    assert plan.partitions[0].leader == 3


def test_nothing_is_left_of_a_partition() -> None:
    image = image_with((1, 2, 3))
    for at, replicas in ((4, (1, 2, 3)), (4, (2,))):
        lost = image_with(replicas[:1], replicas=replicas)
        plan = planned(survivor(at, lost))
        assert (plan.partitions[0].fate, plan.image.topics["pond"].partitions[0].leader) == (Fate.LOST, -1)
    plan = planned(survivor(4, image), wish=Wish(empty=frozenset({"pond"})))
    after = plan.image.topics["pond"].partitions[0]
    assert (plan.partitions[0].fate, after.leader, after.replicas) == (Fate.EMPTIED, 4, (4,))


def test_who_may_not_be_rescued() -> None:
    image = image_with((1, 2, 3))
    with pytest.raises(CannotRescue, match="a majority: start them"):
        planned(survivor(1, image), survivor(2, image), survivor(4, image))
    with pytest.raises(CannotRescue, match="no topic lake"):
        planned(survivor(1, image), wish=Wish(unclean=frozenset({"lake"})))
    with pytest.raises(CannotRescue, match="two folders are of node 1"):
        planned(survivor(1, image), survivor(1, image))
    with pytest.raises(CannotRescue, match="node 9 is none"):
        plan_rescue([survivor(1, image)], survivor(1, image), "now", elsewhere=[9])
    with pytest.raises(CannotRescue, match="--from 5"):
        choose_source([survivor(1, image)], node_id=5)


def test_a_cluster_is_outlived_by_itself_after_more_rescues_only() -> None:
    assert (cluster_name("a", 0), cluster_name("a", 2), cluster_name(None, 2)) == ("a", "a~2", None)
    assert is_outlived("a", by="a~1")
    assert is_outlived("a~1", by="a~2")
    assert is_outlived("a~9", by="a~10")
    for name, other in (("a", "a"), ("a~1", "a"), ("a~2", "a~1"), ("a~1", "a~1"), ("b", "a~1"), ("1", "a~2")):
        assert not is_outlived(name, by=other), (name, other)
