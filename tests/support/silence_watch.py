"""Looks for a producer without acknowledgements in one partition while it gets them in others.

A client retries for two minutes and then gives up: nothing is lost, and there is no other symptom. When it happens,
all nodes are made to log which batches they reject, and their logs have the reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from millpond.wire import messages as m
from support.cluster_load import AnyWriter
from support.raw import Closed, Raw

SILENT_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 1.0
BROKER_LOGGER: Final = 8


class SilenceWatch(threading.Thread):
    def __init__(self, bootstrap: str, writers: Sequence[AnyWriter], partitions: int) -> None:
        super().__init__(name="silence", daemon=True)
        self.found: list[str] = []
        self._ports = [int(address.rpartition(":")[2]) for address in bootstrap.split(",")]
        self._writers = writers
        now = time.monotonic()
        self._acked_at = {(at, partition): now for at in range(len(writers)) for partition in range(partitions)}
        self._looked_at = [0] * len(writers)
        self._told: set[tuple[int, int]] = set()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            now = time.monotonic()
            for at, writer in enumerate(self._writers):
                acks = writer.acks
                for ack in acks[self._looked_at[at] :]:
                    self._acked_at[at, ack.partition] = now
                    self._looked_at[at] += 1
            if silent := [pair for pair, since in self._acked_at.items() if now - since > SILENT_SECONDS]:
                self._tell(silent, now)
            else:
                self._told.clear()

    def _tell(self, silent: list[tuple[int, int]], now: float) -> None:
        # Repeatedly: a restarted node has forgotten the request.
        for node_id, port in enumerate(self._ports, 1):
            _ask_for_details(node_id, port)
        for pair in silent:
            if pair not in self._told:
                self._told.add(pair)
                seconds = now - self._acked_at[pair]
                line = f"{time.strftime('%H:%M:%S')} writer {pair[0]}: partition {pair[1]} silent for {seconds:.0f} s"
                self.found.append(line)
                print(f"  {line}", flush=True)

    def stop(self) -> None:
        self._over.set()
        self.join()


def _ask_for_details(node_id: int, port: int) -> None:
    kind = m.IncrementalAlterConfigsRequest
    level = kind.AlterableConfig(name="root", config_operation=0, value="DEBUG")
    logger = kind.AlterConfigsResource(resource_type=BROKER_LOGGER, resource_name=str(node_id), configs=[level])
    try:
        with Raw(port, timeout_seconds=0.5) as raw:
            raw.call(kind(resources=[logger]), 1)
    except (OSError, Closed):
        pass  # It is down, stopped or cut off.
