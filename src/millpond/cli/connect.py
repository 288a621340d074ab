"""Clients for the commands that talk to a cluster: quick to say that nobody is there, silent otherwise."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from millpond.base.settings import SettingError
from millpond.cli.errors import Failed, failed, nobody_listens, unknown_topic
from millpond.config.node import host_and_port

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._metadata import TopicMetadata

DEFAULT_PORT: Final = 9092
PROBE_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 15.0

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the cluster is, and what librdkafka should be told beside that."""

    bootstrap: str
    extras: Mapping[str, str] = field(default_factory=dict)

    def admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return self._made(AdminClient)

    def producer(self, **settings: object) -> Producer:
        from confluent_kafka import Producer

        return self._made(Producer, settings)

    def consumer(self, **settings: object) -> Consumer:
        from confluent_kafka import Consumer

        return self._made(Consumer, settings)

    def _made(self, kind: Callable[[Any], T], settings: Mapping[str, object] | None = None) -> T:
        from confluent_kafka import KafkaException

        # The names of callbacks are the only ones with an underscore of their own.
        dotted = {
            name if name.endswith("_cb") else name.replace("_", "."): value
            for name, value in (settings or {}).items()
        }
        told = self._common() | dotted | dict(self.extras)
        self._probe()
        try:
            return kind(told)
        except KafkaException as refusal:
            raise click.UsageError(f"The client library refused a setting: {refusal.args[0].str()}") from None

    def _common(self) -> dict[str, object]:
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": "millpond",
            "socket.timeout.ms": 10_000,
            "socket.connection.setup.timeout.ms": 5_000,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
            # What matters comes back as an error; the library's own lines on standard error would only repeat it.
            "log_level": 0,
            "error_cb": lambda _: None,
        }

    def _probe(self) -> None:
        """librdkafka would try for as long as it is given: a plain connect knows at once that nobody is there."""
        fault: Failed | None = None
        for address in filter(None, (part.strip() for part in self.bootstrap.split(","))):
            host, port = _split(address)
            try:
                socket.create_connection((host, port), PROBE_SECONDS).close()
                return
            except socket.gaierror:
                fault = Failed(f"The host name {host} is unknown: check --bootstrap {address}.")
            except TimeoutError:
                fault = Failed(f"{address} does not answer: check the address and that no firewall is in between.")
            except OSError:
                fault = nobody_listens(address)
        raise fault or click.UsageError("--bootstrap names no address; it has the form HOST:PORT.")


def _split(address: str) -> tuple[str, int]:
    try:
        return host_and_port(address if ":" in address else f"{address}:{DEFAULT_PORT}")
    except SettingError:
        raise click.UsageError(f"--bootstrap {address}: an address has the form HOST:PORT.") from None


def topics_of(client: AdminClient | Producer | Consumer) -> dict[str, TopicMetadata]:
    """Every topic by name. Asking for all never creates one, as asking for a single one may."""
    from confluent_kafka import KafkaException

    try:
        found: dict[str, TopicMetadata] = client.list_topics(timeout=ANSWER_SECONDS).topics
    except KafkaException as refusal:
        raise failed("The cluster does not say what topics it has", refusal.args[0]) from None
    return found


def topic_of(client: AdminClient | Producer | Consumer, name: str) -> TopicMetadata:
    topics = topics_of(client)
    if name not in topics:
        raise unknown_topic(name, topics)
    return topics[name]


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """`name=value` texts of a repeated option, as a mapping."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"{option} {text}: give it as name=value.")
        found[name.strip()] = value
    return found


def cluster_options(function: F) -> F:
    """Adds --bootstrap and -X to a command, which receives them together as `cluster`."""

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
    def with_cluster(*arguments: Any, bootstrap: str, extras: tuple[str, ...], **options: Any) -> Any:
        return function(*arguments, cluster=Cluster(bootstrap, pairs(extras, "-X")), **options)

    return with_cluster  # type: ignore[return-value]
