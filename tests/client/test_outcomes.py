"""What becomes of a failed record."""

from __future__ import annotations

import time

import pytest

from millpond import DecodeFailed, HandlerFailed, Message, Reject, Retry
from millpond.base.ids import TopicPartition
from millpond.client.dead_letters import read_dead_letter
from millpond.client.message import header_list
from millpond.client.options import Options
from millpond.client.outcomes import is_worth_another_try, to_dead_letters, to_retry_topic
from millpond.client.progress import Job, Progress

OPTIONS = Options(["orders"], "billing", retries=Retry(3, first_s=60, order="none", give_up_on=(KeyError,)))


def job(attempts: int = 1, **more) -> Job:  # type: ignore[no-untyped-def]
    message = Message("orders", 0, 9, value=b"v")
    return Job(message, TopicPartition("orders", 0), Progress(), None, attempts, **more)


def test_tries_are_counted_and_hopeless_errors_have_none() -> None:
    assert is_worth_another_try(OPTIONS, job(2), ValueError())
    assert not is_worth_another_try(OPTIONS, job(3), ValueError())
    for hopeless in (DecodeFailed("x"), Reject("x"), KeyError("x")):
        assert not is_worth_another_try(OPTIONS, job(1), hopeless)


def test_a_record_for_a_retry_topic_is_due_after_its_delay_and_keeps_its_redrives() -> None:
    before = time.time()
    sent = to_retry_topic(OPTIONS, job(1, redriven=3))
    after = time.time()
    headers = dict(header_list(sent.headers))
    assert sent.topic == "orders.retry.1m"
    assert before + 59 < int(headers["retry.due"] or b"") / 1000 < after + 73
    assert headers["dlq.redriven"] == b"3"
    assert headers["retry.group"] == b"billing"


def test_without_a_topic_for_dead_letters_the_worker_has_to_stop() -> None:
    with pytest.raises(HandlerFailed, match=r"orders\[0\]@9"):
        to_dead_letters(OPTIONS, job(3), ValueError("bad"))


def test_a_dead_letter_counts_the_tries() -> None:
    sent = to_dead_letters(Options(["orders"], "g", dead_letters="dlq"), job(3), ValueError("bad"))
    letter = read_dead_letter(Message("dlq", 0, 0, headers=tuple(header_list(sent.headers))))
    assert (letter.attempts, letter.error_message, letter.group) == (3, "bad", "g")
