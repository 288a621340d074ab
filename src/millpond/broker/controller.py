"""Where metadata meets the quorum: what is decided is written to the metadata log, committed by a majority of the
voters, applied, and only then answered. A node that is alone is a majority of one.

`image` holds what is committed and applied here, on every node, and is what everybody reads. On the active controller
`_ahead` also holds what is written but not yet committed, and is what the next decision is made on, so that decisions
need not wait for each other: one commit takes along all that was written before it.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.base.ids import LeaderEpoch, NodeId
from millpond.base.later import Later, done, end_all, failed, gather
from millpond.base.ports import Entropy, World
from millpond.base.settings import Settings
from millpond.broker.checkpoint_writer import CheckpointWriter
from millpond.broker.links.peers import NodeAddresses, Peers
from millpond.broker.lives.copy_of_folder import mark_folder
from millpond.broker.lives.identity import (
    CannotJoin,
    CannotStart,
    Identity,
    cluster_name,
    read_identity,
    write_identity,
)
from millpond.broker.lives.restored import RESTORE_FILE
from millpond.broker.quorum.host import QuorumHost, StartWorkers
from millpond.broker.quorum.log import MetadataLog
from millpond.broker.quorum.snapshots import SnapshotFiles, decode_snapshot, encode_snapshot
from millpond.broker.quorum.state import STATE_FILE, DamagedState, read_election
from millpond.broker.quorum.voters import voter_of
from millpond.broker.quorum.wire import METADATA_PARTITION, METADATA_TOPIC_ID, voter_keys
from millpond.broker.rescue.order import is_begun
from millpond.broker.rescue.survivor import CannotRescue, read_metadata
from millpond.broker.serving.call import NODE_CLIENT_ID
from millpond.config.effective import NodeLayers
from millpond.config.node import (
    BROKER_RACK,
    CLUSTER_CONTACTS,
    CLUSTER_ID,
    CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS,
    CONTROLLER_QUORUM_FETCH_TIMEOUT_MS,
    METADATA_SNAPSHOT_BYTES,
    METADATA_SNAPSHOT_MS,
    NODE_ID,
    cluster_nodes,
    cluster_voters,
    contacts_of,
)
from millpond.log.limits import FOREVER, LogLimits
from millpond.log.partition_log import PartitionLog
from millpond.log.recovery import LogDamaged
from millpond.log.store import LogStore
from millpond.metadata.brokers import Registered, Registration, decide_found, decide_register
from millpond.metadata.codec import UnknownRecord, decode_records, encode_records
from millpond.metadata.decision import OK, Decision, Verdict
from millpond.metadata.features import (
    KRAFT_VERSION,
    METADATA_VERSION,
    SUPPORTED,
    Supported,
    features_to_record,
    metadata_version,
    not_supported_by_all,
    supported_by,
    unsupported,
)
from millpond.metadata.image import NO_DIRECTORY, Image
from millpond.metadata.records import BrokerEndpoint, FeatureLevelRecord, Record
from millpond.metadata.snapshot import broker_record, records_between, records_of
from millpond.quorum.messages import NO_LEADER, ReplicaKey, SnapshotId
from millpond.quorum.patience import Timing
from millpond.quorum.ports import Election
from millpond.quorum.voters import Voter
from millpond.wire import records as wire_records
from millpond.wire.batch import CONTROL, walk

R = TypeVar("R")

METADATA_LIMITS: Final = LogLimits(cleanup_delete=False, segment_ms=FOREVER, retention_ms=-1)
"""Nothing of the metadata log expires: it goes when a snapshot has taken its place."""

WILDCARDS: Final = ("0.0.0.0", "::", "")
"""Hosts by which a node listens on all its addresses, and at which nobody reaches it."""

READ_BYTES: Final = 1 << 20
LOOK_EVERY: Final = 64
"""After how many records it is looked whether the turn is over."""

LEAP_RETRY_MS: Final = 500
FOLD_RETRY_MS: Final = 60_000

TURN_MS: Final = 5
READ_RETRY_MS: Final = 100
"""How long committed records are applied in one turn of the loop; at least one batch is."""

OnChange = Callable[[Sequence[Record]], Later[None]]
OnRole = Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class _Parked:
    """A reply that waits until everything below `end_offset` is committed and applied."""

    end_offset: int
    later: Later[Any]
    reply: object


@dataclass(frozen=True, slots=True)
class _Batch:
    """The records of one decision, between these offsets."""

    start_offset: int
    end_offset: int
    records: tuple[Record, ...]


@dataclass(slots=True)
class _Decoding:
    """A batch on its way from bytes to records, a part in each turn of the loop."""

    start_offset: int
    end_offset: int
    entries: Iterator[wire_records.Record]
    newest: int
    """The metadata.version up to which records are known here."""
    records: list[Record] = field(default_factory=list)

    def go_on(self, is_late: Callable[[], bool]) -> _Batch | None:
        """The batch, or None when the turn was over before its end."""
        for entry in self.entries:
            before = len(self.records)
            self.records += decode_records(entry.value or b"", self.newest)
            if before // LOOK_EVERY != len(self.records) // LOOK_EVERY and is_late():
                return None
        return _Batch(self.start_offset, self.end_offset, tuple(self.records))


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
        self.image: Final = Image()
        """The committed metadata as applied here. Always the same object."""
        self.node_id = NodeId(settings[NODE_ID])
        self.broker_epoch = -1
        self.applied_offset = 0
        """Everything below is in `image`."""
        self.is_alone = False
        """Whether this node is its whole cluster; until another one has registered."""
        self.addresses: Final = NodeAddresses(settings, self.image)
        """Where the nodes are, as far as this one knows."""
        self._ahead = Image()
        self._world = world
        self._clock = world.clock
        self._entropy = world.entropy
        self._store = store
        self._settings = settings
        self._checkpoints = checkpoints or CheckpointWriter(store, world.sync_workers)
        self._workers = StartWorkers(world.sync_workers)
        self._identity: Identity | None = None
        self.is_copy = False
        """Whether the data folder is a copy of the one that this node ran in last: it may be old."""
        self._host: QuorumHost | None = None
        self._active_epoch: int | None = None
        self._own: deque[_Batch] = deque()
        """What this node has written as the leader, so that it need not be read again."""
        self._parked: deque[_Parked] = deque()
        self._observers: list[OnChange] = []
        self._role_observers: list[OnRole] = []
        self._company_observers: list[Callable[[], None]] = []
        self._is_applying = False
        self._has_turn = False
        self._decoding: _Decoding | None = None
        self._is_leaping = False
        self._is_folding = False
        self._is_outdated = False
        self._must_fold = False
        """What lies before is of a level that has been lowered: only a snapshot can be read by all from now on."""
        self._folded_ms = world.clock.monotonic_ms()
        self._stopped: Refused | None = None
        self.last_leader_id = NO_LEADER
        """The other node that led the quorum last, as far as this one knows."""
        self.offline: Later[OSError] = Later()
        """Ends when the metadata log has failed for good. One of several nodes should end then: the others go on."""
        self.outlived: Later[None] = Later()
        """Ends when it turns out that the cluster was rescued without this node, which must end then."""
        self.outdated: Later[CannotJoin] = Later()
        """Ends when the cluster has gone on to what this program does not know. It applies nothing from then on."""

    # Facts.

    @property
    def host(self) -> QuorumHost:
        assert self._host is not None, "not loaded"
        return self._host

    @property
    def log(self) -> PartitionLog:
        return self.host.log.log

    @property
    def directory_id(self) -> UUID:
        """Of this node's data folder; a wiped or other disk has another one."""
        assert self._identity is not None, "not loaded"
        return self._identity.directory_id

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
        """How this node names the cluster to other nodes; empty while it knows none.

        The id that it was told is no such name: whoever told it knows nothing of rescues."""
        known = self._identity if self._identity is not None and self._identity.cluster_id else self.image
        return cluster_name(known.cluster_id, known.rescues) or ""

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
    def leader_heard_ago_ms(self) -> int | None:
        """How long ago the node that led the quorum before this one was heard; None for never."""
        return self.host.leader_heard_ago_ms

    def knows_since(self, moment_ms: int) -> bool:
        """Whether the image has all that was decided before `moment_ms`, by this node's clock."""
        told = self.host.told
        return told is not None and told[0] >= moment_ms and self.applied_offset >= told[1]

    @property
    def others_may_lead(self) -> bool:
        """Whether the other nodes may be there and elect one of themselves, as far as this one can tell."""
        return self.host.others_may_lead

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Of the quorum."""
        return LeaderEpoch(0 if self._host is None else self._host.epoch)

    def is_idle(self) -> bool:
        return not self._parked and self.host.is_idle

    def on_change(self, observer: OnChange) -> None:
        """Call `observer` with every group of records once they are committed and replayed, on every node.

        The reply to their decision waits until what it returns has ended.
        """
        self._observers.append(observer)

    def on_role(self, observer: OnRole) -> None:
        """Call `observer` when this node has become the active controller (True), or no longer is."""
        self._role_observers.append(observer)
        if self.is_active:
            observer(True)

    def on_company(self, observer: Callable[[], None]) -> None:
        """Call `observer` once another node has registered with this one, which was alone."""
        self._company_observers.append(observer)

    # Starting.

    def load(self, advertised: tuple[str, int], *, after_crash: bool = False) -> None:
        """Take part in the quorum. Waits for the disk.

        A node that is alone is its leader on return, and has added what this start changes: on the first one the
        cluster itself. `after_crash` begins a new leader epoch everywhere, because written records may be gone. With
        others the rest comes as they answer. A node that joins a running cluster knows nothing of it but whom to ask.
        """
        if METADATA_PARTITION in self._store.failed:
            raise CannotStart(f"the metadata log cannot be read: {self._store.failed[METADATA_PARTITION]}")
        if self._world.disk.exists(f"{self._store.folder}/{RESTORE_FILE}"):
            raise CannotStart(
                "a backup was being restored into it and that has not ended (run the same `millpond restore` again)"
            )
        if is_begun(self._world.disk, self._store.folder):
            raise CannotStart(
                "a rescue of this folder was begun and has not ended (run `millpond cluster rescue --data DIR --act` "
                "again)"
            )
        self._identity = read_identity(self._world.disk, self._store.folder)
        if self._identity is not None:
            self._identity.check(self.node_id, self._settings[CLUSTER_ID])
        log = self._store.create(METADATA_PARTITION, METADATA_TOPIC_ID, METADATA_LIMITS)
        log.limits = METADATA_LIMITS
        self._host = self._make_host(log, after_crash=after_crash)
        self._load_snapshot(self._host.log)
        if self._host.voters == (self._host.me,) and len(cluster_nodes(self._settings)) < 2:
            # A quorum of one has committed whatever is in its log.
            self._apply(upper=self._host.log.end_offset)
            self._check_alone()
            self.is_alone = not self._others()
        self._identify()
        if not self.is_alone:
            # What an earlier life wrote and never synced must not count before it is.
            self._sync_inline(log)
        self._host.start()
        if self._host.failed is not None:
            raise self._host.failed
        if self.is_alone:
            self._join(advertised, after_crash=after_crash)
        elif self.is_active:
            # The only voter among several nodes has elected itself just now.
            self._host.release()
            if self._host.failed is not None:
                raise self._host.failed
        self._workers.is_inline = False

    def _make_host(self, log: PartitionLog, *, after_crash: bool) -> QuorumHost:
        settings = self._settings
        addresses = self.addresses
        client_id = f"{NODE_CLIENT_ID}{self.node_id}"
        contacts = contacts_of(self._contacts)
        addresses.tell(contacts)
        node_ids = list(cluster_voters(settings)) or ([] if contacts else [self.node_id])
        snapshots = SnapshotFiles(self._world.disk, log.folder)
        metadata_log = MetadataLog(
            log, snapshots, self._clock, self._workers, self._write_checkpoint, tuple(node_ids)
        )
        try:
            metadata_log.open_snapshots()
        except LogDamaged as fault:
            raise CannotStart(f"the metadata log cannot be read: {fault}") from fault
        addresses.voters = lambda: metadata_log.voters or ()
        election = self._election(metadata_log, after_crash=after_crash)
        voters = voter_keys(node_ids)
        if election is not None and election.voted is not None:
            # It is the node that had the vote, whatever list it was told then.
            voted = next((voter for voter in voters if voter.node_id == election.voted.node_id), election.voted)
            election = replace(election, voted=voted)
        if election is None:
            # An empty folder may be that of a new cluster, or of a voter that was wiped.
            is_empty = metadata_log.end_offset == 0
            election = Election(is_new=is_empty and not self._is_sole)
        # Who is none of the voters follows them, and has no voice.
        observer = ReplicaKey(self.node_id, voters[0].directory_id if voters else NO_DIRECTORY)
        return QuorumHost(
            world=self._world,
            log=metadata_log,
            workers=self._workers,
            state_path=f"{log.folder}/{STATE_FILE}",
            election=election,
            me=next((voter for voter in voters if voter.node_id == self.node_id), observer),
            founders=voters,
            contacts=[each.node_id for each in contacts],
            timing=Timing(
                election_ms=settings[CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS],
                fetch_ms=settings[CONTROLLER_QUORUM_FETCH_TIMEOUT_MS],
                # A leader must be heard several times before anybody gives it up.
                fetch_wait_ms=min(500, settings[CONTROLLER_QUORUM_FETCH_TIMEOUT_MS] // 3),
            ),
            # What is fetched waits at the leader, and must not hold up votes.
            peers=(Peers(self._world, client_id, addresses), Peers(self._world, client_id, addresses)),
            cluster_name=lambda: self._identity.cluster_name if self._identity else None,
            on_step=self._on_quorum,
            addresses=addresses,
        )

    def _election(self, log: MetadataLog, *, after_crash: bool) -> Election | None:
        """What this node remembers of elections; None of an empty folder. Of a copy, as little as one may go by."""
        disk, folder = self._world.disk, log.log.folder
        try:
            if self._identity is not None:
                self._identity, self.is_copy = mark_folder(
                    disk,
                    self._store.folder,
                    folder,
                    self._identity,
                    self._world.boot_id,
                    is_alone=lambda: self._is_all_there_is(log),
                    was_clean=not after_crash,
                )
            return read_election(disk, f"{folder}/{STATE_FILE}")
        except DamagedState as fault:
            raise CannotStart(
                f"{fault}. Nobody knows what this node has promised: restore it, or wipe the folder"
            ) from fault

    @property
    def _contacts(self) -> tuple[str, ...]:
        told = self._settings[CLUSTER_CONTACTS]
        return told if told or self._identity is None else self._identity.contacts

    @property
    def _is_sole(self) -> bool:
        """Whether this node has never heard of others."""
        return len(cluster_nodes(self._settings)) < 2 and not self._contacts

    def _is_all_there_is(self, log: MetadataLog) -> bool:
        """Whether there is nobody else in the cluster. Waits for the disk."""
        if log.voters is None:
            return self._is_sole
        if any(voter.node_id != self.node_id for voter in log.voters):
            return False
        try:
            return not read_metadata(self._world.disk, log.log.folder).image.brokers.keys() - {self.node_id}
        except CannotRescue:
            return False

    def _others(self) -> list[int]:
        return sorted(self.image.brokers.keys() - {self.node_id})

    def _load_snapshot(self, log: MetadataLog) -> None:
        """Begin with the newest snapshot that can be read, if there is any. Waits for the disk."""
        for snapshot in reversed(log.snapshots.ids):
            try:
                image = image_of(log.snapshots.read_whole(snapshot))
            except MalformedMessage as fault:
                # The log begins with the oldest of them: it has what the damaged one had.
                if snapshot == log.snapshots.ids[0]:
                    raise CannotStart(
                        f"the snapshot {log.snapshots.path(snapshot)} cannot be read: {fault}"
                    ) from fault
                continue
            self._check_levels(image)
            self.image.become(image)
            self.applied_offset = snapshot.end_offset
            return

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

    def _identify(self) -> None:
        """Write down whose folder this is, unless that is known already. One of another cluster is refused."""
        if self._identity is None:
            if self.image.brokers and self.node_id not in self.image.brokers:
                owner = next(iter(self.image.brokers))
                raise CannotStart(f"the data folder belongs to node {owner}, not to node {self.node_id}")
            self._identity = Identity(
                self.node_id,
                self._entropy.uuid(),
                self.image.cluster_id,
                self.image.rescues,
                self._world.disk.mark(self.log.folder),
                self._contacts,
            )
            self._identity.check(self.node_id, self._settings[CLUSTER_ID])
            if not self.is_alone or self._identity.cluster_id:
                # Else it is written in a moment, with the name of the cluster that this node founds.
                write_identity(self._world.disk, self._store.folder, self._identity)

    def _sync_inline(self, log: PartitionLog) -> None:
        ticket = log.sync_target()
        try:
            ticket.run()
        except OSError as error:
            log.fail(error, ticket)
            raise
        log.synced(ticket)
        self._world.disk.sync_folder(log.folder)

    def _join(self, advertised: tuple[str, int], *, after_crash: bool) -> None:
        """A node that is alone registers with itself."""
        known = self.image.brokers.get(self.node_id)
        wanted = Registration(
            self.node_id,
            self._entropy.uuid(),
            (BrokerEndpoint("PLAINTEXT", *advertised),),
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
        later: Later[R] = Later()
        if not decision.records:
            if not self._parked:
                return done(decision.reply)
            self._parked.append(_Parked(start_offset, later, decision.reply))
            return later
        try:
            self.host.write(self._encode(decision.records))
        except Refused as refused:
            # Nothing was written, so nothing is lost but this one: the disk may have room again for the next.
            if self.log.failed is not None:
                self._stop(self.log.failed)
            return failed(refused)
        self._ahead.replay_all(decision.records)
        self._own.append(_Batch(start_offset, self.next_offset, decision.records))
        self._parked.append(_Parked(self.next_offset, later, decision.reply))
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
        if me.end_points[0].host not in WILDCARDS:
            return done(None)
        end_point = replace(me.end_points[0], host=own_host)
        record = broker_record(replace(me, end_points=(end_point, *me.end_points[1:])))
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
        later: Later[Verdict] = Later()
        if not self.host.change_voters(voters):
            return done(Verdict(ErrorCode.KAFKA_STORAGE_ERROR, "the change of voters cannot be written now"))
        if self.applied_offset > start_offset:
            return done(OK)
        self._own.append(_Batch(start_offset, self.next_offset, ()))
        self._parked.append(_Parked(self.next_offset, later, OK))
        return later

    @property
    def is_known_to_all(self) -> bool:
        """Whether the nodes that follow this one have heard of all that is committed."""
        return self.host.is_known_to_all

    def resign(self) -> None:
        """Let another one lead, if there is one; this node is about to stop."""
        self.host.stop()

    def close(self) -> None:
        """Decide nothing more. What is under way is still answered if it is committed before the log is closed."""
        if self._stopped is None:
            self._stopped = Refused(ErrorCode.NOT_CONTROLLER, "the broker is stopping")
        if self._host is not None:
            self._host.close()

    def _encode(self, records: tuple[Record, ...]) -> bytes:
        """One batch, so that the records of one decision are there all or not at all."""
        now_ms = self._clock.wall_ms()
        # By the level of the log up to here: whoever reads the batch has read that level before.
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
        self._apply()
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
        for observer in self._role_observers:
            observer(True)

    def _deactivate(self) -> None:
        """Another may decide now. What waits for a commit may get it or not: nobody here will know in time."""
        self._active_epoch = None
        self._ahead = Image()
        self._own.clear()
        parked, self._parked = self._parked, deque()
        for observer in self._role_observers:
            observer(False)
        refused = Refused(ErrorCode.NOT_CONTROLLER, "this node is the active controller no more")
        end_all([(each.later, each.reply) for each in parked], refused)

    def _stop(self, error: OSError) -> None:
        """The log is closed for good: nobody knows what of it would survive, so nothing may be answered."""
        self._stopped = Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log is offline: {error}")
        parked, self._parked = self._parked, deque()
        self._own.clear()
        end_all([(each.later, each.reply) for each in parked], self._stopped)
        self.offline.finish(error)

    # Applying.

    def _apply(self, upper: int | None = None) -> None:
        """Replay what is committed; a part of it in each turn of the loop."""
        if self._is_applying or self._has_turn:
            return
        self._is_applying = True
        until_ms = self._clock.monotonic_ms() + TURN_MS

        def is_late() -> bool:
            return self._clock.monotonic_ms() > until_ms and not self._workers.is_inline

        try:
            while self.applied_offset < self._upper_offset(upper) and not self._has_turn:
                for batch in self._next_batches(self._upper_offset(upper), is_late):
                    if batch is not None:
                        self._take(batch)
                    if batch is None or is_late():
                        self._has_turn = True
                        self._clock.call_soon(self._go_on)
                        break
        finally:
            self._is_applying = False
        log = self.host.log
        if self.applied_offset < log.start_offset and not log.is_changing and not self._is_leaping:
            self._leap(log.snapshots.ids[-1])
        else:
            self._take_snapshot()

    def _go_on(self) -> None:
        self._has_turn = False
        self._on_quorum()

    def _upper_offset(self, upper: int | None) -> int:
        log = self.host.log
        if log.is_changing or self._is_leaping or self._is_outdated or self.applied_offset < log.start_offset:
            return self.applied_offset
        if log.log.closed and not self._own:
            return self.applied_offset
        return min(self.host.high_watermark, log.end_offset) if upper is None else upper

    def _next_batches(self, upper: int, is_late: Callable[[], bool]) -> Iterator[_Batch | None]:
        """Those that follow what is applied: the leader's own from memory, others from the log.

        None when the turn is over in the middle of a large one: the next turn goes on with it.
        """
        if self._decoding is not None and self._decoding.start_offset == self.applied_offset:
            yield self._decode(self._decoding, is_late)
            return
        if self._own and self._own[0].start_offset == self.applied_offset:
            yield self._own.popleft()
            return
        try:
            data = self.log.read_batches(self.applied_offset, READ_BYTES)
        except Refused:
            # The disk gives nothing for now, or the log is offline. What is committed stays so: it is applied later.
            self._has_turn = True
            self._clock.call_later(READ_RETRY_MS, self._go_on)
            return
        for position, header in walk(data):
            if header.next_offset > upper:
                break
            if header.attributes & CONTROL:
                yield _Batch(header.base_offset, header.next_offset, ())
                continue
            try:
                entries = iter(wire_records.decode_batch(data, position))
            except MalformedMessage as fault:
                raise CannotStart(
                    f"the metadata log cannot be read at offset {header.base_offset}: {fault}"
                ) from fault
            newest = self.supported[METADATA_VERSION].newest
            yield self._decode(_Decoding(header.base_offset, header.next_offset, entries, newest), is_late)

    def _decode(self, decoding: _Decoding, is_late: Callable[[], bool]) -> _Batch | None:
        try:
            batch = decoding.go_on(is_late)
        except MalformedMessage as fault:
            why = f"the metadata log cannot be read at offset {decoding.start_offset}: {fault}"
            if isinstance(fault, UnknownRecord) and not self._workers.is_inline:
                self._end_outdated(why)
                return None
            raise CannotStart(why) from fault
        self._decoding = decoding if batch is None else None
        return batch

    def _take(self, batch: _Batch, *, is_replayed: bool = False) -> None:
        level = metadata_version(self.image)
        if not is_replayed:
            self.image.replay_all(batch.records)
        self.applied_offset = batch.end_offset
        if any(isinstance(each, FeatureLevelRecord) for each in batch.records):
            self._check_levels(self.image)
            self._must_fold = self._must_fold or metadata_version(self.image) < level
        followed = gather([observer(batch.records) for observer in self._observers]) if batch.records else None
        if batch.records and self._identity is not None and self._identity.cluster_id is None:
            self._join_cluster(self._identity)
        if self.is_alone and len(self.image.brokers) > 1 and not self._workers.is_inline:
            self.is_alone = False
            self._remember_company()
            for each in self._company_observers:
                each()
        first = True
        while self._parked and self._parked[0].end_offset <= self.applied_offset:
            parked = self._parked.popleft()
            if first and followed is not None:
                followed.then(partial(_answer, parked))
            else:
                _answer(parked, None)
            first = False

    def _check_levels(self, image: Image) -> None:
        """That this program supports what the cluster has agreed on: else it would misread what follows."""
        lacks = unsupported(image.features, self.supported)
        if lacks is None:
            return
        why = (
            f"this program is of another version than the data: they are at {lacks}. Start the version that wrote "
            "them, or lower the level with that one first (millpond cluster downgrade)"
        )
        if self._workers.is_inline:
            raise CannotStart(why)
        self._end_outdated(why)

    def _end_outdated(self, why: str) -> None:
        self._is_outdated = True
        self.outdated.finish(CannotJoin(why))

    def _remember_company(self) -> None:
        """Write down that this folder is that of one of several, and whom it knows."""
        assert self._identity is not None
        known = {node_id: self.addresses(node_id) for node_id in self._others()}
        contacts = tuple(f"{node_id}@{at[0]}:{at[1]}" for node_id, at in known.items() if at is not None)
        self._identity = replace(self._identity, contacts=contacts)
        written = self._workers.run(partial(write_identity, self._world.disk, self._store.folder, self._identity))
        written.recover(OSError, lambda _: None).then(_ignore)

    # Snapshots.

    def _leap(self, snapshot: SnapshotId) -> None:
        """The leader has sent a snapshot of what its log has no more: go on from there."""
        self._is_leaping = True
        log = self.host.log

        def loaded(image: Image) -> None:
            self._is_leaping = False
            self._check_levels(image)
            changes = tuple(records_between(self.image, image))
            self.image.become(image)
            self._take(_Batch(self.applied_offset, snapshot.end_offset, changes), is_replayed=True)
            self._on_quorum()

        def not_loaded(error: Exception) -> None:
            self._is_leaping = False
            # A file that cannot be read now may be later; anything else is a bug.
            if not isinstance(error, OSError):
                raise error
            self._clock.call_later(LEAP_RETRY_MS, self._on_quorum)

        self._world.workers.run(lambda: image_of(log.snapshots.read_whole(snapshot))).then(loaded, not_loaded)

    def _take_snapshot(self) -> None:
        """Write what is applied as a snapshot, once enough has come since the last one."""
        log = self.host.log
        taken = log.latest_snapshot
        if self._is_folding or log.is_changing or self.log.closed or self.log.failed is not None:
            return
        if self.applied_offset <= (taken.end_offset if taken else 0):
            return
        now_ms = self._clock.monotonic_ms()
        is_due = self._must_fold or now_ms - self._folded_ms >= self._settings[METADATA_SNAPSHOT_MS]
        if not is_due and self.log.segments.active.size < self._settings[METADATA_SNAPSHOT_BYTES]:
            return
        self._is_folding = True
        self._must_fold = False
        self._folded_ms = now_ms
        snapshot = SnapshotId(self.applied_offset, self.log.epochs.of(self.applied_offset - 1))
        image, wall_ms = self.image.copy(), self._clock.wall_ms()
        voters = log.voters_at(snapshot.end_offset)

        def end(_: object) -> None:
            self._is_folding = False

        def not_taken(error: Exception) -> None:
            if not isinstance(error, OSError | Refused):
                raise error
            # The disk is full or out of reach: nothing but room is lost. Not at once again.
            self._clock.call_later(FOLD_RETRY_MS, partial(end, None))

        encode = lambda: encode_snapshot(records_of(image), wall_ms, voters)  # noqa: E731
        log.take_snapshot(snapshot, encode, self._world.workers).then(end, not_taken)

    def _join_cluster(self, identity: Identity) -> None:
        """The cluster has a name now: write it down."""
        cluster_id = self.image.cluster_id
        if cluster_id is not None:
            self._identity = replace(identity, cluster_id=cluster_id, rescues=self.image.rescues)
            written = self._workers.run(partial(write_identity, self._world.disk, self._store.folder, self._identity))
            # A full disk: the next start learns it again.
            written.recover(OSError, lambda _: None).then(_ignore)


def image_of(data: bytes) -> Image:
    """What a snapshot holds. MalformedMessage where it is not whole."""
    image = Image()
    for record in decode_snapshot(data):
        image.replay(record)
    return image


def _must_be_ok(verdict: Verdict) -> None:
    if not verdict.ok:
        raise Refused(verdict.code, verdict.message or "")


def _answer(parked: _Parked, _: object) -> None:
    parked.later.finish(parked.reply)


def _ignore(_: object) -> None:
    """Nobody waits for it."""


def random_cluster_id(entropy: Entropy) -> str:
    """22 characters that no other cluster has."""
    return urlsafe_b64encode(entropy.uuid().bytes).decode().rstrip("=")
