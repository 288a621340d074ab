"""Founding the cluster; registering, fencing and unregistering brokers.

A broker that is fenced or shutting down leads nothing and is in no ISR; every incarnation of a broker begins fenced.
The effect on its partitions is written in slices (see `elections`): a reply whose `is_done` is false means that the
same must be decided again.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.base.values import dataclass
from millpond.config.effective import NodeLayers
from millpond.config.node import NODE
from millpond.config.topic import MIN_INSYNC_REPLICAS
from millpond.metadata.decision import OK, Decision, Verdict
from millpond.metadata.elections import Slice, come_back, has_left, leave
from millpond.metadata.features import (
    KRAFT_VERSION,
    Supported,
    first_level_records,
    level_records,
    supported_by,
    unsupported,
)
from millpond.metadata.image import ALL_BROKERS, CLUSTER_ID_NAME, NO_DIRECTORY, Broker, Image
from millpond.metadata.leadership import Loss
from millpond.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    LeadAnewRecord,
    Record,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from millpond.metadata.snapshot import broker_record


def decide_found(image: Image, cluster_id: str, supported: Supported) -> Decision[str]:
    """Set the cluster id and the feature levels, unless the cluster has them. The reply is the cluster id.

    A cluster with levels keeps them, whatever its new controller supports: its other nodes may be older.
    """
    records: list[Record] = []
    if image.cluster_id is None:
        records.append(ConfigRecord(ALL_BROKERS.type, ALL_BROKERS.name, CLUSTER_ID_NAME, cluster_id))
        records += level_records(supported)
    elif not image.features:
        records += first_level_records()
    return Decision(tuple(records), image.cluster_id or cluster_id)


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker that has started and registers."""

    broker_id: int
    incarnation_id: UUID
    end_points: tuple[BrokerEndpoint, ...]
    rack: str | None = None
    directory_id: UUID = NO_DIRECTORY
    previous_epoch: int = -1
    """The broker epoch of its last incarnation if that lost nothing, `after_power_cut` of it if at most unsynced
    data was lost, -1 if it may have lost anything."""
    features: tuple[BrokerFeature, ...] = ()
    """The features it supports."""


@dataclass(frozen=True, slots=True)
class Registered:
    verdict: Verdict
    broker_epoch: int = -1
    is_done: bool = True


def decide_register(
    image: Image,
    layers: NodeLayers,
    registration: Registration,
    next_offset: int,
    *,
    lives: bool = False,
    is_alone: bool = False,
    kraft_version: int = 0,
) -> Decision[Registered]:
    """Register a broker. Its epoch is the offset of its registration record.

    `next_offset` is that of the decision's first record. `lives` means that another process was heard from under this
    id recently. A single broker has no peer to fence it or to catch up with.
    """
    registered = image.brokers.get(registration.broker_id)
    levels = {**image.features, KRAFT_VERSION: kraft_version} if kraft_version else image.features
    lacks = unsupported(levels, supported_by(registration.features))
    if lacks is not None:
        verdict = Verdict(
            ErrorCode.UNSUPPORTED_VERSION,
            f"node {registration.broker_id} runs an incompatible version: the cluster is at {lacks}",
        )
        return Decision((), Registered(verdict))
    if registered is not None and registered.incarnation_id == registration.incarnation_id:
        # An older controller registered it without its features; or it was killed before it learned its epoch, and
        # has returned with the same incarnation at another address.
        updated = replace(
            registered,
            end_points=registration.end_points,
            rack=registration.rack,
            features=registration.features or registered.features,
        )
        return Decision(() if updated == registered else (broker_record(updated),), Registered(OK, registered.epoch))
    if registered is not None and lives and not registered.in_shutdown:
        verdict = Verdict(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another process is broker {registration.broker_id} and was heard a moment ago",
        )
        return Decision((), Registered(verdict))
    loss = _loss(registered, registration)
    records: list[Record] = []
    if registered is not None and not registered.fenced and not is_alone:
        # First: while it counts as alive, leaders would add it back to the ISRs that it leaves.
        records.append(BrokerRegistrationChangeRecord(registered.id, registered.epoch, fenced=1))
    left = Slice([], is_last=True) if is_alone else leave(image, layers, registration.broker_id, loss)
    records += left.records
    if not left.is_last:
        return Decision(tuple(records), Registered(OK, is_done=False))
    begins_anew = loss is not Loss.NOTHING and _leads_alone(image, registration.broker_id)
    broker_epoch = next_offset + len(records) + begins_anew
    assert registered is None or broker_epoch > registered.epoch, (registered, broker_epoch)
    if begins_anew:
        records.append(LeadAnewRecord(registration.broker_id, broker_epoch))
    records.append(
        RegisterBrokerRecord(
            broker_id=registration.broker_id,
            incarnation_id=registration.incarnation_id,
            broker_epoch=broker_epoch,
            end_points=registration.end_points,
            rack=registration.rack,
            fenced=not is_alone,
            log_dirs=() if registration.directory_id == NO_DIRECTORY else (registration.directory_id,),
            features=registration.features,
        )
    )
    if registered is None and not is_alone and len(image.brokers) <= 1:
        records += _cluster_wide(image, layers)
    return Decision(tuple(records), Registered(OK, broker_epoch))


