"""The way to a cluster for the commands that need one: quick to say that nobody is there, silent otherwise."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from millpond.base.settings import SettingError
from millpond.cli.errors import Failed, failed, sentence
from millpond.cli.options import pairs
from millpond.config.node import host_and_port

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

    from millpond.remote.cluster import Cluster

DEFAULT_PORT: Final = 9092
PROBE_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 15.0

COMMON: Final[Mapping[str, object]] = {
    "client.id": "millpond",
    "socket.timeout.ms": 10_000,
    "socket.connection.setup.timeout.ms": 5_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    # What matters comes back as an error; the library's own lines on standard error would only repeat it.
    "log_level": 0,
    "error_cb": lambda _: None,
}
"""What every client of librdkafka is told."""

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Access:
    """Where the cluster is, and the client settings that somebody gave beside that."""

    bootstrap: str
    extras: Mapping[str, str] = field(default_factory=dict)
    option: str = "--bootstrap"
    """By which the address was given."""

    @contextmanager
    def open(self) -> Iterator[Cluster]:
        """The cluster, for `admin` and `remote`; what these refuse is a failure of the command."""
        from millpond.base.errors import RemoteError
        from millpond.remote.cluster import SETTINGS, Cluster
        from millpond.remote.errors import ClientError, ConfigError

        settings = {
            "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in self._addresses()),
            "request.timeout.ms": str(round(ANSWER_SECONDS * 1000)),
            "default.api.timeout.ms": str(round(ANSWER_SECONDS * 1000)),
        }
        try:
            cluster = Cluster(settings | dict(self.extras))
        except ConfigError as fault:
            raise click.UsageError(sentence(str(fault))) from None
        if self.extras.keys() - SETTINGS:
            # The same settings may serve `consume` and `produce`; a name that not even the library knows is a slip.
            self.producer({})
        self.probe()
        try:
            with cluster:
                yield cluster
        except ClientError as fault:
            raise Failed(sentence(str(fault))) from fault
        except RemoteError as fault:
            raise Failed(f"A broker's answer makes no sense: {sentence(str(fault))}") from fault

    def producer(self, settings: Mapping[str, object]) -> Producer:
        from confluent_kafka import Producer

        return self._made(Producer, settings)

    def consumer(self, settings: Mapping[str, object]) -> Consumer:
        from confluent_kafka import Consumer

        return self._made(Consumer, settings)

    def _made(self, kind: Callable[[Any], T], settings: Mapping[str, object]) -> T:
        from confluent_kafka import KafkaException

        self.probe()
        try:
            return kind({**COMMON, "bootstrap.servers": self.bootstrap, **settings, **self.extras})
        except KafkaException as refusal:
            raise click.UsageError(f"The client library refused a setting: {refusal.args[0].str()}") from None

    def probe(self) -> None:
        """A client would try for as long as it is given: a plain connect knows at once that nobody is there."""
        fault: Failed | None = None
        for host, port in self._addresses():
            try:
                socket.create_connection((host, port), PROBE_SECONDS).close()
                return
            except socket.gaierror:
                fault = Failed(f"The host name {host} is unknown: check {self.option} {host}:{port}.")
            except TimeoutError:
                fault = Failed(
                    f"{host}:{port} does not answer: check the address and that no firewall is in between."
                )
            except OSError:
                fault = Failed(
                    f"Nothing listens on {host}:{port}: start a node with `millpond up`, or name another with "
                    f"{self.option}."
                )
        assert fault is not None
        raise fault

    def _addresses(self) -> list[tuple[str, int]]:
        addresses = []
        for address in filter(None, (part.strip() for part in self.bootstrap.split(","))):
            try:
                addresses.append(host_and_port(address if ":" in address else f"{address}:{DEFAULT_PORT}"))
            except SettingError:
                raise click.UsageError(f"{self.option} {address}: an address has the form HOST:PORT.") from None
        if not addresses:
            raise click.UsageError(f"{self.option} names no address; it has the form HOST:PORT.")
        return addresses


def known_partitions(client: Producer | Consumer, topic: str) -> list[int]:
    """The topic's partitions, asked for by the client library itself: until it knows leaders it looks for seconds.

    Asking for all topics never creates one, as asking for a single one may.
    """
    from confluent_kafka import KafkaException

    from millpond.admin.errors import unknown_topic

    try:
        topics = client.list_topics(timeout=ANSWER_SECONDS).topics
    except KafkaException as refusal:
        raise failed("The cluster does not say what topics it has", refusal.args[0]) from None
    if topic not in topics:
        raise Failed(str(unknown_topic(topic, topics)))
    return sorted(topics[topic].partitions)


def cluster_options(function: F) -> F:
    """Adds --bootstrap and -X to a command, which receives them together as `access`."""

    @click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        envvar="MILLPOND_BOOTSTRAP",
        default="127.0.0.1:9092",
        show_default=True,
        show_envvar=True,
        help="A node of the cluster; several with commas.",
    )
    @click.option(
        "-X", "extras", metavar="NAME=VALUE", multiple=True, help="A setting for the client library, as for kcat."
    )
    @wraps(function)
    def with_access(*arguments: Any, bootstrap: str, extras: tuple[str, ...], **options: Any) -> Any:
        return function(*arguments, access=Access(bootstrap, pairs(extras, "-X")), **options)

    return with_access  # type: ignore[return-value]
