"""Ids in a real Redis: the note and the effects are one MULTI."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis.exceptions import ResponseError

from millpond import ConfigError, MissingExtra, RedisIds
from millpond.client.errors import AlreadyProcessed, StoreFailed


@pytest.fixture
def ids(redis_url: str, request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    store = RedisIds(redis_url, prefix=f"{request.node.name}:")
    yield store
    store.close()


@pytest.mark.smoke
def test_the_second_time_there_is_nothing_to_do(ids: RedisIds) -> None:
    with ids.once("a") as unit:
        assert unit is not None
        unit.incr("count-once")
    with ids.once("a") as unit:
        assert unit is None


def test_a_failure_does_nothing(ids: RedisIds, redis_url: str) -> None:
    def fail() -> None:
        with ids.once("a") as unit:
            unit.incr("count-failure")
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    redis = pytest.importorskip("redis")
    assert redis.Redis.from_url(redis_url).get("count-failure") is None
    with ids.once("a") as unit:
        assert unit is not None


def test_a_handler_that_executes_the_pipeline_itself_is_refused(ids: RedisIds, redis_url: str) -> None:
    def attempt() -> None:
        with ids.once("early") as unit:
            unit.incr("count-early")
            unit.execute()

    for _ in range(2):
        with pytest.raises(ConfigError, match="must not execute the pipeline"):
            attempt()
    redis = pytest.importorskip("redis")
    assert redis.Redis.from_url(redis_url).get("count-early") is None


def test_who_comes_second_at_the_same_time_does_nothing(ids: RedisIds, redis_url: str) -> None:
    def slow() -> None:
        with ids.once("a") as late:
            with ids.once("a") as quick:
                quick.incr("count-race")
            late.incr("count-race")

    with pytest.raises(AlreadyProcessed):
        slow()
    redis = pytest.importorskip("redis")
    assert redis.Redis.from_url(redis_url).get("count-race") == b"1"


def test_a_redis_that_takes_no_writes_is_the_store_s_fault_and_a_wrong_command_is_not(
    ids: RedisIds, redis_url: str
) -> None:
    redis = pytest.importorskip("redis").Redis.from_url(redis_url)
    redis.set("a-text", "x")

    def use(record_id: str) -> None:
        with ids.once(record_id) as unit:
            unit.lpush("a-text", 1)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        use("wrong")
    redis.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(StoreFailed, match="NOREPLICAS"):
            use("refused")
    finally:
        redis.config_set("min-replicas-to-write", 0)


def test_a_connection_that_breaks_does_not_count_as_processed(ids: RedisIds, redis_url: str) -> None:
    """The package reports it as a changed key, like a second worker with the same record."""
    redis = pytest.importorskip("redis").Redis.from_url(redis_url)

    def lose_connection() -> None:
        with ids.once("a") as unit:
            unit.incr("count-broken")
            redis.client_kill_filter(_type="normal", skipme=True)

    with pytest.raises(StoreFailed):
        lose_connection()
    with ids.once("a") as unit:
        unit.incr("count-broken")
    assert redis.get("count-broken") == b"1"


def test_ids_expire(ids: RedisIds, redis_url: str, request: pytest.FixtureRequest) -> None:
    with ids.once("a"):
        pass
    redis = pytest.importorskip("redis")
    assert 0 < redis.Redis.from_url(redis_url).ttl(f"{request.node.name}:a") <= 14 * 86_400


def test_of_many_threads_one_gets_it(ids: RedisIds) -> None:
    def attempt(number: int) -> bool:
        try:
            with ids.once(f"id-{number % 5}") as unit:
                return unit is not None
        except AlreadyProcessed:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(80))) == 5


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra, match=r"millpond\[redis\]"):
        RedisIds("redis://127.0.0.1:1")
