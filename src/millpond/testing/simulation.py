"""The simulated world for users' own handlers: a test runs once for each seed, each with different faults.

Time, network and disks are simulated, the brokers are the real ones. A handler is the user's own function, called as
a worker calls it, and killed with its process wherever the seed decides. A failing test prints its seed.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from millpond.client.message import Message
from millpond.sim.clients.script import Script, Sleep
from millpond.sim.simulator.actions import (
    AddConsumer,
    CrashConsumer,
    CreateTopic,
    Cut,
    Heal,
    Slow,
    StartNode,
    StopNode,
)
from millpond.sim.simulator.consumer import Consumer, id_of
from millpond.sim.simulator.ledger import SentRecord, Status
from millpond.sim.simulator.producer import Producer, SendOptions
from millpond.sim.simulator.recording import Recording
from millpond.sim.simulator.simulation import Simulation
from millpond.sim.simulator.snapshot import Observer
from millpond.wire.partitioner import partition_for_key
from millpond.wire.records import Record

SEED_VARIABLE: Final = "MILLPOND_SIM_SEED"
WORK_MS: Final = 6_000
"""How long faults are injected."""
SETTLE_MS: Final = 60_000
LOOK_MS: Final = 200
TRIES_MAX: Final = 5
STORY_SHOWN: Final = 40
FAULTS: Final = (
    "kill of a consumer",
    "kill between work and commit",
    "kill between work and commit",
    "another consumer",
    "kill of a node",
    "loss of power",
    "cut network",
    "slow network",
)

Entry = str | bytes | tuple[str | bytes | None, str | bytes]
Handler = Callable[[Message, "SimulatedClient"], object]
SimulatedTest = Callable[["SimulatedCluster"], None]


class NotSimulated(Exception):
    """A handler awaits something that the simulation does not support."""


@dataclass(slots=True, eq=False)
class _Outgoing:
    """A record sent by a handler, which may await it."""

    topic: str
    key: str | None
    value: str
    is_delivered: bool = False

    def __await__(self) -> Generator[_Outgoing, None, None]:
        yield self


@dataclass(slots=True, frozen=True)
class _Pause:
    ms: int

    def __await__(self) -> Generator[_Pause, None, None]:
        yield self


class SimulatedClient:
    """The handler's client: sends records and sleeps. Its sends are acknowledged before its offset is committed."""

    def __init__(self) -> None:
        self._outgoing: list[_Outgoing] = []

    def send(self, topic: str, value: str | bytes, *, key: str | bytes | None = None) -> _Outgoing:
        """Send a record, with acks=all. An asyncio handler may wait until it is acknowledged."""
        self._outgoing.append(_Outgoing(topic, None if key is None else _text(key), _text(value)))
        return self._outgoing[-1]

    def sleep(self, seconds: float) -> _Pause:
        """For asyncio handlers: `await client.sleep(0.1)` passes simulated time, not real time."""
        return _Pause(max(int(seconds * 1000), 0))

    def undelivered(self) -> list[_Outgoing]:
        return [each for each in self._outgoing if not each.is_delivered]


class _HandlerConsumer(Consumer):
    """A consumer that runs a user's handler. An exception ends its process, which is restarted."""

    def __init__(self, sim: SimulatedCluster, plan: AddConsumer, handler: Handler) -> None:
        self._sim = sim
        self._handler = handler
        simulation = sim.simulation
        super().__init__(
            plan,
            simulation.topics[plan.topic].id,
            simulation.partition_count,
            simulation.client,
            simulation.clock,
            simulation.ledger,
            simulation.story,
        )

    def handle(self, partition: int, record: Record) -> Script[bool]:
        message = Message(
            self.plan.topic, partition, record.offset, record.timestamp, record.key, record.value, record.headers
        )
        client = SimulatedClient()
        try:
            result = self._handler(message, client)
            if inspect.iscoroutine(result):
                yield from self._drive(result)
            for each in client.undelivered():
                yield from self._deliver(each)
        except NotSimulated as failure:
            self._sim.fail(failure)
        except Exception as failure:
            # Any exception of a handler ends its process, as in production.
            yield from self._die_of(failure, record)
        if self.plan.work_ms:
            yield Sleep(self.plan.work_ms)
        self.note_handled(partition, record)
        return True

    def _drive(self, coroutine: Coroutine[Any, Any, object]) -> Script[None]:
        while True:
            try:
                awaited = coroutine.send(None)
            except StopIteration:
                return
            match awaited:
                case _Pause(ms):
                    yield Sleep(ms)
                case _Outgoing():
                    yield from self._deliver(awaited)
                case _:
                    coroutine.close()
                    raise NotSimulated(
                        "a handler waits for something outside the simulated world; await only what its client "
                        "gives: client.send(…) and client.sleep(…)"
                    )

    def _deliver(self, outgoing: _Outgoing) -> Script[None]:
        self._sim.want_topic(outgoing.topic)
        while outgoing.topic not in self._sim.simulation.topics:
            yield Sleep(10)
        results: list[SentRecord] = []
        self._sim.send(self._letters, outgoing.topic, outgoing.key, outgoing.value, results.append)
        while not results:
            yield Sleep(5)
        if results[0].status is not Status.ACKNOWLEDGED:
            raise TimeoutError(f"{outgoing.topic} did not acknowledge a record: {results[0].status.value}")
        outgoing.is_delivered = True

    def _die_of(self, failure: Exception, record: Record) -> Script[None]:
        failures = self._sim.simulation.ledger.failures
        failures[self.plan.group, id_of(record)] += 1
        if failures[self.plan.group, id_of(record)] >= TRIES_MAX:
            self._sim.fail(failure)
        self.crash()
        self._tell(f"its handler failed: {failure!r}")
        yield Sleep(0)


