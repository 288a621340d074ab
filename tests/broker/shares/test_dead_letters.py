"""Dead letters that the broker writes for a share group, over the wire, against a broker in the simulated world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.shares.test_share_fetch import LOCK_MS, ShareServer
from tests.broker.test_metrics import page_of, samples
from tests.support.share_letters import LETTERS, headers, letters_of, offsets
from tests.support.share_members import ACCEPT, REJECT, RELEASE, acquired, initialize, results

from millpond.broker.shares.letters import log_letters, writer
from millpond.client.dead_letters import read_dead_letter
from millpond.client.message import Message
from millpond.coordinators.shares.state_batches import RecordState
from millpond.wire import messages as m

TOPIC = {"errors_deadletterqueue_topic_name": LETTERS}
WAITS = "cannot be written, and wait"
AGAIN = "are written again"


@pytest.fixture
def make_pond(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> Callable[..., ShareServer]:
    def make(*, group: dict[str, str] | None = None, **texts: str) -> ShareServer:
        server = ShareServer(make_server, make_batch, **texts)
        server.configure_group(**TOPIC, **(group or {}))
        return server

    return make


@pytest.fixture
def pond(make_pond: Callable[..., ShareServer]) -> ShareServer:
    server = make_pond()
    server.server.create(LETTERS)
    return server


def window_of(pond: ShareServer) -> Any:
    return pond.server.broker.contexts.data.shares().group("g").leaders[pond.pond.topic_id, 0].window


def states(pond: ShareServer) -> list[tuple[int, int, str]]:
    """What the share coordinator has of partition 0."""
    broker = pond.server.broker
    found = []
    for shard_host in broker.shares.shard_hosts():
        for key, state in shard_host.shard.states.items():
            if key.topic_id == pond.pond.topic_id and key.partition == 0:
                found += [(each.first, each.last, each.state.name) for each in state.batches()]
    return found


def journal(pond: ShareServer, text: str) -> list[str]:
    return [line for line in pond.server.node.journal_lines if text in line]


def reject(pond: ShareServer, first: int, last: int, **options: Any) -> Any:
    """A member that fetches everything, and rejects these records."""
    member = pond.member("m")
    member.fetch(0)
    assert results(member.acknowledge((first, last, REJECT), **options)) == [0]
    return member


def test_a_rejected_record_gets_a_letter_with_its_error(pond: ShareServer) -> None:
    pond.append(b"a", b"b", b"c")
    reject(pond, 1, 1, error=("ValueError", "no such customer: ä"))
    pond.run(1_000)
    (letter,) = letters_of(pond.server.broker)
    assert (letter.key, letter.value) == (b"k", b"b")
    read = Message(LETTERS, 0, 0, letter.timestamp, letter.key, letter.value, letter.headers)
    facts = read_dead_letter(read)
    assert str(facts.origin) == "pond[0]@1"
    assert (facts.attempts, facts.group, facts.redriven) == (1, "g", 0)
    assert (facts.error_type, facts.error_message) == ("ValueError", "no such customer: ä")
    assert facts.origin.timestamp_ms > 0
    assert facts.time_ms == letter.timestamp
    assert states(pond) == [(1, 1, "ARCHIVED")]
    counts = window_of(pond).counts()
    assert (counts.archiving, counts.finished, counts.rejected) == (0, 1, 1)


def test_a_member_without_an_error_says_that_it_rejected(pond: ShareServer) -> None:
    pond.append(b"a")
    reject(pond, 0, 0)
    pond.run(1_000)
    (letter,) = letters_of(pond.server.broker)
    assert headers(letter)["dlq.error.type"] == "Rejected"


def test_a_record_that_was_released_too_often_gets_a_letter(pond: ShareServer) -> None:
    pond.configure_group(share_delivery_count_limit="2")
    pond.append(b"a")
    member = pond.member("m")
    for error in (("First", "1"), ("Second", "2")):
        member.fetch(0)
        assert results(member.acknowledge((0, 0, RELEASE), error=error)) == [0]
        pond.run(100)
    (letter,) = letters_of(pond.server.broker)
    found = headers(letter)
    # The error of the last attempt counts.
    assert (found["dlq.error.type"], found["dlq.attempts"]) == ("Second", "2")


@pytest.mark.parametrize("how", ["expired", "connection lost"])
def test_a_record_that_was_never_acknowledged_gets_a_letter(pond: ShareServer, how: str) -> None:
    pond.configure_group(share_delivery_count_limit="2")
    pond.append(b"a")
    for number in range(2):
        member = pond.member(f"m{number}")
        assert acquired(member.fetch(0)) == [(0, 0, number + 1)]
        if how == "expired":
            pond.run(LOCK_MS + 1_000)
        else:
            member.hang_up()
            pond.run(1_000)
    (letter,) = letters_of(pond.server.broker)
    found = headers(letter)
    assert found["dlq.error.type"] == "DeliveryLimitReached"
    assert found["dlq.error.message"] == "delivered 2 times without being accepted"
    assert states(pond) in ([], [(0, 0, "ARCHIVED")])


def test_letters_are_in_order_and_in_small_batches(pond: ShareServer, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    real = log_letters.encode_batch

    def encode(records: Any, **named: Any) -> bytes:
        encoded = real(records, **named)
        batches.append(len(encoded))
        return encoded

    monkeypatch.setattr(log_letters, "encode_batch", encode)
    for _ in range(10):
        pond.append(*[bytes(5_000)] * 100)
    member = pond.member("m")
    member.fetch(0, max_records=2_000, max_bytes=1 << 25)
    while (end := window_of(pond).end_offset) < 1_000:
        member.fetch(max_records=2_000, max_bytes=1 << 25)
        assert window_of(pond).end_offset > end
    # Every other one, so that the window has a thousand ranges.
    for first in range(0, 1_000, 100):
        given = [(each, each, ACCEPT if each % 2 else REJECT) for each in range(first, first + 100)]
        assert results(member.acknowledge(*given)) == [0]
    pond.run(10_000)
    assert offsets(letters_of(pond.server.broker)) == list(range(0, 1_000, 2))
    assert window_of(pond).start_offset == 1_000
    assert max(batches) < log_letters.BATCH_BYTES_MAX + 20_000
    assert len(batches) >= 500 * 5_000 // log_letters.BATCH_BYTES_MAX


def test_a_missing_topic_is_created(make_pond: Callable[..., ShareServer]) -> None:
    pond = make_pond()
    pond.append(b"a")
    reject(pond, 0, 0)
    pond.run(5_000)
    assert offsets(letters_of(pond.server.broker)) == [0]
    assert not journal(pond, WAITS)


def test_a_partition_full_of_records_that_wait_delivers_no_others(make_pond: Callable[..., ShareServer]) -> None:
    pond = make_pond(auto_create_topics_enable="false", group={"share_partition_max_record_locks": "100"})
    for _ in range(101):
        pond.append(b"a")
    member = reject(pond, 0, 99)
    pond.run(1_000)
    assert acquired(member.fetch(max_wait_ms=100)) == []
    assert window_of(pond).counts().archiving == 100
    member.send_fetch(max_wait_ms=20_000)
    pond.server.create(LETTERS)
    pond.run(15_000)
    (response,) = member.caller.replies()
    assert acquired(response) == [(100, 100, 1)]
    assert offsets(letters_of(pond.server.broker)) == list(range(100))


def test_letters_wait_for_a_topic_that_nobody_may_create(make_pond: Callable[..., ShareServer]) -> None:
    pond = make_pond(auto_create_topics_enable="false")
    pond.append(b"a", b"b", b"c")
    member = reject(pond, 0, 1)
    pond.run(60_000)
    assert (0, 1, "ARCHIVING") in states(pond)
    counts = window_of(pond).counts()
    assert (counts.archiving, counts.acquired, counts.finished) == (2, 0, 0)
    (line,) = journal(pond, WAITS)
    assert "auto.create.topics.enable" in line
    # Nobody receives them again, and others are delivered.
    assert acquired(pond.member("n").fetch(0, max_wait_ms=100)) == [(2, 2, 2)]
    assert results(member.acknowledge((0, 0, ACCEPT))) != [0]
    pond.server.create(LETTERS)
    pond.run(20_000)
    assert offsets(letters_of(pond.server.broker)) == [0, 1]
    assert window_of(pond).start_offset == 2
    assert len(journal(pond, AGAIN)) == 1


@pytest.mark.parametrize("how", ["kill", "crash"])
def test_letters_survive_a_restart(make_pond: Callable[..., ShareServer], how: str) -> None:
    pond = make_pond(auto_create_topics_enable="false")
    pond.append(b"a", b"b")
    reject(pond, 0, 0, error=("E", "why"))
    pond.run(1_000)
    getattr(pond.server.node, how)()
    assert pond.server.node.start()
    pond.run(1_000)
    assert acquired(pond.member("m").fetch(0)) == [(1, 1, 1)]
    assert window_of(pond).counts().archiving == 1
    pond.server.create(LETTERS)
    pond.run(20_000)
    (letter,) = letters_of(pond.server.broker)
    assert letter.value == b"a"
    assert headers(letter)["dlq.error.message"] == "why"


def test_a_letter_is_written_again_if_its_archiving_was_not(pond: ShareServer) -> None:
    pond.append(b"a", b"b")
    share_state = pond.server.broker.share_state
    real = share_state.write
    stuck: list[Any] = []

    def write(*given: Any) -> Any:
        if any(each.state is RecordState.ARCHIVED for each in given[4]):
            stuck.append(given)
            from millpond.base.later import Later

            return Later()
        return real(*given)

    share_state.write = write
    reject(pond, 0, 0)
    pond.run(5_000)
    assert stuck
    assert offsets(letters_of(pond.server.broker)) == [0]
    pond.server.node.kill()
    assert pond.server.node.start()
    pond.run(1_000)
    pond.member("m").fetch(0)
    pond.run(5_000)
    assert offsets(letters_of(pond.server.broker)) == [0, 0]
    assert states(pond) == [(0, 0, "ARCHIVED")]


def test_a_letter_that_is_too_large_is_written_with_less(make_pond: Callable[..., ShareServer]) -> None:
    pond = make_pond()
    pond.server.create(LETTERS, max_message_bytes="900")
    pond.append(b"small", bytes(2_000), b"small, too")
    reject(pond, 0, 2, error=("E", "x" * 700))
    pond.run(5_000)
    first, second, third = letters_of(pond.server.broker)
    assert (first.value, second.value, third.value) == (b"small", None, b"small, too")
    assert headers(second)["dlq.value.omitted"] == "2000"
    assert len(headers(first)["dlq.error.message"]) == 200
    assert window_of(pond).start_offset == 3


def test_a_letter_that_never_fits_waits(make_pond: Callable[..., ShareServer]) -> None:
    pond = make_pond()
    pond.server.create(LETTERS, max_message_bytes="150")
    pond.append(b"a")
    reject(pond, 0, 0)
    pond.run(60_000)
    assert letters_of(pond.server.broker) == []
    assert states(pond) == [(0, 0, "ARCHIVING")]
    assert len(journal(pond, WAITS)) == 1


def test_without_a_copy_the_letter_has_only_the_origin(make_pond: Callable[..., ShareServer]) -> None:
    pond = make_pond(group={"errors_deadletterqueue_copy_record_enable": "false"})
    pond.append(b"secret")
    reject(pond, 0, 0)
    pond.run(5_000)
    (letter,) = letters_of(pond.server.broker)
    assert (letter.key, letter.value) == (None, None)
    assert headers(letter)["dlq.value.omitted"] == "6"


def test_records_of_the_dead_letter_topic_itself_are_archived(pond: ShareServer) -> None:
    pond.configure_group(errors_deadletterqueue_topic_name="pond")
    pond.append(b"a")
    reject(pond, 0, 0)
    pond.run(1_000)
    assert states(pond) == [(0, 0, "ARCHIVED")]
    assert pond.pond.log.end_offset == 1


def test_without_a_topic_any_longer_records_are_archived(make_pond: Callable[..., ShareServer]) -> None:
    pond = make_pond(auto_create_topics_enable="false")
    pond.append(b"a", b"b")
    reject(pond, 0, 0)
    pond.run(1_000)
    assert (0, 0, "ARCHIVING") in states(pond)
    pond.configure_group(errors_deadletterqueue_topic_name="")
    pond.run(20_000)
    assert states(pond) == [(0, 0, "ARCHIVED")]
    assert journal(pond, "archived without dead letters")


def test_records_that_retention_deletes_get_no_letter(make_pond: Callable[..., ShareServer]) -> None:
    pond = make_pond(auto_create_topics_enable="false")
    pond.append(b"a")
    pond.append(b"b")
    reject(pond, 0, 0)
    pond.run(1_000)
    pond.pond.delete_before(1).then(lambda _: None)
    pond.server.create(LETTERS)
    pond.run(20_000)
    assert letters_of(pond.server.broker) == []
    assert journal(pond, "deleted before their dead letters were written")
    assert window_of(pond).counts().archiving == 0


def test_letters_are_written_after_the_last_member_has_left(make_pond: Callable[..., ShareServer]) -> None:
    pond = make_pond(auto_create_topics_enable="false")
    pond.append(b"a")
    reject(pond, 0, 0).close()
    pond.run(1_000)
    shares = pond.server.broker.contexts.data.shares()
    assert len(shares) == 1
    pond.server.create(LETTERS)
    pond.run(20_000)
    assert offsets(letters_of(pond.server.broker)) == [0]
    assert len(shares) == 0


def test_few_share_partitions_write_at_once(make_pond: Callable[..., ShareServer]) -> None:
    pond = make_pond(auto_create_topics_enable="false")
    office = pond.server.broker.contexts.data.shares().services.letters
    most = 0
    real = writer.LetterWriter.begin

    def begin(self: Any) -> None:
        nonlocal most
        most = max(most, len(office._writing))
        real(self)

    topic = pond.server.create("wide", 20)
    member = pond.member("m")
    for index in range(20):
        initialize(pond.server, "wide", index, start_offset=0)
        pond.server.broker.partitions.get("wide", index).append(pond.batch(b"a"), zstd=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer.LetterWriter, "begin", begin)
        while sum(each.window is not None and each.window.held_count for each in _leaders(pond)) < 20:
            member.fetch(*range(20), topic="wide") if member.epoch == 0 else member.fetch()
        for index in range(20):
            kind = m.ShareAcknowledgeRequest
            request = member.acknowledge_request((0, 0, REJECT), index=index)
            request.topics[0].topic_id = topic.topic_id
            assert isinstance(request, kind)
            member.caller.ask(request, 2)
        pond.run(5_000)
        assert len(office.failing) == 20
        pond.server.create(LETTERS)
        pond.run(30_000)
    assert len(letters_of(pond.server.broker)) == office.written_total == 20
    assert not office.failing
    assert 1 < most <= 4


def test_letters_are_counted(make_pond: Callable[..., ShareServer]) -> None:
    pond = make_pond(auto_create_topics_enable="false")
    pond.append(b"a", b"b", b"c")

    def counts() -> list[float]:
        metrics = samples(page_of(pond.server.sim, pond.server.broker))
        return [metrics[f"millpond_share_dead_letters_{each}"] for each in ("written_total", "waiting", "failing")]

    assert counts() == [0, 0, 0]
    reject(pond, 0, 1)
    pond.run(5_000)
    assert counts() == [0, 2, 1]
    pond.server.create(LETTERS)
    pond.run(20_000)
    assert counts() == [2, 0, 0]


def _leaders(pond: ShareServer) -> list[Any]:
    return list(pond.server.broker.contexts.data.shares().group("g").leaders.values())


@pytest.mark.parametrize("name", ["__consumer_offsets", "__anything", "not a name", "."])
def test_a_topic_that_cannot_have_letters_is_refused(pond: ShareServer, name: str) -> None:
    kind = m.IncrementalAlterConfigsRequest
    response = pond.server.connect().ask(
        kind(
            resources=[
                kind.AlterConfigsResource(
                    resource_type=32,
                    resource_name="g",
                    configs=[
                        kind.AlterableConfig(name="errors.deadletterqueue.topic.name", config_operation=0, value=name)
                    ],
                )
            ]
        ),
        1,
    )
    (result,) = response.responses
    assert result.error_code
    assert "errors.deadletterqueue.topic.name" in result.error_message
