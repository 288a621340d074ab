"""Reassignment of one partition (KIP-455): its state when it begins, is cancelled, and ends.

During a reassignment `replicas` is the target, in the requested order, followed by the replicas to remove. Replicas
outside the target are in `removing_replicas`; new ones are in `adding_replicas`. A replica that an earlier
reassignment added and the current one removes is in both, as long as it is counted.

It ends with the change that has the whole target in sync: then the others are removed, in the same record. None
leaves before, so a stuck reassignment costs only disk space.
"""

from __future__ import annotations

from dataclasses import replace

from millpond.base.ids import LeaderEpoch
from millpond.metadata.image import Partition
from millpond.metadata.leadership import NO_LEADER, CanLead, Rules, change, without


def is_moving(partition: Partition) -> bool:
    return bool(partition.adding_replicas or partition.removing_replicas)


def target_of(partition: Partition) -> tuple[int, ...]:
    """The replicas after the current reassignment, if any."""
    return tuple(each for each in partition.replicas if each not in partition.removing_replicas)


def original_of(partition: Partition) -> tuple[int, ...]:
    """The replicas after cancelling the current reassignment."""
    return tuple(each for each in partition.replicas if each not in partition.adding_replicas)


def begin(before: Partition, target: tuple[int, ...], rules: Rules, can_lead: CanLead) -> Partition:
    """The partition with a new target, possibly reached at once; a current reassignment is replaced."""
    original = original_of(before)
    counted_on = {*original, *before.isr, *before.elr, *before.last_known, before.leader}
    going = tuple(each for each in before.replicas if each not in target and each in counted_on)
    replicas = (*target, *going)
    after = replace(
        before,
        replicas=replicas,
        removing_replicas=going,
        adding_replicas=tuple(each for each in replicas if each not in original),
    )
    if len(before.replicas) == 1 and not can_lead(before.leader):
        # As a single replica it kept its leader in any state. Now others may lead.
        after = without(after, before.leader, rules, can_lead)
    return settled(before, _one_step(before, after), rules, can_lead)


def cancel(before: Partition, rules: Rules, can_lead: CanLead) -> Partition | str:
    """The partition with its original replicas alone; or why that is impossible."""
    replicas = original_of(before)
    reverted = replace(before, replicas=replicas, removing_replicas=(), adding_replicas=())
    after = change(reverted, before.isr, rules, can_lead)
    had = {*before.isr, *before.elr, *before.last_known}
    has = {*after.isr, *after.elr, *after.last_known} & set(replicas)
    least = min(rules.effective_min_isr(len(replicas)), len(had))
    if len(has) < least or (before.leader != NO_LEADER and after.leader == NO_LEADER) or after.is_recovering:
        return (
            f"too few of the replicas {list(replicas)} are in sync: wait until {least} of them are, or move the "
            "partition to other brokers"
        )
    return _one_step(before, after)


def settled(before: Partition, after: Partition, rules: Rules, can_lead: CanLead) -> Partition:
    """`after`, or if that has the whole target in sync, the partition with its reassignment completed."""
    target = target_of(after)
    if not is_moving(after) or not set(target) <= set(after.isr) or after.is_recovering:
        return after
    alone = replace(
        after, replicas=target, isr=target, elr=(), last_known=(), removing_replicas=(), adding_replicas=()
    )
    ended = change(alone, target, rules, can_lead)
    return after if ended.leader == NO_LEADER else _one_step(before, ended)


def _one_step(before: Partition, after: Partition) -> Partition:
    """Combine all changes into one record, and so one step of either epoch.

    A removed replica must not keep fetching or being used: that requires a new leader epoch.
    """
    led_anew = after.leader != before.leader or not set(before.replicas) <= set(after.replicas)
    led_anew = led_anew or after.leader_epoch != before.leader_epoch
    numbered = replace(
        after, leader_epoch=LeaderEpoch(before.leader_epoch + led_anew), partition_epoch=before.partition_epoch + 1
    )
    unchanged = replace(numbered, partition_epoch=before.partition_epoch) == before
    return before if unchanged else numbered