class SimulatedCluster:
    """The cluster and clients of one seed. Created by `simulated`."""

    def __init__(self, seed: int, nodes: int = 3) -> None:
        self.seed = seed
        self.simulation = Simulation(Recording(seed, nodes))
        self._observer = Observer(self.simulation)
        self._dice = Random(f"faults {seed}")
        self._source = Producer(
            self.simulation.client("source"), self.simulation.clock, self.simulation.ledger, self.simulation.story
        )
        self._consumers: dict[str, tuple[AddConsumer, Handler]] = {}
        self._failure: Exception | None = None
        self._to_send: list[tuple[str, str | None, str]] = []
        self._topic_names: set[str] = set()

    # Used by tests.

    def topic(self, name: str, partitions: int = 3, *, min_insync: int = 1) -> None:
        """Create a topic; others are created with three partitions on first use."""
        self._topic_names.add(name)
        self.simulation.act(CreateTopic(name, partitions, min_insync=min_insync))
        self._run_until(lambda: name in self.simulation.topics, f"topic {name} was not made")

    def consumer(
        self,
        handler: Handler,
        topic: str,
        *,
        group: str = "group",
        count: int = 1,
        commit: str = "after",
        protocol: str = "cooperative",
    ) -> None:
        """Add consumers of a group with this handler: `handler(message, client)`, plain or async."""
        self._make_sure_of(topic)
        for number in range(1, count + 1):
            plan = AddConsumer(
                f"{group}-{number}", group, topic, protocol=protocol, commit=commit, work_ms=2, poll_max=4
            )
            self._consumers[plan.consumer] = plan, handler
            self._start(plan.consumer)

    def produce(self, topic: str, *entries: Entry) -> None:
        """Records to send during the faults: values or (key, value)."""
        self._make_sure_of(topic)
        for entry in entries:
            key, value = entry if isinstance(entry, tuple) else (None, entry)
            self._to_send.append((topic, None if key is None else _text(key), _text(value)))

    def run(self, *, faults: Sequence[str] = FAULTS, seconds: float = WORK_MS / 1000) -> None:
        """Inject faults for this long, then heal and wait until every group has read everything."""
        begin_ms = self.simulation.now_ms
        work_ms = max(int(seconds * 1000), 1)
        to_send, self._to_send = self._to_send, []
        for number, (topic, key, value) in enumerate(to_send):
            self.simulation.clock.call_later(
                number * work_ms // len(to_send),
                lambda topic=topic, key=key, value=value: self.send(self._source, topic, key, value),  # type: ignore[misc]
            )
        moments = sorted(self._dice.randrange(work_ms) for _ in range(self._dice.choice((2, 4, 6))))
        for moment in moments if faults else []:
            self._run_to(begin_ms + moment)
            self._inject(self._dice.choice(list(faults)))
        self._run_to(begin_ms + work_ms)
        self._heal()
        self._run_until(self._is_done, "some records were never read, though everything was healed")

    def records(self, topic: str) -> list[tuple[str | None, str | None]]:
        """The committed records of a topic: (key, value), partition by partition."""
        records: list[tuple[str | None, str | None]] = []
        for index in range(self.simulation.partition_count(topic) if topic in self.simulation.topics else 0):
            log = self._observer.leader_log(topic, index)
            assert log is not None, f"{topic}-{index} has no leader"
            records += [(each.key, each.value) for each in log[1] if each.kind in ("record", "committed")]
        return records

    def story(self) -> list[str]:
        """The events of the run, line by line."""
        return [f"{line.at_ms / 1000:8.3f} {line.who}: {line.text}" for line in self.simulation.story.lines]

    # Used by its consumers.

    def fail(self, failure: Exception) -> None:
        self._failure = self._failure or failure

    def want_topic(self, name: str) -> None:
        if name not in self._topic_names:
            self._topic_names.add(name)
            self.simulation.act(CreateTopic(name))

    def send(
        self,
        producer: Producer,
        topic: str,
        key: str | None,
        value: str,
        on_result: Callable[[SentRecord], None] | None = None,
    ) -> None:
        simulation = self.simulation
        count = simulation.partition_count(topic)
        number = len(simulation.ledger.records)
        partition = number % count if key is None else partition_for_key(key.encode(), count)
        made = SentRecord(0, producer.name, topic, partition, key, value, "all", simulation.clock.now_ms)
        producer.send(simulation.ledger.new_record(made), SendOptions(buffer_max=500), on_result)

    # Running.

    def _make_sure_of(self, topic: str) -> None:
        if topic not in self._topic_names:
            self.topic(topic)

    def _run_to(self, at_ms: int) -> None:
        self.simulation.run_to(at_ms)
        if self._failure is not None:
            raise self._failure

    def _run_until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = self.simulation.now_ms + SETTLE_MS
        while not condition():
            assert self.simulation.now_ms < deadline, otherwise
            self._run_to(self.simulation.now_ms + LOOK_MS)

    def _is_done(self) -> bool:
        ledger = self.simulation.ledger
        if any(each.status in (Status.WAITING, Status.SENT) for each in ledger.records.values()):
            return False
        self._start_dead()
        lags = {group["name"]: group["lag"] for group in self._observer.look()["groups"]}
        used = {each.topic for each in ledger.records.values() if each.status is Status.ACKNOWLEDGED}
        return all(
            plan.topic not in used or set(lags.get(plan.group, {}).get(plan.topic, {0: 1}).values()) == {0}
            for plan, _ in self._consumers.values()
        )

    def _start(self, name: str) -> None:
        plan, handler = self._consumers[name]
        consumer = self.simulation.consumers.get(name)
        if consumer is None:
            self.simulation.consumers[name] = _HandlerConsumer(self, plan, handler)
        else:
            consumer.start(plan)

    def _start_dead(self) -> None:
        for name in self._consumers:
            if self.simulation.consumers[name].state != "running":
                self._start(name)

    def _inject(self, fault: str) -> None:
        simulation, dice = self.simulation, self._dice
        lasts_ms = dice.choice((100, 600, 2_000))
        later = simulation.clock.call_later
        nodes = list(simulation.nodes_up())
        node = str(dice.choice(nodes)) if nodes else "1"
        match fault:
            case "kill of a consumer" | "kill between work and commit" if self._consumers:
                name = dice.choice(list(self._consumers))
                simulation.act(CrashConsumer(name, between=fault != "kill of a consumer"))
                later(lasts_ms, self._start_dead)
            case "another consumer" if self._consumers:
                plan, handler = self._consumers[dice.choice(list(self._consumers))]
                name = f"{plan.group}-extra"
                if name not in self._consumers:
                    extra = AddConsumer(
                        name,
                        plan.group,
                        plan.topic,
                        protocol=plan.protocol,
                        commit=plan.commit,
                        work_ms=plan.work_ms,
                        poll_max=plan.poll_max,
                    )
                    self._consumers[name] = extra, handler
                    self._start(name)
            case "kill of a node" | "loss of power" if len(nodes) == len(simulation.cluster.nodes):
                simulation.act(StopNode(node, power=fault == "loss of power"))
                later(lasts_ms, lambda: simulation.act(StartNode(node)))
            case "cut network":
                simulation.act(Cut(node, dice.choice(("others", "clients"))))
                later(lasts_ms, lambda: simulation.act(Heal()))
            case "slow network":
                simulation.act(Slow(node, "others", dice.choice((30, 150))))
                later(lasts_ms, lambda: simulation.act(Heal()))

    def _heal(self) -> None:
        self.simulation.act(Heal())
        if len(list(self.simulation.nodes_up())) < len(self.simulation.cluster.nodes):
            self.simulation.act(StartNode())
        self._start_dead()


