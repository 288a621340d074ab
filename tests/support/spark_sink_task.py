"""A streaming query without Spark: its tasks and its driver as plain calls, each of which can be made to fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest

from millpond.columns.rows import Shape
from millpond.remote.cluster import Cluster
from millpond.remote.transactions import list_open
from millpond.spark.options import read_options
from millpond.spark.sink import exactly_once, steps
from millpond.spark.sink.decisions import Part, name_of
from millpond.spark.sink.exactly_once import Unit
from millpond.spark.sink.settings import write_settings
from millpond.spark.sink.steps import Step
from millpond.spark.sink.task import WritePlan, write_part
from support.raw import Raw
from support.raw_transactions import committed_values


class InjectedCrash(Exception):
    """A step that was made to fail."""


class TaskRunner:
    """The rows of a batch are given as one list for each task. `node` is one of ours, or a Kafka broker."""

    def __init__(self, node: Any, topic: str, query: str, monkeypatch: pytest.MonkeyPatch, **given: str) -> None:
        self.node = node
        self.topic = topic
        self.query = query
        self._monkeypatch = monkeypatch
        options = read_options(
            {"kafka.bootstrap.servers": node.bootstrap, "topic": topic, "delivery": "exactly_once", **given},
            "writeStream",
        )
        settings = write_settings(options.kafka, exactly_once=True)
        self.plan = WritePlan(options, settings, Shape(topic, frozenset({"value"})))
        self.cluster: Cluster = self.plan.cluster()

    def __enter__(self) -> TaskRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.cluster.close()

    def unit(self, batch: int) -> Unit:
        return Unit(self.query, batch, self.topic)

    def task(self, batch: int, partition: int, values: list[str]) -> Part:
        return write_part(self.plan, [_batch(values)], self.query, self.unit(batch), partition)

    def tasks(self, batch: int, *rows: list[str]) -> list[Part]:
        return [self.task(batch, partition, values) for partition, values in enumerate(rows)]

    def job_unit(self, number: int, run: str = "") -> Unit:
        return replace(exactly_once.job_unit(self.query, number, self.topic), run=run)

    def job_tasks(self, number: int, *rows: list[str]) -> list[Part]:
        unit = self.job_unit(number)
        return [
            write_part(self.plan, [_batch(values)], unit.owner, unit, partition)
            for partition, values in enumerate(rows)
        ]

    def job(self, number: int, *rows: list[str], run: str = "") -> None:
        """One complete numbered write of a job."""
        exactly_once.commit(self.cluster, self.job_unit(number, run), self.job_tasks(number, *rows))

    def commit(self, batch: int, parts: list[Part]) -> None:
        """Commit on a new driver without any state."""
        with self.plan.cluster() as cluster:
            exactly_once.commit(cluster, self.unit(batch), parts)

    def abort(self, batch: int, parts: list[Part]) -> None:
        with self.plan.cluster() as cluster:
            exactly_once.abort(cluster, self.unit(batch), parts)

    def write(self, batch: int, *rows: list[str]) -> None:
        self.commit(batch, self.tasks(batch, *rows))

    def fail_after(self, step: Step, nth: int = 1) -> None:
        """Fail once, after this step was done for the nth time from now on."""
        left = [nth]

        def strike(name: str) -> None:
            left[0] -= name == step.value
            if not left[0]:
                left[0] = -1
                raise InjectedCrash(name)

        self.watch(strike)

    def watch(self, observer: Callable[[str], None]) -> None:
        """Register a callback for each step that is done."""
        self._monkeypatch.setattr(steps, "_observer", observer)

    def seen(self) -> list[str]:
        """What a read_committed consumer sees, sorted."""
        with Raw(int(self.node.bootstrap.rpartition(":")[2])) as raw:
            result = [value for partition in range(2) for value in committed_values(raw, self.topic, partition)]
        return sorted(value.decode() for value in result if value is not None)

    def open(self) -> list[str]:
        """The open transactions, by their part of the name."""
        return [name.removeprefix(name_of(self.query)) for name in list_open(self.cluster, name_of(self.query))]


def _batch(values: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.string())], ["value"])
