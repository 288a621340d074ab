"""Empty a queue: its group continues at the end, and the records stay in the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millpond.admin.errors import Leaderless, Refused
from millpond.admin.groups import describe_share_group, refuse_if_active
from millpond.admin.offsets import bounds_of
from millpond.admin.queues.find import read_queue
from millpond.admin.queues.queue import QueueName
from millpond.admin.queues.watch import QueueWatch
from millpond.admin.topics import find_topic, led_partitions
from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.errors import check
from millpond.wire import messages as m


@dataclass(frozen=True, slots=True)
class QueuePurge:
    name: QueueName
    ends: Mapping[TopicPartition, int]
    """Where the group will continue; later records are not affected."""
    records: int
    """Unfinished records that it will not receive."""


def plan_purge(cluster: Cluster, name: QueueName) -> QueuePurge:
    """Refused while the group has members, as Kafka does: they would finish records that it has skipped."""
    _refuse_members(cluster, name)
    queue = read_queue(QueueWatch(cluster, [name.group], dead_seconds=0), name)
    info = find_topic(cluster, name.topic)
    led = led_partitions([info])
    if len(led) < len(info.partitions):
        raise Leaderless(f"{len(info.partitions) - len(led)} partitions of {name.topic} have no leader: try again.")
    ends = {each: bound.end for each, bound in bounds_of(cluster, led).items()}
    return QueuePurge(name, ends, queue.unfinished)


def apply_purge(cluster: Cluster, plan: QueuePurge) -> None:
    """Apply exactly this plan."""
    kind = m.AlterShareGroupOffsetsRequest
    partitions = [
        kind.AlterShareGroupOffsetsRequestPartition(partition_index=each.partition, start_offset=end)
        for each, end in sorted(plan.ends.items())
    ]
    topic = kind.AlterShareGroupOffsetsRequestTopic(topic_name=plan.name.topic, partitions=partitions)
    request = kind(group_id=plan.name.group, topics=[topic])

    def attempt() -> None:
        response = cluster.ask_coordinator(
            "group",
            plan.name.group,
            request,
            m.AlterShareGroupOffsetsResponse,
            lambda each: each.error_code,
        )
        if response.error_code == ErrorCode.NON_EMPTY_GROUP:
            _refuse_members(cluster, plan.name)
            raise Refused(f"A member of group {plan.name.group} was there a moment ago: try again.")
        check(response.error_code, f"Queue {plan.name} was not purged", response.error_message)
        for each in (part for named in response.responses for part in named.partitions):
            what = f"Partition {each.partition_index} of {plan.name.topic} was not purged"
            check(each.error_code, what, each.error_message)

    cluster.retrying(f"purge queue {plan.name}", attempt)


def _refuse_members(cluster: Cluster, name: QueueName) -> None:
    group = describe_share_group(cluster, name.group)
    if group is not None:
        refuse_if_active(group, "to purge its queue")
