"""Events on a node while it answers small requests: decided by a seed, and by the node's state at that time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from millpond.base.principal import Principal
from millpond.config.listeners import listeners_of
from millpond.config.node import node_settings
from millpond.wire import messages as m
from millpond.wire.header import decode_response_header, encode_request_header
from millpond.wire.records import Record, encode_batch
from support.fuzz.answers import LENGTH
from support.fuzz.scenes import GUARDED, SMALL
from support.raw_groups import subscription
from support.short_path_nodes import Side
from support.short_requests import GROUPS, TOPICS, Producer, SmallRequests

TXN: Final = "txn"
ROOT, ALICE = Principal("User", "root"), Principal("User", "alice")
ODD_CLIENT_IDS: Final = ("", None, "é", "z" * 300, "millpond-node-1")
CONNECTIONS_MAX: Final = 6

ACTS_TOLD: Final = 12
LITERAL, ALLOW = 3, 3
TOPIC, GROUP = 2, 3
READ, WRITE = 3, 4

SETTINGS: Final[tuple[Mapping[str, str], ...]] = (
    {},
    GUARDED,
    {"flush.ack": "never", "groups.max.bytes": "65536"},
    {**GUARDED, "max.incremental.fetch.session.cache.slots": "2"},
)
CONFIGS: Final = (
    ("retention.ms", "1000"),
    ("retention.ms", "-1"),
    ("segment.bytes", "16384"),
    ("segment.ms", "1000"),
    ("index.interval.bytes", "300"),
    ("max.message.bytes", "200"),
    ("max.message.bytes", "1048588"),
    ("message.timestamp.type", "LogAppendTime"),
    ("message.timestamp.type", "CreateTime"),
    ("cleanup.policy", "compact"),
    ("cleanup.policy", "delete"),
    ("message.timestamp.before.max.ms", "60000"),
    ("message.timestamp.before.max.ms", "9223372036854775807"),
    ("flush.ack", "never"),
    ("flush.ack", "always"),
    ("flush.messages", "2"),
    ("min.insync.replicas", "2"),
    ("min.insync.replicas", "1"),
)


class Differs(AssertionError):
    """Two nodes got the same input, and did not do the same."""


class ShortPathRun(SmallRequests):
    """One seed, applied to all sides at once; the first side's state decides what can be requested next."""

    def __init__(self, seed: int, texts: Mapping[str, str] | None = None) -> None:
        self.seed = seed
        texts = {**SMALL, **(SETTINGS[seed % len(SETTINGS)] if texts is None else texts)}
        self.sides = [Side(name, seed, texts) for name in ("short", "general")]
        super().__init__(Random(seed), self.sides[0], acks=(1, -1))
        self._is_guarded = "super.users" in texts
        self._listener = listeners_of(node_settings(self._first.node.texts))[0].name
        self._numbers = 0
        self._correlation = 0
        self._open: dict[int, Principal | None] = {}
        self._acts: list[str] = []
        self._txn: Producer | None = None
        self._root = self._connect(ROOT)
        self._prepare()

    # Input

    def _all(self, what: str, *facts: Any) -> None:
        self._acts.append(f"{what} {str([each.hex() if isinstance(each, bytes) else each for each in facts])[:400]}")
        for side in self.sides:
            side.do(what, *facts)

    def check(self) -> None:
        known = self._first.state()
        for other in self.sides[1:]:
            state = other.state()
            for name in known.keys() | state.keys():
                if known.get(name) != state.get(name):
                    raise Differs(
                        f"seed {self.seed}: {name} is {_brief(known.get(name), state.get(name))} "
                        f"({self._first.name}) and {_brief(state.get(name), known.get(name))} ({other.name}) after\n"
                        + "\n".join(self._acts[-ACTS_TOLD:])
                    )

    def check_end(self) -> None:
        """With all clients gone, nothing is pending or held, and the disks are the same."""
        for number in self._first.links:
            self._all("abort", number)
        self._all("make_room")
        self._all("cool", 0.0)
        self._all("pass_time", 70_000)
        self.check()
        known = self._first.files()
        for side in self.sides:
            assert not len(side.broker.pending_fetches), f"seed {self.seed}: {side.name}: a fetch waits for ever"
            assert not any(each.watchers for each in side.broker.partitions), f"seed {self.seed}: {side.name}"
            segments = [segment for each in side.broker.partitions for segment in each.log.segments]
            assert not any(each.file.is_held() for each in segments), f"seed {self.seed}: {side.name}"
            files = side.files()
            for path in known.keys() | files.keys():
                if "__" not in path and known.get(path) != files.get(path):
                    raise Differs(f"seed {self.seed}: {path} is not the same ({side.name})")

    # Connections

    def _connect(self, principal: Principal | None) -> int:
        self._numbers += 1
        who = principal if self._is_guarded else None
        self._all("connect", self._numbers, who, self._listener)
        self._open[self._numbers] = who
        return self._numbers

    def _frame(self, request: m.Message, version: int, client_id: str | None = "fuzz") -> bytes:
        self._correlation += 1
        assert request.API_KEY is not None
        body = encode_request_header(request.API_KEY, version, self._correlation, client_id) + request.encode(version)
        return LENGTH.pack(len(body)) + body

    def _ask_as_root(self, request: m.Message, version: int) -> Any:
        """The response, from a node that may take a second to give it."""
        if not self._first.links[self._root].alive:
            self._root = self._connect(ROOT)
        at = len(self._first.heard(self._root))
        self._all("deliver", self._root, self._frame(request, version))
        self._all("pass_time", 1000)
        self.check()
        data = self._first.heard(self._root)
        assert request.API_KEY is not None
        while at < len(data):
            begin = at + LENGTH.size
            at = begin + LENGTH.unpack_from(data, at)[0]
            if LENGTH.unpack_from(data, begin)[0] == self._correlation:
                _, position = decode_response_header(data[begin:at], request.API_KEY, version)
                response, _ = m.response_class(request.API_KEY).decode(data[begin:at], version, position)
                return response
        return None

    def _prepare(self) -> None:
        for name in TOPICS:
            self._create(name)
        for kind in (0, 1):
            self._ask_as_root(m.FindCoordinatorRequest(key_type=kind, coordinator_keys=["crew"]), 4)
        for resource, name in ((TOPIC, "pond"), (GROUP, "crew"), (GROUP, "guild")):
            self._grant(resource, name, READ)
        self._grant(TOPIC, "pond", WRITE)

    # The run

    def go_on(self, steps: int) -> None:
        kinds: list[tuple[int, Callable[[], None]]] = [
            (60, self._talk),
            (25, self._wait),
            (4, self._hang_up),
            (2, self._change_topic),
            (2, self._change_config),
            (2, self._delete_records),
            (3, self._change_rights),
            (1, self._change_quota),
            (3, self._change_role),
            (2, self._change_disk),
            (2, self._jump),
            (5, self._write_in_transaction),
            (2, self._change_reading),
            (1, self._delete_group),
            (2, self._gather_group),
            (2, self._gather_consumers),
        ]
        weights = [weight for weight, _ in kinds]
        for _ in range(steps):
            self._draw.choices(kinds, weights)[0][1]()
        self._all("pass_time", 1)
        self.check()

    def _talk(self) -> None:
        """One request or several at once, on one connection."""
        alive = [each for each in self._open if self._first.links[each].alive and each != self._root]
        if len(alive) < 2 or (len(alive) < CONNECTIONS_MAX and self._chance(0.2)):
            alive.append(self._connect(self._one((ROOT, ALICE, ALICE))))
        number = self._one(alive)
        data = b""
        for _ in range(self._one((1, 1, 1, 2, 3, 5))):
            request, version = self._one(
                (
                    self._produce,
                    self._produce,
                    self._fetch,
                    self._fetch,
                    self._fetch,
                    self._fetch,
                    self._commit,
                    self._member,
                    self._member,
                )
            )()
            frame = self._frame(request, version, self._mostly(("fuzz",), *ODD_CLIENT_IDS))
            data += self._spoilt(frame) if self._chance(0.02) else frame
        if self._chance(0.1) and len(data) > 20:
            cut = self._draw.randrange(len(data))
            self._all("deliver", number, data[:cut])
            data = data[cut:]
        self._all("deliver", number, data)

    def _spoilt(self, frame: bytes) -> bytes:
        spoilt = bytearray(frame)
        at = self._draw.randrange(4, len(frame))
        spoilt[at] = self._one((0, 1, 2, 127, 128, 255, spoilt[at] ^ 1))
        return bytes(spoilt)

    def _wait(self) -> None:
        self._all("pass_time", self._one((0, 1, 1, 5, 20, 100, 600, 600, 12_000)))
        self._all("pass_time", 1)
        self.check()

    def _hang_up(self) -> None:
        self._all("abort", self._one(self._open))

    # What changes meanwhile

    def _create(self, name: str) -> None:
        kind = m.CreateTopicsRequest
        topic = kind.CreatableTopic(name=name, num_partitions=2, replication_factor=1)
        self._ask_as_root(kind(topics=[topic], timeout_ms=5000), 7)

    def _change_topic(self) -> None:
        name = self._one(TOPICS)
        if name in self._first.broker.image.topics:
            state = m.DeleteTopicsRequest.DeleteTopicState(name=name)
            request = m.DeleteTopicsRequest(topics=[state], timeout_ms=5000)
            if self._chance(0.5):
                # It is recreated immediately.
                kind = m.CreateTopicsRequest
                again = kind(
                    topics=[kind.CreatableTopic(name=name, num_partitions=2, replication_factor=1)], timeout_ms=5000
                )
                self._all("deliver", self._root, self._frame(request, 6) + self._frame(again, 7))
                self._all("pass_time", 1)
                self.check()
                return
            self._ask_as_root(request, 6)
        else:
            self._create(name)

    def _change_config(self) -> None:
        kind = m.IncrementalAlterConfigsRequest
        name, value = self._one(CONFIGS)
        config = kind.AlterableConfig(name=name, config_operation=0, value=value)
        resource = kind.AlterConfigsResource(resource_type=TOPIC, resource_name=self._one(TOPICS), configs=[config])
        self._ask_as_root(kind(resources=[resource], validate_only=False), 1)

    def _delete_records(self) -> None:
        kind, name = m.DeleteRecordsRequest, self._one(TOPICS)
        partition = self._first.partition(name, 0)
        offset = self._one(
            (-1, 0 if partition is None else (partition.log.start_offset + partition.log.end_offset) // 2)
        )
        part = kind.DeleteRecordsPartition(partition_index=0, offset=offset)
        self._ask_as_root(kind(topics=[kind.DeleteRecordsTopic(name=name, partitions=[part])], timeout_ms=100), 2)

    def _grant(self, resource: int, name: str, operation: int) -> None:
        creation = m.CreateAclsRequest.AclCreation(
            resource_type=resource,
            resource_name=name,
            resource_pattern_type=LITERAL,
            principal=str(ALICE),
            host="*",
            operation=operation,
            permission_type=ALLOW,
        )
        self._ask_as_root(m.CreateAclsRequest(creations=[creation]), 3)

    def _change_rights(self) -> None:
        if not self._is_guarded:
            return
        resource, name = self._one(((TOPIC, "pond"), (TOPIC, "lake"), (GROUP, "crew"), (GROUP, "guild")))
        operation = self._one((READ, READ, WRITE)) if resource == TOPIC else READ
        if self._chance(0.5):
            self._grant(resource, name, operation)
            return
        filter_ = m.DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=resource,
            resource_name_filter=name,
            pattern_type_filter=LITERAL,
            principal_filter=str(ALICE),
            host_filter="*",
            operation=operation,
            permission_type=ALLOW,
        )
        self._ask_as_root(m.DeleteAclsRequest(filters=[filter_]), 3)

    def _change_quota(self) -> None:
        kind = m.AlterClientQuotasRequest
        entity = [kind.EntityData(entity_type="client-id", entity_name="fuzz")]
        key = self._one(("producer_byte_rate", "consumer_byte_rate", "request_percentage"))
        for is_over in (False, True):
            ops = [kind.OpData(key=key, value=self._one((50.0, 1e9)), remove=is_over)]
            self._ask_as_root(kind(entries=[kind.EntryData(entity=entity, ops=ops)], validate_only=False), 1)
            for _ in range(0 if is_over else 6):
                self._talk()
                self._wait()

    def _change_role(self) -> None:
        """A partition gets another leader, none, or another replica; then it is led here again."""
        own, topic = self._first.broker.node_id, self._one(TOPICS)
        self._all("change_role", topic, 0, self._one((own, 2, -1)), (own, 2), (own, 2))
        for _ in range(self._one((0, 1, 2))):
            self._one((self._talk, self._wait))()
        replicas, isr = self._one((((own,), (own,)), ((own,), (own,)), ((own, 2), (own,)), ((own, 2), (own, 2))))
        self._all("change_role", topic, 0, own, replicas, isr)

    def _change_disk(self) -> None:
        act = self._one(("cool", "cool", "cool", "fill", "make_room", "make_room"))
        # With little space left, a write stops in the middle of a batch.
        choices = {"cool": (0.0, 1.0), "fill": (0, 0, 30, 100, 700)}.get(act)
        self._all(act, *(() if choices is None else (self._one(choices),)))

    def _jump(self) -> None:
        self._all("jump_wall", self._one((-3_600_000, -1000, 1000, 86_400_000)))

    def _change_reading(self) -> None:
        number = self._one(self._open)
        if self._first.links[number].alive and number != self._root:
            self._all(self._one(("deafen", "listen", "listen")), number)

    def _gather_group(self) -> None:
        """The members of a classic group complete a rebalance, so that later requests have a generation."""
        for _ in range(3):
            group = self._group("crew")
            if group is not None and not hasattr(group, "generation"):
                return
            known = [] if group is None else [*group.members, *group.pending]
            protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription(["pond"]))
            for member in known or [""]:
                join = m.JoinGroupRequest(
                    group_id="crew",
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=1_000,
                    member_id=member,
                    protocol_type="consumer",
                    protocols=[protocol],
                )
                self._all("deliver", self._root, self._frame(join, 9))
            self._all("pass_time", 400)
        group = self._group("crew")
        if group is not None and hasattr(group, "generation"):
            kind = m.SyncGroupRequest.SyncGroupRequestAssignment
            assignments = [kind(member_id=each, assignment=b"a") for each in group.members]
            for member in group.members:
                sync = m.SyncGroupRequest(
                    group_id="crew",
                    generation_id=group.generation,
                    member_id=member,
                    protocol_type="consumer",
                    protocol_name="range",
                    assignments=assignments,
                )
                self._all("deliver", self._root, self._frame(sync, 5))
        self._all("pass_time", 10)
        self._beat_often("crew")

    def _gather_consumers(self) -> None:
        """The same for the new protocol."""
        for chance in (0.0, 0.3, 0.3):
            member, epoch = self._membership("guild")
            request, version = self._consumer_beat("guild", member, epoch, chance)
            self._all("deliver", self._root, self._frame(request, version))
            self._all("pass_time", 10)
        self._beat_often("guild")

    def _beat_often(self, group_id: str) -> None:
        """Its members send heartbeats, some of them outdated, and commit."""
        number = self._connect(self._one((ROOT, ALICE)))
        for _ in range(8):
            group = self._group(group_id)
            member, epoch = self._membership(group_id)
            if self._chance(0.3):
                request, version = self._commit()
            elif group is None or hasattr(group, "generation"):
                request = m.HeartbeatRequest(group_id=group_id, generation_id=epoch, member_id=member)
                version = self._mostly((3, 4), 0, 2)
            else:
                request, version = self._consumer_beat(group_id, member, epoch, 1.0)
            self._all("deliver", number, self._frame(request, version, "fuzz"))
            self._all("pass_time", self._one((0, 1, 5)))
        self._all("pass_time", 1)
        self.check()
        if self._chance(0.7):
            self._all("abort", number)

    def _delete_group(self) -> None:
        self._ask_as_root(m.DeleteGroupsRequest(groups_names=[self._one(GROUPS)]), 2)

    def _write_in_transaction(self) -> None:
        """One producer begins, writes, and ends or does not; others read meanwhile."""
        if self._txn is None or self._chance(0.2):
            session = self._ask_as_root(
                m.InitProducerIdRequest(transactional_id=TXN, transaction_timeout_ms=10_000), 4
            )
            self._txn = None
            if session is None or session.error_code:
                return
            self._txn = Producer(session.producer_id, session.producer_epoch)
        producer, topic = self._txn, self._one(TOPICS)
        added = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[0])
        self._ask_as_root(
            m.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=TXN,
                v3_and_below_producer_id=producer.id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=[added],
            ),
            3,
        )
        for _ in range(self._one((1, 2))):
            sequence = producer.sequences.get((topic, 0), 0)
            producer.sequences[topic, 0] = sequence + 1
            batch = encode_batch(
                [Record(0, self._first.clock.wall_ms(), b"k", b"t")],
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                base_sequence=sequence,
                transactional=True,
            )
            kind = m.ProduceRequest
            topics = [
                kind.TopicProduceData(name=topic, partition_data=[kind.PartitionProduceData(index=0, records=batch)])
            ]
            self._ask_as_root(kind(transactional_id=TXN, acks=1, timeout_ms=500, topic_data=topics), 9)
            self._one((self._talk, self._wait))()
        ended = m.EndTxnRequest(
            transactional_id=TXN, producer_id=producer.id, producer_epoch=producer.epoch, committed=self._chance(0.3)
        )
        answer = self._ask_as_root(ended, 3)
        if answer is None or answer.error_code:
            self._txn = None
        self._talk()


def _brief(value: object, other: object) -> str:
    """What is shown of a difference: a long text from where it differs."""
    if isinstance(value, tuple) and isinstance(other, tuple) and len(value) == len(other):
        return ", ".join(_brief(*pair) for pair in zip(value, other, strict=True) if pair[0] != pair[1])
    if isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
        return "\n".join(_brief(*pair) for pair in zip(value, other, strict=True) if pair[0] != pair[1])
    if isinstance(value, bytes) and isinstance(other, bytes):
        at = next(
            (at for at, (a, b) in enumerate(zip(value, other, strict=False)) if a != b), min(len(value), len(other))
        )
        return f"{len(value)} bytes, from {at} on ...{value[max(at - 40, 0) : at].hex()}|{value[at : at + 120].hex()}"
    return str(value)[:1500]
