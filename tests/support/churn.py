"""A group whose members join, leave, crash and stall while records are written; its node may crash as well."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from support.churn_check import KNOWN_TO_BE_LOST, findings, read_diary
from support.groups import describe, describe_consumer, fetch_offsets
from support.node import Node
from support.raw import Raw

WORKER = Path(__file__).parent / "churn_worker.py"
SESSION_MS = 2500
SETTLE_SECONDS = 60.0
RECORDS_PER_SECOND = 800

NODE_SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "100",
    "group.consumer.heartbeat.interval.ms": str(SESSION_MS // 10),
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "offsets.topic.num.partitions": "4",
}

MEMBER_EVENTS = ("join", "leave", "crash", "short stop", "long stop")
NODE_EVENTS = ("kill node",)
SHORT_STOP_SECONDS = SESSION_MS / 1000 / 5
LONG_STOP_SECONDS = SESSION_MS / 1000 * 1.6


@dataclass
class Plan:
    protocol: str
    seconds: float
    seed: int
    events: Sequence[str] = MEMBER_EVENTS
    pause_seconds: float = 0.8
    """Average time between two events."""
    events_min: int = 0
    """A slow machine takes longer instead of doing less."""
    partitions: int = 8
    members_min: int = 2
    members_max: int = 6


@dataclass
class Tally:
    """What happened in one run, and what was wrong."""

    protocol: str
    events: Counter[str] = field(default_factory=Counter)
    written: int = 0
    read: int = 0
    read_again: int = 0
    commits: int = 0
    commits_refused: int = 0
    generations: int = 0
    holdings: int = 0
    holdings_lost: int = 0
    findings: list[str] = field(default_factory=list)


class Load(threading.Thread):
    """Writes to all partitions in turn, at a steady pace, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(name="load")
        self.ends = dict.fromkeys(range(partitions), 0)
        self.failed: list[str] = []
        self._topic = topic
        self._over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        sent = 0
        began = time.monotonic()
        while not self._over.is_set():
            due = int((time.monotonic() - began) * RECORDS_PER_SECOND)
            while sent < due:
                partition = sent % len(self.ends)
                self._producer.produce(self._topic, b"%d" % sent, partition=partition, on_delivery=self._delivered)
                sent += 1
            self._producer.poll(0.01)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error.str())
        else:
            self.ends[message.partition()] = max(self.ends[message.partition()], message.offset() + 1)

    def stop(self) -> None:
        self._over.set()
        self.join()
        assert self._producer.flush(SETTLE_SECONDS) == 0, "records are left unwritten"
        assert not self.failed, self.failed[:3]