def _cluster_wide(image: Image, layers: NodeLayers) -> list[Record]:
    """The settings that become cluster-wide when the cluster is formed, with the values of its first controller.

    Leaders and the controller both use `min.insync.replicas`, so it must be the same everywhere. From this record on,
    the nodes' own values have no effect; clusters formed by an earlier version have no such record.
    """
    name = str(MIN_INSYNC_REPLICAS.inherits)
    if name in image.config_of(ALL_BROKERS):
        return []
    value = layers.effective(NODE.get(name)).text
    return [ConfigRecord(ALL_BROKERS.type, ALL_BROKERS.name, name, value)]


def _loss(registered: Broker | None, registration: Registration) -> Loss:
    """What the broker may have lost."""
    if registered is None:
        return Loss.ALL
    if registration.previous_epoch == registered.epoch:
        # Even with another directory: the folder was copied to another disk after a clean shutdown.
        return Loss.NOTHING
    if NO_DIRECTORY != registered.directory_id != registration.directory_id != NO_DIRECTORY:
        return Loss.ALL
    return Loss.UNSYNCED if registration.previous_epoch == after_power_cut(registered.epoch) else Loss.SOME


def after_power_cut(epoch: int) -> int:
    """The form in which a broker reports its last epoch after its machine lost power.

    Everything it had synced is there. The protocol only distinguishes nothing lost (the epoch) from anything lost
    (-1), so this is a number that is neither.
    """
    return -2 - epoch if epoch >= 0 else epoch


def _leads_alone(image: Image, broker_id: int) -> bool:
    """Whether it leads partitions without other replicas.

    After a crash, records that were read but never synced may be gone, and others may take their offsets. Only a new
    leader epoch lets a consumer notice.
    """
    return any(
        partition.leader == broker_id and len(partition.replicas) == 1
        for _, _, partition in image.partitions_of(broker_id)
    )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A broker's heartbeat: how much of the metadata it has applied, and what it requests."""

    broker_id: int
    broker_epoch: int
    applied_offset: int
    """The first offset of the metadata that it has not applied yet."""
    wants_fence: bool = False
    wants_shutdown: bool = False
    is_full: bool = False
    """Whether its disk is full: others lead and are in sync in its place."""


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    verdict: Verdict
    is_caught_up: bool = False
    is_fenced: bool = True
    may_shut_down: bool = False
    is_done: bool = True


