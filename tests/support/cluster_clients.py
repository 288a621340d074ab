"""All clients of a cluster under test, and a check of the responses that they got.

Idempotent producers, groups of both protocols, a watch on their commits, and a transactional copy. Faults
(`cluster_campaign`) and operations (`operations`) on the cluster are separate.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millpond.testing.clients import Clients
from support.cluster_check import (
    CLASSES,
    UNTOLD,
    Findings,
    check_commits,
    check_copy,
    check_reads,
    check_topic,
    located,
)
from support.cluster_load import (
    AnyWriter,
    CommitWatch,
    ProcessReader,
    ProcessWriter,
    Reader,
    Writer,
    all_acks,
    commit_beginning,
    read_topic,
)
from support.exactly_once import GROUP, INPUT, NO_NUMBER, OUTPUT, PARTITIONS, Crew, Watcher, write_input
from support.exactly_once import Plan as CopyPlan
from support.silence_watch import SilenceWatch

TOPIC: Final = "numbers"
TOPIC_PARTITIONS: Final = 6
WRITERS: Final = 2
GROUPS: Final = {"classic-group": "cooperative-sticky", "consumer-group": "consumer"}
PROCESS_GROUPS: Final = {"java-classic-group": "classic", "java-consumer-group": "consumer"}
READERS_EACH: Final = 2
COPY_BATCH_RECORDS: Final = 5
"""Few, so that transactions are open throughout each fault."""

AGAIN_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 60.0

SETTINGS: Final = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "2000",
}


@dataclass
class Outcome:
    findings: Findings = field(default_factory=Findings)
    faults: Counter[str] = field(default_factory=Counter)
    silences: dict[str, list[float]] = field(default_factory=dict)
    """By kind of fault: seconds from its beginning until writes resumed after its end."""
    acked: int = 0
    unknown: int = 0
    """Writes whose outcome the producer does not know."""
    unknown_reasons: Counter[str] = field(default_factory=Counter)
    read: int = 0
    untold: int = 0
    """Acknowledged without an offset, see `cluster_check.UNTOLD`."""
    copied: int = 0
    seconds: float = 0.0


def summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A summary of the responses, and how often each guarantee was broken, as lines of a table."""
    counts = {
        "acknowledged writes": sum(each.acked for each in outcomes),
        "of these without an offset": sum(each.untold for each in outcomes),
        "of unknown outcome": sum(each.unknown for each in outcomes),
        "records read by groups": sum(each.read for each in outcomes),
        "copied in transactions": sum(each.copied for each in outcomes),
        **{kind: sum(each.findings.counts[kind] for each in outcomes) for kind in CLASSES},
        "seconds": round(sum(each.seconds for each in outcomes)),
    }
    yield from (f"{name:34}{count:12,}" for name, count in counts.items())
    for outcome in outcomes:
        for reason, count in outcome.unknown_reasons.items():
            yield f"unknown outcome, {count} times: {reason}"


@dataclass(frozen=True)
class Load:
    """What clients run in addition to two producers and two groups of librdkafka."""

    copies: int = 0
    """Records of a transactional copy."""
    copy_protocol: str = "cooperative-sticky"
    writers: Sequence[Sequence[str]] = ()
    """Programs of other client libraries; they get their topic as an argument."""
    readers: Sequence[str] = ()
    """A program whose groups read as well."""
    diaries: Path | None = None
    """A folder for the log files of the groups' client libraries."""


