"""A whole node in the simulated world, and hostile connections to it: no socket, no wait, every error seen."""

from __future__ import annotations

import gc
import re
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from heapq import heapify
from typing import Any

from millpond.base.errors import RemoteError
from millpond.base.ports import FileRange, LinkHandler, ReplyPart
from millpond.base.principal import Principal
from millpond.base.scram import salted
from millpond.broker.broker import load_coordinators
from millpond.broker.serving.api import AT_ONCE_ITEMS, WHOLE_MAX, Api
from millpond.broker.serving.pieces import weight
from millpond.config.listeners import listeners_of
from millpond.config.node import node_settings
from millpond.metadata.image import ALL_BROKERS, Resource
from millpond.metadata.records import DelegationTokenRecord, ResourceType
from millpond.metadata.scram import Mechanism
from millpond.metadata.snapshot import records_of
from millpond.sim.node import DATA_FOLDER, SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages
from millpond.wire import messages as m
from millpond.wire.header import NAMES, decode_response_header, encode_request_header
from millpond.wire.records import Record, encode_batch
from support.fuzz.answers import LENGTH, Answers
from support.fuzz.heavy import WIDE, WIDE_PARTITIONS
from support.fuzz.pools import NOW_MS, Pools
from support.fuzz.scenes import LODGER, OPEN, PASSWORD, ROOT, SCENES, SMALL, USER, Scene
from support.fuzz.watch import Found, Turn, memory_bytes

START_MS = 60_000
GROUP, TRANSACTION = 0, 1
LITERAL, ALLOW, ALL_OPERATIONS = 3, 3, 2
RIGHTS = ((2, "pond"), (2, "lake"), (3, "crew"), (3, "guild"), (5, "txn"))
"""Topics, groups and a transactional id."""

CANARY = "canary"
CANARY_VALUE = b"still here"
TRACE_LINES = 6
ACT_BYTES = 150
"""What an act occupies in memory, in addition to its bytes."""

_NUMBERS = re.compile(r"\d+|'[^']*'")


Act = tuple[str, int, bytes]
"""One thing done to a node: what, to which connection or for how long, and its bytes."""


