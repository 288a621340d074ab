"""How commands reach a cluster: they fail at once if nothing listens there."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from millpond.admin.library import ANSWER_SECONDS, COMMON
from millpond.base.secret_names import is_secret
from millpond.base.settings import SettingError
from millpond.base.values import dataclass
from millpond.cli.errors import Failed, failed, sentence
from millpond.cli.options import pairs
from millpond.cli.profile.name import ProfileName
from millpond.config.node import host_and_port

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

    from millpond.remote.cluster import Cluster

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
DEFAULT_PORT: Final = 9092
PROBE_SECONDS: Final = 3.0

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Access:
    """The address of a cluster and the client settings for it."""

    bootstrap: str
    extras: Mapping[str, str] = field(default_factory=dict, repr=False)
    option: str = "--bootstrap"
    """The option or variable that gave the address."""
    profile: str | None = None
    """The profile in use, if any."""
    client_file: str | None = None
    """The file of client settings, if any."""

    @contextmanager
    def open(self) -> Iterator[Cluster]:
        """The cluster for `admin` and `remote`, whose errors become failures of the command."""
        from millpond.base.errors import RemoteError
        from millpond.remote.cluster import SETTINGS, Cluster
        from millpond.remote.errors import ClientError, ConfigError

        settings = {
            "bootstrap.servers": self.servers(),
            "request.timeout.ms": str(round(ANSWER_SECONDS * 1000)),
            "default.api.timeout.ms": str(round(ANSWER_SECONDS * 1000)),
        }
        try:
            cluster = Cluster(settings | dict(self.extras))
        except ConfigError as fault:
            raise click.UsageError(sentence(str(fault))) from None
        if self.extras.keys() - SETTINGS:
            # The same settings may serve `consume` and `produce`, but a name unknown to the library is a typo.
            self.producer({})
        self.probe()
        try:
            with cluster:
                yield cluster
        except ClientError as fault:
            raise Failed(sentence(str(fault))) from fault
        except RemoteError as fault:
            raise Failed(f"A broker sent an invalid response: {sentence(str(fault))}") from fault

    def check(self) -> None:
        """Checks the address and the settings without connecting."""
        from millpond.remote.cluster import SETTINGS, Cluster
        from millpond.remote.errors import ConfigError

        try:
            Cluster({"bootstrap.servers": self.servers(), **self.extras}).close()
        except ConfigError as fault:
            raise click.UsageError(sentence(str(fault))) from None
        if self.extras.keys() - SETTINGS:
            from confluent_kafka import Producer

            # Without an address it does not connect.
            replace(self, bootstrap="")._made(Producer, {}, must_answer=False)

    def producer(self, settings: Mapping[str, object]) -> Producer:
        from confluent_kafka import Producer

        return self._made(Producer, settings)

    def consumer(self, settings: Mapping[str, object]) -> Consumer:
        from confluent_kafka import Consumer

        return self._made(Consumer, settings)

    def _made(self, kind: Callable[[Any], T], settings: Mapping[str, object], *, must_answer: bool = True) -> T:
        from confluent_kafka import KafkaException

        if must_answer:
            self.probe()
        from millpond.remote.client_file import for_librdkafka
        from millpond.remote.errors import ConfigError

        try:
            chosen = {**COMMON, "bootstrap.servers": self.bootstrap, **settings, **for_librdkafka(self.extras)}
        except ConfigError as fault:
            raise click.UsageError(sentence(str(fault))) from None
        try:
            return kind(chosen)
        except KafkaException as refusal:
            raise click.UsageError(f"The client library refused a setting: {refusal.args[0].str()}") from None

    def probe(self) -> None:
        """A client would retry until its timeout; a plain connect fails at once if nothing listens."""
        fault: Failed | None = None
        whose = "" if self.profile is None else f" (profile {self.profile})"
        for host, port in self._addresses():
            try:
                socket.create_connection((host, port), PROBE_SECONDS).close()
                return
            except socket.gaierror:
                fault = Failed(f"The host name {host} is unknown{whose}: check {self.option} {host}:{port}.")
            except TimeoutError:
                fault = Failed(
                    f"{host}:{port}{whose} does not answer: check the address and that no firewall is in between."
                )
            except OSError:
                fault = Failed(
                    f"Nothing listens on {host}:{port}{whose}: start a node with `millpond up`, or name another with "
                    f"{self.option}."
                )
        assert fault is not None
        raise fault

    def servers(self) -> str:
        """Every address with its port."""
        return ",".join(f"{host}:{port}" for host, port in self._addresses())

    def _addresses(self) -> list[tuple[str, int]]:
        addresses = []
        for address in filter(None, (part.strip() for part in self.bootstrap.split(","))):
            try:
                addresses.append(host_and_port(address if ":" in address else f"{address}:{DEFAULT_PORT}"))
            except SettingError as fault:
                raise click.UsageError(f"{self.option}: {sentence(str(fault))}") from None
        if not addresses:
            raise click.UsageError(f"{self.option} names no address; it has the form HOST:PORT.")
        return addresses


def find_partitions(client: Producer | Consumer, topic: str, otherwise: str = "") -> list[int]:
    """The topic's partitions, as the client library sees them, so that it knows the leaders from then on.

    Asking for all topics never creates one; asking for a single one may. `otherwise` is a further hint for a missing
    topic.
    """
    from confluent_kafka import KafkaException

    from millpond.admin.errors import unknown_topic

    try:
        topics = client.list_topics(timeout=ANSWER_SECONDS).topics
    except KafkaException as refusal:
        raise failed("The topics of the cluster cannot be listed", refusal.args[0]) from None
    if topic not in topics:
        raise Failed(f"{unknown_topic(topic, topics)}{otherwise}")
    return sorted(topics[topic].partitions)


def access_of(
    context: click.Context,
    bootstrap: str,
    profile: str | None,
    extras: Mapping[str, str],
    client_config: str | None = None,
) -> Access:
    """Picks the cluster, by the precedence that `millpond help profiles` documents.

    A profile named on the command line gives address and settings, and --bootstrap may give another address. So does
    a file of client settings; one named by a variable counts only if no profile is named. Otherwise an explicit
    address is used without any profile: the secrets of the profile in use are not for just any cluster.
    """
    from millpond.cli.profile.file import VARIABLE, read_profiles, warn_of_readers

    source = context.get_parameter_source("bootstrap")
    is_here = source is ParameterSource.COMMANDLINE
    if not context.resilient_parsing:
        warn_of_words(extras)
    is_named = profile is not None or context.find_root().params.get("profile") is not None
    is_file_here = context.get_parameter_source("client_config") is ParameterSource.COMMANDLINE
    if is_named and is_file_here:
        raise click.UsageError("--profile and --client-config both say how to log in: give one of them.")
    if client_config and not is_named:
        return _access_by_file(client_config, bootstrap if source is not ParameterSource.DEFAULT else None, extras)
    named = profile if profile is not None else context.find_root().params.get("profile")
    if named == "":
        # Probably an unset variable in a script: it must not fall back to another cluster.
        raise click.UsageError("--profile is empty: name a profile, or leave it out.")
    origin = "--profile"
    if named is None and (is_here or source is ParameterSource.ENVIRONMENT):
        return Access(bootstrap, extras)
    if named is None and (named := os.environ.get(VARIABLE)):
        origin = VARIABLE
    profiles = read_profiles()
    named = named or profiles.in_use
    if named is None:
        return Access(bootstrap, extras)
    chosen = profiles.get(named, origin)
    if not context.resilient_parsing:  # A shell that completes a name cannot show a warning.
        warn_of_readers([chosen])
    return Access(bootstrap if is_here else chosen.bootstrap, {**chosen.settings, **extras}, profile=named)


def _access_by_file(path: str, bootstrap: str | None, extras: Mapping[str, str]) -> Access:
    from millpond.remote.client_file import read_client_file
    from millpond.remote.errors import ConfigError

    try:
        settings = read_client_file(path, "--client-config")
    except ConfigError as fault:
        raise click.UsageError(sentence(str(fault))) from None
    bootstrap_in_file = settings.pop("bootstrap.servers", None)
    if any(map(is_secret, settings)) and os.stat(path).st_mode & 0o077:
        click.echo(f"Others may read the secrets in {path}: chmod 600 {path}", err=True)
    return Access(
        bootstrap or bootstrap_in_file or DEFAULT_BOOTSTRAP,
        {**settings, **extras},
        "--client-config",
        client_file=path,
    )


def warn_of_words(settings: Mapping[str, str]) -> None:
    """Warns on standard error about a secret on the command line."""
    if secret := next(filter(is_secret, settings), None):
        click.echo(
            f"Others on this machine can see {secret} on the command line (`ps`): put it into a file and give that "
            "with --client-config, or add a profile with --ask.",
            err=True,
        )


def cluster_options(function: F) -> F:
    """Adds --bootstrap, --profile, --client-config and -X to a command, which gets them together as `access`."""

    @click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        envvar="MILLPOND_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        help="A node of the cluster; several with commas.",
    )
    @click.option(
        "-X", "extras", metavar="NAME=VALUE", multiple=True, help="A setting for the client library, as for kcat."
    )
    @click.option("--profile", metavar="NAME", type=ProfileName(), help="The cluster of this profile; see -p.")
    @click.option(
        "-F",
        "--client-config",
        metavar="FILE",
        envvar="MILLPOND_CLIENT_CONFIG",
        show_envvar=True,
        help="Where the cluster is and how to log in: a client.properties, as of Kafka's tools.",
    )
    @wraps(function)
    def with_access(
        *arguments: Any,
        bootstrap: str,
        profile: str | None,
        client_config: str | None,
        extras: tuple[str, ...],
        **options: Any,
    ) -> Any:
        access = access_of(click.get_current_context(), bootstrap, profile, pairs(extras, "-X"), client_config)
        return function(*arguments, access=access, **options)

    return with_access  # type: ignore[return-value]
