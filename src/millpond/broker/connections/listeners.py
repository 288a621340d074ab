"""The listeners of a running node: the addresses they are bound to, and those they advertise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millpond.config.listeners import WILDCARDS, ListenerSettings
from millpond.metadata.records import BrokerEndpoint

if TYPE_CHECKING:
    from millpond.base.ports import Link, LinkHandler, Listener, Network
    from millpond.broker.requests.connection import Connection
    from millpond.metadata.image import Image


class Listeners:
    def __init__(self, settings: Sequence[ListenerSettings]) -> None:
        self._settings = tuple(settings)
        # The inter-broker listener comes first, controller listeners last. A client only sees endpoints of the
        # listener name it connected to, so clients never see the latter.
        self._told = sorted(self._settings, key=lambda each: (not each.is_preferred, not each.is_for_clients))
        self._first = next((each for each in self._settings if each.is_for_clients), self._settings[0])
        self._open: list[Listener] = []
        self._addresses: dict[str, tuple[str, int]] = {}

    def open(self, network: Network, accept: Callable[[Link], LinkHandler | None]) -> None:
        """Listen on all of them, or on none: OSError when an address or a certificate is unavailable."""
        try:
            for each in self._settings:
                listener = network.listen(each.host, each.port, accept, each.tls, each.name)
                self._open.append(listener)
                # Kept after the listener closes: requests that are answered while the broker drains may need it.
                self._addresses[each.name] = listener.host, listener.port
        except OSError:
            self.close()
            raise

    @property
    def is_one(self) -> bool:
        return len(self._settings) == 1

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def close(self) -> None:
        for listener in self._open:
            listener.close()
        self._open = []

    @property
    def address(self) -> tuple[str, int]:
        """The address of the first client listener, also after the broker began to drain."""
        assert self._addresses, "not started"
        return self._addresses[self._first.name]

    def advertised(self) -> tuple[str, int]:
        """The advertised address of the first client listener, or the address it is bound to."""
        return self._advertised(self._first)

    def _advertised(self, settings: ListenerSettings) -> tuple[str, int]:
        return settings.advertised or self._addresses[settings.name]

    def end_points(self) -> tuple[BrokerEndpoint, ...]:
        """The endpoints for the broker registration, inter-broker listener first."""
        return tuple(BrokerEndpoint(each.name, *self._advertised(each), each.protocol.number) for each in self._told)

    def texts(self) -> tuple[str, str]:
        """`listeners` and `advertised.listeners` as Kafka would write them."""
        listens_on = [_text(each.name, *self._addresses[each.name]) for each in self._settings]
        told = [_text(each.name, *self._advertised(each)) for each in self._settings if each.is_for_clients]
        return ",".join(listens_on), ",".join(told)


def _text(name: str, host: str, port: int) -> str:
    return f"{name}://[{host}]:{port}" if ":" in host else f"{name}://{host}:{port}"


def addresses_for(
    image: Image, connection: Connection, *, with_fenced: bool = False
) -> list[tuple[int, str, int, str | None]]:
    """Id, host, port and rack of every live broker, as a client on this connection reaches it.

    The address is that of the broker's listener of the same name. For a broker that listens on every address, the
    client gets the host that it connected to: other nodes that do so are on the same machine.
    """
    addresses = []
    for broker in list(image.brokers.values()):
        end_point = end_point_of(broker.end_points, connection.link.listener)
        if (broker.fenced and not with_fenced) or end_point is None:
            continue
        host = connection.link.local_host if end_point.host in WILDCARDS else end_point.host
        addresses.append((int(broker.id), host, end_point.port, broker.rack))
    return addresses


def end_point_of(end_points: Sequence[BrokerEndpoint], listener: str) -> BrokerEndpoint | None:
    """The broker's endpoint for clients that connected to a listener of this name; None when it has none."""
    return next((each for each in end_points if each.name == listener), None)