class ClusterClients:
    """Starts with `start`; `judge` returns the verdict, once the cluster is healthy again."""

    def __init__(self, cluster: Clients, folder: Path, load: Load) -> None:
        self.cluster = cluster
        self.outcome = Outcome()
        self._load = load
        cluster.create_topic(TOPIC, TOPIC_PARTITIONS)
        self._watcher: Watcher | None = None
        self._crew: Crew | None = None
        self.topics = [TOPIC]
        """Topics whose replicas must be in sync before the check; the first one has the numbers."""
        if load.copies:
            cluster.create_topic(INPUT, PARTITIONS)
            cluster.create_topic(OUTPUT, PARTITIONS)
            self.topics += [INPUT, OUTPUT, "__transaction_state"]
            write_input(cluster.bootstrap, load.copies)
            self._watcher = Watcher(cluster.bootstrap)
            copy_plan = CopyPlan(
                load.copies, 0, 0, workers=2, protocol=load.copy_protocol, batch_records=COPY_BATCH_RECORDS
            )
            self._crew = Crew(cluster, copy_plan, folder / "workers.txt")
        groups = GROUPS | (PROCESS_GROUPS if load.readers else {})
        for group in groups:
            commit_beginning(cluster.bootstrap, TOPIC, group, TOPIC_PARTITIONS)
        self.topics.append("__consumer_offsets")
        self._writers: list[AnyWriter] = [
            Writer(cluster.bootstrap, TOPIC, TOPIC_PARTITIONS, number) for number in range(WRITERS)
        ]
        for number, words in enumerate(load.writers, WRITERS):
            self._writers.append(ProcessWriter(words, cluster.bootstrap, TOPIC, TOPIC_PARTITIONS, number))
        self._readers = {
            group: [self._new_reader(group, protocol, number) for number in range(READERS_EACH)]
            for group, protocol in GROUPS.items()
        }
        self._latencies_taken: dict[Writer, int] = {}
        self._process_reader: ProcessReader | None = None
        if load.readers:
            self._process_reader = ProcessReader(
                load.readers, cluster.bootstrap, TOPIC, PROCESS_GROUPS, self.outcome.findings
            )
        self._silence = SilenceWatch(cluster.bootstrap, self._writers, TOPIC_PARTITIONS)
        self._watches = {group: CommitWatch(cluster.bootstrap, TOPIC, group, TOPIC_PARTITIONS) for group in groups}

    def _new_reader(self, group: str, protocol: str, number: int) -> Reader:
        diary = self._load.diaries / f"{group}-{number}.txt" if self._load.diaries else None
        return Reader(self.cluster.bootstrap, TOPIC, group, protocol, self.outcome.findings, diary=diary)

    def _threads(self) -> Iterator[AnyWriter | Reader | ProcessReader | CommitWatch | SilenceWatch]:
        yield from self._writers
        yield self._silence
        for readers in self._readers.values():
            yield from readers
        if self._process_reader is not None:
            yield self._process_reader
        yield from self._watches.values()

    def start(self) -> None:
        for thread in self._threads():
            thread.start()

    def stop(self) -> None:
        """Stop all of them, even if one fails: on a cluster that does not recover, some do not stop in time."""
        with ExitStack() as ends:
            if self._watcher is not None:
                ends.callback(self._watcher.stop)
            if self._crew is not None:
                ends.callback(self._crew.stop)
            for thread in self._threads():
                ends.callback(thread.stop)

    @property
    def acked(self) -> int:
        return sum(len(writer.acks) for writer in self._writers)

    def take_latencies(self) -> list[float]:
        """How long each record took to be acknowledged, in seconds, for those acknowledged since the last call."""
        taken: list[float] = []
        for writer in self._writers:
            if isinstance(writer, Writer):
                first = self._latencies_taken.get(writer, 0)
                newest = writer.latencies[first:]
                self._latencies_taken[writer] = first + len(newest)
                taken += newest
        return taken

    def wait_for_writes(self, story: Callable[[], str]) -> None:
        """Wait until every producer has an acknowledgement for a record that it sent after this call."""
        counts = [len(writer.acks) for writer in self._writers]
        # Records already in flight must not count: after this many, every partition has had its turn.
        wanted = [count + 2 * TOPIC_PARTITIONS for count in counts]
        deadline = time.monotonic() + AGAIN_SECONDS_MAX
        while any(len(writer.acks) < least for writer, least in zip(self._writers, wanted, strict=True)):
            if self._crew is not None:
                self._crew.replace_ended()
            stopped = [writer.failures[-1:] for writer in self._writers if not writer.is_alive()]
            assert not stopped, f"a producer may not go on: {stopped}"
            assert time.monotonic() < deadline, f"writes do not go on\n{story()}"
            time.sleep(0.005)

    def judge(self) -> None:
        """Stop writing, read everything, and check the guarantees."""
        self._silence.stop()
        for writer in self._writers:
            writer.stop()
        outcome, findings = self.outcome, self.outcome.findings
        acks = all_acks(self._writers)
        outcome.acked = len(acks)
        outcome.unknown = sum(len(writer.failures) for writer in self._writers)
        outcome.unknown_reasons = Counter(reason for writer in self._writers for reason in writer.failures)
        log = read_topic(self.cluster.bootstrap, TOPIC, TOPIC_PARTITIONS)
        outcome.untold = sum(ack.offset == UNTOLD for ack in acks)
        acks = located(acks, log)
        check_topic(acks, log, findings)
        ends = {(index, records[-1][0]) for index, records in log.items() if records}
        self._until(
            lambda: all(ends <= self._read_by(group) for group in self._watches), "the groups read to the end"
        )
        for group in self._watches:
            read = self._read_by(group)
            outcome.read += len(read)
            check_reads(group, acks, read, findings)
            check_commits(group, self._watches[group].commits, findings)
        if self._watcher is not None and self._crew is not None:
            self._judge_copy(self._watcher, self._crew)

    def _judge_copy(self, watcher: Watcher, crew: Crew) -> None:
        def is_copied() -> bool:
            crew.replace_ended()
            return watcher.count >= self._load.copies

        self._until(is_copied, f"the copy of {GROUP} is whole", lambda: watcher.count)
        # Gives a duplicate record time to arrive.
        time.sleep(0.5)
        self.outcome.copied = watcher.count
        check_copy(self._load.copies, watcher.seen, NO_NUMBER, self.outcome.findings)

    def _read_by(self, group: str) -> set[tuple[int, int]]:
        if self._process_reader is not None and group in PROCESS_GROUPS:
            return set(self._process_reader.read[group])
        return {each for reader in self._readers[group] for each in list(reader.read)}

    def _until(self, condition: Callable[[], bool], what: str, progress: Callable[[], int] = lambda: 0) -> None:
        """Wait for a condition, as long as there is progress towards it."""
        deadline, last = time.monotonic() + END_SECONDS_MAX, 0
        while not condition():
            if (now := progress()) != last:
                deadline, last = time.monotonic() + END_SECONDS_MAX, now
            if time.monotonic() > deadline:
                # The checker reports what is missing.
                print(f"it did not come true that {what}", flush=True)
                for group in (*self._watches, GROUP):
                    print(_told("group", "describe", group, "-b", self.cluster.bootstrap), flush=True)
                print(_told("cluster", "status", "-b", self.cluster.bootstrap), flush=True)
                if self._crew is not None:
                    print(_told("txn", "list", "-b", self.cluster.bootstrap), self._crew.journal(), flush=True)
                if self._process_reader is not None:
                    print(*self._process_reader.ended, sep="\n", flush=True)
                return
            time.sleep(0.05)


def _told(*words: str) -> str:
    """The output of the command line."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from millpond.cli import main; sys.exit(main())", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr
