"""Which Sends go into one transaction, and which offsets are committed with them."""

from __future__ import annotations

from millpond import Send, SendFailed
from millpond.base.ids import TopicPartition
from millpond.client.outbox import Outbox, outgoing_sends

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


def letter(_: SendFailed) -> Send:
    return Send("dlq", b"letter")


def outbox() -> Outbox:
    """Three records at the offsets 10, 12 and 14 with two Sends each, and one more of another partition."""
    made = Outbox()
    for offset in (10, 12, 14):
        sends = [Send("out", b"%d%s" % (offset, part)) for part in (b"a", b"b")]
        made.add(FIRST, offset + 1, outgoing_sends(sends, offset, letter))
    made.add(SECOND, 6, outgoing_sends([Send("out", b"5")], 5, letter))
    return made


def values(box: Outbox, sends_max: int) -> list[bytes]:
    return [each.value for each in box.first(sends_max).sends]


def test_a_portion_ends_with_a_whole_record() -> None:
    box = outbox()
    assert values(box, 1) == values(box, 2) == values(box, 3) == [b"10a", b"10b"]
    assert box.first(3).offsets == {FIRST: 12}
    assert values(box, 6) == [b"10a", b"10b", b"12a", b"12b", b"14a", b"14b"]
    assert box.first(6).offsets == {FIRST: 15}
    assert box.first(7).offsets == {FIRST: 15, SECOND: 6}


def test_what_was_committed_is_gone_and_the_rest_stays() -> None:
    box = outbox()
    box.remove(box.first(4))
    assert values(box, 9) == [b"14a", b"14b", b"5"]
    box.remove(box.first(2))
    assert values(box, 9) == [b"5"]
    box.remove(box.first(1))
    assert not box


def test_a_partition_without_sends_is_committed_with_any_portion() -> None:
    box = Outbox()
    box.add(FIRST, 4, [])
    assert (box.first(1).sends, box.first(1).offsets) == ([], {FIRST: 4})
    box.remove(box.first(1))
    assert not box


def test_a_letter_takes_the_place_of_all_sends_of_its_record() -> None:
    box = outbox()
    refused = box.first(9).sends[3]
    assert box.replace(refused.record, Send("dlq", b"letter")) == 2
    assert values(box, 9) == [b"10a", b"10b", b"letter", b"14a", b"14b", b"5"]
    assert box.first(3).offsets == {FIRST: 14}
    assert not box.has(refused)


def test_a_partition_that_was_taken_away_is_forgotten() -> None:
    box = outbox()
    box.forget([FIRST])
    assert values(box, 9) == [b"5"]