class Hand:
    """One worker process, and what was done to it."""

    def __init__(self, number: int, node: Node, group: str, topic: str, protocol: str, folder: Path) -> None:
        self.path = folder / f"worker-{number}.txt"
        self.stops_us: list[int] = []
        self.ended_us = 0
        self.resume_at: float | None = None
        words = [node.bootstrap, group, topic, protocol, str(SESSION_MS), str(self.path)]
        with (folder / f"worker-{number}.err").open("wb") as errors:
            self.process = subprocess.Popen([sys.executable, str(WORKER), *words], stderr=errors)

    def stop_for(self, seconds: float) -> None:
        self.stops_us.append(time.monotonic_ns() // 1000)
        self.process.send_signal(signal.SIGSTOP)
        self.resume_at = time.monotonic() + seconds

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.resume_at = None

    def leave(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def crash(self) -> None:
        # Taken before the kill, not after: another process may be faster than this one, and get the dead one's
        # partitions.
        self.ended_us = time.monotonic_ns() // 1000
        self.process.kill()
        self.process.wait()

    def await_end(self) -> None:
        """Wait for a worker that was asked to leave."""
        code = self.process.wait(SETTLE_SECONDS)
        self.ended_us = time.monotonic_ns() // 1000
        # A worker that had not started yet just exits.
        assert code == 0 or not self.path.exists(), (
            f"{self.path.stem} ended with {code}: {self.path.with_suffix('.err').read_text()[-2000:]}"
        )


class Campaign:
    """One group on one topic of a running node."""

    def __init__(self, node: Node, plan: Plan, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.node = node
        self.plan = plan
        self.name = name
        self.tally = Tally(plan.protocol)
        self._random = random.Random(plan.seed)
        self._folder = folder
        self._all: list[Hand] = []
        self._working: list[Hand] = []
        self._leaving: list[Hand] = []
        with Raw(node.port) as raw:
            raw.create_topic(name, plan.partitions)
        self._load = Load(node.bootstrap, name, plan.partitions)

    def run(self, progress: Callable[[Tally], None] = lambda _: None) -> Tally:
        try:
            for _ in range(self.plan.members_min + 1):
                self._join()
            self._load.start()
            deadline = time.monotonic() + self.plan.seconds
            deck: list[str] = []
            while time.monotonic() < deadline or self.tally.events.total() < self.plan.events_min:
                self._wait(self._random.uniform(0.5, 1.5) * self.plan.pause_seconds)
                deck = deck or self._random.sample(self.plan.events, len(self.plan.events))
                self._do(deck.pop())
                progress(self.tally)
            self._settle()
        finally:
            self._end_all()
        self._judge()
        return self.tally

    # Events.

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (now := time.monotonic()) < deadline:
            for hand in self._working:
                if hand.resume_at is not None and now >= hand.resume_at:
                    hand.resume()
            time.sleep(0.02)

    def _do(self, event: str) -> None:
        awake = [hand for hand in self._working if hand.resume_at is None]
        if event in ("leave", "crash", "short stop", "long stop") and len(awake) <= self.plan.members_min:
            event = "join"
        if event == "join" and len(self._working) >= self.plan.members_max:
            event = "leave"
        self.tally.events[event] += 1
        match event:
            case "join":
                self._join()
            case "leave":
                hand = self._random.choice(awake)
                self._working.remove(hand)
                self._leaving.append(hand)
                hand.leave()
            case "crash":
                hand = self._random.choice(awake)
                self._working.remove(hand)
                hand.crash()
            case "short stop":
                self._random.choice(awake).stop_for(SHORT_STOP_SECONDS)
            case "long stop":
                self._random.choice(awake).stop_for(LONG_STOP_SECONDS)
            case "kill node":
                self.node.restart(crash=True)

    def _join(self) -> None:
        hand = Hand(len(self._all), self.node, self.name, self.name, self.plan.protocol, self._folder)
        self._all.append(hand)
        self._working.append(hand)

    # Shutdown.

    def _settle(self) -> None:
        """Stop writing, and let the workers run until everything is committed and the group is complete."""
        for hand in self._working:
            if hand.resume_at is not None:
                hand.resume()
        self._load.stop()
        self.tally.written = sum(self._load.ends.values())
        wanted = {(self.name, partition): end for partition, end in self._load.ends.items() if end}
        deadline = time.monotonic() + SETTLE_SECONDS
        with Raw(self.node.port) as raw:
            while True:
                committed, whole = fetch_offsets(raw, self.name), self._is_whole(raw)
                if committed == wanted and whole:
                    return
                if time.monotonic() > deadline:
                    self.tally.findings.append(f"not done: committed {committed} of {wanted}, group whole: {whole}")
                    return
                time.sleep(0.05)

    def _is_whole(self, raw: Raw) -> bool:
        """The members are exactly the running workers."""
        ask = describe_consumer if self.plan.protocol == "consumer" else describe
        response = ask(raw, self.name)
        return response.group_state == "Stable" and len(response.members) == len(self._working)

    def _end_all(self) -> None:
        if self._load.is_alive():
            self._load.stop()
        try:
            for hand in self._working:
                hand.leave()
            for hand in self._leaving + self._working:
                hand.await_end()
        finally:
            for hand in self._all:
                if hand.process.poll() is None:
                    hand.crash()

    def _judge(self) -> None:
        diaries = [read_diary(hand.path, hand.ended_us, hand.stops_us) for hand in self._all]
        tally = self.tally
        recur = tally.events["kill node"] > 0 and self.plan.protocol != "consumer"
        tally.findings += findings(diaries, self._load.ends, generations_recur=recur)
        if tally.findings:
            base = Path(tempfile.gettempdir()) / f"millpond-churn-{self.plan.protocol}-{self.plan.seed}"
            kept = shutil.make_archive(str(base), "gztar", self._folder)
            stops = {hand.path.stem: (hand.stops_us, hand.ended_us) for hand in self._all}
            tally.findings.append(f"what the workers wrote is kept in {kept}; stops and ends: {stops}")
        tally.read = sum(read.last - read.first + 1 for diary in diaries for read in diary.reads)
        tally.read_again = tally.read - tally.written
        commits = [commit for diary in diaries for commit in diary.commits]
        tally.commits = len(commits)
        tally.commits_refused = sum(not commit.is_done for commit in commits)
        tally.generations = len({read.generation for diary in diaries for read in diary.reads})
        holdings = [holding for diary in diaries for holding in diary.holdings]
        tally.holdings = len(holdings)
        tally.holdings_lost = sum(holding.end == KNOWN_TO_BE_LOST for holding in holdings)
