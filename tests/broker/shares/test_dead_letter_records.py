"""One dead letter of a share group, compared with that of our client, and letters read from a log with gaps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.ports import FileRange
from millpond.broker.shares.failures import DETAILED_MAX, EXHAUSTED, failure_of, given_failure
from millpond.broker.shares.letters.letter import Sender, Shortening, letter_of
from millpond.broker.shares.letters.log_letters import Due, letters_in_log
from millpond.broker.shares.letters.office import WRITERS_MAX, LetterOffice
from millpond.broker.shares.verdicts import AcknowledgeType
from millpond.client.dead_letters import dead_letter, origin_of, shorter_letter
from millpond.client.message import Message, header_list
from millpond.coordinators.shares.state_batches import Failure
from millpond.wire.records import Record, encode_batch

SENDER = Sender("pond", 3, "g", copies_records=True)
NOW_MS = 1_800_000_000_000
TRACEBACK = "dlq.error.traceback"
OWN = (("trace", b"1"), ("dlq.redriven", b"2"), ("dlq.topic", b"older"), ("empty", None))


def ours(record: Record, message: str, shortening: Shortening) -> Record:
    return letter_of(record, 4, Failure("ValueError", message), SENDER, NOW_MS, shortening)


@pytest.mark.parametrize("value", [b"v" * 50, None])
@pytest.mark.parametrize("message", ["short", "ä" * 900])
def test_the_letters_of_the_broker_are_those_of_the_client(value: bytes | None, message: str) -> None:
    """Whole, and as each of the steps leaves it that make it smaller."""
    record = Record(17, 1_700_000_000_000, b"k", value, OWN)
    read = Message("pond", 3, 17, record.timestamp, b"k", value, OWN)
    sent = dead_letter(
        read, ValueError(message), to="pond.dlq", origin=origin_of(read), attempts=4, group="g", now_ms=NOW_MS
    )
    shorter: Any = sent
    steps = [Shortening.WHOLE, Shortening.SHORT_MESSAGE]
    # The client does not leave out a value that is not there.
    steps += [Shortening.WITHOUT_VALUE] if value is not None else []
    for step in (*steps, Shortening.WITHOUT_HEADERS):
        assert shorter is not None
        letter = ours(record, message, step)
        expected = [each for each in header_list(shorter.headers) if each[0] != TRACEBACK]
        assert sorted(letter.headers, key=str) == sorted(expected, key=str)
        assert (letter.key, letter.value) == (shorter.key, shorter.value)
        shorter = shorter_letter(shorter)
    assert shorter is None


class FakeFile:
    path = "fake"

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_at(self, position: int, length: int) -> bytes:
        return self.data[position : position + length]


def log_of(*batches: dict[int, bytes], codec: int = 0) -> list[FileRange]:
    data = b"".join(
        encode_batch(
            [Record(offset, NOW_MS, None, value) for offset, value in batch.items()],
            base_offset=min(batch),
            codec=codec,
        )
        for batch in batches
    )
    return [FileRange(FakeFile(data), 0, len(data))]  # type: ignore[arg-type]


def read(ranges: list[FileRange], due: list[Due], most: int = 100) -> tuple[list[bytes | None], int]:
    from millpond.wire.records import decode_batch

    letters = letters_in_log(ranges, due, SENDER, NOW_MS, letters_max=most, shortening=Shortening.WHOLE)
    found = [] if letters.batch is None else [each.value for each in decode_batch(letters.batch)]
    assert len(found) == letters.letter_count
    return found, letters.last


def test_only_what_is_due_is_read() -> None:
    log = log_of({0: b"a", 1: b"b", 2: b"c"}, {3: b"d"}, {4: b"e", 5: b"f"}, codec=1)
    due = [Due(1, 1, 1, None), Due(2, 2, 3, EXHAUSTED), Due(5, 5, 1, None)]
    assert read(log, due) == ([b"b", b"c", b"f"], 5)
    assert read(log, due, 1) == ([b"b"], 1)
    assert read(log, due, 2)[0] == [b"b", b"c"]


def test_records_that_compaction_removed_are_passed() -> None:
    log = log_of({0: b"a", 4: b"e"}, {7: b"h"})
    assert read(log, [Due(1, 3, 1, None)]) == ([], 3)
    assert read(log, [Due(1, 7, 1, None)]) == ([b"e", b"h"], 7)
    assert read(log, [Due(5, 6, 1, None)])[0] == []
    assert read([], [Due(1, 3, 1, None), Due(5, 6, 1, None)]) == ([], 0), "nothing shows that they are gone"


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.sets(st.integers(0, 25)),
    st.sets(st.integers(0, 25), min_size=1),
    st.integers(1, 4),
)
def test_letters_read_bit_by_bit_are_all_and_in_order(
    sizes: list[int], gaps: set[int], wanted: set[int], most: int
) -> None:
    batches, position = [], 0
    for size in sizes:
        batch = {each: b"%d" % each for each in range(position, position + size) if each not in gaps}
        if batch:
            batches.append(batch)
        position += size
    # Compaction keeps the end of a log.
    batches.append({position: b"end"})
    there = [each for batch in batches for each in batch]
    due = [each for each in sorted(wanted) if each < position]
    expected = [b"%d" % each for each in due if each in there]
    found: list[bytes | None] = []
    while due:
        # The log as it is read from the first record that is due.
        rest = [batch for batch in batches if max(batch) >= due[0]]
        some, last = read(log_of(*rest) if rest else [], [Due(each, each, 1, None) for each in due], most)
        assert len(some) <= most
        assert last >= due[0], "each turn gets on"
        found += some
        due = [each for each in due if each > last]
    assert found == expected


class Clock:
    def __init__(self) -> None:
        self.soon: list[Any] = []

    def call_soon(self, work: Any) -> None:
        self.soon.append(work)

    def turn(self) -> None:
        work, self.soon = self.soon, []
        for each in work:
            each()


def test_writers_take_turns_even_if_thousands_leave_at_once() -> None:
    clock, begun = Clock(), 0

    class Writer:
        def begin(self) -> None:
            nonlocal begun
            begun += 1
            office.leave(self)

    office = LetterOffice(None, clock)  # type: ignore[arg-type]
    for _ in range(5_000):
        office.enter(Writer())
    before = 0
    while clock.soon:
        clock.turn()
        assert begun - before <= WRITERS_MAX
        before = begun
    assert begun == 5_000


def test_no_more_writers_than_allowed_are_admitted() -> None:
    clock, inside = Clock(), []

    class Writer:
        def begin(self) -> None:
            inside.append(self)

    office = LetterOffice(None, clock)  # type: ignore[arg-type]
    for _ in range(10):
        office.enter(Writer())
    clock.turn()
    assert len(inside) == WRITERS_MAX
    office.leave(inside[1])
    clock.turn()
    assert len(inside) == WRITERS_MAX + 1
    clock.turn()
    assert len(inside) == WRITERS_MAX + 1


def test_errors_of_members_are_cut() -> None:
    assert given_failure("", "") is None
    found = given_failure("E" * 5_000, "ä" * 5_000)
    assert found is not None
    assert (len(found.error_type), len(found.error_message)) == (200, 500)


def test_of_many_waiting_records_only_the_type_is_kept() -> None:
    given = Failure("E" * 200, "why")
    assert failure_of(AcknowledgeType.REJECT, given, DETAILED_MAX - 1) == given
    assert failure_of(AcknowledgeType.REJECT, given, DETAILED_MAX) == Failure("E" * 60, "")