def decide_heartbeat(image: Image, layers: NodeLayers, beat: Heartbeat) -> Decision[HeartbeatReply]:
    """Unfence a broker that knows its own registration; move leaderships away from one that shuts down."""
    broker = image.brokers.get(beat.broker_id)
    if broker is None:
        verdict = Verdict(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {beat.broker_id} is not registered")
        return Decision((), HeartbeatReply(verdict))
    if broker.epoch != beat.broker_epoch:
        verdict = Verdict(
            ErrorCode.STALE_BROKER_EPOCH, f"broker {broker.id} is now registered with epoch {broker.epoch}"
        )
        return Decision((), HeartbeatReply(verdict))
    # It need not know everything: in a busy cluster it would wait forever (KAFKA-13955).
    is_caught_up = beat.applied_offset > broker.epoch
    if beat.wants_shutdown:
        if broker.fenced:
            return Decision((), HeartbeatReply(OK, is_caught_up, is_fenced=True, may_shut_down=True))
        if broker.in_shutdown:
            may_go = has_left(image, broker.id)
            return Decision((), HeartbeatReply(OK, is_caught_up, is_fenced=False, may_shut_down=may_go))
        step = _inactive(image, layers, broker, is_shutdown=True)
        # It learns that once it is committed.
        reply = HeartbeatReply(OK, is_caught_up, False, may_shut_down=step.is_last, is_done=step.is_last)
        return Decision(tuple(step.records), reply)
    if beat.wants_fence and not broker.fenced:
        step = _inactive(image, layers, broker)
        return Decision(tuple(step.records), HeartbeatReply(OK, is_caught_up, is_done=step.is_last))
    if broker.fenced and not beat.wants_fence and is_caught_up:
        step = _active(image, layers, broker)
        return Decision(tuple(step.records), HeartbeatReply(OK, is_caught_up, is_fenced=False, is_done=step.is_last))
    return Decision((), HeartbeatReply(OK, is_caught_up, is_fenced=broker.fenced))


def decide_fence(image: Image, layers: NodeLayers, broker_id: int, broker_epoch: int) -> Decision[bool]:
    """Fence a broker whose heartbeats stopped. The reply is whether all its partitions are done."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch or broker.fenced:
        return Decision((), True)
    step = _inactive(image, layers, broker)
    return Decision(tuple(step.records), step.is_last)


def decide_settle(image: Image, layers: NodeLayers, broker_id: int) -> Decision[bool]:
    """Continue applying a broker's change of state to its partitions. The reply is whether this was all."""
    step = (come_back if image.is_active(broker_id) else leave)(image, layers, broker_id)
    return Decision(tuple(step.records), step.is_last)


def decide_unregister(image: Image, layers: NodeLayers, broker_id: int) -> Decision[Registered]:
    """Unregister a broker that is gone. Its partitions keep it as a replica: they may be reassigned."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        verdict = Verdict(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered")
        return Decision((), Registered(verdict))
    if not broker.fenced:
        verdict = Verdict(
            ErrorCode.INVALID_REQUEST, f"broker {broker_id} is active: stop it, and unregister it a few seconds later"
        )
        return Decision((), Registered(verdict))
    # Its last incarnation is forgotten, so its data must not be trusted when it returns.
    left = leave(image, layers, broker_id, Loss.ALL)
    if not left.is_last:
        return Decision(tuple(left.records), Registered(OK, is_done=False))
    gone = UnregisterBrokerRecord(broker_id, broker.epoch)
    return Decision((*left.records, gone), Registered(OK, broker.epoch))


def _inactive(image: Image, layers: NodeLayers, broker: Broker, *, is_shutdown: bool = False) -> Slice:
    """Fence a broker, or let it shut down, with the first of its partitions."""
    record = BrokerRegistrationChangeRecord(
        broker.id, broker.epoch, fenced=int(not is_shutdown), in_controlled_shutdown=int(is_shutdown)
    )
    step = leave(image, layers, broker.id)
    return Slice([record, *step.records], step.is_last)


def _active(image: Image, layers: NodeLayers, broker: Broker) -> Slice:
    record = BrokerRegistrationChangeRecord(broker.id, broker.epoch, fenced=-1)
    step = come_back(image, layers, broker.id)
    return Slice([record, *step.records], step.is_last)
