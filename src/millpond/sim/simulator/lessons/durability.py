"""Lessons about what acknowledged means: acks, replicas, elections, disks."""

from __future__ import annotations

from typing import Final

from millpond.sim.simulator.actions import (
    AddConsumer,
    CreateTopic,
    Cut,
    Elect,
    Heal,
    Produce,
    Slow,
    StartNode,
    StopNode,
)
from millpond.sim.simulator.lessons.lesson import Lesson

LESSONS: Final = (
    Lesson(
        name="acks-0",
        title="acks=0: no acknowledgement",
        about="A producer sends with acks=0. The network between it and the leader is cut, and it keeps sending.",
        question="What does the producer know of the records that it sent into the cut?",
        answer=(
            "Nothing. It gets no response when they arrive, and none when they do not: when the leader is "
            "killed they are gone, and the producer has gone on long ago."
        ),
        claims=("With acks=0 a producer sends and forgets: a lost connection loses records silently.",),
        before=(
            CreateTopic(partitions=1),
            300,
            Produce(count=2, acks="0", value="heard "),
            300,
            Cut("leader", "producer"),
            Produce(count=3, acks="0", value="lost "),
            200,
        ),
        after=(StopNode("leader"), 2500, Heal(), 500),
    ),
    Lesson(
        name="acks-1",
        title="acks=1: the loss window",
        about=(
            "The leader acknowledges as soon as it has the record itself. Its followers are a slow way off, and "
            "have not fetched it yet."
        ),
        question="The leader dies now, after the acknowledgement. Where is the record?",
        answer=(
            "Gone. A follower that never saw it leads from now on. The producer got an acknowledgement, and "
            "never finds out that it is not."
        ),
        claims=(
            "With acks=1 a record that was acknowledged is lost when the leader dies before a follower has "
            "fetched it.",
            "The producer cannot learn of that: its record was acknowledged.",
        ),
        before=(
            CreateTopic(partitions=1),
            500,
            Produce(count=3, acks="1", value="safe "),
            500,
            Slow("leader", "others", 150),
            400,
            Produce(count=2, acks="1", value="window "),
            30,
        ),
        after=(StopNode("leader", power=True), 200, Heal(), 5000),
    ),
    Lesson(
        name="acks-all",
        title="acks=all: the same crash, and nothing is lost",
        about="The same slow followers and the same crash, but the producer asks for acks=all.",
        question="What was the producer told by the time of the crash, and what is there afterwards?",
        answer=(
            "It has no response yet: the leader waits until every replica in sync has the record. The producer "
            "sends again, to the new leader, and every record is there once."
        ),
        claims=(
            "With acks=all a record is acknowledged once every replica in sync has it: it survives the loss of "
            "any one node.",
            "A producer with acks=all and retries goes through the loss of a leader without losing a record.",
        ),
        before=(
            CreateTopic(partitions=1),
            500,
            Produce(count=3, value="safe "),
            500,
            Slow("leader", "others", 150),
            400,
            Produce(count=2, value="window "),
            30,
        ),
        after=(StopNode("leader", power=True), 200, Heal(), 6000),
    ),
    Lesson(
        name="min-insync",
        title="min.insync.replicas: rather no than alone",
        about=(
            "Five nodes; a topic with three replicas and min.insync.replicas=2. First one of the two followers is "
            "killed, then the other."
        ),
        question="Does the leader take writes with acks=all when it is the only one in sync?",
        answer=(
            "No. It refuses (NOT_ENOUGH_REPLICAS) until another replica is in sync again, and the producer keeps "
            "trying. With min.insync.replicas=1 it would acknowledge what only one disk has."
        ),
        claims=(
            "min.insync.replicas says how many must have a record before acks=all is acknowledged; with fewer in "
            "sync, writes are refused.",
        ),
        before=(
            CreateTopic(partitions=1, min_insync=2),
            500,
            Produce(count=2, value="three "),
            500,
            StopNode("follower"),
            2500,
            Produce(count=2, value="two "),
            500,
            StopNode("follower"),
            2500,
            Produce(count=2, value="alone "),
            600,
        ),
        after=(1500, StartNode(), 6000),
        nodes=5,
    ),
    Lesson(
        name="high-watermark",
        title="Readers see no further than the high watermark",
        about=(
            "The followers are slow. A record is in the leader's log at once, and in the followers' a moment later."
        ),
        question="When may a consumer read it?",
        answer=(
            "When every replica in sync has it, and the leader has moved the high watermark over it. What a "
            "failover could take back is never shown."
        ),
        claims=(
            "A record is committed once every replica in sync has it; the high watermark says up to where that is.",
            "Consumers never see records that are not committed yet.",
            "Followers fetch from the leader, and say by that how far they are.",
        ),
        before=(
            CreateTopic(partitions=1),
            300,
            AddConsumer("reader-1", "readers"),
            1500,
            Slow("leader", "others", 120),
            400,
            Produce(count=2, acks="1"),
            60,
        ),
        after=(1500,),
    ),
    Lesson(
        name="failover",
        title="A leader dies, a follower takes over",
        about=(
            "Records come in all the time with acks=all, and a consumer reads them. The leader's machine loses "
            "its power."
        ),
        question="Who leads then, how long does it take, and what is lost?",
        answer=(
            "A replica in sync, within some two seconds: every one of them has everything that was acknowledged, "
            "so nothing is lost. Clients ask who leads, and go on. When the node is back it copies what it "
            "missed, and is in sync again."
        ),
        claims=(
            "When a leader dies the controller chooses another one from the replicas in sync, and nothing "
            "acknowledged is lost.",
            "Clients get errors, look up the new leader, and retry; it takes seconds.",
            "A node that comes back copies what it missed, and joins the replicas in sync again.",
            "A dead follower leaves the replicas in sync, and the others go on.",
        ),
        before=(
            CreateTopic(partitions=1),
            300,
            AddConsumer("reader-1", "readers"),
            1500,
            Produce(count=60, every_ms=80),
            600,
        ),
        after=(StopNode("leader", power=True), 4500, StartNode(), 6000),
    ),
    Lesson(
        name="controller",
        title="The controller dies, and data flow on",
        about=(
            "Records are written to partitions of all three nodes, two replicas each. One of the nodes is the "
            "controller as well, and is killed."
        ),
        question="Do producers have to wait for a new controller?",
        answer=(
            "Only where the dead node had a replica: other partitions are served without asking the controller. The "
            "quorum elects another one from the majority that is left; then leaders are changed, and topics can be "
            "made again."
        ),
        claims=(
            "A small quorum keeps the metadata and elects the controller; a majority of it must be there.",
            "The controller is not on the way of data: it acts when nodes come and go.",
        ),
        before=(
            CreateTopic(partitions=6, replication=2),
            800,
            Produce(count=12, keys=("ann", "bob", "cem", "dan"), every_ms=20),
            600,
        ),
        after=(
            StopNode("controller"),
            Produce(count=30, keys=("ann", "bob", "cem", "dan"), every_ms=50),
            3500,
            CreateTopic("afterwards", partitions=1),
            1500,
        ),
    ),
    Lesson(
        name="clean-wait",
        title="The last replica in sync is gone: wait",
        about=(
            "Two replicas. The follower is killed; the leader takes more records alone, then it dies too. The "
            "follower comes back, without these records."
        ),
        question="May the follower lead?",
        answer=(
            "No. There is no leader until the replica with all records is back: the partition is out of reach, and "
            "nothing is lost. That is the default."
        ),
        claims=(
            "While the only replica with all records is away, the partition waits for it by default; nothing is "
            "lost.",
        ),
        before=(
            CreateTopic(partitions=1, replication=2),
            500,
            Produce(count=2, value="both "),
            500,
            StopNode("follower"),
            2500,
            Produce(count=3, value="alone "),
            600,
            StopNode("leader"),
            200,
            StartNode("first"),
            500,
        ),
        after=(5000, StartNode(), 6000),
    ),
    Lesson(
        name="unclean-election",
        title="Unclean election: a leader, and records less",
        about="The same, but an operator decides that a partition without its last records is better than none.",
        question="What does the election cost?",
        answer=(
            "The records that only the dead leader had: acknowledged, and gone for ever. When it comes back it "
            "cuts its own log to what the new leader has."
        ),
        claims=(
            "An unclean election lets a replica lead that lacks records: the partition is back, and acknowledged "
            "records are lost.",
        ),
        before=(
            CreateTopic(partitions=1, replication=2),
            500,
            Produce(count=2, value="both "),
            500,
            StopNode("follower"),
            2500,
            Produce(count=3, value="alone "),
            600,
            StopNode("leader"),
            200,
            StartNode("first"),
            4000,
        ),
        after=(Elect(), 2500, StartNode(), 4000),
    ),
    Lesson(
        name="cut-off-leader",
        title="A leader that is cut off",
        about=(
            "The network between the leader and the other nodes is cut; the producer reaches all of them. "
            "min.insync.replicas=2."
        ),
        question="The old leader still thinks that it leads. Can it acknowledge anything?",
        answer=(
            "No: it has nobody in sync to wait for. The others elect a new leader after its session; the producer "
            "goes there. When the network is back the old one cuts off what it had taken in, and follows."
        ),
        claims=(
            "A leader that is cut off cannot acknowledge what others do not have; another one is elected.",
            "Records that only a deposed leader has are truncated when it comes back.",
        ),
        before=(
            CreateTopic(partitions=1, min_insync=2),
            500,
            Produce(count=2, value="before "),
            500,
            Cut("leader", "others"),
            Produce(count=3, value="during "),
            500,
        ),
        after=(5000, Heal(), 4000),
    ),
    Lesson(
        name="power-loss",
        title="The page cache, and the power",
        about=(
            "One replica, acks=1: the leader acknowledges when the record is in the page cache. First the process "
            "is killed, then, after more records, the machine loses its power."
        ),
        question="Which of the two takes acknowledged records?",
        answer=(
            "The power. The page cache belongs to the machine: it outlives the process, but not the power. With "
            "acks=all and one replica the record is on the disk before it is acknowledged; with several, other "
            "machines have it."
        ),
        claims=(
            "A write is acknowledged from the page cache with acks=1: it outlives the process and not the power.",
            "Replicas on other machines, or a sync before the acknowledgement, are what makes a write durable.",
        ),
        before=(
            CreateTopic(partitions=1, replication=1),
            500,
            Produce(count=3, acks="1", value="first "),
            60,
            StopNode("leader"),
            300,
            StartNode(),
            4000,
        ),
        after=(
            Produce(count=6, acks="1", value="cached ", every_ms=10),
            120,
            StopNode("leader", power=True),
            300,
            StartNode(),
            5000,
        ),
    ),
    Lesson(
        name="back-pressure",
        title="Back-pressure: the buffer is full",
        about="A producer with a small buffer sends quickly. Then the way to the leader becomes very slow.",
        question="Where do records pile up, and what does the sending program notice?",
        answer=(
            "In the producer's buffer; when that is full, sending blocks. The broker is never flooded, and "
            "nothing is lost: the program has to slow down, or to drop what is worth least."
        ),
        claims=("Back-pressure reaches producers as a buffer that fills, and then as sends that block.",),
        before=(
            CreateTopic(partitions=1),
            300,
            Produce(count=20, every_ms=5, buffer=20),
            500,
            Slow("leader", "producer", 300),
            100,
        ),
        after=(Produce(count=120, every_ms=5, buffer=20), 1500, Heal(), 3000),
    ),
)
