"""Finds a queue by its topic, and by its share group where several read it."""

from __future__ import annotations

from typing import Final

from millpond.admin.errors import Refused, unknown, unknown_topic
from millpond.admin.groups import SHARE, describe_share_group, list_groups
from millpond.admin.queues.offsets import positions_of
from millpond.admin.queues.queue import Queue, QueueName
from millpond.admin.queues.watch import QueueWatch
from millpond.remote.cluster import Cluster

NAMED_MAX: Final = 5


def find_queue_name(cluster: Cluster, topic: str, group: str | None = None) -> QueueName:
    """The queue of this topic. Without a group, the topic must have exactly one."""
    topics = cluster.topics()
    if topic not in topics:
        raise unknown_topic(topic, topics)
    if group is None:
        return QueueName(_only_group(cluster, topic), topic)
    check_share_group(cluster, group)
    return QueueName(group, topic)


def check_share_group(cluster: Cluster, name: str) -> None:
    """Refused if there is no such group; suggests the nearest name."""
    if describe_share_group(cluster, name) is None:
        raise unknown("share group", name, share_groups(cluster), "list queues with `millpond queue list`")


def share_groups(cluster: Cluster) -> list[str]:
    return [each.group for each in list_groups(cluster, with_share=True) if each.type == SHARE]


def read_queue(watch: QueueWatch, name: QueueName) -> Queue:
    """One look at this queue; refused if the group does not read the topic."""
    found = next((each for each in watch.look().queues if each.name == name), None)
    if found is None:
        raise Refused(f"Group {name.group} does not read {name.topic}: no member has subscribed to it yet.")
    return found


def _only_group(cluster: Cluster, topic: str) -> str:
    groups = [each for each in share_groups(cluster) if _reads(cluster, each, topic)]
    if not groups:
        raise Refused(f"No share group reads {topic} yet: name one with --group.")
    if len(groups) > 1:
        more = f" and {len(groups) - NAMED_MAX:,} more" if len(groups) > NAMED_MAX else ""
        raise Refused(
            f"{len(groups)} share groups read {topic} ({', '.join(groups[:NAMED_MAX])}{more}): name one with --group."
        )
    return groups[0]


def _reads(cluster: Cluster, group: str, topic: str) -> bool:
    if any(each.topic == topic for each in positions_of(cluster, group) or ()):
        return True
    described = describe_share_group(cluster, group)
    return described is not None and any(each.topic == topic for each in described.owners)
