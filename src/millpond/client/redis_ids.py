"""Processed ids in Redis. Needs the package `redis`: pip install 'millpond[redis]'."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millpond.client.errors import AlreadyProcessed, ConfigError, StoreFailed, needs

if TYPE_CHECKING:
    from redis import Redis


SERVER_FAULTS = ("OOM", "MISCONF", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "EXECABORT")
"""Error prefixes with which Redis refuses all writes; any other error is about one of the handler's commands."""


def _refuse(*_: object, **__: object) -> None:
    raise ConfigError(
        "a handler must not execute the pipeline of its unit, or its effect would be stored without the record's id "
        "and be repeated: put commands into it, and the store executes them"
    )


class RedisIds:
    """Ids in Redis. The unit is a pipeline: its commands and the storing of the id run all or none (MULTI).

    Ids expire after `keep_s`. What Redis loses in a crash (appendfsync) is lost here too.
    """

    def __init__(
        self,
        client: Redis | str = "redis://127.0.0.1:6379/0",
        *,
        prefix: str = "millpond:",
        keep_s: int = 14 * 86_400,
    ) -> None:
        try:
            import redis
        except ImportError as fault:
            raise needs("redis", "redis") from fault
        self._redis: Any = redis
        self._owned = isinstance(client, str)
        self._client: Any = redis.Redis.from_url(client) if isinstance(client, str) else client
        self._prefix = prefix
        self._keep_s = keep_s

    @contextmanager
    def once(self, record_id: str) -> Iterator[Any]:
        name = self._prefix + record_id
        with self._client.pipeline(transaction=True) as pipeline:
            # From here on the transaction fails if another worker stores the same id.
            pipeline.watch(name)
            if pipeline.exists(name):
                yield None
                return
            pipeline.multi()
            pipeline.execute = pipeline.reset = _refuse
            try:
                yield pipeline
            finally:
                del pipeline.execute, pipeline.reset
            pipeline.set(name, b"1", ex=self._keep_s)
            try:
                pipeline.execute()
            except self._redis.WatchError as fault:
                # The package also raises it when the connection breaks; only Redis knows whether the id is stored.
                if self._is_stored(name):
                    raise AlreadyProcessed(f"{record_id} was processed at the same time") from fault
                raise StoreFailed(f"Redis did not store {record_id} as processed: {fault}") from fault
            except self._redis.RedisError as fault:
                if self._is_server_fault(fault):
                    raise StoreFailed(f"Redis did not store {record_id} as processed: {fault}") from fault
                raise

    def _is_stored(self, name: str) -> bool:
        try:
            return bool(self._client.exists(name))
        except self._redis.RedisError as fault:
            raise StoreFailed(f"Redis does not answer whether {name} is stored: {fault}") from fault

    def _is_server_fault(self, fault: Exception) -> bool:
        """Whether Redis failed rather than one of the handler's commands."""
        redis = self._redis
        kinds = (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, redis.exceptions.ExecAbortError)
        # For a command in a pipeline: "Command # 1 (SET a 1) of pipeline caused error: OOM command not allowed"
        text = str(fault).rpartition("caused error: ")[2]
        return isinstance(fault, kinds) or text.startswith(SERVER_FAULTS)

    def close(self) -> None:
        if self._owned:
            self._client.close()
