"""The producer in asyncio."""

from __future__ import annotations

import asyncio

import pytest

from millpond import AsyncProducer, BufferFull, SendFailed


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


def test_a_full_buffer_keeps_the_loop_running(cluster) -> None:
    topic = cluster.topic()

    async def main() -> tuple[int, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        async with AsyncProducer(cluster.bootstrap, buffer_records=5, linger_ms=0) as producer:
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
