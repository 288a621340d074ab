"""Processed ids in Redis. Needs the package `redis`: pip install 'millpond[redis]'."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millpond.client.errors import ClientError, needs

if TYPE_CHECKING:
    from redis import Redis


class AlreadyProcessed(ClientError):
    """Another worker finished the same record meanwhile; nothing of this run was done. The next try will skip it."""


class RedisIds:
    """Ids in Redis. The unit is a pipeline: commands put into it run with the note of the id, all or none (MULTI).

    Ids are forgotten after `keep_s`. What Redis may lose when it crashes (appendfsync) is lost here too.
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
        self._watch_error: type[Exception] = redis.WatchError
        self._owned = isinstance(client, str)
        self._client: Any = redis.Redis.from_url(client) if isinstance(client, str) else client
        self._prefix = prefix
        self._keep_s = keep_s

    @contextmanager
    def once(self, record_id: str) -> Iterator[Any]:
        name = self._prefix + record_id
        with self._client.pipeline(transaction=True) as pipeline:
            # From here on the transaction fails if somebody else notes the same id.
            pipeline.watch(name)
            if pipeline.exists(name):
                yield None
                return
            pipeline.multi()
            yield pipeline
            pipeline.set(name, b"1", ex=self._keep_s)
            try:
                pipeline.execute()
            except self._watch_error as fault:
                raise AlreadyProcessed(f"{record_id} was processed by another worker at the same time") from fault

    def close(self) -> None:
        if self._owned:
            self._client.close()
