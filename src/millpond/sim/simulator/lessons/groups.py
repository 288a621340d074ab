"""Lessons about consumer groups: sharing, rebalancing, lag."""

from __future__ import annotations

from typing import Final

from millpond.sim.simulator.actions import (
    AddConsumer,
    AddPartitions,
    CrashConsumer,
    CreateTopic,
    Produce,
    ResetOffsets,
    StopConsumer,
)
from millpond.sim.simulator.lessons.lesson import Lesson, Steps

TEN: Final[Steps] = tuple(AddConsumer(f"worker-{number}", "workers", protocol="eager") for number in range(1, 11))


def _crew(protocol: str, *, is_static: bool = False, work_ms: int = 5) -> Steps:
    return tuple(
        AddConsumer(f"worker-{number}", "workers", protocol=protocol, is_static=is_static, work_ms=work_ms)
        for number in range(1, 4)
    )


LESSONS: Final = (
    Lesson(
        name="idle-consumers",
        title="Six partitions, ten consumers",
        about="A topic has six partitions. Ten consumers of one group want to read it.",
        question="How many of them have work, and what would give the others some?",
        answer=(
            "Six: a partition has exactly one owner in a group. The other four idle until the topic has more "
            "partitions, which is what happens next."
        ),
        claims=(
            "A partition has exactly one consumer of a group; further consumers are idle (six partitions, ten "
            "consumers).",
            "The number of partitions is the limit of a group's parallel work: add partitions to raise it.",
        ),
        before=(CreateTopic(partitions=6), 300, *TEN, 5000),
        after=(AddPartitions(partitions=10), 6000),
    ),
    Lesson(
        name="two-groups",
        title="A second group reads everything from the beginning",
        about="Orders are read by billing. Then analytics comes, a new group.",
        question="What does analytics see of the records that billing has read and committed already?",
        answer=(
            "All of them. Reading deletes nothing: each group has its own offsets, and a new one begins at the "
            "start. Within a group every record goes to one consumer; of several groups each gets all."
        ),
        claims=(
            "Reading does not delete: a record is there for every group.",
            "Groups have their own offsets and read the same log independently (publish and subscribe).",
            "Within a group each record goes to one consumer (a work queue): both patterns are one mechanism.",
            "A new group begins at the start of what is kept.",
        ),
        before=(
            CreateTopic(),
            300,
            AddConsumer("billing-1", "billing"),
            AddConsumer("billing-2", "billing"),
            2000,
            Produce(count=12, every_ms=10),
            1000,
        ),
        after=(AddConsumer("analytics-1", "analytics"), 1500),
    ),
    Lesson(
        name="slow-group",
        title="A slow consumer is its own problem",
        about="Two groups read the same topic. One of them needs 80 ms for each record.",
        question="Does the slow group hold up the producer or the other group?",
        answer=(
            "Neither. Consumers pull: each takes as much as it can work on. The slow group's lag grows, in the "
            "log, where there is room; the quick one is at the end all the time."
        ),
        claims=(
            "Consumers pull at their own pace; a slow one does not slow the others down.",
            "One event feeds many services; none of them can starve another.",
        ),
        before=(
            CreateTopic(),
            300,
            AddConsumer("quick-1", "quick"),
            AddConsumer("slow-1", "slow", work_ms=80),
            1500,
        ),
        after=(Produce(count=60, every_ms=10), 1500),
    ),
    Lesson(
        name="lag",
        title="Lag: how far behind a group is",
        about=(
            "A burst of records comes faster than one consumer can work. The lag of its group is the end less its "
            "offset."
        ),
        question="What happens to the lag when a second and a third consumer come?",
        answer="It falls faster: the partitions are assigned again. At the end it is zero, and nothing was lost.",
        claims=(
            "Lag is the end offset less the committed offset, by partition: how much a group has yet to do.",
            "A burst becomes lag in the log, not an overload of consumers; they work it off at their own pace.",
            "More consumers, up to the number of partitions, work off lag faster.",
        ),
        before=(
            CreateTopic(),
            300,
            AddConsumer("worker-1", "workers", work_ms=30),
            1000,
            Produce(count=90, every_ms=2),
            1000,
        ),
        after=(
            AddConsumer("worker-2", "workers", work_ms=30),
            AddConsumer("worker-3", "workers", work_ms=30),
            4000,
        ),
    ),
    Lesson(
        name="consumer-away",
        title="The consumer is down, and nothing is lost",
        about="The mail service reads orders. It is killed, and orders keep coming.",
        question="Is any order refused or lost? What does the mail service do when it is back?",
        answer=(
            "None. The producer knows nothing of consumers: it appends and goes on. The records wait in the log, "
            "and the service goes on from its committed offset."
        ),
        claims=(
            "Producer and consumer are decoupled: one may be down or slow without the other's noticing.",
            "Committed offsets are kept by the group's coordinator, in a separate log: a consumer that "
            "returns continues there.",
        ),
        before=(
            CreateTopic(),
            300,
            AddConsumer("mail-1", "mail"),
            1500,
            Produce(count=6, every_ms=10),
            600,
            CrashConsumer("mail-1"),
            Produce(count=12, every_ms=30),
            1000,
        ),
        after=(AddConsumer("mail-1", "mail"), 4000),
    ),
    Lesson(
        name="replay",
        title="Replay is a smaller number",
        about="A group has read everything, with a bug. The bug is fixed, and the group is stopped.",
        question="How can it work on the old records again?",
        answer=(
            "Its committed offsets are set back to the beginning. That is all: the records are still there, and "
            "the group goes on from the smaller number."
        ),
        claims=(
            "A group can go back: replay is setting its offset to a smaller one.",
            "Retention keeps records after they are read, so that history can be worked on again.",
        ),
        before=(
            CreateTopic(),
            300,
            AddConsumer("index-1", "index"),
            1500,
            Produce(count=9),
            1000,
            StopConsumer("index-1"),
            1000,
        ),
        after=(ResetOffsets("index"), 300, AddConsumer("index-1", "index"), 2500),
    ),
    Lesson(
        name="eager",
        title="Eager rebalance: everybody stops",
        about="Two consumers share six partitions by the eager protocol. A third one joins.",
        question="Which partitions have no owner for a moment?",
        answer=(
            "All of them: every member gives up everything, the partitions are assigned again, and every member "
            "begins again. That is the pause that a deploy shows as a saw in latency."
        ),
        claims=(
            "When a member joins or leaves, the partitions are assigned again.",
            "In the eager protocol all members stop and give up everything for every change.",
        ),
        before=(CreateTopic(partitions=6), 300, *_crew("eager")[:2], 3000),
        after=(*_crew("eager")[2:], 3000),
    ),
    Lesson(
        name="cooperative",
        title="Cooperative rebalance: only what moves",
        about="The same with the cooperative protocol: two consumers, six partitions, a third one joins.",
        question="Which partitions change hands, and who goes on working meanwhile?",
        answer=(
            "Two partitions, one of each old member. They are given up in a first round and given out in a second "
            "one; all others are worked on without a pause."
        ),
        claims=("The cooperative protocol moves only the partitions that must move; the others are never stopped.",),
        before=(CreateTopic(partitions=6), 300, *_crew("cooperative")[:2], 3000),
        after=(*_crew("cooperative")[2:], 3000),
    ),
    Lesson(
        name="kip-848",
        title="The new protocol: the coordinator shares out",
        about="The same with the new protocol (KIP-848): no member leads, heartbeats tell each what it shall have.",
        question="Is there a moment in which the whole group waits?",
        answer=(
            "No. The coordinator decides once; each member lets go of what it shall not have, and the next one "
            "gets it, each at its own heartbeat."
        ),
        claims=(
            "With the new protocol (KIP-848) members are moved one by one, and the group as a whole never waits.",
        ),
        before=(CreateTopic(partitions=6), 300, *_crew("consumer")[:2], 3000),
        after=(*_crew("consumer")[2:], 3000),
    ),
    Lesson(
        name="static-member",
        title="A static member restarts, and nothing moves",
        about=(
            "Three consumers with fixed names (static membership). One is killed and comes back within its session."
        ),
        question="How many rebalances does the restart cost?",
        answer=(
            "None. The coordinator knows the name, keeps the partitions for it, and hands them to the new "
            "process. The generation is the one of before."
        ),
        claims=("A static member that comes back within its session costs no rebalance.",),
        before=(CreateTopic(partitions=6), 300, *_crew("eager", is_static=True), 3000),
        after=(
            CrashConsumer("worker-2"),
            500,
            AddConsumer("worker-2", "workers", protocol="eager", is_static=True),
            2500,
        ),
    ),
    Lesson(
        name="rebalance-storm",
        title="A rebalance storm",
        about="One consumer of three flaps: it comes and goes, again and again, as under a nervous autoscaler.",
        question="What do the other two do while it flaps?",
        answer=(
            "They stop each time: every coming and going is a rebalance of the whole group in the eager protocol. "
            "The generation runs up, and the records wait."
        ),
        claims=("Members that come and go make a group rebalance more than it works (a rebalance storm).",),
        before=(CreateTopic(partitions=6), 300, *_crew("eager"), 3000),
        after=tuple(
            step
            for _ in range(3)
            for step in (
                StopConsumer("worker-3"),
                700,
                AddConsumer("worker-3", "workers", protocol="eager"),
                900,
            )
        ),
    ),
    Lesson(
        name="crashed-member",
        title="A member dies, another one goes on",
        about="Two consumers share a topic. One is killed; its group is not notified.",
        question="How does the group find out, and where does the other one go on?",
        answer=(
            "Its heartbeats are missing: after its session (here 1.5 s) the coordinator takes it out, and the "
            "other one gets its partitions and goes on at the committed offset. Offsets are the group's, not the "
            "consumer's."
        ),
        claims=(
            "A crashed member is found by its missing heartbeats.",
            "The new owner of a partition goes on at the offset that the group has committed; nothing is lost.",
        ),
        before=(
            CreateTopic(partitions=4),
            300,
            AddConsumer("worker-1", "workers"),
            AddConsumer("worker-2", "workers"),
            2500,
            Produce(count=40, every_ms=50),
            600,
        ),
        after=(CrashConsumer("worker-1"), 4000),
    ),
)
