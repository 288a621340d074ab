"""The consumer in asyncio."""

from __future__ import annotations

import asyncio

import pytest

from millpond import AsyncConsumer
from millpond.base.ids import TopicPartition

VALUES = [b"%d" % n for n in range(10)]


@pytest.mark.smoke
def test_iterating_committing_and_going_on(broker) -> None:
    topic, group = broker.topic(), broker.group()
    broker.fill(topic, VALUES, partition=0)
    place = TopicPartition(topic, 0)

    async def first() -> list[bytes | None]:
        seen = []
        async with AsyncConsumer(group, [topic], bootstrap=broker.bootstrap) as consumer:
            async for message in consumer:
                seen.append(message.value)
                if len(seen) == 4:
                    await consumer.commit()
                    break
            assert place in await consumer.assignment()
            assert await consumer.committed([place]) == {place: 4}
            assert await consumer.position(place) == 4
            assert (await consumer.lag())[place] == 6
        return seen

    async def second() -> list[bytes | None]:
        async with AsyncConsumer(group, [topic], bootstrap=broker.bootstrap) as consumer:
            async for batch in consumer.batches(100, 0.2):
                return [message.value for message in batch]
        raise AssertionError

    assert asyncio.run(first()) == VALUES[:4]
    assert asyncio.run(second()) == VALUES[4:]


def test_moving_about(broker) -> None:
    topic = broker.topic()
    broker.fill(topic, VALUES, partition=1)

    async def main() -> None:
        async with AsyncConsumer(None, [topic], bootstrap=broker.bootstrap) as consumer:
            assert (await consumer.poll(1, 10))[0].value == b"0"
            await consumer.seek(topic, 1, 9)
            assert (await consumer.poll(1, 10))[0].value == b"9"
            await consumer.seek_to_beginning()
            assert (await consumer.poll(1, 10))[0].value == b"0"
            await consumer.pause()
            assert await consumer.poll(1, 0.1) == []
            await consumer.resume()
            assert (await consumer.poll(1, 10))[0].value == b"1"
            await consumer.seek_to_end()
            assert await consumer.poll(1, 0.1) == []

    asyncio.run(main())


def test_closing_ends_an_iteration_that_waits(broker) -> None:
    topic = broker.topic()

    async def main() -> int:
        consumer = AsyncConsumer(None, [topic], bootstrap=broker.bootstrap)

        async def listen() -> int:
            count = 0
            async for _ in consumer:
                count += 1
            return count

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0.1)
        await consumer.close()
        return await asyncio.wait_for(listening, 5)

    assert asyncio.run(main()) == 0


def test_records_of_a_cancelled_poll_go_to_the_next_one(broker) -> None:
    topic, group = broker.topic(1), broker.group()

    async def play() -> list[bytes | None]:
        async with AsyncConsumer(group, [topic], bootstrap=broker.bootstrap) as consumer:
            while not await consumer.assignment():
                await consumer.poll(1, 0.05)
            polling = asyncio.create_task(consumer.poll(100, 5.0))
            await asyncio.sleep(0.2)
            polling.cancel()
            # The call still waits on its thread, and its result has no reader.
            await asyncio.to_thread(broker.fill, topic, VALUES)
            await consumer.commit()
            assert await consumer.committed() in ({TopicPartition(topic, 0): None}, {TopicPartition(topic, 0): 0})
            seen = [message.value for message in await consumer.poll(100, 5.0)]
            while len(seen) < len(VALUES):
                seen += [message.value for message in await consumer.poll(100, 5.0)]
            return seen

    assert asyncio.run(play()) == VALUES


def test_a_failure_of_a_cancelled_poll_is_raised_by_the_next_one(broker) -> None:
    topic = broker.topic(1)

    def refuse(partitions: object) -> None:
        raise ValueError("no room")

    async def play() -> None:
        async with AsyncConsumer(broker.group(), [topic], bootstrap=broker.bootstrap, on_assigned=refuse) as consumer:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.poll(timeout_s=8), 0.01)
            with pytest.raises(ValueError, match="no room"):
                await consumer.poll(timeout_s=8)

    asyncio.run(play())


