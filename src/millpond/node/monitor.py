"""The node's monitoring endpoint (/metrics, /healthz, /readyz), if configured. A failure never prevents startup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.settings import Settings
from millpond.broker.broker import Broker
from millpond.config.node import METRICS_LISTENER, host_and_port

if TYPE_CHECKING:
    from millpond.broker.metrics.listener import MetricsListener
    from millpond.node.process_metrics import ProcessMetrics


class Monitor:
    def __init__(self) -> None:
        self.address: tuple[str, int] | None = None
        """The address it listens on."""
        self.fault: OSError | None = None
        """Why it could not listen."""
        self._listener: MetricsListener | None = None

    def open(self, settings: Settings, broker: Broker, process: ProcessMetrics) -> None:
        if not settings[METRICS_LISTENER]:
            return
        # Imported only when used: the node starts faster without it.
        from millpond.broker.metrics.listener import MetricsListener

        listener = broker.contexts.bind(MetricsListener)((process.collect,))
        try:
            self.address = listener.open(broker.world.network, *host_and_port(settings[METRICS_LISTENER]))
        except OSError as fault:
            self.fault = fault
            broker.journal(
                "cannot serve metrics, continuing without: choose another metrics.listener",
                address=settings[METRICS_LISTENER],
                reason=fault,
            )
        else:
            self._listener = listener

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
