"""The leader and the ISR of a partition: every change of replicas, ISR, ELR and leader is decided here.

The ELR (eligible leader replicas, KIP-966) are replicas that left the ISR and still have everything that was ever
acknowledged, because the high watermark does not advance while fewer than `min_isr` replicas are in sync. One of them
may lead if none of the ISR can. Replicas of a new partition that cannot be in its first ISR are among them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from enum import IntEnum
from typing import Final, TypeVar

from millpond.base.errors import ErrorCode
from millpond.base.values import dataclass

NO_LEADER: Final = -1

CanLead = Callable[[int], bool]
"""Whether a broker is registered, unfenced and not shutting down."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """The part of a partition's metadata that failures change."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    elr: tuple[int, ...] = ()
    last_known: tuple[int, ...] = ()
    """The last ISR, once both ISR and ELR are empty."""
    is_recovering: bool = False
    """Its leader may lack records, and reports when it has recovered."""
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    """Replicas that a reassignment adds."""

    @property
    def factor(self) -> int:
        """The replication factor without replicas being added: those promise nothing before the reassignment has
        ended."""
        return len(self.replicas) - len(self.adding_replicas)


L = TypeVar("L", bound=Leadership)


class Loss(IntEnum):
    """What a broker may have lost since it was last unfenced."""

    NOTHING = 0
    UNSYNCED = 1
    """Its machine lost power: unsynced data may be gone."""
    SOME = 2
    """Records are missing or damaged, or that is unknown."""
    ALL = 3
    """It came back with another disk, or what it had is unknown."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that affect a change."""

    min_isr: int = 1
    may_elect_unclean: bool = False
    syncs_first: bool = False
    """Whether a replica acknowledges only synced records: then a power cut loses nothing committed."""

    def effective_min_isr(self, factor: int) -> int:
        """A topic with fewer replicas than required needs all of them, not more than all."""
        return min(self.min_isr, factor)


def change(
    before: L,
    isr: Collection[int],
    rules: Rules,
    can_lead: CanLead,
    *,
    unclean: Collection[int] = (),
    empty: Collection[int] = (),
    prefer_first: bool = False,
    force_epoch: bool = False,
) -> L:
    """The leadership with this ISR: the ELR follows from it, and a leader if one is possible.

    `unclean` names replicas that may have lost acknowledged records: they are neither in sync nor eligible. Those
    that are `empty` have certainly lost them, and do not count as last known either. `force_epoch` begins a new
    leader epoch even if the leader stays.
    """
    members = tuple(each for each in before.replicas if each in isr and each not in unclean)
    is_enough = len(members) >= rules.effective_min_isr(before.factor)
    was_trusted = {*before.isr, *before.elr} - set(members) - set(unclean)
    elr = () if is_enough else tuple(each for each in before.replicas if each in was_trusted)
    last_known = before.last_known
    if members or elr:
        last_known = ()
    elif before.isr or before.elr:
        # Only a single name identifies the last replica that had everything.
        trusted = tuple(each for each in before.replicas if each in before.isr or each in before.elr)
        last_known = trusted if len(trusted) == 1 else ()
    last_known = tuple(each for each in last_known if each not in empty)
    after = replace(before, isr=members, elr=elr, last_known=last_known)
    after = _elect(after, rules, can_lead, prefer_first=prefer_first)
    led_anew = after.leader != before.leader or force_epoch
    if after == before and not led_anew:
        return before
    return replace(after, leader_epoch=before.leader_epoch + led_anew, partition_epoch=before.partition_epoch + 1)


def _numbered(before: L, after: L) -> L:
    """Every change raises the partition epoch."""
    return after if after == before else replace(after, partition_epoch=before.partition_epoch + 1)


def _elect(state: L, rules: Rules, can_lead: CanLead, *, prefer_first: bool) -> L:
    is_settled = state.leader in state.isr and can_lead(state.leader)
    if is_settled and not (prefer_first and can_lead(state.replicas[0]) and state.replicas[0] in state.isr):
        return state
    for broker in state.replicas:
        if broker in state.isr and can_lead(broker):
            return replace(state, leader=broker)
    if not state.isr:
        for broker in state.replicas:
            if broker in state.elr and can_lead(broker):
                elr = tuple(each for each in state.elr if each != broker)
                if rules.effective_min_isr(state.factor) <= 1:
                    # The ISR is sufficient alone, and will commit what the others do not have.
                    elr = ()
                return replace(state, leader=broker, isr=(broker,), elr=elr)
    if not state.isr and not state.elr and len(state.last_known) == 1 and can_lead(state.last_known[0]):
        return _uncleanly(state, state.last_known[0])
    if rules.may_elect_unclean:
        # A replica that is being added may have nothing at all yet.
        for broker in sorted(state.replicas, key=state.adding_replicas.__contains__):
            if can_lead(broker):
                return _uncleanly(state, broker)
    return replace(state, leader=NO_LEADER)


