"""Writes checkpoints of the logs on a worker. One write at a time serves all earlier requests."""

from __future__ import annotations

from millpond.base.later import Later, end_all
from millpond.base.ports import Workers
from millpond.log.store import LogStore


class CheckpointWriter:
    def __init__(self, store: LogStore, workers: Workers) -> None:
        self._store = store
        self._workers = workers
        self._waiting: list[tuple[Later[None], None]] = []

    def write(self) -> Later[None]:
        """Ends once the current state is in the checkpoint files; an OSError if it could not be written."""
        later: Later[None] = Later()
        self._waiting.append((later, None))
        if not self._store.is_checkpoint_away:
            self._begin()
        return later

    def is_idle(self) -> bool:
        return not self._store.is_checkpoint_away

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        job = self._store.begin_checkpoint()

        def end(error: OSError | None) -> None:
            self._store.end_checkpoint(job, error)
            if self._waiting:
                self._begin()
            end_all(waiting, error)

        self._workers.run(job.run).map(lambda _: None).recover(OSError, lambda error: error).then(end)
