"""Where metadata meets the quorum: what is decided is written to the metadata log, committed by a majority of the
voters, applied, and only then answered. A node that is alone is a majority of one.

`image` holds what is committed and applied here, on every node, and is what everybody reads. On the active controller
`_ahead` also holds what is written but not yet committed, and is what the next decision is made on, so that decisions
need not wait for each other: one commit takes along all that was written before it.
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
"""Nothing of the metadata log expires: it goes when a snapshot has taken its place."""


class Controller:
    """This node's part in deciding on the metadata. `load` first; then `submit` decisions where it is active."""

    def __init__(
        self,
        world: World,
        store: LogStore,
        settings: Settings,
        checkpoints: CheckpointWriter | None = None,
        supported: Supported = SUPPORTED,
    ) -> None:
        self.supported: Final = supported
        """The levels of features that this program can write and read."""
        self.node_id = NodeId(settings[NODE_ID])
        self.broker_epoch = -1
        self.is_alone = False
        """Whether this node is its whole cluster; until another one has registered."""
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
        """Where those are who decide or vote, as far as this node knows."""
        self.observers: Final = ControllerObservers(lambda: self.is_active)
        self._pending = PendingReplies()
        self._stopped: Refused | None = None
        self.last_leader_id = NO_LEADER
        """The other node that led the quorum last, as far as this one knows."""
        self.offline: Later[OSError] = Later()
        """Ends when the metadata log has failed for good. One of several nodes should end then: the others go on."""
        self.outlived: Later[None] = Later()
        """Ends when it turns out that the cluster was rescued without this node, which must end then."""
        self.outdated: Final = self._applier.outdated

    # Facts.

    @property
    def host(self) -> QuorumHost:
        assert self._host is not None, "not loaded"
        return self._host

    @property
    def applied_offset(self) -> int:
        """Everything below is in `image`."""
        return self._applier.offset

    @property
    def log(self) -> PartitionLog:
        return self.host.log.log

    @property
    def directory_id(self) -> UUID:
        """Of this node's data folder; a wiped or other disk has another one."""
        return self._folder.directory_id

    @property
    def is_copy(self) -> bool:
        """Whether the data folder is a copy of the one that this node ran in last: it may be old."""
        return self._folder.is_copy

    @property
    def committed_offset(self) -> int:
        """Everything below is committed (the high watermark of the metadata)."""
        return max(self.host.high_watermark, self.applied_offset)

    @property
    def is_stranger(self) -> bool:
        """Whether the nodes that it was told of are another cluster's."""
        told, known = self._settings[CLUSTER_ID], self.image.cluster_id
        return (bool(told and known) and told != known) or (self._host is not None and self._host.is_stranger)

    @property
    def cluster_name(self) -> str:
        """How this node names the cluster to other nodes; empty while it knows none."""
        return self._folder.name_of_cluster(self.image)

    @property
    def is_misled(self) -> bool:
        """Whether most of the other nodes were told of other nodes than this one."""
        return self._host is not None and self._host.is_misled

    @property
    def next_offset(self) -> int:
        """The offset that the first record of a decision gets which is made now."""
        return self.host.log.end_offset

    @property
    def is_active(self) -> bool:
        """Whether this node decides: it leads the quorum, and knows all that was decided before."""
        return self._active_epoch is not None

    @property
    def leader_id(self) -> int:
        """Who leads the quorum, as far as this node knows; -1 if it does not."""
        return NO_LEADER if self._host is None else self._host.leader_id

    @property
    def led_ago_ms(self) -> int | None:
        """How long ago most nodes followed this one as the active controller for certain; None where it is not it."""
        return self.host.led_ago_ms() if self.is_active else None

    @property
    def elected_ms(self) -> int:
        """When this node, which leads the quorum, was elected."""
        return self.host.elected_ms

    def confirm_leadership(self, since_ms: int) -> Later[None]:
        """Ends once most voters are known to have followed this node at `since_ms`, by the lease clock, or later.

        Refused with NOT_CONTROLLER if it ceases to lead before that.
        """
        return self.host.confirm_leadership(since_ms)

    @property
    def leader_heard_ago_ms(self) -> int | None:
        """How long ago the node that led the quorum before this one was heard; None for never."""
        return self.host.leader_heard_ago_ms

    def knows_since(self, moment_ms: int) -> bool:
        """Whether the image has all that was decided before `moment_ms`, by the lease clock."""
        told = self.host.told
        return told is not None and told[0] >= moment_ms and self.applied_offset >= told[1]

    @property
    def others_may_lead(self) -> bool:
        """Whether enough of the other nodes take connections, or may, to elect one of themselves."""
        return self.host.others_may_lead

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Of the quorum."""
        return LeaderEpoch(0 if self._host is None else self._host.epoch)

    def is_idle(self) -> bool:
        return not self._pending and self.host.is_idle

    # Starting.

    def load(self, end_points: tuple[BrokerEndpoint, ...], *, after_crash: bool = False) -> None:
        """Take part in the quorum. Waits for the disk.

        A node that is alone is its leader on return, and has added what this start changes: on the first one the
        cluster itself. `after_crash` begins a new leader epoch everywhere, because written records may be gone. With
        others the rest comes as they answer. A node that joins a running cluster knows nothing of it but whom to ask.
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
            # A quorum of one has committed whatever is in its log.
            self._applier.apply(self._host, upper=self._host.log.end_offset)
            self._check_alone()
            self.is_alone = not self._others()
        self._folder.identify(self.image, self.log.folder, is_alone=self.is_alone)
        if not self.is_alone:
            # What an earlier life wrote and never synced must not count before it is.
            self._sync_inline(log)
        self._host.start()
        if self._host.failed is not None:
            raise self._host.failed
        if self.is_alone:
            self._join(end_points, after_crash=after_crash)
        elif self.is_active:
            # The only voter among several nodes has elected itself just now.
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
        """One of several nodes decides nothing by itself: back among the others it would overrule them."""
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
        """A node that is alone registers with itself."""
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

    def submit(self, decide: Callable[[Image], Decision[R]]) -> Later[R]:
        """Decide now, on everything decided before; the reply comes once it is committed, Refused if it cannot be.

        It also waits until the observers have followed. But for that, replies come in the order of the calls, and a
        decision without records is a reply, too, that waits for what it was made on: it must not tell of a topic that
        could still be taken back. NOT_CONTROLLER for one that was made: nobody knows yet whether it holds.
        """
        if self._stopped is not None:
            return failed(self._stopped)
        if not self.is_active:
            return failed(Refused(ErrorCode.NOT_CONTROLLER, "this node is not the active controller"))
        start_offset = self.next_offset
        decision = decide(self._ahead)
        if not decision.records:
            return self._pending.add(start_offset, decision.reply) if self._pending else done(decision.reply)
        try:
            # By the level of the log up to here: whoever reads the batch has read that level before.
            check_level(decision.records, metadata_version(self._ahead))
            self.host.write(self._encode(decision.records))
        except Refused as refused:
            # Nothing was written, so nothing is lost but this one: the disk may have room again for the next.
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

    def written_ms(self, offset: int) -> int | None:
        """When the record at this offset was written, by the clock of whoever led then; None if it cannot be read."""
        try:
            data = self.log.read_batches(offset, 1)
        except Refused:
            return None
        return next((header.max_timestamp for _, header in walk(data) if header.next_offset > offset), None)

    # Who votes.

    @property
    def kraft_version(self) -> int:
        """0: the voters are those of a list that every node was told; 1: the log names them, and they can change."""
        return int(self.host.goes_by_log)

    def raise_kraft_version(self) -> Later[Verdict]:
        """Let the log name the voters from now on: the same ones as before."""
        if not self.is_active:
            return failed(Refused(ErrorCode.NOT_CONTROLLER, "this node is not the active controller"))
        if self.host.goes_by_log:
            return done(OK)
        # Whoever is on its way in counts, too.
        if (why := not_supported_by_all(self._ahead, KRAFT_VERSION, 1)) is not None:
            return done(Verdict(ErrorCode.INVALID_UPDATE_VERSION, why))
        try:
            return self.change_voters(self.voters())
        except Refused as refused:
            return done(Verdict.of(refused))

    def note_full(self, broker_ids: frozenset[int]) -> None:
        """The disks of these brokers are full. The active controller decides by it, and leaders choose their ISR."""
        self.image.full_brokers = self._ahead.full_brokers = broker_ids
        self.observers.disk_space()

    def voters(self) -> tuple[Voter, ...]:
        """As the log names them, or would. Refused where one of the list has never registered."""
        if self.host.log.voters is not None:
            return self.host.log.voters
        found = [(each.node_id, voter_of(self.image, each.node_id)) for each in self.host.voters]
        voters = tuple(voter for _, voter in found if voter is not None)
        if len(voters) < len(found):
            node_id = next(node_id for node_id, voter in found if voter is None)
            raise Refused(ErrorCode.INVALID_REQUEST, f"node {node_id}, which votes, has not registered yet")
        return voters

    def name_voters_for(self, wanted: Registration, own_host: str) -> Later[None]:
        """A node wants to register. Where it is the first beside this one, the log names the voters before that: a
        later start that finds others there must know who decides. `own_host` is where it has reached us.

        Refused where that cannot be done now.
        """
        if not self.is_alone or not self.is_active or wanted.broker_id == self.node_id:
            return done(None)
        lacks = unsupported({**self._ahead.features, KRAFT_VERSION: 1}, supported_by(wanted.features))
        if lacks is not None:
            # First of all: that the log names the voters is for good, and the version from before cannot read it.
            return failed(
                Refused(ErrorCode.UNSUPPORTED_VERSION, f"node {wanted.broker_id} cannot join: it would be at {lacks}")
            )
        found = self._reveal(own_host)
        return found.chain(lambda _: self.raise_kraft_version()).map(_must_be_ok)

    def _reveal(self, own_host: str) -> Later[None]:
        """A node that listens everywhere has told every client the address that it came in by; now one counts."""
        me = self.image.brokers[self.node_id]
        if all(each.host not in WILDCARDS for each in me.end_points):
            return done(None)
        end_points = tuple(replace(each, host=own_host) if each.host in WILDCARDS else each for each in me.end_points)
        record = broker_record(replace(me, end_points=end_points))
        return self.submit(lambda _: Decision((record,), None))

    def change_voters(self, voters: Sequence[Voter]) -> Later[Verdict]:
        """Let these vote from now on; ends when that is committed. Refused as by `submit`."""
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
        """Whether the nodes that follow this one have heard of all that is committed."""
        return self.host.is_known_to_all

    def resign(self) -> None:
        """Let another one lead, if there is one; this node is about to stop."""
        self.host.stop()

    def _give_way(self) -> None:
        """This disk has no room even for the metadata: a controller that can decide nothing must not stay.

        Not where the others could elect nobody without its vote, which it cannot write down either.
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
        """Decide nothing more. What is under way is still answered if it is committed before the log is closed."""
        if self._stopped is None:
            self._stopped = Refused(ErrorCode.NOT_CONTROLLER, "the broker is stopping")
        if self._host is not None:
            self._host.close()

    def _encode(self, records: tuple[Record, ...]) -> bytes:
        """One batch, so that the records of one decision are there all or not at all."""
        now_ms = self._clock.wall_ms()
        encoded = encode_records(records, metadata_version(self._ahead))
        return wire_records.encode_batch(
            [wire_records.Record(index, now_ms, None, value) for index, value in encoded],
            last_offset_delta=len(records) - 1,
        )

    # Following the quorum.

    def _on_quorum(self) -> None:
        """Something has happened there: see what is committed now, and who leads."""
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
            # One sync for all that a start adds.
            self.host.hold()
        if self._stopped is None:
            cluster_id = self._settings[CLUSTER_ID] or random_cluster_id(self._entropy)
            # Whatever becomes of it: who leads next finds the cluster without a name, and gives it one.
            self.submit(lambda image: decide_found(image, cluster_id, self.supported)).then(_ignore, _ignore)
        self.observers.role(True)

    def _deactivate(self) -> None:
        """Another may decide now. What waits for a commit may get it or not: nobody here will know in time."""
        self._active_epoch = None
        self._ahead = Image()
        self._batches.forget_own()
        pending = self._pending.take_all()
        self.observers.role(False)
        end_all(pending, Refused(ErrorCode.NOT_CONTROLLER, "this node is no longer the active controller"))

    def _stop(self, error: OSError) -> None:
        """The log is closed for good: nobody knows what of it would survive, so nothing may be answered."""
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
    """Nobody waits for it."""


def random_cluster_id(entropy: Entropy) -> str:
    """22 characters that no other cluster has."""
    return urlsafe_b64encode(entropy.uuid().bytes).decode().rstrip("=")