def _uncleanly(state: L, broker: int) -> L:
    return replace(state, leader=broker, isr=(broker,), elr=(), last_known=(), is_recovering=True)


def elect_unclean(before: L, broker: int) -> L:
    """Make this replica the leader of a leaderless partition. What it lacks is lost."""
    after = _uncleanly(before, broker)
    return replace(after, leader_epoch=before.leader_epoch + 1, partition_epoch=before.partition_epoch + 1)


def without(before: L, broker: int, rules: Rules, can_lead: CanLead, *, loss: Loss = Loss.NOTHING) -> L:
    """Remove a broker that was fenced, is shutting down, or returned and may have lost data.

    `can_lead` must exclude it already, unless it is back.
    """
    if not concerns(before, broker, loss):
        return before
    is_unclean = loss >= Loss.SOME or (loss is Loss.UNSYNCED and not rules.syncs_first)
    return change(
        before,
        [each for each in before.isr if each != broker],
        rules,
        can_lead,
        unclean=(broker,) if is_unclean else (),
        empty=(broker,) if loss is Loss.ALL else (),
        # A leader that lost records must not continue in the same epoch: other records would take their offsets.
        force_epoch=loss is not Loss.NOTHING and before.leader == broker,
    )


def concerns(partition: Leadership, broker: int, loss: Loss) -> bool:
    """Whether anything changes for a partition when this broker goes."""
    if partition.leader == broker or broker in partition.isr or broker in partition.elr:
        return True
    return loss is Loss.ALL and broker in partition.last_known


def back(before: L, broker: int, rules: Rules, can_lead: CanLead) -> L:
    """A broker can lead again: leaderless partitions may get a leader."""
    if before.leader != NO_LEADER or broker not in before.replicas:
        return before
    return change(before, before.isr, rules, can_lead)


@dataclass(frozen=True, slots=True)
class IsrChange:
    """An AlterPartition request of a leader; each member comes with the broker epoch that it fetched with."""

    broker: int
    broker_epoch: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    is_recovering: bool = False


def decide_isr_change(
    before: L,
    isr_change: IsrChange,
    rules: Rules,
    can_lead: CanLead,
    epoch_of: Callable[[int], int],
) -> L | ErrorCode:
    """The new leadership, or an error. The order of the checks distinguishes a stale leader from a stale
    controller."""
    if epoch_of(isr_change.broker) != isr_change.broker_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    if isr_change.leader_epoch > before.leader_epoch or isr_change.partition_epoch > before.partition_epoch:
        # The leader knows more than we do: we are no longer the controller.
        return ErrorCode.NOT_CONTROLLER
    if isr_change.leader_epoch < before.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if before.leader != isr_change.broker:
        return ErrorCode.INVALID_REQUEST
    if isr_change.partition_epoch < before.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    members = [broker for broker, _ in isr_change.isr]
    # A leader that names only other replicas, which have everything committed, can no longer write and resigns.
    resigns = isr_change.broker not in members
    welcome = (*before.isr, *before.elr) if resigns else before.replicas
    if not members or not set(members) <= set(welcome) or len(set(members)) != len(members):
        return ErrorCode.INVALID_REQUEST
    if isr_change.is_recovering and (len(members) > 1 or not before.is_recovering):
        return ErrorCode.INVALID_REQUEST
    names_no_epochs = all(broker_epoch == -1 for _, broker_epoch in isr_change.isr)
    if names_no_epochs and set(members) == set(before.isr) and isr_change.is_recovering == before.is_recovering:
        # The leader withdraws an earlier request: with a new partition epoch no copy of it can be granted.
        return replace(before, partition_epoch=before.partition_epoch + 1)
    for broker, broker_epoch in isr_change.isr:
        if not can_lead(broker) or broker_epoch not in (-1, epoch_of(broker)):
            return ErrorCode.INELIGIBLE_REPLICA
    # What a failing disk still has is unknown.
    after = change(before, members, rules, can_lead, unclean=(isr_change.broker,) if resigns else ())
    if after.is_recovering == isr_change.is_recovering:
        return after
    return _numbered(before, replace(after, is_recovering=isr_change.is_recovering))
