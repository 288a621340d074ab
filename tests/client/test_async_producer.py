"""The producer in asyncio."""

from __future__ import annotations

import asyncio

import pytest

from millpond import AsyncProducer, BufferFull, ConfigError, Delivery, SendFailed


@pytest.mark.smoke
def test_awaiting_a_send_gives_its_place(cluster) -> None:
    topic = cluster.topic()

    async def main() -> list[int | None]:
        async with AsyncProducer(cluster.bootstrap, linger_ms=1) as producer:
            places = await asyncio.gather(*(producer.send(topic, b"%d" % n, partition=1) for n in range(20)))
            queued = await producer.queue(topic, b"last", partition=1, headers={"h": "1"})
            await producer.flush()
            assert queued.done()
            return [place.offset for place in (*places, await queued)]

    assert asyncio.run(main()) == list(range(21))


def test_a_full_buffer_keeps_the_loop_running(broker) -> None:
    topic = broker.topic()

    async def main() -> tuple[int, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        async with AsyncProducer(broker.bootstrap, buffer_records=5, linger_ms=0) as producer:
            futures = [await producer.queue(topic, b"%d" % n) for n in range(100)]
            await asyncio.gather(*futures)
        ticking.cancel()
        return len(futures), ticks

    sent, ticks = asyncio.run(main())
    assert sent == 100
    assert ticks > 5


def test_a_full_buffer_raises_as_asked() -> None:
    async def main(**how: object) -> None:
        producer = AsyncProducer("127.0.0.1:1", buffer_records=1, delivery_timeout_s=2, **how)  # type: ignore[arg-type]
        first = await producer.queue("orders", b"")
        try:
            await producer.queue("orders", b"")
        finally:
            assert producer.buffered() >= 1
            with pytest.raises(TimeoutError):
                await producer.close(0.01)
            with pytest.raises(SendFailed):
                await first

    with pytest.raises(BufferFull):
        asyncio.run(main(when_full="raise"))
    with pytest.raises(BufferFull):
        asyncio.run(main(full_timeout_s=0.1))


def test_sends_wait_for_room_in_order(broker) -> None:
    topic = broker.topic()

    async def main() -> list[int | None]:
        async with AsyncProducer(broker.bootstrap, buffer_records=5, linger_ms=0) as producer:
            places = await asyncio.gather(*(producer.send(topic, b"%d" % n, partition=0) for n in range(200)))
        return [place.offset for place in places]

    assert asyncio.run(main()) == list(range(200))
    assert [message.value for message in broker.read(topic, 200)] == [b"%d" % n for n in range(200)]


def test_a_new_send_does_not_overtake_waiting_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run between the one that got room and the next in line, and the lock is free then."""

    async def main() -> list[bytes]:
        producer = AsyncProducer("127.0.0.1:1")
        taken: list[bytes] = []
        tasks: list[asyncio.Task[asyncio.Future[Delivery]]] = []
        has_room = False

        def put(_kind: object, _block: bool, _topic: str, value: bytes, _key: None) -> asyncio.Future[Delivery]:
            if not has_room:
                raise BufferFull("no room")
            taken.append(value)
            if value == b"first":
                tasks.append(asyncio.create_task(producer.queue("orders", b"newcomer")))
            return asyncio.get_running_loop().create_future()

        monkeypatch.setattr(producer._producer, "put", put)
        tasks += [asyncio.create_task(producer.queue("orders", each)) for each in (b"first", b"second", b"third")]
        await asyncio.sleep(0)
        has_room = True
        while len(taken) < 4:
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        await producer.close()
        return taken

    assert asyncio.run(main()) == [b"first", b"second", b"third", b"newcomer"]


def test_a_cancelled_wait_for_room_does_not_block_others(broker) -> None:
    topic = broker.topic()

    async def main() -> None:
        async with AsyncProducer(broker.bootstrap, buffer_records=1, linger_ms=200) as producer:
            first = await producer.queue(topic, b"first", partition=0)
            waiting = [asyncio.create_task(producer.queue(topic, b"%d" % n, partition=0)) for n in range(3)]
            await asyncio.sleep(0.02)
            waiting[0].cancel()
            waiting[1].cancel()
            place = await (await waiting[2])
            assert (await first).topic == place.topic == topic

    asyncio.run(main())
    assert [message.value for message in broker.read(topic, 2)] == [b"first", b"2"]


def test_a_cancelled_await_leaves_the_others_as_they_are(broker) -> None:
    topic = broker.topic()

    async def main() -> None:
        async with AsyncProducer(broker.bootstrap, linger_ms=50) as producer:
            sends = [asyncio.create_task(producer.send(topic, b"%d" % n, partition=0)) for n in range(3)]
            await asyncio.sleep(0.01)
            sends[1].cancel()
            assert [(await each).offset for each in (sends[0], sends[2])] == [0, 2]
            with pytest.raises(asyncio.CancelledError):
                await sends[1]

    asyncio.run(main())
    assert len(broker.read(topic, 3)) == 3, "what is in the buffer is sent all the same"


def test_one_producer_for_loop_after_loop_and_reports_that_come_after_a_loop_has_ended(broker) -> None:
    topic = broker.topic()
    producer = AsyncProducer(broker.bootstrap, linger_ms=100)

    async def queue() -> None:
        for n in range(20):
            await producer.queue(topic, b"%d" % n, partition=0)

    async def send() -> int | None:
        place = await producer.send(topic, b"last", partition=0)
        await producer.close()
        return place.offset

    asyncio.run(queue())  # which is over before the first report
    assert asyncio.run(send()) == 20


def test_an_unknown_argument_is_refused_with_a_suggestion() -> None:
    async def main() -> None:
        producer = AsyncProducer("127.0.0.1:1")
        with pytest.raises(ConfigError, match=r"takes no argument 'header'.*headers"):
            await producer.queue("orders", b"", header={"a": "b"})  # type: ignore[call-arg]
        await producer.close()

    asyncio.run(main())
