"""Voters in the metadata log: Kafka's KRaftVersion and Voters control records, and which of them apply.

Without such records the voters are those of the configuration (kraft.version 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millpond.metadata.image import Image
from millpond.quorum.voters import Voter, VoterEndPoint
from millpond.wire import messages
from millpond.wire import records as wire_records
from millpond.wire.batch import CONTROL, walk

KRAFT_VERSION: Final = 1
_KRAFT_VERSION_KEY, _VOTERS_KEY = b"\0\0\0\5", b"\0\0\0\6"


def voters_records(voters: Sequence[Voter], now_ms: int, *, is_first: bool) -> list[wire_records.Record]:
    """The control records that name these voters; the first batch of a log also sets kraft.version."""
    kind = messages.VotersRecord
    named = kind(
        version=0,
        voters=[
            kind.Voter(
                voter_id=each.node_id,
                voter_directory_id=each.directory_id,
                endpoints=[kind.Endpoint(name=name, host=host, port=port) for name, host, port in each.end_points],
                k_raft_version_feature=kind.KRaftVersionFeature(
                    min_supported_version=0, max_supported_version=KRAFT_VERSION
                ),
            )
            for each in voters
        ],
    )
    values = [(_VOTERS_KEY, named.encode(0))]
    if is_first:
        version = messages.KRaftVersionRecord(version=0, k_raft_version=KRAFT_VERSION)
        values.insert(0, (_KRAFT_VERSION_KEY, version.encode(0)))
    return [wire_records.Record(index, now_ms, key, value) for index, (key, value) in enumerate(values)]


def named_voters(data: bytes | memoryview) -> list[tuple[int, tuple[Voter, ...]]]:
    """Every set of voters in these complete batches, with the offset of its batch."""
    sets = []
    for position, header in walk(data):
        if not header.attributes & CONTROL:
            continue
        for record in wire_records.decode_batch(data, position):
            if record.key == _VOTERS_KEY:
                decoded, _ = messages.VotersRecord.decode(record.value or b"", 0)
                sets.append((int(header.base_offset), tuple(map(_voter, decoded.voters))))
    return sets


def _voter(voter: messages.VotersRecord.Voter) -> Voter:
    end_points = tuple(VoterEndPoint(each.name, each.host, each.port) for each in voter.endpoints)
    return Voter(voter.voter_id, voter.voter_directory_id, end_points)


def voter_of(image: Image, node_id: int) -> Voter | None:
    """A node as registered in the image; None if it is not."""
    broker = image.brokers.get(node_id)
    if broker is None or not broker.end_points:
        return None
    end_points = tuple(VoterEndPoint(each.name, each.host, each.port) for each in broker.end_points)
    return Voter(node_id, broker.directory_id, end_points)


class VoterSets:
    """The sets of voters in a log, oldest first, with their offsets; -1 for one from a snapshot."""

    def __init__(self) -> None:
        self._sets: list[tuple[int, tuple[Voter, ...]]] = []

    @property
    def voters(self) -> tuple[Voter, ...] | None:
        return self._sets[-1][1] if self._sets else None

    @property
    def offset(self) -> int:
        return self._sets[-1][0] if self._sets else -1

    @property
    def before(self) -> tuple[Voter, ...] | None:
        return self._sets[-2][1] if len(self._sets) > 1 else None

    def at(self, end_offset: int) -> tuple[Voter, ...] | None:
        """The voters in force at the end of a snapshot."""
        return next((voters for offset, voters in reversed(self._sets) if offset < end_offset), None)

    def append(self, offset: int, voters: tuple[Voter, ...]) -> None:
        self._sets.append((offset, voters))

    def add(self, data: bytes | memoryview) -> None:
        """Add the voters named in batches appended to the log."""
        self._sets += named_voters(data)

    def cut(self, offset: int) -> None:
        """Drop the sets at and above the offset."""
        while self._sets and self._sets[-1][0] >= offset:
            self._sets.pop()

    def restart(self, snapshot: bytes) -> None:
        """Start over from a snapshot."""
        self._sets = [(-1, voters) for _, voters in named_voters(snapshot)[-1:]]
