"""Dead letters as a program sees them; tests/cli/test_dlq.py has the rest, kills and take-overs included."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Container
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer

from millpond import Worker
from millpond.admin.dead_letters import redrive as redrive_module
from millpond.admin.dead_letters.letters import Filter, Letter, LetterId, LetterTopic, find_letter_topics
from millpond.admin.dead_letters.purge import apply_purge, plan_purge
from millpond.admin.dead_letters.redrive import Edit, LetterFate, Redrive, RedriveOrder, RedrivePlan, plan_redrive
from millpond.admin.dead_letters.redriven import Redriven
from millpond.admin.dead_letters.tally import NAME_SIGNS_MAX, NAMES_MAX, OTHERS, Tally
from millpond.admin.dead_letters.topics import LetterCounts, count_letters, last_letters, list_letter_topics
from millpond.admin.errors import NotDeadLetters, Refused
from millpond.base.ids import TopicPartition
from millpond.client.dead_letters import dead_letter, origin_of
from millpond.client.message import Message, header_list
from millpond.remote.cluster import Cluster, TopicInfo
from millpond.remote.errors import ClusterError
from millpond.remote.offsets import earliest, latest
from millpond.testing import Pond


def bury(
    producer: Producer,
    source: str,
    dlq: str,
    *values: bytes,
    partition: int = 0,
    group: str = "g",
    own: bytes = b"1",
) -> None:
    """Letters as a worker writes them."""
    for offset, value in enumerate(values):
        message = Message(source, offset % 2, offset, 1_000, b"k%d" % offset, value, (("own", own),))
        sent = dead_letter(
            message, ValueError("bad"), to=dlq, origin=origin_of(message), attempts=1, group=group, now_ms=2_000
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


def test_what_an_open_transaction_holds_back_is_not_nothing(cluster: Cluster, pond: Pond, topic: str) -> None:
    dlq = pond.create_topic(f"{topic}.held.dlq")

    def look() -> tuple[int, bool]:
        last = last_letters(cluster, dlq, Filter(), 10, lambda letter, _: letter.id)
        return len(last.letters), last.is_held_back

    assert look() == (0, False)
    producer = Producer(pond.client_settings(transactional_id=f"{dlq}-t"))
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(dlq, b"of the open one", partition=0)
    producer.flush(60)
    bury(pond.producer, topic, dlq, b"a")
    assert look() == (0, True)
    producer.abort_transaction(10)


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
    assert (waiting[good], waiting[spoiled]) == (2, None), "who wrote these marks nobody knows"
    # They are there to be seen, and only a redrive is refused.
    assert len(last_letters(cluster, spoiled, Filter(), 10, lambda letter, _: letter.id).letters) == 2
    with pytest.raises(Refused, match="something else uses topic"):
        plan_redrive(cluster, RedriveOrder(spoiled, Filter()))
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
    with pytest.raises(Refused, match="recreated"):
        apply_purge(cluster, plan)
    zero = TopicPartition(dlq, 0)
    assert earliest(cluster, [zero])[zero] == 0


class Enough(Exception):
    """Somebody has asked to stop."""


def test_plans_say_how_far_they_are_and_can_be_stopped(cluster: Cluster, pond: Pond, topic: str) -> None:
    dlq = pond.new_topic(1)
    bury(pond.producer, topic, dlq, b"a", b"b", b"c")
    reports: list[tuple[int, int]] = []
    plan_purge(cluster, dlq, progress=lambda looked, total: reports.append((looked, total)))
    assert list(dict.fromkeys(reports)) == [(0, 0), (0, 3), (1, 3), (2, 3), (3, 3)]

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


def test_a_look_in_a_hurry_says_that_it_does_not_know(cluster: Cluster, pond: Pond, topic: str) -> None:
    """Whether a topic with another name holds dead letters is known only when something of it was read."""
    dlq = pond.new_topic(1, prefix="hurry")
    bury(pond.producer, topic, dlq, b"a")
    with pytest.raises(Refused, match="could not be read in time"):
        count_letters(cluster, dlq, Filter(), seconds=-1.0)
    topics, left_out = list_letter_topics(cluster, -1.0)
    assert dlq not in [each.topic for each in topics]
    assert left_out > 0


def test_what_was_not_checked_in_time_is_left_out_and_counted(
    cluster: Cluster, pond: Pond, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first record was seen, and then there was no time to look at its last ones."""
    dlq = pond.new_topic(3, prefix="late")
    bury(pond.producer, topic, dlq, b"a")
    _, before = find_letter_topics(cluster)
    check = LetterTopic.check

    def late(letters: LetterTopic, is_known: Container[str], is_up: Callable[[], bool]) -> None:
        check(letters, is_known, (lambda: True) if letters.name == dlq else is_up)

    monkeypatch.setattr(LetterTopic, "check", late)
    topics, left_out = find_letter_topics(cluster)
    assert dlq not in [each.name for each in topics]
    assert left_out == before + 3


