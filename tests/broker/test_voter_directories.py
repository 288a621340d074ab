"""Which of several processes with one node id counts as the voter."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.broker.quorum.directories import VoterDirectories
from millpond.broker.quorum.wire import directory_of, encode_request, encode_response
from millpond.metadata.image import NO_DIRECTORY, Image
from millpond.metadata.records import RegisterBrokerRecord
from millpond.quorum.messages import Fetch, FetchSnapshot, ReplicaKey, SnapshotId, Vote, VoteResponse
from millpond.quorum.voters import Voter
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch

OLD, NEW, OTHER = (UUID(int=number) for number in (11, 22, 33))
KEY = ReplicaKey(3, UUID(int=7))


class FakeLog:
    """A metadata log with one batch, which may mention a directory."""

    def __init__(self, value: bytes = b"nothing") -> None:
        self.voters: tuple[Voter, ...] | None = None
        self.start_offset, self.end_offset = 0, 1
        self.is_changing = False
        self._data = bytes(encode_batch([Record(0, 1, None, value)]))

    def read(self, offset: int) -> bytes:
        return self._data


def image_with(directory_id: UUID | None) -> Image:
    image = Image()
    if directory_id is not None:
        image.replay(registration(directory_id))
    return image


def registration(directory_id: UUID) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=3,
        incarnation_id=UUID(int=1),
        broker_epoch=1,
        end_points=(),
        rack=None,
        fenced=False,
        log_dirs=(directory_id,),
    )


def directories(registered: UUID | None, log: Any = None, applied: int = 1) -> VoterDirectories:
    return VoterDirectories(log or FakeLog(), image_with(registered), lambda: applied)


def test_the_registered_directory_counts() -> None:
    known = directories(OLD)
    assert known.is_voter(3, OLD, is_new=False)
    assert not known.is_voter(3, NEW, is_new=False)


def test_a_process_of_an_earlier_version_counts() -> None:
    assert directories(OLD).is_fetching_voter(3, NO_DIRECTORY, 1, is_new=False)
    assert directories(NO_DIRECTORY).is_voter(3, NEW, is_new=False)


def test_the_directory_that_the_log_names_comes_before_the_registered_one() -> None:
    log = FakeLog()
    log.voters = (Voter(3, OLD),)
    known = directories(NEW, log)
    assert known.is_voter(3, OLD, is_new=False)
    assert not known.is_voter(3, NEW, is_new=False)


def test_an_unregistered_voter_is_pinned_for_an_epoch() -> None:
    known = directories(None)
    assert known.is_fetching_voter(3, NEW, 1, is_new=False)
    assert not known.is_fetching_voter(3, OTHER, 1, is_new=False)
    assert known.is_fetching_voter(3, NEW, 1, is_new=False)
    assert known.is_fetching_voter(3, OTHER, 2, is_new=False)


def test_a_registration_that_the_image_lacks_counts_for_a_voter_that_is_no_longer_new() -> None:
    log = FakeLog(b"registered " + NEW.bytes)
    behind = directories(OLD, log, applied=0)
    assert behind.is_voter(3, NEW, is_new=False)
    assert not behind.is_voter(3, NEW, is_new=True)
    assert not behind.is_voter(3, OTHER, is_new=False)
    assert not directories(OLD, log, applied=1).is_voter(3, NEW, is_new=False)


def test_a_change_of_process_is_noticed_once() -> None:
    known = directories(None)
    assert [known.is_replaced(3, each) for each in (OLD, NO_DIRECTORY, OLD, NEW, NEW)] == [
        False,
        False,
        False,
        True,
        False,
    ]


def test_requests_and_votes_carry_the_directory() -> None:
    requests = [
        Vote(5, KEY, KEY, 4, 9, False),
        Fetch(5, KEY, 9, 4, 3, 500),
        FetchSnapshot(5, KEY, SnapshotId(4, 2), 0),
    ]
    for request in requests:
        for directory_id in (NEW, NO_DIRECTORY):
            message, version = encode_request(request, "pond", directory_id)
            decoded, _ = type(message).decode(message.encode(version), version)
            assert directory_of(decoded) == directory_id
    vote = encode_response(requests[0], VoteResponse(ErrorCode.NONE, 5, -1, granted=True), lambda _: None, NEW)
    assert directory_of(m.VoteResponse.decode(vote.encode(2), 2)[0]) == NEW


def test_a_copy_that_has_not_registered_pins_the_voters_it_hears() -> None:
    """All folders were copied at once: what the image says about them predates the copy."""
    is_copy = True
    known = VoterDirectories(FakeLog(), image_with(OLD), lambda: 1, lambda: is_copy)  # type: ignore[arg-type]
    assert known.is_voter(3, NEW, is_new=True)
    assert known.is_fetching_voter(3, NEW, 1, is_new=False)
    assert not known.is_fetching_voter(3, OTHER, 1, is_new=False)
    is_copy = False
    assert known.is_fetching_voter(3, NEW, 1, is_new=False), "the leader has registered before its follower"
    assert not known.is_fetching_voter(3, NEW, 2, is_new=False)


def test_a_pinned_voter_gives_way_to_the_one_that_registers() -> None:
    image = image_with(OLD)
    known = VoterDirectories(FakeLog(), image, lambda: 1, lambda: True)  # type: ignore[arg-type]
    assert known.is_fetching_voter(3, NEW, 1, is_new=False)
    image.replay(registration(OTHER))
    assert not known.is_fetching_voter(3, NEW, 1, is_new=False)
    assert known.is_fetching_voter(3, OTHER, 1, is_new=False)
