"""Messages on the wire: every frame between two hosts, from sending to arrival or loss.

Frames are assembled from the bytes on the links, and decoded on request.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from struct import Struct as Layout
from typing import Any, Final
from uuid import UUID

from millpond.base.errors import RemoteError
from millpond.base.named_tuple import NamedTuple
from millpond.metadata.partition import METADATA_TOPIC_ID
from millpond.sim.node import PORT
from millpond.sim.world.clock import VirtualClock
from millpond.sim.world.link import SimLink
from millpond.wire import messages
from millpond.wire import messages as m
from millpond.wire.batch import walk
from millpond.wire.header import APIS, decode_request_header, decode_response_header
from millpond.wire.model import Struct
from millpond.wire.records import decode_batch

_LENGTH: Final = Layout(">i")
_HEAD: Final = Layout(">hhi")
_CORRELATION: Final = Layout(">i")

KEPT_MAX: Final = 1_000
"""How many frames are kept after they have arrived."""
KEPT_BYTES_MAX: Final = 16 << 10
"""Larger frames are truncated to this size, and their contents cannot be shown."""
REQUESTS_MAX: Final = 64
ITEMS_SHOWN: Final = 40
TEXT_SHOWN: Final = 300

METADATA: Final = "__cluster_metadata"
HEARTBEATS: Final = frozenset({12, 63, 68, 76})
SHARE_RECORDS: Final = frozenset({78, 79})
GROUPS: Final = frozenset({8, 9, 10, 11, 13, 14, 83, 84, 85, 86, 87})
TRANSACTIONS: Final = frozenset({22, 24, 25, 26, 27, 28})
QUORUM: Final = frozenset({52, 53, 54, 59})


class _Load(NamedTuple):
    """The records that a frame carries."""

    records: int
    is_metadata: bool
    """Whether they are those of the metadata log."""


NOTHING: Final = _Load(0, False)


@dataclass(slots=True, eq=False)
class Flight:
    """One request or response."""

    number: int
    source: str
    target: str
    is_response: bool
    sent_ms: int
    size: int
    end: int
    """Where it ends in its stream."""
    api_key: int = -1
    version: int = 0
    arrived_ms: int | None = None
    is_lost: bool = False
    data: bytes = b""
    _load: _Load | None = None

    @property
    def api(self) -> str:
        return APIS[self.api_key][0] if self.api_key in APIS else ""

    @property
    def theme(self) -> str:
        """Its subject: records, replication, group, transaction, heartbeat, quorum or metadata."""
        is_between_nodes = self.source.startswith("node") and self.target.startswith("node")
        match self.api_key:
            case 0:
                return "records"
            case 1 if is_between_nodes:
                return "quorum" if self._carried().is_metadata else "replication" if self.records else "heartbeat"
            case 1:
                return "records"
            case key if key in SHARE_RECORDS:
                return "records"
            case key if key in HEARTBEATS:
                return "heartbeat"
            case key if key in GROUPS:
                return "group"
            case key if key in TRANSACTIONS:
                return "transaction"
            case key if key in QUORUM:
                return "quorum"
        return "metadata"

    @property
    def records(self) -> int:
        """How many records it carries, if the frame is complete."""
        return self._carried().records

    def _carried(self) -> _Load:
        """Computed once, when the frame is complete."""
        if self._load is None:
            if not self.data or self.api_key < 0:
                return NOTHING
            parts = self._parts()
            count = sum(len(record_shapes(data)) for _, _, data in parts if data)
            self._load = _Load(count, any(topic == METADATA for topic, _, _ in parts))
        return self._load

    def body(self) -> Struct | None:
        """The decoded message; None if only a part was kept or the API is unknown."""
        if self.api_key < 0 or not self.data:
            return None
        frame = memoryview(self.data)
        try:
            if self.is_response:
                _, at = decode_response_header(frame, self.api_key, self.version)
                return messages.response_class(self.api_key).decode(frame, self.version, at)[0]
            header = decode_request_header(frame)
            kind = messages.request_class(header.api_key)
            return kind.decode(frame, header.api_version, header.body_position)[0]
        except (RemoteError, KeyError):
            return None

    def _parts(self) -> list[tuple[str, int, bytes]]:
        """Topic, partition and batches of produced or fetched records."""
        body = self.body()
        match body:
            case m.ProduceRequest():
                return [
                    (_topic(each.name, each.topic_id), part.index, bytes(part.records or b""))
                    for each in body.topic_data
                    for part in each.partition_data
                ]
            case m.FetchResponse():
                return [
                    (_topic(each.topic, each.topic_id), part.partition_index, _bytes(part.records))
                    for each in body.responses
                    for part in each.partitions
                ]
            case m.ShareFetchResponse():
                return [
                    (_topic("", each.topic_id), part.partition_index, _bytes(part.records))
                    for each in body.responses
                    for part in each.partitions
                ]
            case m.FetchRequest():
                return [
                    (_topic(each.topic, each.topic_id), part.partition, b"")
                    for each in body.topics
                    for part in each.partitions
                ]
        return []

    def shape(self, origin_ms: int) -> dict[str, Any]:
        """The frame as JSON for the diagram."""
        return {
            "number": self.number,
            "from": self.source,
            "to": self.target,
            "api": self.api,
            "is_response": self.is_response,
            "theme": self.theme,
            "records": self.records,
            "bytes": self.size,
            "sent_ms": self.sent_ms - origin_ms,
            "arrived_ms": None if self.arrived_ms is None else self.arrived_ms - origin_ms,
            "is_lost": self.is_lost,
        }

    def details(self, origin_ms: int) -> dict[str, Any]:
        """The full contents, for display."""
        body = self.body()
        return {
            **self.shape(origin_ms),
            "version": self.version,
            "body": None if body is None else as_json(body),
            "batches": [
                {"topic": topic, "partition": index, "records": record_shapes(data)}
                for topic, index, data in self._parts()
                if data
            ],
        }


@dataclass(slots=True)
class _Stream:
    """One direction of one connection."""

    sent: int = 0
    arrived: int = 0
    rest: bytearray = field(default_factory=bytearray)
    """Bytes that are not yet a complete frame."""
    begun: Flight | None = None
    under_way: deque[Flight] = field(default_factory=deque)
    asked: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By correlation id: the key and version of requests that this direction carried."""


