"""Workers that cannot be are refused before they start."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from millpond import ConfigError, Consumer, Producer, Retry, SqliteIds, Worker, worker
from millpond.client.consumer import ConsumerKwargs
from millpond.client.options import Options, OptionsKwargs, WorkerKwargs
from millpond.client.producer import ProducerKwargs


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
    options = {"handler": handler, "topics": "orders", "group": "billing"} | wrong
    with pytest.raises(ConfigError, match=said):
        Worker(options.pop("handler"), options.pop("topics"), **options)


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
    assert Options(["a", "b"], "g", retries=retries).retry_topics() == {"a.retry.5s": 6.0, "b.retry.5s": 6.0}


def test_type_checkers_know_the_same_options() -> None:
    assert set(OptionsKwargs.__annotations__) == {each.name for each in fields(Options)} - {"topics", "group"}
    worker_takes = set(signature(Worker).parameters) - {"handler", "topics", "group", "options"}
    assert set(WorkerKwargs.__annotations__) == set(OptionsKwargs.__annotations__) | worker_takes
    consumer_takes = set(signature(Consumer).parameters) - {"group", "topics"}
    assert set(ConsumerKwargs.__annotations__) == consumer_takes
    producer_takes = set(signature(Producer).parameters) - {"bootstrap", "when_full", "full_timeout_s"}
    assert set(ProducerKwargs.__annotations__) == producer_takes


def test_a_number_of_retries_is_how_often_a_record_is_tried_again() -> None:
    assert Worker(handler, "orders", group="g", retries=3).options.retries == Retry(4)
    assert Worker(handler, "orders", group="g", retries=0).options.retries.tries == 1
    for wrong in (True, -1, "three"):
        with pytest.raises(ConfigError, match="further tries"):
            Worker(handler, "orders", group="g", retries=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Worker(handler, "orders", group="g", retry=3),
            "Worker takes no argument 'retry'; did you mean retries",
        ),
        (lambda: worker("orders", group="g", concurency=3), "did you mean concurrency"),
        (lambda: worker("orders"), "group"),
        (lambda: Producer(linger=5), "did you mean linger_ms"),
        (lambda: Consumer("g", ["orders"], isolaton="x"), "did you mean isolation"),
        (lambda: Retry(3, backof="fixed"), "did you mean backoff"),
        (lambda: Producer().send("orders", header={}), "did you mean headers"),
        (lambda: Producer().send("orders", keey="a"), "did you mean key"),
    ],
)
def test_an_unknown_argument_is_refused_with_the_nearest_name(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


@pytest.mark.parametrize(
    "wrong",
    [
        {"dead_letters": 5},
        {"instance": 7},
        {"group": b"g"},
        {"topics": ["orders", 5]},
        {"concurrency": "8"},
        {"in_flight_max": 1.5},
        {"session_timeout_s": "6"},
        {"commit_every_s": -1},
    ],
)
def test_a_worker_that_cannot_be_is_refused_where_it_is_made(wrong: dict[str, Any]) -> None:
    given = {"topics": "orders", "group": "g", **wrong}
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Worker(handler, **given)
