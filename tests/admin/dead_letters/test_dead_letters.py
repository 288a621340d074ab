"""Dead letters as a program sees them; tests/cli/test_dlq.py has the rest, kills and take-overs included."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from confluent_kafka import Producer

from millpond import Worker
from millpond.admin.dead_letters.letters import Filter, Letter, LetterId, LetterTopic, find_letter_topics
from millpond.admin.dead_letters.purge import apply_purge, plan_purge
from millpond.admin.dead_letters.redrive import Edit, LetterFate, Redrive, RedriveOrder, plan_redrive
from millpond.admin.dead_letters.topics import LetterCounts, count_letters, last_letters, list_letter_topics
from millpond.admin.errors import NotDeadLetters, Refused
from millpond.base.ids import TopicPartition
from millpond.client.dead_letters import dead_letter, origin_of
from millpond.client.message import Message, header_list
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import earliest, latest
from millpond.testing import Pond


def bury(producer: Producer, source: str, dlq: str, *values: bytes, partition: int = 0) -> None:
    """Letters as a worker writes them."""
    for offset, value in enumerate(values):
        message = Message(source, offset % 2, offset, 1_000, b"k%d" % offset, value, (("own", b"1"),))
        sent = dead_letter(
            message, ValueError("bad"), to=dlq, origin=origin_of(message), attempts=1, group="g", now_ms=2_000
        )
        producer.produce(dlq, sent.value, sent.key, headers=header_list(sent.headers), partition=partition)
    producer.flush(60)


def test_letters_written_in_transactions_are_known_by_their_headers(cluster: Cluster, pond: Pond, topic: str) -> None:
    """The last offset is a marker, an aborted stranger is none, and an open transaction is not looked into."""
    dlq = pond.new_topic(2)
    producer = Producer(pond.client_settings(transactional_id=f"{dlq}-t"))
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(dlq, b"aborted stranger", partition=0)
    producer.flush(60)
    producer.abort_transaction(10)
    producer.begin_transaction()
    bury(producer, topic, dlq, b"a", b"b")
    producer.commit_transaction(10)
    producer.begin_transaction()
    producer.produce(dlq, b"open stranger", partition=0)
    producer.flush(60)
    letters = LetterTopic.find(cluster, dlq)
    assert [each.message.value for each in letters.letters(letters.bounds)] == [b"a", b"b"]
    topics, left_out = find_letter_topics(cluster)
    assert dlq in [each.name for each in topics]
    assert left_out == 0
    (facts,) = [each for each in list_letter_topics(cluster)[0] if each.topic == dlq]
    assert (facts.records, facts.waiting, facts.is_estimate) == (2, 2, False)
    assert plan_purge(cluster, dlq).before == {TopicPartition(dlq, 0): 5, TopicPartition(dlq, 1): 0}
    producer.commit_transaction(10)
    # Now the stranger is there for everybody.
    with pytest.raises(NotDeadLetters, match=r"its record 0:5 has no header dlq\.topic"):
        LetterTopic.find(cluster, dlq)
    assert dlq not in [each.name for each in find_letter_topics(cluster)[0]]


def test_what_is_in_one_topic_does_not_hide_all_others(cluster: Cluster, pond: Pond, topic: str) -> None:
    good, spoiled = pond.create_topic(f"{topic}.dlq"), pond.create_topic(f"{topic}.spoiled.dlq")
    mixed = pond.new_topic(1, prefix="mixed")
    for dlq in (good, spoiled, mixed):
        bury(pond.producer, topic, dlq, b"a", b"b")
    pond.produce(mixed, "a stranger in the middle")
    bury(pond.producer, topic, mixed, b"c", b"d", b"e")
    pond.create_topic(f"{spoiled}.redriven")
    pond.produce(f"{spoiled}.redriven", ("who", "knows"))
    waiting = {each.topic: each.waiting for each in list_letter_topics(cluster)[0]}
    assert (waiting[good], waiting[spoiled]) == (2, 2)
    assert mixed not in waiting


def test_letters_of_any_time_can_be_counted() -> None:
    counts = LetterCounts(seconds=Counter({("", 0): 2, ("", 2**62 // 1000): 1}))
    assert list(counts.over_time().values()) == [2, 1]


def test_a_purge_plan_cuts_nothing_that_came_after_it(cluster: Cluster, pond: Pond, topic: str) -> None:
    dlq = pond.new_topic(1)
    zero = TopicPartition(dlq, 0)
    bury(pond.producer, topic, dlq, b"a", b"b")
    plan = plan_purge(cluster, dlq)
    assert (plan.before, plan.records, plan.waiting) == ({zero: 2}, 2, 2)
    pond.produce(dlq, "a stranger that came late")
    apply_purge(cluster, plan)
    assert (earliest(cluster, [zero])[zero], latest(cluster, [zero])[zero]) == (2, 3)


def test_a_purge_plan_is_for_the_topic_that_was_looked_at(cluster: Cluster, pond: Pond, topic: str) -> None:
    dlq = pond.create_topic(f"{topic}.anew.dlq")
    bury(pond.producer, topic, dlq, b"a", b"b")
    plan = plan_purge(cluster, dlq)
    pond.admin.delete_topics([dlq])[dlq].result(30)
    pond.create_topic(dlq)
    bury(pond.producer, topic, dlq, b"other", b"letters", b"of it")
    with pytest.raises(Refused, match="made anew"):
        apply_purge(cluster, plan)
    zero = TopicPartition(dlq, 0)
    assert earliest(cluster, [zero])[zero] == 0


class Enough(Exception):
    """Somebody has asked to stop."""


def test_plans_say_how_far_they_are_and_can_be_stopped(cluster: Cluster, pond: Pond, topic: str) -> None:
    dlq = pond.new_topic(1)
    bury(pond.producer, topic, dlq, b"a", b"b", b"c")
    heard: list[tuple[int, int]] = []
    plan_purge(cluster, dlq, progress=lambda looked, total: heard.append((looked, total)))
    assert heard == [(0, 3), (1, 3), (2, 3), (3, 3)]

    def stop(looked: int, total: int) -> None:
        raise Enough

    with pytest.raises(Enough):
        plan_redrive(cluster, RedriveOrder(dlq, Filter()), stop)
    assert plan_redrive(cluster, RedriveOrder(dlq, Filter())).records == 3, "the client can be used as before"


def test_a_list_in_a_hurry_goes_by_offsets(cluster: Cluster, pond: Pond, topic: str) -> None:
    dlq = pond.create_topic(f"{topic}.hurry.dlq")
    bury(pond.producer, topic, dlq, b"a", b"b")
    (facts,) = [each for each in list_letter_topics(cluster, 0.0)[0] if each.topic == dlq]
    assert (facts.records, facts.is_estimate, facts.oldest_ms, facts.leaderless) == (2, True, None, 0)


def test_counts_and_the_latest_letters(cluster: Cluster, pond: Pond, topic: str) -> None:
    dlq = pond.new_topic(2, prefix="box")
    bury(pond.producer, topic, dlq, *(b"%d" % number for number in range(6)))
    bury(pond.producer, topic, dlq, b"other", partition=1)
    counts = count_letters(cluster, dlq, Filter())
    assert (counts.records, counts.errors, counts.origins) == (7, {"ValueError": 7}, {topic: 7})
    wanted = Filter(keys=frozenset({b"k1", b"k2"}))
    last = last_letters(cluster, dlq, wanted, 10, lambda letter, is_redriven: (letter.id, is_redriven))
    assert sorted(last.letters) == [(LetterId(0, 1), False), (LetterId(0, 2), False)]
    assert (last.is_whole, last.leaderless) == (True, ())
    assert count_letters(cluster, dlq, Filter(ids=frozenset({LetterId(1, 0)}))).records == 1
    assert count_letters(cluster, dlq, Filter(until_ms=5)).records == 0


def test_many_transactions_of_one_redrive_and_records_too_large_for_one_batch(
    cluster: Cluster, pond: Pond, topic: str
) -> None:
    dlq = pond.new_topic(1, prefix="large")
    values = [b"%02d" % number + bytes(400_000) for number in range(12)]
    bury(pond.producer, topic, dlq, *values)
    order = RedriveOrder(dlq, Filter(), batch=5)
    assert plan_redrive(cluster, order).records == 12
    heard: list[int] = []
    redrive = Redrive(cluster, order)
    redrive.run(heard.append)
    assert heard == [5, 10, 12]
    arrived = pond.consume(topic, 12)
    for partition in (0, 1):
        own = [bytes(each.value() or b"")[:2] for each in arrived if each.partition() == partition]
        assert own == [b"%02d" % number for number in range(12) if number % 2 == partition]
    again = plan_redrive(cluster, order)
    assert (again.records, again.fates[LetterFate.DONE]) == (0, 12)


def test_a_redrive_stops_between_two_transactions_and_another_goes_on(
    cluster: Cluster, pond: Pond, topic: str
) -> None:
    dlq = pond.new_topic(1, prefix="stopped")
    bury(pond.producer, topic, dlq, *(b"%d" % number for number in range(10)))
    first = Redrive(cluster, RedriveOrder(dlq, Filter(), batch=2, rate=20.0))
    began = time.monotonic()
    first.run(lambda _: None, lambda: first.sent >= 4)
    assert first.sent == 4
    assert time.monotonic() - began >= 0.09, "2 at once, 2 more after a tenth of a second"
    second = Redrive(cluster, RedriveOrder(dlq, Filter()))
    assert (second.plan.records, second.plan.fates[LetterFate.DONE]) == (6, 4)
    second.run(lambda _: None)
    assert sorted(int(each.value() or b"") for each in pond.consume(topic, 10)) == list(range(10))


@pytest.mark.parametrize("for_all", [False, True])
def test_a_redriven_record_is_for_the_group_that_failed_it(
    cluster: Cluster, pond: Pond, topic: str, for_all: bool
) -> None:
    dlq = pond.new_topic(1, prefix="groups")
    bury(pond.producer, topic, dlq, b"a")  # failed by the group g
    order = RedriveOrder(dlq, Filter(), every_group=for_all)
    assert plan_redrive(cluster, order).groups == {"" if for_all else "g": 1}
    Redrive(cluster, order).run(lambda _: None)
    seen: dict[str, list[Message]] = {"g": [], "other": []}
    for group, messages in seen.items():
        Worker(messages.append, topic, group=group).run(pond.bootstrap, until_idle_s=0.2)
    assert [each.value for each in seen["g"]] == [b"a"]
    assert seen["g"][0].headers == (("own", b"1"),)
    assert len(seen["other"]) == for_all
    assert [each.value() for each in pond.consume(topic, 1)] == [b"a"], "a plain consumer sees it"


def test_an_agreed_redrive_sends_what_was_shown_and_nothing_that_came_since(
    cluster: Cluster, pond: Pond, topic: str
) -> None:
    dlq = pond.new_topic(1, prefix="agreed")
    bury(pond.producer, topic, dlq, b"0", b"1")
    shown = plan_redrive(cluster, RedriveOrder(dlq, Filter()))
    bury(pond.producer, topic, dlq, b"2")
    late = plan_redrive(cluster, RedriveOrder(dlq, Filter()))
    redrive = Redrive(cluster, shown.order, agreed=shown)
    redrive.run(lambda _: None)
    assert redrive.sent == 2
    # What was shown has been done; and the later plan counts letters that are done by now.
    for plan in (shown, late):
        with pytest.raises(Refused, match="have been redriven meanwhile"):
            Redrive(cluster, plan.order, agreed=plan)
    again = plan_redrive(cluster, RedriveOrder(dlq, Filter()))
    assert again.records == 1
    apply_purge(cluster, plan_purge(cluster, dlq))
    with pytest.raises(Refused, match="cannot be read any more"):
        Redrive(cluster, again.order, agreed=again)
    assert sorted(each.value() or b"" for each in pond.consume(topic, 2)) == [b"0", b"1"]


def test_what_is_refused_or_has_nothing_to_send_takes_over_from_nobody(
    cluster: Cluster, pond: Pond, topic: str
) -> None:
    dlq = pond.new_topic(1, prefix="running")
    bury(pond.producer, topic, dlq, b"0", b"1", b"2")
    running = Redrive(cluster, RedriveOrder(dlq, Filter(), batch=1))
    with pytest.raises(Refused, match="There is no topic nowhere"):
        Redrive(cluster, RedriveOrder(dlq, Filter(), to="nowhere"))
    none = Redrive(cluster, RedriveOrder(dlq, Filter(errors=frozenset({"Unheard"}))))
    none.run(lambda _: None)
    assert (none.sent, none.plan.records) == (0, 0)
    running.run(lambda _: None)
    assert running.sent == 3


def test_an_edit_leaves_what_it_does_not_name_byte_for_byte() -> None:
    letter = Letter(Message("dlq", 0, 5, 0, b"k\r\n", b"\xef\xbb\xbfv\r\n", (("own", b"\r"), ("own", None))))
    order = RedriveOrder("dlq", Filter(), edits={letter.id: Edit(key=b"new")})
    sent = order.message(letter)
    assert (sent.key, sent.value, sent.headers[:2]) == (b"new", b"\xef\xbb\xbfv\r\n", letter.message.headers)
    emptied = RedriveOrder("dlq", Filter(), edits={letter.id: Edit(value=None)}).message(letter)
    assert (emptied.key, emptied.value) == (b"k\r\n", None)
