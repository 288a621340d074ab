"""Queues of a real node, as an operator looks at them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from millpond.admin.errors import Refused
from millpond.admin.groups import EMPTY, STABLE, describe_share_group
from millpond.admin.health import read_health
from millpond.admin.queues import dead, watch
from millpond.admin.queues import jobs as jobs_module
from millpond.admin.queues.dead import count_dead_letters, find_dead_letter_topic
from millpond.admin.queues.find import find_queue_name, read_queue
from millpond.admin.queues.jobs import peek
from millpond.admin.queues.purge import apply_purge, plan_purge
from millpond.admin.queues.queue import Queue, QueueName
from millpond.admin.queues.settings import queue_settings
from millpond.admin.queues.watch import QueueWatch, read_queues
from millpond.base.errors import ErrorCode
from millpond.client.dead_letters import dead_letter, origin_of
from millpond.client.message import Message
from millpond.remote.cluster import Cluster
from millpond.testing import Pond
from millpond.wire import messages as m

Join = Callable[[str, str], Any]


def look(cluster: Cluster, name: QueueName) -> Queue:
    return read_queue(QueueWatch(cluster, [name.group], dead_seconds=0), name)


def eventually(check: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not check():
        assert time.monotonic() < until
        time.sleep(0.05)


def beat(cluster: Cluster, group: str, topic: str, epoch: int = 0) -> int:
    """A member that joins and never reads."""
    request = m.ShareGroupHeartbeatRequest(
        group_id=group, member_id=str(UUID(int=7)), member_epoch=epoch, subscribed_topic_names=[topic]
    )
    kind = m.ShareGroupHeartbeatResponse
    reply = cluster.retrying(
        "join", lambda: cluster.ask_coordinator("group", group, request, kind, lambda each: each.error_code)
    )
    assert reply.error_code == ErrorCode.NONE, reply
    return reply.member_epoch


def test_what_members_hold_and_what_waits(cluster: Cluster, pond: Pond, topic: str, join: Join) -> None:
    name = QueueName(f"{topic}-g", topic)
    pond.produce(topic, *"abcd", partition=0)
    worker = join(*name)
    assert worker.take() == ["a", "b", "c", "d"]
    pond.produce(topic, *"ef", partition=0)
    worker.say(b="accept", c="reject", d="release")
    found = look(cluster, name)
    assert (found.state, found.name) == (STABLE, name)
    first, second = found.partitions
    assert (first.start, first.end, first.waiting, first.out, first.finished) == (0, 6, 3, 1, 2)
    assert (first.unfinished, first.done, first.leader) == (4, 2, 1)
    assert (second.start, second.unfinished, second.oldest_age_ms) == (0, 0, None)
    (holder,) = found.holders
    assert (holder.client, holder.host, holder.records) == ("till", "127.0.0.1", 1)
    assert 0 < holder.lock_left_ms <= 30_000
    totals = found.totals
    assert totals is not None
    assert (totals.delivered, totals.accepted, totals.released, totals.rejected, totals.expired) == (4, 1, 1, 1, 0)
    assert found.oldest_age_ms is not None
    assert found.dead_letter_topic is found.dead is None
    assert find_queue_name(cluster, topic) == name


def test_a_second_look_has_rates(cluster: Cluster, pond: Pond, topic: str, join: Join) -> None:
    name = QueueName(f"{topic}-g", topic)
    pond.produce(topic, *"ab", partition=0)
    worker = join(*name)
    worker.take()
    looks = QueueWatch(cluster, [name.group], dead_seconds=0)
    assert read_queue(looks, name).rates is None
    worker.say(a="accept")
    pond.produce(topic, *"cde", partition=0)
    rates = read_queue(looks, name).rates
    assert rates is not None
    assert rates.written
    assert rates.finished
    assert rates.written == pytest.approx(3 * rates.finished)
    assert rates.delivered == 0


def test_without_members_what_was_written_is_known(cluster: Cluster, pond: Pond, topic: str, join: Join) -> None:
    name = QueueName(f"{topic}-g", topic)
    pond.produce(topic, *"abcd", partition=0)
    worker = join(*name)
    worker.take()
    worker.say(a="accept", c="accept")
    worker.leave()
    eventually(lambda: look(cluster, name).state == EMPTY and look(cluster, name).totals is None)
    (first, _) = look(cluster, name).partitions
    assert (first.start, first.end, first.waiting, first.out, first.finished) == (1, 4, 2, 0, 1)
    assert first.oldest_age_ms is not None
    jobs = [(bytes(each.record.value or b""), each.state) for each in peek(cluster, name, 10).jobs]
    assert jobs == [(b"b", "waiting"), (b"d", "waiting")]


def test_of_a_queue_where_all_is_finished_nothing_is_shown(
    cluster: Cluster, pond: Pond, topic: str, join: Join
) -> None:
    name = QueueName(f"{topic}-g", topic)
    pond.produce(topic, *"ab", partition=0)
    worker = join(*name)
    worker.take()
    worker.say(a="accept", b="accept")
    worker.leave()
    eventually(lambda: look(cluster, name).state == EMPTY and look(cluster, name).totals is None)
    found = look(cluster, name)
    assert (found.unfinished, found.oldest_age_ms) == (0, None)
    assert peek(cluster, name, 10).jobs == ()


def test_windows_are_not_needed(
    cluster: Cluster, pond: Pond, topic: str, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Kafka ignores the question for windows."""
    name = QueueName(f"{topic}-g", topic)
    pond.produce(topic, *"abcd", partition=0)
    worker = join(*name)
    worker.take()
    worker.say(a="accept")
    monkeypatch.setattr(watch, "windows_of", lambda _, groups: {each: {} for each in groups})
    monkeypatch.setattr(watch, "states_of", lambda *_, **__: {})
    monkeypatch.setattr(jobs_module, "states_of", lambda *_, **__: {})
    found = look(cluster, name)
    (first, _) = found.partitions
    assert (first.start, first.waiting, first.out, first.totals) == (0, 3, None, None)
    assert (found.waiting, found.out, found.holders) == (3, None, ())
    assert first.oldest_age_ms is not None
    # Nobody says which of them is finished.
    assert [each.state for each in peek(cluster, name, 10).jobs] == ["unknown"] * 4


