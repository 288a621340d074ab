"""The listeners of a node while it runs: where each of them is, and what others are told of them."""

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
        # The one by which nodes reach each other comes first, those of controllers last. Who comes by one of them is
        # told of others of the same name alone, so clients never hear of the latter.
        self._told = sorted(self._settings, key=lambda each: (not each.is_preferred, not each.is_for_clients))
        self._first = next((each for each in self._settings if each.is_for_clients), self._settings[0])
        self._open: list[Listener] = []
        self._addresses: dict[str, tuple[str, int]] = {}

    def open(self, network: Network, accept: Callable[[Link], LinkHandler | None]) -> None:
        """Listen on all of them. OSError when an address or a certificate cannot be had: then on none."""
        try:
            for each in self._settings:
                listener = network.listen(each.host, each.port, accept, each.tls, each.name)
                self._open.append(listener)
                # Kept beyond the listener's life: whoever is still answered while the broker drains may ask for it.
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
        """Where the first one for clients listens, or listened until the broker began to drain."""
        assert self._addresses, "not started"
        return self._addresses[self._first.name]

    def advertised(self) -> tuple[str, int]:
        """What the clients of the first one are told, as far as that is the same for all of them."""
        return self._advertised(self._first)

    def _advertised(self, settings: ListenerSettings) -> tuple[str, int]:
        return settings.advertised or self._addresses[settings.name]

    def end_points(self) -> tuple[BrokerEndpoint, ...]:
        """As a node registers them; first the one by which the other nodes reach it."""
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

    That is by the broker's listener of the same name. Where a node listens on every address, the client gets the one
    that it connected to: other nodes that do so are on the same machine.
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
    """Where a broker serves those who came by a listener of this name here; None where it does not."""
    return next((each for each in end_points if each.name == listener), None)