def test_counts_and_the_latest_letters(cluster: Cluster, pond: Pond, topic: str) -> None:
    dlq = pond.new_topic(2, prefix="box")
    bury(pond.producer, topic, dlq, *(b"%d" % number for number in range(6)))
    bury(pond.producer, topic, dlq, b"other", partition=1)
    counts = count_letters(cluster, dlq, Filter())
    assert (counts.records, counts.errors, counts.origins) == (7, {"ValueError": 7}, {topic: 7})
    selection = Filter(keys=frozenset({b"k1", b"k2"}))
    last = last_letters(cluster, dlq, selection, 10, lambda letter, is_redriven: (letter.id, is_redriven))
    assert sorted(last.letters) == [(LetterId(0, 1), False), (LetterId(0, 2), False)]
    assert (last.is_whole, last.leaderless) == (True, ())
    assert count_letters(cluster, dlq, Filter(ids=frozenset({LetterId(1, 0)}))).records == 1
    assert count_letters(cluster, dlq, Filter(until_ms=5)).records == 0


def test_what_one_letter_says_keeps_no_other_from_going(cluster: Cluster, pond: Pond, topic: str) -> None:
    """Where it came from is a header, in which anything may stand: a topic that is gone, a megabyte, ourselves."""
    dlq = pond.new_topic(1, prefix="hostile")
    bury(pond.producer, topic, dlq, b"a")
    homes = ("gone", "x" * 500_000, dlq, f"{dlq}.redriven", "__consumer_offsets")
    for home in homes:
        bury(pond.producer, home, dlq, b"stays")
    plan = plan_redrive(cluster, RedriveOrder(dlq, Filter()))
    assert (plan.targets, plan.records, plan.fates[LetterFate.NO_TARGET]) == ({topic: 1}, 1, len(homes))
    redrive = Redrive(cluster, plan.order, agreed=plan)
    redrive.run(lambda _: None)
    assert redrive.sent == 1
    assert plan_redrive(cluster, RedriveOrder(dlq, Filter(), to=topic)).records == len(homes)


def test_a_plan_limits_the_names_it_holds(cluster: Cluster, pond: Pond, topic: str) -> None:
    dlq = pond.new_topic(1, prefix="names")
    bury(pond.producer, topic, dlq, b"a", group="g" * 10_000)
    assert [len(each) for each in plan_redrive(cluster, RedriveOrder(dlq, Filter())).groups] == [NAME_SIGNS_MAX]
    tally = Tally()
    for number in range(2 * NAMES_MAX):
        tally.note(f"{number} " + "g" * 10_000)
    assert len(tally) == NAMES_MAX + 1
    assert tally[OTHERS] == NAMES_MAX
    assert max(map(len, tally)) == NAME_SIGNS_MAX


def test_a_transaction_is_bounded_by_all_that_is_in_its_records(
    cluster: Cluster, pond: Pond, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive_module, "BATCH_BYTES_MAX", 50_000)
    dlq = pond.new_topic(1, prefix="sizes")
    bury(pond.producer, topic, dlq, b"a", b"b", b"c", own=bytes(60_000))
    reports: list[int] = []
    Redrive(cluster, RedriveOrder(dlq, Filter())).run(reports.append)
    assert reports == [1, 2, 3]


def test_letters_are_those_of_the_topic_in_which_they_were_seen(cluster: Cluster, pond: Pond, topic: str) -> None:
    dlq = pond.new_topic(1, prefix="seen")
    bury(pond.producer, topic, dlq, b"a")
    selection = Filter(ids=frozenset({LetterId(0, 0)}))
    seen = LetterTopic.find(cluster, dlq).info.topic_id
    assert plan_redrive(cluster, RedriveOrder(dlq, selection, topic_id=seen)).records == 1
    with pytest.raises(Refused, match="recreated"):
        plan_redrive(cluster, RedriveOrder(dlq, selection, topic_id=UUID(int=7)))