def test_a_partition_that_nobody_has_read_has_not_started(cluster: Cluster, pond: Pond, topic: str) -> None:
    name = QueueName(f"{topic}-g", topic)
    pond.produce(topic, "a", partition=0)
    epoch = beat(cluster, name.group, topic)
    eventually(lambda: bool(read_queues(cluster, [name.group]).queues))
    found = look(cluster, name)
    assert found.not_started == (0, 1)
    assert [(each.waiting, each.unfinished) for each in found.partitions] == [(None, None)] * 2
    assert peek(cluster, name, 10).not_started == (0, 1)
    beat(cluster, name.group, topic, -1)
    assert epoch > 0


def test_peek_shows_states_and_takes_nothing(cluster: Cluster, pond: Pond, topic: str, join: Join) -> None:
    name = QueueName(f"{topic}-g", topic)
    pond.produce(topic, *"abcd", partition=0)
    worker = join(*name)
    worker.take()
    worker.say(b="accept", c="release")
    later = str(time.time_ns() // 1_000_000 + 3_600_000).encode()
    producer = pond.producer
    headers = [("queue.deliver-at", later), ("queue.priority", b"7")]
    producer.produce(topic, b"e", partition=0, headers=headers)
    producer.produce(topic, b"f", partition=0, headers=[("queue.deliver-at", b"soon")])
    assert producer.flush(30) == 0
    jobs = peek(cluster, name, 10).jobs
    seen = [(bytes(each.record.value or b""), each.state, each.deliveries) for each in jobs]
    assert seen == [
        (b"a", "out", 1),
        (b"c", "waiting", 1),
        (b"d", "out", 1),
        (b"e", "delayed", 0),
        (b"f", "waiting", 0),
    ]
    assert (jobs[3].deliver_at_ms, jobs[3].priority) == (int(later), 7)
    assert (jobs[4].deliver_at_ms, jobs[4].priority) == (None, None)
    assert [each.record.offset for each in peek(cluster, name, 2).jobs] == [0, 2]
    totals = look(cluster, name).totals
    assert totals is not None
    assert totals.delivered == 4


def test_a_peek_keeps_only_what_fits_into_memory(
    cluster: Cluster, pond: Pond, topic: str, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = QueueName(f"{topic}-g", topic)
    pond.produce(topic, "a" * 100, "b" * 100, "c" * 100, partition=0)
    join(*name).take()
    assert peek(cluster, name, 2).is_whole
    monkeypatch.setattr(jobs_module, "BYTES_MAX", 250)
    found = peek(cluster, name, 10)
    assert [bytes(each.record.value or b"")[:1] for each in found.jobs] == [b"a", b"b"]
    assert not found.is_whole
    monkeypatch.setattr(jobs_module, "BYTES_MAX", 10)
    assert len(peek(cluster, name, 10).jobs) == 1
    monkeypatch.undo()
    assert not peek(cluster, name, 10, seconds=0).is_whole


def test_a_purge_needs_an_empty_group_and_skips_everything(
    cluster: Cluster, pond: Pond, topic: str, join: Join
) -> None:
    name = QueueName(f"{topic}-g", topic)
    pond.produce(topic, *"abc", partition=0)
    worker = join(*name)
    worker.take()
    with pytest.raises(Refused, match=r"has 1 active member \(till on 127.0.0.1\): stop it first to purge its queue"):
        plan_purge(cluster, name)
    worker.say(a="accept")
    worker.leave()
    eventually(lambda: not (describe_share_group(cluster, name.group) or pytest.fail("no group")).members)
    plan = plan_purge(cluster, name)
    assert plan.records == 2
    epoch = beat(cluster, name.group, topic)
    with pytest.raises(Refused, match="has 1 active member"):
        apply_purge(cluster, plan)
    assert epoch > 0
    beat(cluster, name.group, topic, -1)
    apply_purge(cluster, plan)
    assert look(cluster, name).unfinished == 0
    pond.produce(topic, "d", partition=0)
    assert join(*name).take() == ["d"]


def test_a_queue_is_found_by_its_topic_if_one_group_reads_it(cluster: Cluster, topic: str) -> None:
    with pytest.raises(Refused, match=f"There is no topic {topic}x; did you mean {topic}"):
        find_queue_name(cluster, f"{topic}x")
    with pytest.raises(Refused, match=f"No share group reads {topic} yet: name one with --group"):
        find_queue_name(cluster, topic)
    with pytest.raises(Refused, match="There is no share group nobody"):
        find_queue_name(cluster, topic, "nobody")
    for group in (f"{topic}-a", f"{topic}-b"):
        beat(cluster, group, topic)
    eventually(lambda: len(read_queues(cluster, [f"{topic}-a", f"{topic}-b"]).queues) == 2)
    with pytest.raises(
        Refused, match=f"2 share groups read {topic} \\({topic}-a, {topic}-b\\): name one with --group"
    ):
        find_queue_name(cluster, topic)
    assert find_queue_name(cluster, topic, f"{topic}-b").group == f"{topic}-b"
    for group in (f"{topic}-a", f"{topic}-b"):
        beat(cluster, group, topic, -1)


def test_dead_letters_are_counted_by_group_and_topic(
    cluster: Cluster, pond: Pond, topic: str, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    dlq, name = f"{pond.new_topic(1)}.dlq", QueueName(f"{topic}-g", topic)
    pond.create_topic(dlq)
    producer = pond.producer
    for group, origin, count in ((name.group, topic, 3), (name.group, "other", 2), ("other", topic, 1)):
        for offset in range(count):
            message = Message(origin, 0, offset, 1_000, b"k", b"v", ())
            letter = dead_letter(
                message, ValueError("x"), to=dlq, origin=origin_of(message), attempts=1, group=group, now_ms=1
            )
            producer.produce(dlq, letter.value, letter.key, headers=list(letter.headers))
    assert producer.flush(30) == 0
    counts = count_dead_letters(cluster, [dlq, "none.dlq", topic], 30)
    assert counts[dlq].by_queue[name] == 3
    assert (counts[dlq].is_whole, counts["none.dlq"].by_queue.total()) == (True, 0)
    monkeypatch.setattr(dead, "values_of", lambda _, groups, names: {each: {names[0]: dlq} for each in groups})
    pond.produce(topic, "a", partition=0)
    join(*name).take()
    found = read_queue(QueueWatch(cluster, [name.group]), name)
    assert (found.dead_letter_topic, found.dead, found.is_dead_exact) == (dlq, 3, True)
    assert find_dead_letter_topic(cluster, name.group) == dlq


def test_a_group_without_a_dead_letter_topic_is_told_how_to_name_one(cluster: Cluster) -> None:
    with pytest.raises(Refused, match=r"keeps no dead letters: .* errors.deadletterqueue.topic.name=…"):
        find_dead_letter_topic(cluster, "some-group")


def test_the_settings_of_a_queue_have_meanings(cluster: Cluster) -> None:
    found = {each.name: each for each in queue_settings(cluster, "some-group")}
    assert found["share.record.lock.duration.ms"].value == "30000"
    assert found["share.record.lock.duration.ms"].meaning
    assert "share.heartbeat.interval.ms" not in found
    assert all(name.startswith(("share.", "errors.")) for name in found)


def test_health_has_the_queues_and_their_groups_are_no_consumer_groups(
    cluster: Cluster, pond: Pond, topic: str, join: Join
) -> None:
    name = QueueName(f"{topic}-g", topic)
    pond.produce(topic, "a", partition=0)
    join(*name).take()
    health = read_health(cluster)
    assert name in [each.name for each in health.queues]
    assert name.group not in [each.group.id for each in health.groups]