class Flights:
    """A tap that assembles frames. `since` returns those of a span of time."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._streams: dict[SimLink, _Stream] = {}
        self._flown: deque[Flight] = deque(maxlen=KEPT_MAX)
        self._count = 0

    # As a tap

    def sent(self, link: SimLink, data: bytes) -> None:
        stream = self._streams.setdefault(link, _Stream())
        stream.sent += len(data)
        stream.rest += data
        while self._take_frame(link, stream):
            pass

    def _take_frame(self, link: SimLink, stream: _Stream) -> bool:
        """Take one frame; returns whether another may follow."""
        if stream.begun is None:
            if len(stream.rest) < _LENGTH.size:
                return False
            size = _LENGTH.size + _LENGTH.unpack_from(stream.rest)[0]
            self._count += 1
            begin = stream.sent - len(stream.rest)
            is_response = not link.peer.endswith(f":{PORT}")
            stream.begun = Flight(
                self._count, link.host, link.peer_host, is_response, self._clock.now_ms, size, begin + size
            )
            stream.under_way.append(stream.begun)
        flight = stream.begun
        if flight.api_key < 0:
            self._name(flight, link, stream)
        if len(stream.rest) < flight.size:
            return False
        frame = bytes(stream.rest[_LENGTH.size : flight.size])
        del stream.rest[: flight.size]
        flight.data = frame if len(frame) <= KEPT_BYTES_MAX else b""
        stream.begun = None
        return True

    def _name(self, flight: Flight, link: SimLink, stream: _Stream) -> None:
        head = memoryview(bytes(stream.rest[_LENGTH.size : _LENGTH.size + _HEAD.size]))
        if flight.is_response:
            asked = self._streams.get(link.other) if link.other is not None else None
            if len(head) >= _CORRELATION.size and asked is not None:
                known = asked.asked.pop(_CORRELATION.unpack_from(head)[0], None)
                if known is not None:
                    flight.api_key, flight.version = known
        elif len(head) == _HEAD.size:
            flight.api_key, flight.version, correlation_id = _HEAD.unpack(head)
            stream.asked[correlation_id] = flight.api_key, flight.version
            while len(stream.asked) > REQUESTS_MAX:
                stream.asked.pop(next(iter(stream.asked)))

    def arrived(self, link: SimLink, data: bytes) -> None:
        stream = self._streams.get(link)
        if stream is None:
            return
        stream.arrived += len(data)
        while stream.under_way and stream.under_way[0].end <= stream.arrived:
            flight = stream.under_way.popleft()
            flight.arrived_ms = self._clock.now_ms
            self._flown.append(flight)
        if not data:
            self._drop(link)

    def lost(self, link: SimLink) -> None:
        self._drop(link)

    def _drop(self, link: SimLink) -> None:
        stream = self._streams.pop(link, None)
        for flight in () if stream is None else stream.under_way:
            flight.arrived_ms, flight.is_lost = self._clock.now_ms, True
            self._flown.append(flight)

    # For snapshots

    def since(self, moment_ms: int) -> list[Flight]:
        """Frames in flight, and those that arrived or were lost after this moment, oldest first."""
        flown = [each for each in self._flown if each.arrived_ms is not None and each.arrived_ms > moment_ms]
        under_way = [each for stream in self._streams.values() for each in stream.under_way]
        return sorted([*flown, *under_way], key=lambda each: each.number)

    def by_number(self, number: int) -> Flight | None:
        everything = [*self._flown, *(each for stream in self._streams.values() for each in stream.under_way)]
        return next((each for each in everything if each.number == number), None)


def record_shapes(data: bytes) -> list[dict[str, Any]]:
    """The records of complete batches, as far as they can be read."""
    shapes: list[dict[str, Any]] = []
    try:
        for at, header in walk(data):
            shapes += [
                {
                    "offset": record.offset,
                    "key": _text(record.key),
                    "value": "marker" if header.is_control else _text(record.value),
                    "headers": {name: _text(value) for name, value in record.headers},
                }
                for record in decode_batch(data, at)
            ]
    except RemoteError:
        # An incomplete batch.
        pass
    return shapes


def as_json(value: Any) -> Any:
    """A protocol message for people to read, with long parts cut."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return value[:TEXT_SHOWN]
        case UUID():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return f"{len(value)} bytes"
        case list() | tuple():
            shown = [as_json(each) for each in value[:ITEMS_SHOWN]]
            return shown if len(value) <= ITEMS_SHOWN else [*shown, f"and {len(value) - ITEMS_SHOWN} more"]
        case Struct():
            names: tuple[str, ...] = type(value).__slots__
            return {name: as_json(getattr(value, name)) for name in names}
    return str(value)[:TEXT_SHOWN]


def _topic(name: str, topic_id: UUID) -> str:
    """Newer versions name topics by their ids only."""
    return name or (METADATA if topic_id == METADATA_TOPIC_ID else str(topic_id))


def _bytes(records: object) -> bytes:
    """A decoded message holds its records as a view."""
    return bytes(records) if isinstance(records, memoryview) else b""


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")[:TEXT_SHOWN]
