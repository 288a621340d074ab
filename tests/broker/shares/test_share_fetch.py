"""ShareFetch and ShareAcknowledge over the wire, against a broker in the simulated world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.share_members import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    RENEW,
    Member,
    acquired,
    codes,
    initialize,
    results,
    values,
)

from millpond.base.errors import ErrorCode
from millpond.broker.shares.fetch import ShareFetch
from millpond.broker.shares.share_leader import WOKEN_AT_ONCE
from millpond.broker.shares.slots import Change
from millpond.broker.shares.window import ShareWindow
from millpond.wire import messages as m

LOCK_MS = 30_000


class ShareServer:
    """A broker with a topic whose first partitions the group may read from the start."""

    def __init__(self, make_server: Callable[..., Any], make_batch: Callable[..., memoryview], **texts: str) -> None:
        self.server = make_server({name.replace("_", "."): text for name, text in texts.items()})
        self.pond = self.server.create("pond", 3)
        self.batch = make_batch
        for index in range(3):
            initialize(self.server, index=index, start_offset=0)

    def append(self, *values: bytes, index: int = 0) -> None:
        """One batch."""
        self.server.broker.partitions.get("pond", index).append(self.batch(*values), zstd=True)

    def member(self, member_id: str, **options: Any) -> Member:
        return Member(self.server, member_id, **options)

    def run(self, duration_ms: int) -> None:
        self.server.run(duration_ms)

    def configure_group(self, **texts: str) -> None:
        response = self.server.connect().ask(
            m.IncrementalAlterConfigsRequest(
                resources=[
                    m.IncrementalAlterConfigsRequest.AlterConfigsResource(
                        resource_type=32,
                        resource_name=GROUP,
                        configs=[
                            m.IncrementalAlterConfigsRequest.AlterableConfig(
                                name=name.replace("_", "."), config_operation=0, value=value
                            )
                            for name, value in texts.items()
                        ],
                    )
                ]
            ),
            1,
        )
        assert [each.error_code for each in response.responses] == [0], response


@pytest.fixture
def pond(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> ShareServer:
    return ShareServer(make_server, make_batch)


def test_records_are_delivered_once_and_accepted(pond: ShareServer) -> None:
    pond.append(b"a", b"b", b"c")
    member, other = pond.member("m"), pond.member("n")
    first = member.fetch(0)
    assert acquired(first) == [(0, 2, 1)]
    assert values(first) == [b"a", b"b", b"c"]
    assert first.acquisition_lock_timeout_ms == LOCK_MS
    assert acquired(other.fetch(0)) == []
    assert results(member.acknowledge((0, 2, ACCEPT))) == [0]
    pond.append(b"d")
    assert values(other.fetch()) == [b"d"]


def test_a_released_record_is_delivered_again(pond: ShareServer) -> None:
    pond.append(b"a", b"b", b"c")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    assert results(member.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE), (2, 2, REJECT))) == [0]
    again = other.fetch(0)
    assert acquired(again) == [(1, 1, 2)]
    assert values(again) == [b"b"]


def test_every_change_of_a_setting_is_followed(pond: ShareServer) -> None:
    member = pond.member("m")
    found = []
    for duration_ms in (10_000, 20_000, 15_000):
        pond.configure_group(share_record_lock_duration_ms=str(duration_ms))
        found.append(member.fetch(0, max_wait_ms=0).acquisition_lock_timeout_ms)
    assert found == [10_000, 20_000, 15_000]


def test_a_fetch_acknowledges_first(pond: ShareServer) -> None:
    pond.append(b"a", b"b")
    member = pond.member("m")
    member.fetch(0)
    response = member.fetch(acknowledgements=[(0, 0, ACCEPT), (1, 1, RELEASE)])
    assert codes(response) == [(0, 0)]
    assert acquired(response) == [(1, 1, 2)]


def test_a_failed_acknowledgement_is_answered_at_once(pond: ShareServer) -> None:
    pond.append(b"a")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    other.fetch(0)
    began_ms = pond.server.sim.clock.monotonic_ms()
    response = other.fetch(acknowledgements=[(0, 0, ACCEPT)], max_wait_ms=10_000)
    assert codes(response) == [(0, ErrorCode.INVALID_RECORD_STATE)]
    assert pond.server.sim.clock.monotonic_ms() - began_ms < 1_000


def test_a_waiting_fetch_wakes_on_an_append(pond: ShareServer) -> None:
    member = pond.member("m")
    member.send_fetch(0, max_wait_ms=10_000)
    pond.run(2_000)
    assert member.caller.replies() == []
    pond.append(b"a")
    pond.run(10)
    (response,) = member.caller.replies()
    assert values(response) == [b"a"]


def test_a_waiting_fetch_wakes_on_a_release(pond: ShareServer) -> None:
    pond.append(b"a")
    holder, waiter = pond.member("m"), pond.member("n")
    holder.fetch(0)
    waiter.send_fetch(0, max_wait_ms=10_000)
    pond.run(100)
    assert waiter.caller.replies() == []
    holder.acknowledge((0, 0, RELEASE))
    pond.run(10)
    (response,) = waiter.caller.replies()
    assert acquired(response) == [(0, 0, 2)]


def test_one_of_many_waiting_members_gets_a_record(pond: ShareServer) -> None:
    members = [pond.member(f"m{number}") for number in range(150)]
    for member in members:
        member.send_fetch(0, max_wait_ms=1_000)
    pond.run(200)
    pond.append(b"a")
    pond.run(2_000)
    (replies,) = [[value for member in members for value in values(member.caller.replies()[0])]]
    assert replies == [b"a"]


def test_a_record_wakes_as_many_members_as_can_get_it(pond: ShareServer, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [pond.member(f"m{number}") for number in range(150)]
    for member in members:
        member.send_fetch(0, max_wait_ms=20_000)
    pond.run(200)
    looks = 0
    look = ShareFetch._look

    def count(fetch: ShareFetch) -> None:
        nonlocal looks
        looks += 1
        look(fetch)

    monkeypatch.setattr(ShareFetch, "_look", count)
    for round_number in range(1, 4):
        pond.append(b"a")
        pond.run(200)
        assert looks == round_number
    pond.append(*[b"b"] * 1_000)
    pond.run(200)
    assert looks <= 3 + 2 * WOKEN_AT_ONCE
    assert sum(bool(member.caller.replies()) for member in members) == 4


def test_each_of_many_waiting_members_gets_one_of_many_records(pond: ShareServer) -> None:
    members = [pond.member(f"m{number}") for number in range(150)]
    for member in members:
        member.send_fetch(0, max_wait_ms=20_000, max_records=1, share_acquire_mode=1)
    pond.run(200)
    pond.append(*(b"%d" % number for number in range(140)))
    pond.run(2_000)
    found = [value for member in members for reply in member.caller.replies() for value in values(reply)]
    assert sorted(map(int, found)) == list(range(140))


def test_members_that_wait_for_more_bytes_do_not_keep_a_record_from_others(pond: ShareServer) -> None:
    for number in range(120):
        pond.member(f"m{number}").send_fetch(0, max_wait_ms=20_000, min_bytes=10_000)
    modest = pond.member("modest")
    modest.send_fetch(0, max_wait_ms=20_000)
    pond.run(200)
    pond.append(b"a")
    pond.run(1_000)
    (response,) = modest.caller.replies()
    assert values(response) == [b"a"]


def test_a_member_that_has_forgotten_a_partition_passes_its_records_on(pond: ShareServer) -> None:
    topic_id = pond.server.broker.image.topics["pond"].id
    forgotten = [m.ShareFetchRequest.ForgottenTopic(topic_id=topic_id, partitions=[0])]
    for number in range(WOKEN_AT_ONCE):
        member = pond.member(f"m{number}")
        member.send_fetch(0, 1, max_wait_ms=20_000)
        # The first one still waits, and the session changes.
        member.send_fetch(max_wait_ms=20_000, forgotten_topics_data=forgotten)
    other = pond.member("other")
    other.send_fetch(0, max_wait_ms=20_000)
    pond.run(200)
    pond.append(b"a")
    pond.run(1_000)
    (response,) = other.caller.replies()
    assert values(response) == [b"a"]


def test_a_fetch_without_records_ends_at_its_deadline(pond: ShareServer) -> None:
    member = pond.member("m")
    response = member.fetch(0, max_wait_ms=700)
    # A partition that is new to the session is always in the response.
    assert codes(response) == [(0, 0)]
    assert member.fetch(max_wait_ms=700).responses == []


def test_locks_expire(pond: ShareServer) -> None:
    pond.append(b"a")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    pond.run(LOCK_MS - 1_000)
    other.send_fetch(0, max_wait_ms=5_000)
    pond.run(500)
    assert other.caller.replies() == []
    pond.run(1_000)
    (response,) = other.caller.replies()
    assert acquired(response) == [(0, 0, 2)]
    assert results(member.acknowledge((0, 0, ACCEPT))) == [ErrorCode.INVALID_RECORD_STATE]


def test_a_renewal_prolongs_the_lock(pond: ShareServer) -> None:
    pond.append(b"a")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    pond.run(LOCK_MS - 5_000)
    assert results(member.acknowledge((0, 0, RENEW), is_renewal=True)) == [0]
    pond.run(LOCK_MS - 5_000)
    assert acquired(other.fetch(0)) == []
    assert results(member.acknowledge((0, 0, ACCEPT))) == [0]


def test_renewals_have_to_be_announced_and_allowed(pond: ShareServer) -> None:
    pond.append(b"a")
    member = pond.member("m")
    member.fetch(0)
    assert results(member.acknowledge((0, 0, RENEW))) == [ErrorCode.INVALID_REQUEST]
    pond.configure_group(share_renew_acknowledge_enable="false")
    assert results(member.acknowledge((0, 0, RENEW), is_renewal=True)) == [ErrorCode.INVALID_REQUEST]


def test_a_fetch_that_renews_does_not_fetch(pond: ShareServer) -> None:
    pond.append(b"a")
    member = pond.member("m")
    member.fetch(0)
    pond.append(b"b")
    zero = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    response = member.fetch(acknowledgements=[(0, 0, RENEW)], is_renew_ack=True, **zero)
    assert codes(response) == [(0, 0)]
    assert acquired(response) == []
    refused = member.fetch(acknowledgements=[(0, 0, RENEW)], is_renew_ack=True)
    assert refused.error_code == ErrorCode.INVALID_REQUEST


def test_a_record_is_archived_after_its_last_delivery(pond: ShareServer) -> None:
    pond.configure_group(share_delivery_count_limit="2")
    pond.append(b"bad")
    pond.append(b"good")
    member = pond.member("m")
    deliveries = []
    for _ in range(4):
        response = member.fetch(0, max_records=1, share_acquire_mode=1)
        for first, last, count in acquired(response):
            deliveries.append((values(response)[0], count))
            member.acknowledge((first, last, RELEASE))
    assert deliveries == [(b"bad", 1), (b"bad", 2), (b"good", 1), (b"good", 2)]
    assert acquired(member.fetch(0)) == []


def test_a_lost_connection_releases(pond: ShareServer) -> None:
    pond.append(b"a")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    other.send_fetch(0, max_wait_ms=5_000)
    pond.run(100)
    member.hang_up()
    pond.run(100)
    (response,) = other.caller.replies()
    assert acquired(response) == [(0, 0, 2)]


def test_an_orderly_end_releases_without_a_delivery(pond: ShareServer) -> None:
    pond.append(b"a")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    assert member.close().error_code == 0
    assert acquired(other.fetch(0)) == [(0, 0, 1)]


def test_share_acknowledge_may_end_the_session(pond: ShareServer) -> None:
    pond.append(b"a", b"b")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    assert results(member.acknowledge((0, 0, ACCEPT), epoch=-1)) == [0]
    assert acquired(other.fetch(0)) == [(1, 1, 1)]
    assert member.acknowledge((0, 0, ACCEPT), epoch=2).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_an_unsent_response_is_released(pond: ShareServer) -> None:
    """The client hangs up while its fetch waits: nothing is acquired for it later."""
    member, other = pond.member("m"), pond.member("n")
    member.send_fetch(0, max_wait_ms=10_000)
    pond.run(100)
    member.hang_up()
    pond.append(b"a")
    assert acquired(other.fetch(0)) == [(0, 0, 1)]


def test_session_epochs(pond: ShareServer) -> None:
    member = pond.member("m")
    no_session = member.fetch(0, epoch=1)
    assert no_session.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=0).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    member.epoch = 0
    assert member.fetch(0, max_wait_ms=0).error_code == 0
    assert member.fetch(epoch=5).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    member.epoch = 1
    assert member.fetch(max_wait_ms=0).error_code == 0
    assert member.acknowledge(epoch=1).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch(epoch=-1).error_code == 0
    assert member.fetch(epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_the_session_of_another_connection_is_not_found(pond: ShareServer) -> None:
    member = pond.member("m")
    member.fetch(0, max_wait_ms=0)
    twin = pond.member("m")
    assert twin.fetch(epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_member_that_connects_again_releases_what_it_held(pond: ShareServer) -> None:
    pond.append(b"a")
    member = pond.member("m")
    member.fetch(0)
    again = pond.member("m")
    assert acquired(again.fetch(0)) == [(0, 0, 2)]
    member.hang_up()
    pond.run(100)
    assert results(again.acknowledge((0, 0, ACCEPT))) == [0]


def test_a_new_session_on_the_same_connection_keeps_the_locks(pond: ShareServer) -> None:
    pond.append(b"a")
    member = pond.member("m")
    member.fetch(0)
    assert acquired(member.fetch(0, epoch=0, max_wait_ms=100)) == []
    assert results(member.acknowledge((0, 0, ACCEPT), epoch=1)) == [0]


def test_the_first_request_of_a_session_cannot_acknowledge(pond: ShareServer) -> None:
    response = pond.member("m").fetch(acknowledgements=[(0, 0, ACCEPT)])
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert len(pond.server.broker.contexts.data.shares().sessions) == 0


def test_sessions_are_limited(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> None:
    pond = ShareServer(make_server, make_batch, group_share_max_share_sessions="2")
    first, second, third = (pond.member(name) for name in "abc")
    assert first.fetch(0, max_wait_ms=0).error_code == 0
    assert second.fetch(0, max_wait_ms=0).error_code == 0
    assert third.fetch(0, max_wait_ms=0).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    first.close()
    assert third.fetch(0, epoch=0, max_wait_ms=0).error_code == 0


def test_one_connection_does_not_get_all_sessions(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview]
) -> None:
    pond = ShareServer(make_server, make_batch, group_share_max_share_sessions="20")
    greedy = pond.member("m0")
    codes_of = [
        pond.member(f"m{number}", caller=greedy.caller).fetch(0, max_wait_ms=0).error_code for number in range(3)
    ]
    assert codes_of == [0, 0, ErrorCode.SHARE_SESSION_LIMIT_REACHED]
    # It may replace one, and others have room.
    assert greedy.fetch(0, epoch=0, max_wait_ms=0).error_code == 0
    assert pond.member("n").fetch(0, max_wait_ms=0).error_code == 0


def test_a_session_that_cannot_be_replaced_releases_what_it_held(pond: ShareServer) -> None:
    pond.append(b"a")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    assert member.fetch(*range(2_001), epoch=0, max_wait_ms=0).error_code == ErrorCode.INVALID_REQUEST
    assert acquired(other.fetch(0)) == [(0, 0, 2)]


def test_partitions_of_a_session_are_limited(pond: ShareServer) -> None:
    member = pond.member("m")
    response = member.fetch(*range(2_001), max_wait_ms=0)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert member.fetch(*range(1_500), epoch=0, max_wait_ms=0).error_code == 0
    assert member.fetch(*range(1_000, 2_100), epoch=1, max_wait_ms=0).error_code == ErrorCode.INVALID_REQUEST
    assert len(pond.server.broker.contexts.data.shares().sessions) == 0


@pytest.mark.parametrize(
    ("group", "member_id", "code"),
    [
        ("", "m", ErrorCode.INVALID_GROUP_ID),
        ("g" * 967, "m", ErrorCode.INVALID_GROUP_ID),
        ("g", "", ErrorCode.INVALID_REQUEST),
        ("g", "m" * 37, ErrorCode.INVALID_REQUEST),
    ],
)
def test_malformed_names_are_refused(pond: ShareServer, group: str, member_id: str, code: ErrorCode) -> None:
    member = pond.member(member_id, group=group)
    assert member.fetch(0).error_code == code
    assert member.acknowledge((0, 0, ACCEPT)).error_code == code


def test_forgotten_partitions_are_not_read(pond: ShareServer) -> None:
    member = pond.member("m")
    member.fetch(0, 1, max_wait_ms=0)
    topic_id = pond.server.broker.image.topics["pond"].id
    forgotten = [m.ShareFetchRequest.ForgottenTopic(topic_id=topic_id, partitions=[0])]
    member.fetch(max_wait_ms=0, forgotten_topics_data=forgotten)
    pond.append(b"a")
    pond.append(b"b", index=1)
    assert values(member.fetch()) == [b"b"]
    assert member.fetch(max_wait_ms=0).responses == []


def test_partitions_take_turns(pond: ShareServer) -> None:
    for index in range(3):
        pond.append(b"%d" % index, index=index)
    member = pond.member("m")
    served = [values(member.fetch(0, 1, 2, max_records=1, share_acquire_mode=1)) for _ in range(3)]
    assert served == [[b"0"], [b"1"], [b"2"]]


def test_the_record_limit_is_strict_only_in_its_mode(pond: ShareServer) -> None:
    pond.append(*(b"%d" % number for number in range(10)))
    member = pond.member("m")
    assert acquired(member.fetch(0, max_records=3, share_acquire_mode=1)) == [(0, 2, 1)]
    assert acquired(member.fetch(0, max_records=3, share_acquire_mode=0)) == [(3, 9, 1)]
    assert member.fetch(0, share_acquire_mode=7).error_code == ErrorCode.INVALID_REQUEST


def test_only_the_batches_with_acquired_records_are_sent(pond: ShareServer) -> None:
    for number in range(5):
        pond.append(b"%d" % number)
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0)
    member.acknowledge((1, 1, RELEASE), (3, 3, RELEASE))
    response = other.fetch(0)
    assert acquired(response) == [(1, 1, 2), (3, 3, 2)]
    assert values(response) == [b"1", b"3"]
    (partition,) = response.responses[0].partitions
    one = pond.server.broker.partitions.get("pond", 0).log.size_bytes // 5
    assert len(partition.records) == 2 * one


def test_min_bytes_are_waited_for(pond: ShareServer) -> None:
    member = pond.member("m")
    pond.append(b"a")
    member.send_fetch(0, 1, min_bytes=150, max_wait_ms=5_000)
    pond.run(500)
    assert member.caller.replies() == []
    pond.append(b"b", index=1)
    pond.append(b"c", index=1)
    pond.run(10)
    (response,) = member.caller.replies()
    assert sorted(each or b"" for each in values(response)) == [b"a", b"b", b"c"]


def test_an_unknown_topic_is_an_error_of_its_partition(pond: ShareServer) -> None:
    pond.server.create("other")
    member = pond.member("m")
    request = member.fetch_request(0, topic="other")
    pond.server.delete("other")
    response = member.caller.ask(request, 2)
    assert codes(response) == [(ErrorCode.UNKNOWN_TOPIC_ID, 0)]


def test_a_deleted_topic_ends_the_wait(pond: ShareServer) -> None:
    member = pond.member("m")
    member.send_fetch(0, max_wait_ms=10_000)
    pond.run(100)
    pond.server.delete("pond")
    pond.run(100)
    (response,) = member.caller.replies()
    assert codes(response) == [(ErrorCode.UNKNOWN_TOPIC_ID, 0)]


def test_a_partition_that_is_not_initialised_is_waited_for(pond: ShareServer) -> None:
    pond.append(b"a")
    member = pond.member("m", group="late")
    member.send_fetch(0, max_wait_ms=10_000)
    pond.run(2_000)
    assert member.caller.replies() == []
    initialize(pond.server, group="late", start_offset=0)
    pond.run(2_000)
    (response,) = member.caller.replies()
    assert values(response) == [b"a"]


@pytest.mark.parametrize(
    ("reset", "expected"),
    [("latest", [b"new"]), ("earliest", [b"old", b"recent", b"new"]), ("by_duration:PT1M", [b"recent", b"new"])],
)
def test_where_a_group_begins(pond: ShareServer, reset: str, expected: list[bytes]) -> None:
    def append(value: bytes) -> None:
        now_ms = pond.server.sim.clock.wall_ms()
        pond.server.broker.partitions.get("lake", 0).append(pond.batch(value, timestamp=now_ms), zstd=True)

    pond.server.create("lake")
    append(b"old")
    pond.run(120_000)
    append(b"recent")
    pond.run(1_000)
    pond.configure_group(share_auto_offset_reset=reset)
    initialize(pond.server, "lake")
    member = pond.member("m")
    found = values(member.fetch(0, topic="lake", max_wait_ms=0))
    pond.run(100)
    append(b"new")
    while response := values(member.fetch(max_wait_ms=100)):
        found += response
    assert found == expected


def test_the_start_of_a_group_survives_a_restart(pond: ShareServer) -> None:
    """Else records that came in between would be skipped."""
    initialize(pond.server, group="fresh")
    member = pond.member("m", group="fresh")
    assert acquired(member.fetch(0, max_wait_ms=100)) == []
    member.close()
    pond.append(b"a")
    again = pond.member("m", group="fresh")
    assert values(again.fetch(0)) == [b"a"]


def test_windows_are_dropped_with_the_last_session(pond: ShareServer) -> None:
    shares = pond.server.broker.contexts.data.shares()
    pond.append(b"a", b"b")
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0, 1)
    other.fetch(0, max_wait_ms=0)
    assert len(shares) == 2
    member.acknowledge((0, 0, ACCEPT))
    member.hang_up()
    pond.run(1_000)
    assert len(shares) == 2
    other.hang_up()
    pond.run(1_000)
    assert len(shares) == 0
    assert pond.server.broker.partitions.get("pond", 0).watchers == {}
    # What was written is loaded again, with the deliveries.
    assert acquired(pond.member("m").fetch(0)) == [(1, 1, 2)]


def test_many_acknowledgements_are_applied_in_parts(pond: ShareServer) -> None:
    count = 1_000
    pond.append(*(b"%d" % number for number in range(count)))
    member, other = pond.member("m"), pond.member("n")
    assert acquired(member.fetch(0, max_records=count)) == [(0, count - 1, 1)]
    request = member.acknowledge_request((0, count - 1, ACCEPT))
    (partition,) = request.topics[0].partitions
    partition.acknowledgement_batches[0].acknowledge_types = [1 + offset % 2 for offset in range(count)]
    assert results(member.caller.ask(request, 2, within_ms=5_000)) == [0]
    # So many ranges take more than one fetch, too.
    released = acquired(other.fetch(0, max_records=count))
    assert len(released) == 300
    released += acquired(other.fetch(max_records=count))
    assert released == [(offset, offset, 2) for offset in range(1, count, 2)]
    other.hang_up()
    pond.run(1_000)
    again = acquired(member.fetch(0, max_records=count)) + acquired(member.fetch(max_records=count))
    assert [first for first, _, _ in again] == list(range(1, count, 2))


@pytest.mark.parametrize("way", ["acknowledge", "fetch"])
def test_one_acknowledgement_of_many_ranges_is_applied_in_parts(
    pond: ShareServer, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Each record was renewed alone, and has its own lock."""
    count = 700
    pond.append(*(b"%d" % number for number in range(count)))
    member, other = pond.member("m"), pond.member("n")
    member.fetch(0, max_records=count)
    renewals = [(offset, offset, RENEW) for offset in range(count)]
    assert results(member.acknowledge(*renewals, is_renewal=True)) == [0]
    sizes: list[int] = []
    real = ShareWindow.acknowledge

    def acknowledge(self: ShareWindow, *args: Any) -> Change:
        change = real(self, *args)
        sizes.append(len(change.moves))
        return change

    monkeypatch.setattr(ShareWindow, "acknowledge", acknowledge)
    if way == "acknowledge":
        assert results(member.acknowledge((0, count - 1, ACCEPT))) == [0]
    else:
        assert codes(member.fetch(acknowledgements=[(0, count - 1, ACCEPT)])) == [(0, 0)]
    assert sizes == [300, 300, 100]
    assert acquired(other.fetch(0)) == []
