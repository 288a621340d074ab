"""Records in flight: whatever partitions do, keys keep their order and no offset passes what is not finished."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millpond import Message, Send
from millpond.base.ids import TopicPartition
from millpond.client.in_flight import InFlight
from millpond.client.progress import Job
from millpond.client.retry import read_new

PARTITIONS = [TopicPartition("orders", n) for n in range(2)]


def message(partition: int, offset: int, key: bytes | None = None) -> Message:
    return Message("orders", partition, offset, key=key)


def offsets(in_flight: InFlight) -> dict[TopicPartition, int]:
    return {partition: offset for partition, offset, _ in in_flight.take_finished()}


def test_a_record_of_a_partition_that_is_not_ours_is_not_taken() -> None:
    in_flight = InFlight()
    in_flight.assign(PARTITIONS[:1])
    in_flight.add(read_new(message(1, 5)))
    assert (in_flight.start(), len(in_flight)) == (None, 0)
    in_flight.skip(PARTITIONS[1], 5)
    assert offsets(in_flight) == {}


def test_what_ran_in_an_earlier_assignment_counts_for_nothing_in_the_next() -> None:
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
                in_flight.add(read_new(message(partition.partition, ends[partition], key)))
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
                in_flight.finish(job, [])
                in_flight.end(job, keeps_lane=False)
            case "fail" if running:
                job = running.pop(data.draw(st.integers(0, len(running) - 1)))
                in_flight.end(job, keeps_lane=in_flight.run_again(job, now + 2, keeps_lane=True))
            case "wake":
                now += 1
                in_flight.wake(now)
            case "move":
                # Given away and back: whoever had it meanwhile began where it was committed, and did nothing.
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
        for partition, offset in offsets(in_flight).items():
            assert all((partition, each) in finished for each in range(offset)), f"{partition} passed a gap"
