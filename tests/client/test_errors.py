"""Errors say what to do."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from millpond.client.errors import ADVICE, BufferFull, ClientError, ConfigError, Timeout, advice_on, needs


def test_advice_names_the_error_and_what_to_do() -> None:
    text = advice_on(KafkaError(KafkaError._MSG_TIMED_OUT))
    assert "_MSG_TIMED_OUT" in text
    assert "delivery_timeout_s" in text


def test_an_error_without_advice_is_still_named() -> None:
    assert advice_on(KafkaError(KafkaError.INVALID_PARTITIONS)).endswith("(INVALID_PARTITIONS)")


@pytest.mark.parametrize("name", sorted(ADVICE))
def test_every_advice_is_for_an_error_that_exists(name: str) -> None:
    assert hasattr(KafkaError, name)


def test_errors_fit_what_python_programs_catch() -> None:
    assert issubclass(Timeout, TimeoutError)
    assert issubclass(ConfigError, ValueError)
    assert isinstance(needs("redis", "redis"), ImportError)
    assert "pip install 'millpond[redis]'" in str(needs("redis", "redis"))


def test_an_error_keeps_its_code() -> None:
    error: ClientError = BufferFull("full", code=-184, retriable=True)
    assert (error.code, error.retriable, str(error)) == (-184, True, "full")
