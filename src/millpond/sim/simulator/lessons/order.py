"""Lessons about keys, partitions and order."""

from __future__ import annotations

from typing import Final

from millpond.sim.simulator.actions import AddConsumer, AddPartitions, CreateTopic, Produce
from millpond.sim.simulator.lessons.lesson import Lesson

LESSONS: Final = (
    Lesson(
        name="keys",
        title="A key chooses the partition",
        about="A topic of three partitions. Records with three keys are sent, then records without a key.",
        question="Where does each record go, and which of them are in order?",
        answer=(
            "The hash of the key chooses the partition: all records of one key are in one partition, one behind the "
            "other. Records without a key go round by turns."
        ),
        claims=(
            "A record with a key goes to the partition that the hash of its key chooses; the same key, the same "
            "partition.",
            "Records without a key are spread over the partitions by turns.",
            "Each record gets the next offset of its partition; records are only ever appended.",
        ),
        before=(CreateTopic(), 300, Produce(count=3, keys=("ann",)), 200),
        after=(
            Produce(count=12, keys=("ann", "bob", "cem"), every_ms=20),
            500,
            Produce(topic="orders", count=6, value="n", every_ms=20),
            500,
        ),
    ),
    Lesson(
        name="a1-b1-a2",
        title="A1, B1, A2: order is promised within a partition only",
        about=(
            "Customer A sends A1, then customer B sends B1, then A sends A2. A and B are in different partitions, "
            "each read by its own consumer; the one that reads A's is slow."
        ),
        question="In which order are the three worked on?",
        answer=(
            "A1 always comes before A2. B1 may come before, between or after them: here it is done first, though "
            "it was sent second. Nothing in the system decides that."
        ),
        claims=(
            "Order is guaranteed within a partition, and nowhere else.",
            "All events of one key are handled in the order in which they were sent; those of other keys may "
            "interleave.",
        ),
        before=(
            CreateTopic(partitions=2),
            300,
            AddConsumer("reader-1", "readers", poll_max=1),
            800,
            AddConsumer("reader-2", "readers", work_ms=300, poll_max=1),
            2500,
        ),
        after=(
            Produce(keys=("customer-A",), value="A1"),
            10,
            Produce(keys=("customer-B",), value="B1"),
            10,
            Produce(keys=("customer-A",), value="A2"),
            2000,
        ),
    ),
    Lesson(
        name="total-order",
        title="One order for everything costs all parallelism",
        about="The same as one partition: every record is in one order. Two consumers are ready to read it.",
        question="How many of the two consumers have work?",
        answer="One. A single partition is the only way to one order for all records, and it has a single reader.",
        claims=(
            "A total order over a topic needs a single partition, and so a single consumer.",
            "Parallel work and order are bought from each other: the key draws the line.",
        ),
        before=(
            CreateTopic(partitions=1),
            300,
            AddConsumer("reader-1", "readers"),
            AddConsumer("reader-2", "readers"),
            1500,
        ),
        after=(Produce(count=12, keys=("ann", "bob", "cem"), every_ms=20), 1200),
    ),
    Lesson(
        name="more-partitions",
        title="More partitions, and keys that move",
        about=(
            "Six keys fill a topic of three partitions. Then the topic gets six partitions, and the same keys go on."
        ),
        question="Do new records of a key follow its old ones?",
        answer=(
            "Not always: the hash is taken by another number of partitions, so that some keys go elsewhere from "
            "now on. Their old records stay where they are, and a reader of the new partition may be ahead of "
            "them."
        ),
        claims=(
            "Another number of partitions moves keys: records of one key are then in two partitions, without an "
            "order.",
            "Throughput is bought by more partitions.",
        ),
        before=(CreateTopic(), 300, Produce(count=12, keys=("ann", "bob", "cem", "dan", "eva", "fay")), 500),
        after=(
            AddPartitions(partitions=6),
            800,
            Produce(count=12, keys=("ann", "bob", "cem", "dan", "eva", "fay"), value="new"),
            800,
        ),
    ),
    Lesson(
        name="hot-merchant",
        title="The hot merchant, and salt",
        about=(
            "Orders are keyed by merchant. One giant merchant sends most of them: its partition is full while the "
            "others idle."
        ),
        question="What helps: more consumers, more partitions, or another key?",
        answer=(
            "Another key. One key is in one partition, however many there are. With a number behind the key "
            "(salt) the merchant's orders spread over all partitions, and are in order only for each salted key."
        ),
        claims=(
            "A key that is much more frequent than others makes a hot partition, while the others idle.",
            "Salt behind a hot key spreads it over partitions; more consumers or partitions do not.",
        ),
        before=(
            CreateTopic(partitions=4),
            300,
            Produce(count=40, keys=("giant", "giant", "giant", "giant", "small"), every_ms=5),
            800,
        ),
        after=(
            CreateTopic("salted", partitions=4),
            300,
            Produce("salted", count=40, keys=("giant", "giant", "giant", "giant", "small"), every_ms=5, salt=8),
            800,
        ),
    ),
)