def simulated(*, seeds: int = 20, nodes: int = 3) -> Callable[[SimulatedTest], Callable[[], None]]:
    """Run a test once for each seed. A failure says how to repeat its seed.

    @simulated(seeds=50)
    def test_every_payment_counts_once(sim): ...
    """

    def decorate(test: SimulatedTest) -> Callable[[], None]:
        # Not `functools.wraps`: pytest would look for a fixture `sim`.
        def run_seeds() -> None:
            only = os.environ.get(SEED_VARIABLE)
            for seed in [int(only)] if only else range(seeds):
                _run_seed(test, seed, nodes)

        run_seeds.__name__, run_seeds.__qualname__ = test.__name__, test.__qualname__
        run_seeds.__module__, run_seeds.__doc__ = test.__module__, test.__doc__
        return run_seeds

    return decorate


def _run_seed(test: SimulatedTest, seed: int, nodes: int) -> None:
    sim = SimulatedCluster(seed, nodes)
    try:
        test(sim)
    except Exception as failure:
        where = f"{os.path.relpath(inspect.getfile(test))}::{test.__name__}"
        lines = "\n".join(sim.story()[-STORY_SHOWN:])
        failure.add_note(
            f"It failed with seed {seed}. The last lines of its story:\n{lines}\n"
            f"Repeat it with: {SEED_VARIABLE}={seed} pytest {where}"
        )
        raise


def _text(data: str | bytes) -> str:
    return data.decode() if isinstance(data, bytes) else data
