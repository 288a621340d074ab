"""High watermarks, written to the checkpoint and read back."""

from __future__ import annotations

from uuid import UUID

from tests.support.partitions import partition_context, view

from millpond.base.ids import TopicPartition
from millpond.broker.replication.high_watermarks import FILE, HighWatermarks
from millpond.broker.replication.partitions import Partition, Partitions
from millpond.log.limits import LogLimits
from millpond.log.store import LogStore
from millpond.sim.world.world import SimWorld

POND, WEIR = UUID(int=7), UUID(int=8)


def test_what_is_committed_is_known_after_a_start() -> None:
    sim = SimWorld(1)
    world = sim.start("node")
    store = LogStore(world.disk, "/data", LogLimits(), world.entropy)
    store.open(0)
    partitions = Partitions()
    journal: list[str] = []

    def noted() -> HighWatermarks:
        made = HighWatermarks(
            world.clock, world.disk, "/data", world.workers, partitions, lambda event, **_: journal.append(event)
        )
        made.load()
        return made

    def add(name: str, topic_id: UUID, replicas: str, high_watermark: int) -> Partition:
        log = store.create(TopicPartition(name, 0), topic_id)
        partition = Partition(
            TopicPartition(name, 0),
            topic_id,
            log,
            partition_context(world.disk, world.clock, node_id=1),
        )
        partition.apply_metadata(view(2 if len(replicas) > 1 else 1, 1, 1, replicas, replicas))
        if partition.follower is not None:
            partition.follower.high_watermark = high_watermark
        partitions.add(partition)
        return partition

    first = noted()
    first.write()
    assert not world.disk.exists(f"/data/{FILE}"), "nothing is replicated"
    pond = add("pond", POND, "12", 40)
    add("weir", WEIR, "1", 0)
    first.write()
    assert sim.run_until(lambda: world.disk.exists(f"/data/{FILE}"))
    assert (noted().of(POND, 0), noted().of(POND, 1), noted().of(WEIR, 0)) == (40, 0, 0)
    sim.run_for(100)
    operations = sim.hosts["node"].disk.operations
    first.write()
    sim.run_for(100)
    assert sim.hosts["node"].disk.operations == operations, "nothing has changed"
    assert pond.follower is not None
    pond.follower.high_watermark = 50
    first.close()
    assert noted().of(POND, 0) == 50
    # The next run has not opened the partition yet, and may end before it does.
    partitions.remove(pond)
    second = noted()
    add("sluice", UUID(int=9), "12", 4)
    second.write()
    sim.run_for(100)
    assert (noted().of(POND, 0), noted().of(UUID(int=9), 0)) == (50, 4)
    second.close()
    assert noted().of(POND, 0) == 50
    second.forget_but([(UUID(int=9), 0)])
    second.close()
    assert (noted().of(POND, 0), noted().of(UUID(int=9), 0)) == (0, 4), "it is known to be another node's by now"
    world.disk.replace(f"/data/{FILE}", b"nonsense")
    assert (noted().of(POND, 0), journal) == (0, ["recovery"])


def test_a_process_that_never_had_the_folder_writes_nothing_into_it() -> None:
    """Another node may be running there: a second process on the same folder is refused and exits."""
    world = SimWorld(1).start("node")
    world.disk.make_folder("/data")
    marks = [(POND, 0, 0)]
    HighWatermarks(
        world.clock, world.disk, "/data", world.workers, Partitions(), lambda *_, **__: None, also=lambda: marks
    ).close()
    assert not world.disk.exists(f"/data/{FILE}")


def test_what_the_last_life_knew_of_the_metadata_is_not_forgotten_by_one_that_knows_less() -> None:
    world = SimWorld(1).start("node")
    world.disk.make_folder("/data")

    def life(offset: int) -> HighWatermarks:
        made = HighWatermarks(
            world.clock,
            world.disk,
            "/data",
            world.workers,
            Partitions(),
            lambda *_, **__: None,
            also=lambda: [(POND, 0, offset)],
        )
        made.load()
        return made

    for offset, known in ((70, 70), (3, 70), (90, 90)):
        life(offset).close()
        assert life(0).of(POND, 0) == known


def test_a_full_disk_does_not_keep_the_other_logs_from_closing() -> None:
    sim = SimWorld(1)
    world = sim.start("node")
    world.disk.make_folder("/data")
    journal: list[str] = []
    marks = HighWatermarks(
        world.clock,
        world.disk,
        "/data",
        world.workers,
        Partitions(),
        lambda event, **_: journal.append(event),
        also=lambda: [(POND, 0, 5)],
    )
    marks.load()
    sim.hosts["node"].disk.fail_opens(FILE, code=28)
    marks.close()
    assert journal == ["checkpoint failed"]
