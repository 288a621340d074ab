"""Write a task's rows and wait until they are stored, optionally in a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa

from millpond.client.errors import ClientError
from millpond.columns.rows import RowEncoder, Shape, gather
from millpond.remote.cluster import Cluster
from millpond.remote.transactions import ProducerIdentity, end
from millpond.remote.writer import BatchWriter
from millpond.spark.options import DELIVERY, TRANSACTION_TIMEOUT_MS, Options
from millpond.spark.sink import exactly_once, steps
from millpond.spark.sink.decisions import Part
from millpond.spark.sink.exactly_once import Duty, Unit
from millpond.spark.sink.row_checksum import RowChecksum, RowSum
from millpond.spark.sink.settings import WriteSettings
from millpond.spark.sink.steps import Step


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What the driver and the tasks of one write share; sent to the tasks."""

    options: Options
    settings: WriteSettings
    shape: Shape

    @property
    def is_exactly_once(self) -> bool:
        return self.options[DELIVERY] == "exactly_once"

    def cluster(self) -> Cluster:
        return Cluster(self.options.kafka)


def write_at_least_once(plan: WritePlan, batches: Iterable[pa.RecordBatch], first_partition: int) -> None:
    """Write the rows and wait for all acknowledgements."""
    with plan.cluster() as cluster, _writer(plan, cluster) as writer:
        encoder = _encoder(plan, cluster, first_partition)
        for batch in gather(batches):
            for encoded in encoder.encode(batch):
                writer.append(*encoded)
        writer.flush()


def write_part(
    plan: WritePlan, batches: Iterable[pa.RecordBatch], owner: str, unit: Unit | None, partition: int
) -> Part:
    """Write a task's share and leave its transaction open, for the driver to end.

    Without a `unit` it belongs to a job that is never replayed, so nothing can be there yet.
    """
    is_job = unit is not None and unit.app_id is not None
    checksum = RowSum(plan.shape) if is_job else RowChecksum(plan.shape)
    with plan.cluster() as cluster:
        duty = Duty.WRITE if unit is None else exactly_once.duty_of(cluster, unit, partition)
        if duty is Duty.COUNT:
            for each in batches:
                checksum.add(each)
            return Part(partition, checksum.rows, checksum.text())
        rows = gather(batches)
        first = next(rows, None)
        if first is None:
            # Most tasks of a quiet stream have no rows and need no transaction.
            return Part(partition, 0, "")
        timeout_ms = plan.options[TRANSACTION_TIMEOUT_MS]
        identity = exactly_once.open_transaction(cluster, owner, partition, timeout_ms)
        with _aborting_on_error(cluster, identity), _writer(plan, cluster, identity) as writer:
            encoder = _encoder(plan, cluster, partition + (unit.number if unit else 0))
            current: pa.RecordBatch | None = first
            while current is not None:
                checksum.add(current)
                for encoded in encoder.encode(current):
                    writer.append(*encoded)
                current = next(rows, None)
            writer.flush()
            begins = exactly_once.evidence(writer.first_offsets)
        steps.done(Step.FLUSHED)
        return Part(partition, checksum.rows, checksum.text(), identity, begins)


@contextmanager
def _aborting_on_error(cluster: Cluster, identity: ProducerIdentity) -> Iterator[None]:
    """Abort, so that a failed task leaves no open transaction that holds back readers."""
    try:
        yield
    except BaseException:
        with suppress(ClientError):
            end(cluster, identity, commit=False)
        raise


def _writer(plan: WritePlan, cluster: Cluster, identity: ProducerIdentity | None = None) -> BatchWriter:
    settings = plan.settings
    return BatchWriter(
        cluster,
        acks=settings.acks,
        codec=settings.codec,
        in_flight=settings.in_flight,
        buffer_bytes=settings.buffer_bytes,
        delivery_seconds=settings.delivery_seconds,
        transactional=identity,
    )


def _encoder(plan: WritePlan, cluster: Cluster, first_partition: int) -> RowEncoder:
    return RowEncoder(
        cluster,
        plan.shape,
        batch_bytes=plan.settings.batch_bytes,
        record_bytes_max=plan.settings.record_bytes_max,
        first_partition=first_partition,
    )