def test_records_an_iteration_peeks_at_are_not_handed_out(broker) -> None:
    """Calls in the middle of it: each knows what was handed out, and no more."""
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, VALUES)
    place = TopicPartition(topic, 0)

    async def main() -> None:
        seen: list[bytes | None] = []
        async with AsyncConsumer(group, [topic], bootstrap=broker.bootstrap) as consumer:
            async for message in consumer:
                seen.append(message.value)
                if len(seen) == 3:
                    await consumer.commit()
                    assert await consumer.committed([place]) == {place: 3}
                if len(seen) == 5:
                    assert await consumer.position(place) == 5
                    assert [each.value for each in await consumer.poll(2, 5.0)] == VALUES[5:7]
                if len(seen) == 6:
                    assert message.value == b"7"
                    await consumer.seek(topic, 0, 1)
                if len(seen) == 8:
                    break
            assert seen == [*VALUES[:5], b"7", b"1", b"2"]
            await consumer.commit()
            assert await consumer.committed([place]) == {place: 3}

    asyncio.run(main())


def test_records_of_an_iteration_can_be_committed_at_the_end(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, VALUES)
    place = TopicPartition(topic, 0)

    async def main() -> None:
        async with AsyncConsumer(
            group, [topic], bootstrap=broker.bootstrap, on_revoked=lambda _: consumer._consumer.commit()
        ) as consumer:
            count = 0
            async for _ in consumer:
                count += 1
                if count == 4:
                    break
        async with AsyncConsumer(group, [topic], bootstrap=broker.bootstrap) as after:
            assert await after.committed([place]) == {place: 4}

    asyncio.run(main())


def test_a_cancelled_iteration_loses_and_doubles_nothing(broker) -> None:
    topic = broker.topic(1)
    values = [b"%d" % n for n in range(300)]

    async def main() -> list[bytes | None]:
        seen: list[bytes | None] = []

        async def listen() -> None:
            async for message in consumer:
                seen.append(message.value)
                await asyncio.sleep(0)

        async with AsyncConsumer(None, [topic], bootstrap=broker.bootstrap) as consumer:
            filling = asyncio.create_task(asyncio.to_thread(broker.fill, topic, values))
            while len(seen) < len(values):
                listening = asyncio.create_task(listen())
                await asyncio.sleep(0.003)
                listening.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await listening
            await filling
            assert await consumer.poll(1, 0.2) == []
        return seen

    assert asyncio.run(main()) == values


def test_concurrent_iterations_and_polls_share_the_records(broker) -> None:
    topic = broker.topic(1)
    values = [b"%d" % n for n in range(300)]
    broker.fill(topic, values)

    async def main() -> list[bytes | None]:
        seen: list[bytes | None] = []

        async def listen() -> None:
            async for message in consumer:
                seen.append(message.value)
                await asyncio.sleep(0)

        async def poll() -> None:
            while len(seen) < len(values):
                seen.extend(message.value for message in await consumer.poll(3, 0.1))

        async with AsyncConsumer(None, [topic], bootstrap=broker.bootstrap) as consumer:
            listening = [asyncio.create_task(listen()) for _ in range(2)]
            await asyncio.wait_for(poll(), 60)
        await asyncio.wait_for(asyncio.gather(*listening), 60)
        return seen

    assert sorted(asyncio.run(main()), key=values.index) == values


def test_an_iteration_drops_peeked_records_of_revoked_partitions(broker) -> None:
    topic, group = broker.topic(2), broker.group()
    for partition in (0, 1):
        broker.fill(topic, [b"x"] * 100, partition=partition)
    held: set[TopicPartition] = set()

    async def main() -> tuple[list[str], int]:
        foreign: list[str] = []
        revocations = 0

        def revoked(partitions: list[TopicPartition]) -> None:
            nonlocal revocations
            revocations += 1
            held.difference_update(partitions)

        async with AsyncConsumer(
            group, [topic], bootstrap=broker.bootstrap, on_assigned=held.update, on_revoked=revoked
        ) as first:
            second: AsyncConsumer | None = None
            async for message in first:
                if TopicPartition(message.topic, message.partition) not in held:
                    foreign.append(str(message))
                if second is None:
                    second = AsyncConsumer(group, [topic], bootstrap=broker.bootstrap)
                # Slow, so that most of what was seen at once is still there when the other comes.
                await asyncio.sleep(0.2)
                await second.poll(1, 0.01)
                if revocations:
                    for _ in range(5):
                        await anext(aiter(first), None)
                    break
            assert second is not None
            await second.close()
        return foreign, revocations

    foreign, revocations = asyncio.run(asyncio.wait_for(main(), 60))
    assert revocations
    assert foreign == []
