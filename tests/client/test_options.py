"""Workers that cannot be are refused before they start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millpond import ConfigError, Retry, SqliteIds, Worker
from millpond.client.options import Options


def handler(message: Any) -> None: ...


async def async_handler(message: Any) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"topics": []}, "topics"),
        ({"group": ""}, "group"),
        ({"delivery": "twice"}, "at_least_once"),
        ({"delivery": "at_most_once", "retries": Retry(3)}, "contradict"),
        ({"dead_letters": "orders"}, "never end"),
        ({"concurrency": 0}, "concurrency"),
        ({"handler": lambda _message, _unit: None}, "processed="),
        ({"speed": "fast"}, "speed"),
    ],
)
def test_what_contradicts_itself_is_refused(wrong: dict[str, Any], said: str) -> None:
    told = {"handler": handler, "topics": "orders", "group": "billing"} | wrong
    with pytest.raises(ConfigError, match=said):
        Worker(told.pop("handler"), told.pop("topics"), **told)


def test_a_store_needs_exactly_once_and_a_plain_function(tmp_path: Path) -> None:
    store = SqliteIds(tmp_path / "ids.db")
    with pytest.raises(ConfigError, match="exactly_once"):
        Worker(handler, "orders", group="g", processed=store)
    with pytest.raises(ConfigError, match="plain function"):
        Worker(async_handler, "orders", group="g", delivery="exactly_once", processed=store)
    store.close()


def test_exactly_once_is_transactional_unless_there_is_a_store() -> None:
    assert Options(["orders"], "g", "exactly_once").is_transactional
    assert not Options(["orders"], "g").is_transactional


def test_each_topic_has_its_retry_topics() -> None:
    retries = Retry(2, first_s=5, order="none")
    assert Options(["a", "b"], "g", retries=retries).retry_topics() == ["a.retry.5s", "b.retry.5s"]