def test_many_transactions_of_one_redrive_and_records_too_large_for_one_batch(
    cluster: Cluster, pond: Pond, topic: str
) -> None:
    dlq = pond.new_topic(1, prefix="large")
    values = [b"%02d" % number + bytes(400_000) for number in range(12)]
    bury(pond.producer, topic, dlq, *values)
    order = RedriveOrder(dlq, Filter(), batch=5)
    assert plan_redrive(cluster, order).records == 12
    reports: list[int] = []
    redrive = Redrive(cluster, order)
    redrive.run(reports.append)
    assert reports == [5, 10, 12]
    arrived = pond.consume(topic, 12)
    for partition in (0, 1):
        own = [bytes(each.value or b"")[:2] for each in arrived if each.partition == partition]
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
    assert sorted(int(each.value or b"") for each in pond.consume(topic, 10)) == list(range(10))


class Behind(Cluster):
    """Asks a broker that has not heard yet of the marks, which another redrive has made."""

    def topics(self, names: Collection[str] | None = None, *, create: bool = False) -> dict[str, TopicInfo]:
        return {name: each for name, each in super().topics(names, create=create).items() if ".redriven" not in name}


def test_a_broker_that_is_behind_lets_no_letter_go_twice(cluster: Cluster, pond: Pond, topic: str) -> None:
    dlq = pond.new_topic(1, prefix="behind")
    bury(pond.producer, topic, dlq, b"a", b"b")
    Redrive(cluster, RedriveOrder(dlq, Filter())).run(lambda _: None)
    with Behind({"bootstrap.servers": pond.bootstrap}) as behind:
        behind.patience_seconds = 0.3
        plan = plan_redrive(behind, RedriveOrder(dlq, Filter()))
        for agreed in (None, plan):
            with pytest.raises(ClusterError, match="does not know it"):
                Redrive(behind, plan.order, agreed=agreed)
    assert plan_redrive(cluster, RedriveOrder(dlq, Filter())).records == 0


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
    assert [each.value for each in pond.consume(topic, 1)] == [b"a"], "a plain consumer sees it"


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
        with pytest.raises(Refused, match="were redriven in the meantime"):
            Redrive(cluster, plan.order, agreed=plan)
    again = plan_redrive(cluster, RedriveOrder(dlq, Filter()))
    assert again.records == 1
    apply_purge(cluster, plan_purge(cluster, dlq))
    with pytest.raises(Refused, match="can no longer be read"):
        Redrive(cluster, again.order, agreed=again)
    assert sorted(each.value or b"" for each in pond.consume(topic, 2)) == [b"0", b"1"]


def test_a_redrive_without_records_does_not_fence_another(cluster: Cluster, pond: Pond, topic: str) -> None:
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


def test_a_letter_without_its_value_is_not_sent_back_unless_it_is_given_one() -> None:
    letter = Letter(Message("o.dlq", 0, 5, headers=(("dlq.topic", b"o"), ("dlq.value.omitted", b"9000"))))

    def fate(**edit: bytes) -> LetterFate:
        edits = {letter.id: Edit(**edit)} if edit else {}  # type: ignore[arg-type]
        order = RedriveOrder("o.dlq", Filter(), edits=edits)
        topic: Any = None
        return RedrivePlan(order, topic, Redriven(), {}, frozenset({"o"})).fate(letter)

    assert fate() is fate(key=b"k") is LetterFate.NO_TARGET
    assert fate(value=b"whole") is LetterFate.SENT


def test_letters_are_selected_by_the_group_that_failed_and_the_topic_they_are_from() -> None:
    def letter(group: str, origin: str) -> Letter:
        message = Message(origin, 0, 0, 1_000, b"k", b"v", ())
        sent = dead_letter(
            message, ValueError("x"), to="q.dlq", origin=origin_of(message), attempts=1, group=group, now_ms=1
        )
        return Letter(Message("q.dlq", 0, 0, 1_000, sent.key, sent.value, sent.headers))

    letters = [letter("g", "t"), letter("g", "u"), letter("h", "t")]
    stranger = Letter(Message("q.dlq", 0, 1, 1_000, b"k", b"v", ()))
    for selection, expected in (
        (Filter(groups=frozenset({"g"})), [True, True, False]),
        (Filter(origins=frozenset({"t"})), [True, False, True]),
        (Filter(groups=frozenset({"g", "h"}), origins=frozenset({"u"})), [False, True, False]),
    ):
        assert [selection.takes(each) for each in letters] == expected
        assert not selection.takes(stranger)
        assert not selection.is_open
