"""The controller: writes decisions to the metadata log and answers once a majority of the voters has committed them
and they are applied. A node that is alone is a majority of one.

`image` holds the committed metadata as applied on this node; everything reads it. On the active controller, `_ahead`
also holds records that are written but not committed. The next decision is based on it, so that decisions need not
wait for each other: one commit covers everything written before it.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import LeaderEpoch, NodeId
from millpond.base.later import Later, done, end_all, failed, gather
from millpond.base.ports import Entropy, World
from millpond.base.settings import Settings
from millpond.broker.controller.image_applier import ImageApplier
from millpond.broker.controller.observers import ControllerObservers
from millpond.broker.controller.quorum_start import make_host
from millpond.broker.data_folder.identity import CannotStart
from millpond.broker.data_folder.own_folder import OwnFolder
from millpond.broker.peers.peers import NodeAddresses
from millpond.broker.quorum.committed_batches import MetadataBatch
from millpond.broker.quorum.host import QuorumHost, StartWorkers
from millpond.broker.quorum.lease import LeaseClock
from millpond.broker.quorum.pending_replies import PendingReplies
from millpond.broker.quorum.snapshot_keeper import SnapshotKeeper
from millpond.broker.quorum.voters import voter_of
from millpond.broker.storage.checkpoint_writer import CheckpointWriter
from millpond.config.effective import NodeLayers
from millpond.config.listeners import WILDCARDS, controllers_of, listeners_of
from millpond.config.node import (
    BROKER_RACK,
    CLUSTER_ID,
    CONTROLLER_QUORUM_FETCH_TIMEOUT_MS,
    NODE_ID,
    cluster_nodes,
)
from millpond.log.limits import FOREVER, LogLimits
from millpond.log.partition_log import PartitionLog
from millpond.log.store import LogStore
from millpond.metadata.brokers import Registered, Registration, decide_found, decide_register
from millpond.metadata.codec import encode_records
from millpond.metadata.decision import OK, Decision, Verdict
from millpond.metadata.features import (
    KRAFT_VERSION,
    SUPPORTED,
    Supported,
    check_level,
    features_to_record,
    metadata_version,
    not_supported_by_all,
    supported_by,
    unsupported,
)
from millpond.metadata.image import Image
from millpond.metadata.partition import METADATA_PARTITION, METADATA_TOPIC_ID
from millpond.metadata.records import BrokerEndpoint, Record
from millpond.metadata.snapshot import broker_record
from millpond.quorum.messages import NO_LEADER
from millpond.quorum.voters import Voter
from millpond.wire import records as wire_records
from millpond.wire.batch import walk

R = TypeVar("R")

METADATA_LIMITS: Final = LogLimits(cleanup_delete=False, segment_ms=FOREVER, retention_ms=-1)
"""The metadata log has no retention: snapshots replace it."""


class Controller:
    """This node's controller. Call `load` first; the active controller then takes decisions through `submit`."""

    def __init__(
        self,
        world: World,
        store: LogStore,
        settings: Settings,
        checkpoints: CheckpointWriter | None = None,
        supported: Supported = SUPPORTED,
    ) -> None:
        self.supported: Final = supported
        """The feature levels that this version can read and write."""
        self.node_id = NodeId(settings[NODE_ID])
        self.broker_epoch = -1
        self.is_alone = False
        """Whether this node is the whole cluster, until another one registers."""
        self._ahead = Image()
        self._world = world
        self._clock = world.clock
        self.lease_clock: Final = LeaseClock(world.clock, settings)
        self._entropy = world.entropy
        self._store = store
        self._settings = settings
        self._checkpoints = checkpoints or CheckpointWriter(store, world.sync_workers)
        self._workers = StartWorkers(world.sync_workers)
        self._folder = OwnFolder(world, store.folder, settings, self._workers)
        self._host: QuorumHost | None = None
        self._active_epoch: int | None = None
        self._applier = ImageApplier(
            clock=world.clock,
            supported=supported,
            workers=self._workers,
            snapshots=SnapshotKeeper(world, settings),
            on_applied=self._on_applied,
            again=self._on_quorum,
        )
        self._batches = self._applier.batches
        self.image: Final = self._applier.image
        """The committed metadata as applied here. Always the same object."""
        self.addresses: Final = NodeAddresses(settings, self.image, controllers_of(listeners_of(settings)))
        """Known addresses of the controllers and voters."""
        self.observers: Final = ControllerObservers(lambda: self.is_active)
        self._pending = PendingReplies()
        self._stopped: Refused | None = None
        self.last_leader_id = NO_LEADER
        """The last other node known to have led the quorum."""
        self.offline: Later[OSError] = Later()
        """Ends when the metadata log has failed for good. A node with peers should then shut down: they carry on."""
        self.outlived: Later[None] = Later()
        """Ends when this node learns that the cluster was rescued without it; it must then shut down."""
        self.outdated: Final = self._applier.outdated

    # Facts.

    @property
    def host(self) -> QuorumHost:
        assert self._host is not None, "not loaded"
        return self._host

    @property
    def applied_offset(self) -> int:
        """Everything below this offset is in `image`."""
        return self._applier.offset

    @property
    def log(self) -> PartitionLog:
        return self.host.log.log

    @property
    def directory_id(self) -> UUID:
        """The ID of this node's data folder; a wiped or replaced disk has a different one."""
        return self._folder.directory_id

    @property
    def is_copy(self) -> bool:
        """Whether the data folder is a copy, possibly an old one, of the folder this node last ran in."""
        return self._folder.is_copy

    @property
    def committed_offset(self) -> int:
        """The high watermark of the metadata log."""
        return max(self.host.high_watermark, self.applied_offset)

    @property
    def is_stranger(self) -> bool:
        """Whether the configured nodes belong to another cluster."""
        told, known = self._settings[CLUSTER_ID], self.image.cluster_id
        return (bool(told and known) and told != known) or (self._host is not None and self._host.is_stranger)

    @property
    def cluster_name(self) -> str:
        """The cluster ID that this node sends to other nodes; empty while unknown."""
        return self._folder.name_of_cluster(self.image)

    @property
    def is_misled(self) -> bool:
        """Whether most of the other nodes were configured with a different list of nodes than this one."""
        return self._host is not None and self._host.is_misled

    @property
    def next_offset(self) -> int:
        """The offset of the next decision's first record."""
        return self.host.log.end_offset

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller: it leads the quorum and has applied all earlier decisions."""
        return self._active_epoch is not None

    @property
    def leader_id(self) -> int:
        """The leader of the quorum; -1 if this node knows of none."""
        return NO_LEADER if self._host is None else self._host.leader_id

    @property
    def led_ago_ms(self) -> int | None:
        """How long ago a majority certainly followed this active controller; None if this node is not active."""
        return self.host.led_ago_ms() if self.is_active else None

    @property
    def elected_ms(self) -> int:
        """When this node was elected leader of the quorum."""
        return self.host.elected_ms

    def confirm_leadership(self, since_ms: int) -> Later[None]:
        """Ends once a majority of voters is known to have followed this node at `since_ms` (lease clock) or later.

        Refused with NOT_CONTROLLER if this node loses leadership before that.
        """
        return self.host.confirm_leadership(since_ms)

    @property
    def leader_heard_ago_ms(self) -> int | None:
        """How long ago this node last had contact with the previous quorum leader; None for never."""
        return self.host.leader_heard_ago_ms

    def knows_since(self, moment_ms: int) -> bool:
        """Whether the image has everything committed before `moment_ms` (lease clock)."""
        told = self.host.told
        return told is not None and told[0] >= moment_ms and self.applied_offset >= told[1]

    @property
    def others_may_lead(self) -> bool:
        """Whether enough other nodes accept connections, or may, to elect one of themselves."""
        return self.host.others_may_lead

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch of the quorum."""
        return LeaderEpoch(0 if self._host is None else self._host.epoch)

    def is_idle(self) -> bool:
        return not self._pending and self.host.is_idle

    # Starting.

    def load(self, end_points: tuple[BrokerEndpoint, ...], *, after_crash: bool = False) -> None:
        """Join the quorum. Blocks on disk I/O.

        A node that is alone leads on return and has written what this start changes; its first start founds the
        cluster. `after_crash` begins a new leader epoch for every partition, because written records may be lost.
        With other nodes, the rest follows as they respond. A node that joins a running cluster knows only whom to
        contact.
        """
        if METADATA_PARTITION in self._store.failed:
            raise CannotStart(f"the metadata log cannot be read: {self._store.failed[METADATA_PARTITION]}")
        self._folder.take()
        log = self._store.create(METADATA_PARTITION, METADATA_TOPIC_ID, METADATA_LIMITS)
        log.limits = METADATA_LIMITS
        log.may_use_reserve = True
        self._host = make_host(
            world=self._world,
            settings=self._settings,
            folder=self._folder,
            log=log,
            addresses=self.addresses,
            workers=self._workers,
            lease_clock=self.lease_clock,
            write_checkpoint=self._write_checkpoint,
            on_step=self._on_quorum,
            after_crash=after_crash,
            image=self.image,
            applied_offset=lambda: self.applied_offset,
        )
        self._applier.load_snapshot(self._host.log)
        if self._host.voters == (self._host.me,) and len(cluster_nodes(self._settings)) < 2:
            # In a quorum of one, everything in the log is committed.
            self._applier.apply(self._host, upper=self._host.log.end_offset)
            self._check_alone()
            self.is_alone = not self._others()
        self._folder.identify(self.image, self.log.folder, is_alone=self.is_alone)
        if not self.is_alone:
            # Records that the previous run left unsynced must not count before they are synced.
            self._sync_inline(log)
        self._host.start()
        if self._host.failed is not None:
            raise self._host.failed
        if self.is_alone:
            self._join(end_points, after_crash=after_crash)
        elif self.is_active:
            # The only voter among several nodes has just elected itself.
            self._host.release()
            if self._host.failed is not None:
                raise self._host.failed
        self._workers.is_inline = False

    def _others(self) -> list[int]:
        return sorted(self.image.brokers.keys() - {self.node_id})

    def _write_checkpoint(self) -> Later[None]:
        if not self._workers.is_inline:
            return self._checkpoints.write()
        return self._workers.run(self._store.checkpoint)

    def _check_alone(self) -> None:
        """A node of a larger cluster must not start alone: its own decisions would later overrule the others'."""
        others = self._others()
        if others and self.node_id in self.image.brokers and not self.host.goes_by_log:
            names = ", ".join(map(str, others))
            raise CannotStart(
                f"the data folder is that of node {self.node_id} of a cluster with the nodes {names}: start it as "
                "one of them (millpond cluster up, or millpond up --node N --cluster nodes.toml)"
            )

    def _sync_inline(self, log: PartitionLog) -> None:
        ticket = log.sync_target()
        try:
            ticket.run()
        except OSError as error:
            log.fail(error, ticket)
            raise
        log.synced(ticket)
        self._world.disk.sync_folder(log.folder)

    def _join(self, end_points: tuple[BrokerEndpoint, ...], *, after_crash: bool) -> None:
        """Register this node, which is alone, with itself."""
        known = self.image.brokers.get(self.node_id)
        wanted = Registration(
            self.node_id,
            self._entropy.uuid(),
            end_points,
            self._settings[BROKER_RACK] or None,
            self.directory_id,
            -1 if after_crash or known is None else known.epoch,
            features_to_record(self.supported),
        )
        layers = NodeLayers(self._settings)
        replies: list[Registered] = []
        self.submit(lambda image: decide_register(image, layers, wanted, self.next_offset, is_alone=True)).then(
            replies.append
        )
        self.host.release()
        if self.host.failed is not None:
            raise self.host.failed
        self.broker_epoch = replies[0].broker_epoch

    # Deciding.

    def submit(self, decide: Callable[[Image], Decision[R]], *, confirms: bool = True) -> Later[R]:
        """Decide now, based on all earlier decisions; the reply comes once the decision is committed, else Refused.

        The reply also waits until the observers have applied the records. Apart from that, replies to decisions with
        records come in call order. A decision without records waits for the records it was based on: it must not
        reveal a topic whose creation could still be lost. If it `confirms`, it also waits for proof that this node
        still led when it decided: one that was paused may not know yet what its successor has changed. Callers that
        pass the reply to no client need no proof. NOT_CONTROLLER after the decision was written leaves its outcome
        unknown.
        """
        if self._stopped is not None:
            return failed(self._stopped)
        if not self.is_active:
            return failed(Refused(ErrorCode.NOT_CONTROLLER, "this node is not the active controller"))
        start_offset = self.next_offset
        decision = decide(self._ahead)
        if not decision.records:
            replied = self._pending.add(start_offset, decision.reply) if self._pending else done(decision.reply)
            return self.confirmed(replied) if confirms else replied
        try:
            # Check against the level in the log so far: a reader of this batch has applied that level before.
            check_level(decision.records, metadata_version(self._ahead))
            self.host.write(self._encode(decision.records))
        except Refused as refused:
            # Nothing was written, so only this decision fails: the next one may find free disk space.
            if self.log.failed is not None:
                self._stop(self.log.failed)
            elif refused.code is ErrorCode.KAFKA_STORAGE_ERROR:
                self._clock.call_soon(self._give_way)
            return failed(refused)
        self._ahead.replay_all(decision.records)
        self._batches.add_own(MetadataBatch(start_offset, self.next_offset, decision.records))
        later = self._pending.add(self.next_offset, decision.reply)
        self.host.on_written()
        return later

    def confirmed(self, replied: Later[R]) -> Later[R]:
        """The reply, once a majority provably followed this node at this moment or later; Refused if none does."""
        since_ms = self.lease_clock.now_ms()
        return replied.chain(lambda reply: self.confirm_leadership(since_ms).map(lambda _: reply))

    def written_ms(self, offset: int) -> int | None:
        """When the record at this offset was written, by the clock of the leader then; None if it cannot be read."""
        try:
            data = self.log.read_batches(offset, 1)
        except Refused:
            return None
        return next((header.max_timestamp for _, header in walk(data) if header.next_offset > offset), None)

    # Voters.

    @property
    def kraft_version(self) -> int:
        """0: the voters come from a static list in every node's settings; 1: they are in the log and can change."""
        return int(self.host.goes_by_log)

    def raise_kraft_version(self) -> Later[Verdict]:
        """Move the current voters into the log."""
        if not self.is_active:
            return failed(Refused(ErrorCode.NOT_CONTROLLER, "this node is not the active controller"))
        if self.host.goes_by_log:
            return done(OK)
        # Registrations that are not committed yet count, too.
        if (why := not_supported_by_all(self._ahead, KRAFT_VERSION, 1)) is not None:
            return done(Verdict(ErrorCode.INVALID_UPDATE_VERSION, why))
        try:
            return self.change_voters(self.voters())
        except Refused as refused:
            return done(Verdict.of(refused))

    def note_full(self, broker_ids: frozenset[int]) -> None:
        """Note the brokers with full disks. The active controller's decisions and the leaders' ISRs depend on it."""
        self.image.full_brokers = self._ahead.full_brokers = broker_ids
        self.observers.disk_space()

    def voters(self) -> tuple[Voter, ...]:
        """The voters in the log, or those it would get. Refused if a voter on the static list has never
        registered."""
        if self.host.log.voters is not None:
            return self.host.log.voters
        found = [(each.node_id, voter_of(self.image, each.node_id)) for each in self.host.voters]
        voters = tuple(voter for _, voter in found if voter is not None)
        if len(voters) < len(found):
            node_id = next(node_id for node_id, voter in found if voter is None)
            raise Refused(ErrorCode.INVALID_REQUEST, f"node {node_id}, which votes, has not registered yet")
        return voters

    def name_voters_for(self, wanted: Registration, own_host: str) -> Later[None]:
        """Write the voters to the log before the first other node registers.

        A later start that finds other nodes there must know the voters. `own_host` is the address by which the new
        node reached this one. Refused if the voters cannot be written now.
        """
        if not self.is_alone or not self.is_active or wanted.broker_id == self.node_id:
            return done(None)
        lacks = unsupported({**self._ahead.features, KRAFT_VERSION: 1}, supported_by(wanted.features))
        if lacks is not None:
            # Check first: voters in the log cannot be undone, and an older version cannot read them.
            return failed(
                Refused(ErrorCode.UNSUPPORTED_VERSION, f"node {wanted.broker_id} cannot join: it would be at {lacks}")
            )
        found = self._reveal(own_host)
        return found.chain(lambda _: self.raise_kraft_version()).map(_must_be_ok)

    def _reveal(self, own_host: str) -> Later[None]:
        """Replace wildcard endpoints with `own_host`.

        Alone, a node that listens on all addresses advertises to each client the address the client connected to;
        with other nodes it needs a fixed one.
        """
        me = self.image.brokers[self.node_id]
        if all(each.host not in WILDCARDS for each in me.end_points):
            return done(None)
        end_points = tuple(replace(each, host=own_host) if each.host in WILDCARDS else each for each in me.end_points)
        record = broker_record(replace(me, end_points=end_points))
        return self.submit(lambda _: Decision((record,), None))

    def change_voters(self, voters: Sequence[Voter]) -> Later[Verdict]:
        """Replace the voters; ends when the change is committed. Refused as by `submit`."""
        if self._stopped is not None:
            return failed(self._stopped)
        if not self.is_active:
            return failed(Refused(ErrorCode.NOT_CONTROLLER, "this node is not the active controller"))
        objection = self.host.objection(voters)
        if objection is not None:
            return done(Verdict(ErrorCode.INVALID_REQUEST, objection))
        start_offset = self.next_offset
        if not self.host.change_voters(voters):
            return done(Verdict(ErrorCode.KAFKA_STORAGE_ERROR, "the change of voters cannot be written now"))
        if self.applied_offset > start_offset:
            return done(OK)
        self._batches.add_own(MetadataBatch(start_offset, self.next_offset, ()))
        return self._pending.add(self.next_offset, OK)

    @property
    def is_known_to_all(self) -> bool:
        """Whether the nodes that follow this one have everything committed."""
        return self.host.is_known_to_all

    def resign(self) -> None:
        """Give up leadership, if another node can lead: this node is about to stop."""
        self.host.stop()

    def _give_way(self) -> None:
        """Hand over leadership because the disk has no space even for metadata: this controller can decide nothing.

        Stay if the others could not elect a leader without this node's vote, which it cannot write either.
        """
        if not self.is_active:
            return
        voters, full = self.host.voters, self.image.full_brokers
        recent_ms = self._settings[CONTROLLER_QUORUM_FETCH_TIMEOUT_MS] // 2
        able = [
            each
            for each in self.host.states()
            if each.replica in voters
            and each.replica != self.host.me
            and each.replica.node_id not in full
            and each.fetched_ago_ms is not None
            and each.fetched_ago_ms <= recent_ms
        ]
        if len(able) > len(voters) // 2:
            self.host.hand_over()

    def close(self) -> None:
        """Stop taking decisions. Pending ones are still answered if they are committed before the log is closed."""
        if self._stopped is None:
            self._stopped = Refused(ErrorCode.NOT_CONTROLLER, "the broker is stopping")
        if self._host is not None:
            self._host.close()

    def _encode(self, records: tuple[Record, ...]) -> bytes:
        """Encode a decision as one batch, so that its records are atomic."""
        now_ms = self._clock.wall_ms()
        encoded = encode_records(records, metadata_version(self._ahead))
        return wire_records.encode_batch(
            [wire_records.Record(index, now_ms, None, value) for index, value in encoded],
            last_offset_delta=len(records) - 1,
        )

    # Following the quorum.

    def _on_quorum(self) -> None:
        """The quorum's state has changed: apply what is committed and follow the leadership."""
        host = self.host
        if host.is_outlived:
            self.outlived.finish(None)
        if host.failed is not None:
            self._stop(host.failed)
            return
        if self._active_epoch is not None and not (host.is_leader and host.epoch == self._active_epoch):
            self._deactivate()
        if host.leader_id not in (NO_LEADER, self.node_id):
            self.last_leader_id = host.leader_id
        self._applier.apply(host)
        if self._active_epoch is None and host.is_leader and self.applied_offset > host.epoch_start:
            self._activate()

    def _activate(self) -> None:
        self._active_epoch = self.host.epoch
        self._ahead = self.image.copy()
        if self._workers.is_inline and self.is_alone:
            # One sync for everything this start writes.
            self.host.hold()
        if self._stopped is None:
            cluster_id = self._settings[CLUSTER_ID] or random_cluster_id(self._entropy)
            found = self.submit(lambda image: decide_found(image, cluster_id, self.supported), confirms=False)
            # Ignore failures: the next leader will find the cluster without an ID and assign one.
            found.then(_ignore, _ignore)
        self.observers.role(True)

    def _deactivate(self) -> None:
        """Another node may be active now. Whether pending decisions get committed will not be known here in time."""
        self._active_epoch = None
        self._ahead = Image()
        self._batches.forget_own()
        pending = self._pending.take_all()
        self.observers.role(False)
        end_all(pending, Refused(ErrorCode.NOT_CONTROLLER, "this node is no longer the active controller"))

    def _stop(self, error: OSError) -> None:
        """The log has failed for good: how much of it is durable is unknown, so fail all pending decisions."""
        self._stopped = Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log is offline: {error}")
        pending = self._pending.take_all()
        self._batches.forget_own()
        end_all(pending, self._stopped)
        self.offline.finish(error)

    def _on_applied(self, batch: MetadataBatch) -> None:
        followed = gather(self.observers.change(batch.records)) if batch.records else None
        if batch.records:
            self._folder.learn_name(self.image)
            self._folder.learn_registration(self.image)
        else:
            self.observers.offset()
        if self.is_alone and len(self.image.brokers) > 1 and not self._workers.is_inline:
            self.is_alone = False
            self._remember_peers()
            self.observers.first_peer()
        self._pending.answer_below(self.applied_offset, followed)

    def _remember_peers(self) -> None:
        """Record that this folder belongs to one of several nodes, and the addresses of the others."""
        known = {node_id: self.addresses(node_id) for node_id in self._others()}
        contacts = tuple(f"{node_id}@{at[0]}:{at[1]}" for node_id, at in known.items() if at is not None)
        self._folder.learn_contacts(contacts)


def _must_be_ok(verdict: Verdict) -> None:
    if not verdict.ok:
        raise Refused(verdict.code, verdict.message or "")


def _ignore(_: object) -> None:
    """For results that no caller needs."""


def random_cluster_id(entropy: Entropy) -> str:
    """A unique ID of 22 characters."""
    return urlsafe_b64encode(entropy.uuid().bytes).decode().rstrip("=")
