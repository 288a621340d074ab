"""Records in flight: whatever partitions do, keys keep their order and no offset passes what is not finished."""

from __future__ import annotations

from threading import Thread

from hypothesis import given
from hypothesis import strategies as st

from millpond import Message, Send
from millpond.base.ids import TopicPartition
from millpond.client.in_flight import InFlight
from millpond.client.progress import Job
from millpond.client.retry import read_new
from support.node import eventually

PARTITIONS = [TopicPartition("orders", n) for n in range(2)]


def message(partition: int, offset: int, key: bytes | None = None) -> Message:
    return Message("orders", partition, offset, key=key)


def offsets(in_flight: InFlight) -> dict[TopicPartition, int]:
    return {partition: offset for partition, offset, _ in in_flight.take_finished()}


def test_a_record_of_an_unassigned_partition_is_ignored() -> None:
    in_flight = InFlight()
    in_flight.assign(PARTITIONS[:1])
    in_flight.add(read_new(message(1, 5)))
    assert (in_flight.start(), len(in_flight)) == (None, 0)
    in_flight.skip(PARTITIONS[1], 5)
    assert offsets(in_flight) == {}


def test_a_record_of_an_earlier_assignment_does_not_count_in_the_next() -> None:
    in_flight = InFlight()
    in_flight.assign(PARTITIONS[:1])
    in_flight.add(read_new(message(0, 5)))
    job = in_flight.start()
    assert job is not None
    in_flight.revoke(PARTITIONS[:1])
    in_flight.assign(PARTITIONS[:1])
    assert not in_flight.is_ours(job)
    assert not in_flight.run_again(job, 1.0, keeps_lane=True)
    in_flight.finish(job, [Send("out")])
    assert offsets(in_flight) == {}


@given(st.data())
def test_in_any_order_of_events(data: st.DataObject) -> None:
    in_flight = InFlight()
    in_flight.assign(PARTITIONS)
    ends = dict.fromkeys(PARTITIONS, 0)
    running: list[Job] = []
    finished: set[tuple[TopicPartition, int]] = set()
    now = 0.0
    for _ in range(data.draw(st.integers(1, 60))):
        match data.draw(st.sampled_from(["add", "add", "start", "start", "finish", "fail", "wake", "move"])):
            case "add":
                partition = data.draw(st.sampled_from(PARTITIONS))
                key = data.draw(st.sampled_from([None, b"a", b"b"]))
                new = message(partition.partition, ends[partition], key)
                if data.draw(st.booleans()):
                    in_flight.add(read_new(new))
                else:
                    in_flight.add_new([new])
                ends[partition] += 1
            case "start":
                if job := in_flight.start():
                    same = [each for each in running if each.lane is not None and each.lane == job.lane]
                    assert same == [], "two of one key at a time"
                    running.append(job)
            case "finish" if running:
                job = running.pop(data.draw(st.integers(0, len(running) - 1)))
                if in_flight.is_ours(job):
                    finished.add((job.partition, job.message.offset))
                if data.draw(st.booleans()):
                    in_flight.finish(job, [])
                    in_flight.end(job, keeps_lane=False)
                else:
                    assert in_flight.end_finished(job) == in_flight.is_ours(job)
            case "fail" if running:
                job = running.pop(data.draw(st.integers(0, len(running) - 1)))
                in_flight.end(job, keeps_lane=in_flight.run_again(job, now + 2, keeps_lane=True))
            case "wake":
                now += 1
                in_flight.wake(now)
            case "move":
                # Revoked and reassigned: the owner in between began at the committed offset and did nothing.
                partition = data.draw(st.sampled_from(PARTITIONS))
                done = offsets(in_flight).get(partition)
                in_flight.drop([partition], keep_gaps=False)
                in_flight.revoke([partition])
                in_flight.assign([partition])
                finished = {each for each in finished if each[0] != partition}
                if done is None:
                    finished |= {(partition, offset) for offset in range(ends[partition])}
                    in_flight.skip(partition, ends[partition])
                    finished.add((partition, ends[partition]))
                    ends[partition] += 1
                else:
                    finished |= {(partition, offset) for offset in range(done)}
                    ends[partition] = done
        assert len(in_flight) == sum(map(len, in_flight._progress.values()))
        for partition, offset in offsets(in_flight).items():
            assert all((partition, each) in finished for each in range(offset)), f"{partition} passed a gap"


def test_new_records_of_several_partitions_at_once() -> None:
    in_flight = InFlight()
    in_flight.assign(PARTITIONS)
    alone = Message("others", 0, 9, key=b"a")
    in_flight.add_new([message(0, 1, b"a"), message(0, 2, b"a"), alone, message(1, 7, b"a"), message(0, 3)])
    assert len(in_flight) == 4
    started = [job for job in iter(in_flight.start, None) if job is not None]
    assert [(job.partition.partition, job.message.offset) for job in started] == [(0, 1), (1, 7), (0, 3)]
    assert str(started[1].origin) == "orders[1]@7"
    assert in_flight.end_finished(started[0])
    assert offsets(in_flight) == {PARTITIONS[0]: 2}
    behind = in_flight.start()
    assert behind is not None
    assert behind.message.offset == 2, "it stood behind the first of its key"


def test_a_record_of_an_earlier_assignment_still_runs() -> None:
    in_flight = InFlight()
    in_flight.assign(PARTITIONS)
    in_flight.add_new([message(0, 5)])
    job = in_flight.start()
    assert job is not None
    in_flight.revoke(PARTITIONS[:1])
    in_flight.assign(PARTITIONS[:1])
    assert in_flight.is_running(PARTITIONS[:1])
    assert not in_flight.is_running(PARTITIONS[1:])
    assert not in_flight.end_finished(job)
    assert not in_flight.is_running(PARTITIONS[:1])
    assert offsets(in_flight) == {}


def test_a_wait_for_room_ends_with_enough_room_or_an_idle_runner() -> None:
    in_flight = InFlight()
    in_flight.assign(PARTITIONS)
    in_flight.add_new([message(0, n) for n in range(10)])
    looks: list[int] = []

    def has_room() -> bool:
        looks.append(len(in_flight))
        return len(in_flight) <= 5

    waiting = Thread(target=in_flight.wait_for, args=(has_room, 60.0), kwargs={"wake_at_count": 5})
    waiting.start()
    assert eventually(lambda: looks == [10])
    for _ in range(5):
        job = in_flight.start()
        assert job is not None
        in_flight.end_finished(job)
    waiting.join()
    assert looks == [10, 5], "not at each that ended"
    idle: list[bool] = []
    waiting = Thread(target=in_flight.wait_for, args=(lambda: bool(idle), 60.0), kwargs={"wake_at_count": 0})
    waiting.start()
    assert eventually(lambda: in_flight._is_watched)
    with in_flight.mutex:
        idle.append(True)
        in_flight.notify_change(is_idle=True)
    waiting.join()
