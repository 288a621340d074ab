"""Dead letters keep the whole record and say what happened."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import DecodeFailed, Message, Send
from millpond.client import dead_letters as dlq
from millpond.client.message import header_list

ORIGIN = dlq.Origin("orders", 3, 1234, 1_700_000_000_000)


def letter_of(message: Message, error: BaseException, attempts: int = 5) -> Message:
    sent = dlq.dead_letter(
        message, error, to="orders.dlq", origin=ORIGIN, attempts=attempts, group="billing", now_ms=1_700_000_099_000
    )
    return Message(sent.topic, 0, 0, 0, sent.key, sent.value, tuple(header_list(sent.headers)))


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_what_goes_in_comes_out() -> None:
    message = Message("orders", 3, 1234, 0, b"key", b"value", (("trace", b"abc"),))
    letter = letter_of(message, raised(ValueError("no such customer")))
    found = dlq.read_dead_letter(letter)
    assert (letter.topic, letter.key, letter.value) == ("orders.dlq", b"key", b"value")
    assert letter.header("trace") == b"abc"
    assert found.origin == ORIGIN
    assert (found.attempts, found.group, found.redriven) == (5, "billing", 0)
    assert (found.error_type, found.error_message) == ("ValueError", "no such customer")
    assert found.time_ms == 1_700_000_099_000
    assert "in raised" in found.error_traceback


def test_all_names_are_there() -> None:
    names = {name for name, _ in letter_of(Message("orders", 3, 1234), ValueError()).headers}
    assert names == {
        "dlq.topic", "dlq.partition", "dlq.offset", "dlq.timestamp", "dlq.attempts", "dlq.error.type",
        "dlq.error.message", "dlq.error.traceback", "dlq.group", "dlq.time", "dlq.redriven",
    }  # fmt: skip


def test_long_errors_are_cut_and_the_traceback_keeps_its_end() -> None:
    found = dlq.read_dead_letter(letter_of(Message("orders", 0, 0), raised(ValueError("x" * 50_000 + "end"))))
    assert len(found.error_message) == dlq.ERROR_MESSAGE_CHARACTERS_MAX
    assert len(found.error_traceback) == dlq.TRACEBACK_CHARACTERS_MAX
    assert found.error_traceback.endswith("end\n")


def test_a_redriven_record_that_fails_again_keeps_its_count_and_gets_fresh_headers() -> None:
    first = letter_of(Message("orders", 3, 1234, value=b"v", headers=(("own", b"1"),)), ValueError("first"))
    back = dlq.redriven_headers(first)
    assert back == (("own", b"1"), ("dlq.redriven", b"1"))
    again = letter_of(Message("orders", 3, 99, value=b"v", headers=back), KeyError("second"))
    assert dlq.read_dead_letter(again).redriven == 1
    assert [name for name, _ in again.headers].count("dlq.error.type") == 1
    assert dlq.redriven_headers(again)[-1] == ("dlq.redriven", b"2")


def test_a_record_that_is_no_dead_letter_is_refused() -> None:
    with pytest.raises(DecodeFailed, match="not a dead letter"):
        dlq.read_dead_letter(Message("orders", 0, 0))


@given(st.text(max_size=50), st.binary(max_size=50))
def test_any_error_text_and_damaged_numbers_are_survived(text: str, damage: bytes) -> None:
    letter = letter_of(Message("orders", 0, 0), ValueError(text))
    damaged = Message("x", 0, 0, headers=(*letter.headers, ("dlq.offset", damage), ("dlq.redriven", damage)))
    assert isinstance(dlq.read_dead_letter(damaged).redriven, int)


def test_a_letter_that_is_too_large_is_shortened_step_by_step() -> None:
    message = Message("orders", 3, 1234, 0, b"key", b"value", (("trace", b"abc"),))
    error = raised(ValueError("ü" * 500))
    whole = dlq.dead_letter(message, error, to="dlq", origin=ORIGIN, attempts=1, group="billing", now_ms=1)
    terse = dlq.shorter_letter(whole)
    assert terse is not None
    found = dict(terse.headers)
    assert (terse.value, found["trace"], found["dlq.error.message"]) == (b"value", b"abc", "ü".encode() * 100)
    assert "dlq.error.traceback" not in found
    empty = dlq.shorter_letter(terse)
    assert empty is not None
    assert (empty.value, empty.key, dict(empty.headers)["dlq.value.omitted"]) == (None, b"key", b"5")
    bare = dlq.shorter_letter(empty)
    assert bare is not None
    assert (dict(bare.headers)["dlq.headers.omitted"], "trace" in dict(bare.headers)) == (b"1", False)
    assert dlq.letter_origin(bare) == "orders[3]@1234"
    assert dlq.shorter_letter(bare) is None


def test_what_is_no_letter_is_not_shortened() -> None:
    assert dlq.shorter_letter(Send("orders", b"value")) is None