class HostileLink:
    """The node's end of a connection whose other end is the campaign."""

    local_host = "node"
    certificate_name: str | None = None
    is_encrypted = False
    on_secured: Callable[[], None] | None = None

    def __init__(self, target: Target, peer: str, answers: Answers, listener: str) -> None:
        self.peer = peer
        self.listener = listener
        self.answers = answers
        self.reads = True
        """Whether the client reads what it is sent."""
        self.alive = True
        self.number = 0
        self.fault = ""
        """Why the connection was closed, as text: the error itself would keep everything that led to it alive."""
        self.is_paused = False
        self._target = target
        self._handler: LinkHandler | None = None
        self._inbox = b""
        self._unread: list[ReplyPart] = []
        self._unread_bytes = 0

    def start(self, handler: LinkHandler) -> None:
        self._handler = handler

    # Called by the broker

    def send(self, parts: Sequence[ReplyPart]) -> None:
        if not self.alive:
            _release(parts)
        elif self.reads:
            # The client's handling of its response does not count as the node's time.
            self._target.turn.leave_out(lambda: self.answers.take(_bytes_of(parts)))()
        else:
            self._unread += parts
            self._unread_bytes += sum(map(len, parts))

    def unsent_bytes(self) -> int:
        return self._unread_bytes

    def unsent_memory_bytes(self) -> int:
        return sum(len(part) for part in self._unread if not isinstance(part, FileRange))

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        if self.is_paused:
            self.is_paused = False
            if self._inbox:
                self._target.clock.call_soon(self._read_guarded)

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self.alive:
            self.alive = False
            self._inbox = b""
            _release(self._unread)
            self._unread = []
            self._unread_bytes = 0
            self._target.clock.call_soon(self._tell_closed)

    def _tell_closed(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.closed()

    # Called by the campaign

    def deliver(self, data: bytes) -> None:
        """Let bytes arrive; what the broker does not want to read yet waits."""
        self._target.turn.leave_out(lambda: self._arrive(data))()
        self._read()

    def _arrive(self, data: bytes) -> None:
        self._inbox += data

    def read_all(self) -> None:
        """The client reads everything that is queued."""
        self.reads = True
        unread, self._unread, self._unread_bytes = self._unread, [], 0
        if self.alive and unread:
            self.answers.take(_bytes_of(unread))
            assert self._handler is not None
            self._handler.drained()

    def _read_guarded(self) -> None:
        if self.alive:
            self._read()

    def _read(self) -> None:
        try:
            inbox, at = memoryview(self._inbox), 0
            self._inbox = b""
            while at < len(inbox) and self.alive and not self.is_paused:
                assert self._handler is not None
                room = self._handler.buffer()
                size = min(len(room), len(inbox) - at)
                self._target.turn.leave_out(partial(_copy, room, inbox[at : at + size]))()
                at += size
                self._handler.received(size)
            if at < len(inbox) and self.alive:
                self._inbox = bytes(inbox[at:])
        except RemoteError as error:
            self.fault = f"{type(error).__name__} {error}"
            self.close()


def _copy(room: memoryview, data: memoryview) -> None:
    """A real socket fills a large buffer in many turns of the loop."""
    room[: len(data)] = data


def items_at_once(api: Api) -> int:
    """How many items an API may get in one turn of the loop."""
    # In addition to its items, a slice has the structures that contain them.
    in_pieces = [each.items + len(each.of) for each in api.pieces]
    return max(AT_ONCE_ITEMS, *in_pieces, api.whole_max if not api.pieces or api.whole_max != WHOLE_MAX else 0)


class Target:
    """One node, from its first start on an empty disk."""

    def __init__(self, seed: int, scene: Scene = OPEN) -> None:
        load_coordinators()
        messages.load()
        self._seed = seed
        self.sim = SimWorld(seed, shuffle=False)
        self.clock = self.sim.clock
        self.node = SimNode(self.sim, texts={**SMALL, **scene.settings})
        self._scene = scene
        self._listener = listeners_of(node_settings(self.node.texts))[0].name
        self.turn = Turn()
        self.frames = 0
        self.doing = b""
        """The last request that the node got, without its length."""
        self.acts: list[Act] = []
        self._links = 0
        assert self.node.start(), self.node.journal_lines
        broker = self.node.broker
        assert self.sim.run_until(lambda: broker.lifecycle.knows_itself, within_ms=START_MS)
        self._settings_before = self._settings()
        self.node.disk.trace = deque(maxlen=0)
        handle = broker.dispatcher.handle

        def counted(connection: Any, frame: memoryview) -> None:
            self.frames += 1
            handle(connection, frame)

        broker.dispatcher.handle = counted  # type: ignore[method-assign]
        report = broker.dispatcher.report

        def noted(connection: Any, error: RemoteError) -> None:
            if isinstance(connection.link, HostileLink):
                connection.link.fault = f"{type(error).__name__} {error}"
            report(connection, error)

        broker.dispatcher.report = noted  # type: ignore[method-assign]
        broker.dispatcher.load()
        for entry in broker.dispatcher._entries.values():
            entry.api = replace(entry.api, handle=self._weighed(entry.api))
        run_by_worker = self.node.workers.run
        self.node.workers.run = lambda job: run_by_worker(self.turn.leave_out(job))  # type: ignore[method-assign]

    def _weighed(self, api: Api) -> Callable[[Any, Any], Any]:
        """Wrap the handler; more items than it may handle in a turn are a finding, however fast the machine is."""

        def handle(call: Any, request: Any) -> Any:
            # Counting them does not count as the node's time.
            items = self.turn.leave_out(partial(weight, request))() - 1
            self.turn.take_items(items, items_at_once(api), self)
            return api.handle(call, request)

        return handle

    # Hostile

    def connect(self, pools: Pools, *, reads: bool = True) -> HostileLink | None:
        """A connection, or None if the node accepts no more."""
        self._links += 1
        self.acts.append(("connect" if reads else "connect deaf", self._links, b""))
        peer = f"10.{self._links >> 16 & 255}.{self._links >> 8 & 255}.{self._links & 255}:4242"
        link = self._accepted(peer, Answers(pools), self._scene.principal)
        if link is not None:
            link.reads = reads
            link.number = self._links
        return link

    def part(self, link: HostileLink) -> None:
        """The client reads everything and disconnects."""
        self.acts.append(("part", link.number, b""))
        if link.alive:
            link.read_all()
            link.abort()

    def abort(self, link: HostileLink) -> None:
        self.acts.append(("abort", link.number, b""))
        link.abort()

    def _accepted(self, peer: str, answers: Answers, principal: Principal | None) -> HostileLink | None:
        link = HostileLink(self, peer, answers, self._listener)
        connections = self.node.broker.connections
        handler = connections.accept(link)
        if handler is None:
            return None
        if principal is not None:
            # As if they had logged in.
            connections.identify(handler, principal)
        link.start(handler)
        return link

    def deliver(self, link: HostileLink, data: bytes, frame: bytes) -> None:
        """`data` is the frame, or a part of it."""
        self.doing = frame
        self.acts.append(("deliver", link.number, data))
        self.turn.begin()
        try:
            link.deliver(data)
        except Found:
            raise
        except BaseException as error:
            raise Found(told(error)) from error
        self.turn.end(self)

    def pass_time(self, ms: int) -> None:
        """Run everything that is due in this time."""
        self.acts.append(("time", ms, b""))
        self.turn.begin()
        try:
            self.clock.run_until(self._end_turn, within_ms=ms)
        except Found:
            raise
        except BaseException as error:
            raise Found(told(error)) from error

    def _end_turn(self) -> bool:
        self.turn.end(self)
        return False

    def forget_peak(self) -> None:
        """Do not count the memory that making a large request took."""
        self.turn.forget_peak()

    def weigh(self) -> None:
        self.turn.weigh(self)

    def own_bytes(self) -> int:
        """The memory of the process after a garbage collection, without what the campaign itself keeps of this run:
        the disk, which is in memory here, and everything that was done."""
        self.forget_cancelled()
        gc.collect()
        blobs = [blob for _, blob in self.node.disk._tree.blobs()]
        disk = sum(len(each.live) + len(each.durable) for each in blobs)
        unsynced = sum(len(data or b"") for each in blobs for _, data in each.unsynced)
        acts = sum(ACT_BYTES + len(data) for _, _, data in self.acts)
        return memory_bytes() - disk - unsynced - acts

    def forget_cancelled(self) -> None:
        """A real loop forgets a cancelled timer; the simulator's clock keeps it until it is due."""
        queue = [entry for entry in self.clock._queue if not entry[-1].cancelled]
        heapify(queue)
        self.clock._queue[:] = queue

    def __str__(self) -> str:
        """The last request to the node."""
        key, version = (int.from_bytes(self.doing[at : at + 2], "big", signed=True) for at in (0, 2))
        return f"{NAMES.get(key, key)} version {version} of {len(self.doing)} bytes"

    # Well-behaved clients

    def ask(self, request: m.Message, version: int) -> Any:
        """The response to a well-behaved client, on its own connection."""
        assert request.API_KEY is not None
        last = _Last()
        link = self._accepted("10.255.255.255:1", last, ROOT if self._scene.asks_who else None)  # type: ignore[arg-type]
        if link is None:
            raise Found("a decent client is not let in")
        body = encode_request_header(request.API_KEY, version, 7, "decent") + request.encode(version)
        self.deliver(link, LENGTH.pack(len(body)) + body, body)
        self.sim.run_until(lambda: bool(last.data) or not link.alive, within_ms=START_MS)
        if not last.data:
            raise Found(f"a decent {type(request).__name__} is not answered: {link.fault}")
        _, position = decode_response_header(last.data[4:], request.API_KEY, version)
        response, _ = m.response_class(request.API_KEY).decode(last.data[4:], version, position)
        link.abort()
        return response

    def prepare(self) -> tuple[object, ...]:
        """Create topics to play with, and a secret one; returns its name and id."""
        # A compacted topic has every record's key inspected, so batches are decompressed.
        compacted = m.CreateTopicsRequest.CreatableTopicConfig(name="cleanup.policy", value="compact")
        topics = (
            ("pond", 3, []),
            ("lake", 1, [compacted]),
            (WIDE, WIDE_PARTITIONS, [compacted]),
            (CANARY, 1, []),
        )
        for name, partitions, configs in topics:
            topic = m.CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=1, configs=configs
            )
            reply = self.ask(m.CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
            assert not reply.topics[0].error_code, reply
            self._produce(name)
        if self._scene.asks_who:
            self._give_rights()
            self._add_user()
        # The internal topics are created for the first client that looks for a coordinator. In every second run of
        # clients that may not change anything, none has done so.
        is_bare = self._scene.changes_nothing and self._seed // len(SCENES) % 2
        for kind in () if is_bare else (GROUP, TRANSACTION):
            self.ask(m.FindCoordinatorRequest(key_type=kind, coordinator_keys=["crew"]), 4)
        self.pass_time(1000)
        return CANARY, self.node.broker.image.topics[CANARY].id

    def _give_rights(self) -> None:
        """Grant a user permissions on some of what exists."""
        kind = m.CreateAclsRequest.AclCreation
        request = m.CreateAclsRequest(
            creations=[
                kind(
                    resource_type=resource,
                    resource_name=name,
                    resource_pattern_type=LITERAL,
                    principal=str(USER.principal),
                    host="*",
                    operation=ALL_OPERATIONS,
                    permission_type=ALLOW,
                )
                for resource, name in RIGHTS
            ]
        )
        reply = self.ask(request, 3)
        assert not any(each.error_code for each in reply.results), reply

    def _add_user(self) -> None:
        """Add a user that can log in, and may do nothing."""
        upsertions = [
            m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                name=LODGER,
                mechanism=mechanism,
                iterations=4096,
                salt=b"salt",
                salted_password=salted(mechanism.hash_name, PASSWORD.encode(), b"salt", 4096),
            )
            for mechanism in Mechanism
        ]
        for each in upsertions:
            reply = self.ask(m.AlterUserScramCredentialsRequest(deletions=[], upsertions=[each]), 0)
            assert not reply.results[0].error_code, reply

    def has_other_settings(self) -> bool:
        """Whether a permitted client has changed the node's settings: it may then refuse everything, as
        configured.
        """
        return self._settings() != self._settings_before

    def _settings(self) -> tuple[object, ...]:
        image = self.node.broker.image
        own = Resource(ResourceType.BROKER, str(self.node.broker.node_id))
        quotas = {entity: dict(values) for entity, values in image.quotas.of.items()}
        return dict(image.config_of(ALL_BROKERS)), dict(image.config_of(own)), quotas

    def state(self) -> dict[str, object]:
        """Everything that clients could change: the metadata, and the size of each partition. Any authenticated
        client may create tokens for itself, so they are left out."""
        broker = self.node.broker
        records = [each for each in records_of(broker.image) if not isinstance(each, DelegationTokenRecord)]
        result: dict[str, object] = {"metadata": sorted(map(str, records))}
        for partition in broker.partitions:
            result[str(partition.name)] = partition.log.end_offset
        return result

    def _produce(self, topic: str) -> None:
        records = encode_batch([Record(0, NOW_MS, b"k", CANARY_VALUE)])
        kind = m.ProduceRequest
        data = kind.TopicProduceData(name=topic, partition_data=[kind.PartitionProduceData(index=0, records=records)])
        reply = self.ask(kind(transactional_id=None, acks=-1, timeout_ms=5000, topic_data=[data]), 9)
        code = reply.responses[0].partition_responses[0].error_code
        if code:
            raise Found(f"a decent producer is refused: error {code}")

    def check_canary(self) -> None:
        """What a well-behaved client wrote is there, and it can write more."""
        self._produce(CANARY)
        kind = m.FetchRequest
        wanted = kind.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [kind.FetchTopic(topic=CANARY, partitions=[wanted])]
        reply = self.ask(kind(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics), 12)
        partition = reply.responses[0].partitions[0]
        if partition.error_code or CANARY_VALUE not in bytes(partition.records or b""):
            raise Found(f"what a decent client wrote cannot be read: error {partition.error_code}")

    def check_disk(self) -> None:
        """Whatever was requested, everything that was written is in the node's data folder."""
        outside = [path for path in self.node.disk.contents() if not path.startswith(DATA_FOLDER + "/")]
        if outside:
            raise Found(f"files outside of the data folder: {outside[:5]}")


class _Last:
    """Keeps the responses to one well-behaved client."""

    def __init__(self) -> None:
        self.data = b""

    def take(self, data: bytes) -> None:
        self.data += data


def told(error: BaseException) -> str:
    """An error with the last frames of its traceback."""
    places = traceback.extract_tb(error.__traceback__)[-TRACE_LINES:]
    way = " > ".join(f"{at.filename.rpartition('millpond/')[2]}:{at.lineno} {at.name}" for at in places)
    return f"{type(error).__name__}: {str(error)[:300]} ({way})"


def fault_kind(fault: str) -> str:
    """Why a connection was closed, without numbers and names."""
    return _NUMBERS.sub("*", fault[:150])


def _bytes_of(parts: Sequence[ReplyPart]) -> bytes:
    data = []
    for part in parts:
        if isinstance(part, FileRange):
            read = part.file.read_at(part.position, part.length)
            if len(read) < part.length:
                raise Found(f"{part.file.path} ends before what an answer has promised")
            data.append(read)
            part.file.release()
        else:
            data.append(bytes(part))
    return b"".join(data)


def _release(parts: Sequence[ReplyPart]) -> None:
    for part in parts:
        if isinstance(part, FileRange):
            part.file.release()
