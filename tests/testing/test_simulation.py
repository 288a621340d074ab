"""The simulated world for people's handlers: a bug is found by some seed, which is told and can be repeated."""

from __future__ import annotations

from collections import Counter

import pytest

from millpond.client.message import Message
from millpond.testing import SimulatedClient, SimulatedCluster, simulated
from millpond.testing.simulation import SEED_VARIABLE

SEEDS = 3
PAYMENTS = [("ann", "10"), ("bob", "20")] * 8


@simulated(seeds=SEEDS)
def pays_twice(sim: SimulatedCluster) -> None:
    """The bug: a payment that is delivered again is paid again."""
    paid: Counter[bytes | None] = Counter()

    def pay(message: Message, client: SimulatedClient) -> None:
        paid[message.key] += int(message.text())

    sim.consumer(pay, "payments", count=2)
    sim.produce("payments", *PAYMENTS)
    sim.run()
    assert paid == {b"ann": 80, b"bob": 160}


@simulated(seeds=SEEDS)
def test_it_is_right_with_ids(sim: SimulatedCluster) -> None:
    """Mended: what was paid is known by where it stands."""
    paid: dict[str, int] = {}

    def pay(message: Message, client: SimulatedClient) -> None:
        paid[str(message)] = int(message.text())

    sim.consumer(pay, "payments", count=2)
    sim.produce("payments", *PAYMENTS)
    sim.run()
    assert sum(paid.values()) == 240


def test_a_bug_is_found_and_its_seed_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError) as failed:
        pays_twice()
    (note,) = failed.value.__notes__
    seed = int(note.partition("with seed ")[2].partition(".")[0])
    assert f"{SEED_VARIABLE}={seed} pytest tests/testing/test_simulation.py::pays_twice" in note
    monkeypatch.setenv(SEED_VARIABLE, str(seed))
    with pytest.raises(AssertionError) as again:
        pays_twice()
    assert again.value.__notes__ == [note]


@simulated(seeds=2)
def test_an_asyncio_handler_waits_and_sends(sim: SimulatedCluster) -> None:
    async def bill(message: Message, client: SimulatedClient) -> None:
        await client.sleep(0.05)
        await client.send("bills", f"bill of {message.text()}", key=message.key)

    sim.consumer(bill, "orders")
    sim.produce("orders", ("ann", "tea"), ("bob", "milk"), "salt")
    sim.run()
    assert {value for _, value in sim.records("bills")} == {"bill of tea", "bill of milk", "bill of salt"}
    assert {key for key, _ in sim.records("bills")} == {"ann", "bob", None}


def test_awaiting_something_not_simulated_fails() -> None:
    import asyncio

    @simulated(seeds=1)
    def waits_outside(sim: SimulatedCluster) -> None:
        async def handler(message: Message, client: SimulatedClient) -> None:
            await asyncio.sleep(0)

        sim.consumer(handler, "orders")
        sim.produce("orders", "tea")
        sim.run(faults=())

    with pytest.raises(Exception, match=r"client\.sleep"):
        waits_outside()


def test_a_handler_that_always_fails_fails_the_test() -> None:
    @simulated(seeds=1)
    def fails(sim: SimulatedCluster) -> None:
        def handler(message: Message, client: SimulatedClient) -> None:
            raise LookupError("no such customer")

        sim.consumer(handler, "orders")
        sim.produce("orders", "tea")
        sim.run(faults=())

    with pytest.raises(LookupError, match="no such customer"):
        fails()
