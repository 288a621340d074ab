"""Lessons about work queues: share groups, their locks, delivery counts and number of workers."""

from __future__ import annotations

from typing import Final

from millpond.sim.simulator.actions import (
    AddConsumer,
    AddShareConsumer,
    CrashConsumer,
    CreateTopic,
    Produce,
    SetGroupConfig,
    StopConsumer,
)
from millpond.sim.simulator.lessons.lesson import Lesson

LESSONS: Final = (
    Lesson(
        name="forty-workers",
        title="Forty workers on one partition",
        about=(
            "A topic has one partition, and each job takes 100 ms. Four consumers of a consumer group want to work "
            "on eighty jobs."
        ),
        question="How many of them have work? Would forty workers of a share group be idle, too?",
        answer=(
            "One of four: the partition has a single owner in a consumer group. In a share group each record goes to "
            "one worker, so all forty work on the partition at once, and the eighty jobs are done before the "
            "consumer group has finished its first twenty."
        ),
        claims=(
            "Any number of workers of a share group share one partition: each record goes to one of them.",
            "Workers can be added to a queue without adding partitions.",
            "Both kinds of group read the same topic, independently.",
        ),
        before=(
            CreateTopic(partitions=1),
            SetGroupConfig("queue", "share.auto.offset.reset", "earliest"),
            300,
            *(AddConsumer(f"reader-{number}", "readers", work_ms=100) for number in range(1, 5)),
            1500,
            Produce(count=80, value="job "),
            1000,
        ),
        after=(AddShareConsumer("worker", 40, "queue", work_ms=100), 3000),
    ),
    Lesson(
        name="lock-too-short",
        title="The visibility timeout is too short",
        about=(
            "A worker holds a record for 1 s (share.record.lock.duration.ms). The slow worker needs 1.5 s for a job. "
            "A quicker one, with 0.8 s, joins meanwhile."
        ),
        question="How often is the job done, and by whom?",
        answer=(
            "Twice. After 1 s the lock of the slow worker expires, and the quicker one receives the job as "
            "delivery 2. The slow one finishes it all the same, and its acknowledgement is refused. Then it is "
            "started again and renews its locks while it works: the second job is done once."
        ),
        claims=(
            "A record is locked for a limited time; when the lock expires, another worker receives the record.",
            "A lock that is shorter than the work makes duplicates, although no one has failed.",
            "The acknowledgement of a worker that has lost its lock is refused: the record belongs to another one.",
            "A worker that renews its locks keeps a record for as long as it needs.",
        ),
        before=(
            CreateTopic(partitions=1),
            SetGroupConfig("queue", "share.auto.offset.reset", "earliest"),
            SetGroupConfig("queue", "share.record.lock.duration.ms", "1000"),
            300,
            AddShareConsumer("slow", group="queue", work_ms=1500),
            1000,
            Produce(value="job 1"),
            300,
            AddShareConsumer("quick", group="queue", work_ms=800),
            500,
        ),
        after=(
            1500,
            StopConsumer("slow"),
            StopConsumer("quick"),
            500,
            AddShareConsumer("slow", group="queue", work_ms=1500, renews=True),
            1000,
            Produce(value="job 2"),
            300,
            AddShareConsumer("quick", group="queue", work_ms=800),
            2500,
        ),
    ),
    Lesson(
        name="poison-job",
        title="A poison message in a queue",
        about=(
            "Two workers share a queue. One job makes every worker fail, and is released each time. The group allows "
            "3 deliveries (share.delivery.count.limit)."
        ),
        question="What becomes of the poison, and of its neighbours in the partition?",
        answer=(
            "The neighbours go on: a record of a queue holds up nothing but the worker that has it. The poison is "
            "delivered three times, then it is archived, and no worker receives it again. Only the log still has it, "
            "until retention deletes it."
        ),
        claims=(
            "A record that is released is delivered again, to any worker, and its delivery count rises.",
            "In a queue a poison message does not block its partition: other workers finish its neighbours.",
            "After as many deliveries as the group allows a record is archived: no worker receives it again.",
        ),
        before=(
            CreateTopic(partitions=1),
            SetGroupConfig("queue", "share.auto.offset.reset", "earliest"),
            SetGroupConfig("queue", "share.delivery.count.limit", "3"),
            300,
            AddShareConsumer("worker", 2, "queue", work_ms=200),
            1000,
            Produce(value="before"),
            Produce(value="poison"),
            Produce(count=6, value="after "),
            100,
        ),
        after=(3000,),
    ),
    Lesson(
        name="worker-dies",
        title="A worker dies with a job in its hands",
        about="Two workers share a queue. One of them is killed after its work, before its acknowledgement.",
        question="Is the job lost, and how long does it wait?",
        answer=(
            "It is not lost: the leader sees the connection close, releases what the worker held, and the other one "
            "receives it as delivery 2. The work is done a second time. That is at least once: make jobs idempotent."
        ),
        claims=(
            "A queue delivers at least once: a worker that dies before its acknowledgement leaves a job that runs "
            "again.",
            "Records of a worker whose connection closes are released at once, without waiting for their locks.",
        ),
        before=(
            CreateTopic(partitions=1),
            SetGroupConfig("queue", "share.auto.offset.reset", "earliest"),
            SetGroupConfig("queue", "share.record.lock.duration.ms", "30000"),
            300,
            AddShareConsumer("worker", 2, "queue", work_ms=300),
            1000,
            CrashConsumer("worker-1", between=True),
            Produce(count=2, value="job "),
            200,
        ),
        after=(2000,),
    ),
)
