"""A node's listeners: each has a name, an address and a security protocol.

`listen`, `listen.protocol` and `advertised.listener` are the short form for one listener; Kafka's names configure
several.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from millpond.base.settings import AnySetting, Setting, SettingError, Settings, one_of
from millpond.base.tls import ClientAuth, ClientTls, ServerTls
from millpond.base.values import dataclass
from millpond.config.addresses import address_fault, address_or_nothing, host_and_port
from millpond.config.principal_rules import AS_IT_IS, PrincipalRules, principal_rules
from millpond.config.security import name_for, of_listener
from millpond.config.tls import CLIENT_AUTH, PRINCIPAL_MAPPING_RULES, TRUSTSTORE_LOCATION, client_tls, server_tls


class SecurityProtocol(Enum):
    """Security protocols under Kafka's names; `number` is the one on the wire."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def number(self) -> int:
        return tuple(SecurityProtocol).index(self)

    @property
    def is_encrypted(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_login(self) -> bool:
        """Whether clients must authenticate with SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


_PROTOCOLS: Final = tuple(each.value for each in SecurityProtocol)

LISTEN = Setting(
    "listen", "127.0.0.1:9092", "The host:port to which clients connect; port 0 picks a free port.", address_fault
)
LISTEN_PROTOCOL = Setting(
    "listen.protocol",
    SecurityProtocol.PLAINTEXT.value,
    "The security protocol of `listen`: `PLAINTEXT`, `SSL` (TLS), `SASL_PLAINTEXT` (login without encryption) or "
    "`SASL_SSL` (login over TLS).",
    one_of(*_PROTOCOLS),
)
ADVERTISED_LISTENER = Setting(
    "advertised.listener",
    "",
    "The host:port that clients are told to connect to. Empty for the address of `listen`.",
    address_or_nothing,
)
LISTENERS = Setting[tuple[str, ...]](
    "listeners",
    (),
    "Several listeners instead of `listen`: `NAME://host:port,…`. The name is a security protocol, or is mapped "
    "to one by `listener.security.protocol.map`. Without a host, the listener binds to all addresses.",
)
ADVERTISED_LISTENERS = Setting[tuple[str, ...]](
    "advertised.listeners",
    (),
    "The addresses that clients of the `listeners` are told to connect to, in the same form. Listeners that are "
    "not named here advertise the address to which they bind.",
)
PROTOCOL_MAP = Setting[tuple[str, ...]](
    "listener.security.protocol.map", (), "The security protocol of each listener: `INTERNAL:SSL,PUBLIC:SASL_SSL`."
)
INTER_BROKER_LISTENER = Setting(
    "inter.broker.listener.name",
    "",
    "The listener through which the nodes of the cluster connect to each other; `cluster.nodes` has its "
    "addresses. Empty for the only listener, or the one that `security.inter.broker.protocol` selects.",
)
INTER_BROKER_PROTOCOL = Setting(
    "security.inter.broker.protocol",
    "",
    "Selects the inter-broker listener by its protocol, if there are several listeners and "
    "`inter.broker.listener.name` is empty.",
    one_of("", *_PROTOCOLS),
)
CONTROLLER_LISTENERS = Setting[tuple[str, ...]](
    "controller.listener.names",
    (),
    "Listeners reserved for requests to the controller and the voters: votes, metadata, registration, heartbeats. "
    "They are not advertised to clients. Nodes connect to the first one, whose addresses are in "
    "`controller.quorum.voters`. If empty, these requests use the inter-broker listener.",
)

SETTINGS: Final[tuple[AnySetting, ...]] = (
    LISTEN,
    LISTEN_PROTOCOL,
    ADVERTISED_LISTENER,
    LISTENERS,
    ADVERTISED_LISTENERS,
    PROTOCOL_MAP,
    INTER_BROKER_LISTENER,
    INTER_BROKER_PROTOCOL,
    CONTROLLER_LISTENERS,
)

SHORT_FORM: Final = (LISTEN.name, LISTEN_PROTOCOL.name, ADVERTISED_LISTENER.name)
"""The settings of a single listener."""

WILDCARDS: Final = ("0.0.0.0", "::", "")
"""Bind addresses that clients cannot connect to."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    advertised: tuple[str, int] | None = None
    """The address advertised to clients; None for the bind address."""
    tls: ServerTls | None = None
    peer_tls: ClientTls | None = None
    """The TLS settings for connecting to the other nodes' listener of this name."""
    rules: PrincipalRules = AS_IT_IS
    is_for_clients: bool = True
    is_for_nodes: bool = True
    """Whether it is reserved for the cluster's nodes. They may also use any listener that authenticates them."""
    is_preferred: bool = True
    """Whether this node uses it to connect to the other brokers."""
    is_to_controllers: bool = True
    """Whether this node uses it to connect to the controller and the voters."""

    @property
    def authenticates(self) -> bool:
        """Whether it authenticates peers, by SASL or by certificate.

        Also true where a certificate is only requested: a peer without one is ANONYMOUS there, with that user's
        permissions, and is not a node.
        """
        return self.protocol.has_login or (self.tls is not None and self.tls.client_auth is not ClientAuth.NONE)


def listeners_of(settings: Settings) -> tuple[ListenerSettings, ...]:
    """All listeners, in order. Raises SettingError for settings that contradict each other."""
    if settings[LISTENERS]:
        _refuse_short_form(settings)
        addresses = _addresses(LISTENERS, settings, is_advertised=False)
        advertised = _addresses(ADVERTISED_LISTENERS, settings, is_advertised=True)
    else:
        name = settings[LISTEN_PROTOCOL]
        addresses = {name: host_and_port(settings[LISTEN])}
        own = settings[ADVERTISED_LISTENER]
        advertised = {name: host_and_port(own)} if own else {}
    for name in (*advertised, *settings[CONTROLLER_LISTENERS]):
        if name not in addresses:
            raise SettingError(f"unknown listener {name}; the listeners are {', '.join(addresses)}")
    _check_ports(addresses)
    protocols = _protocols(settings, addresses)
    preferred = _inter_broker_name(settings, protocols)
    return tuple(
        _listener(settings, name, protocols[name], addresses[name], advertised.get(name), preferred)
        for name in addresses
    )


def preferred_of(listeners: Iterable[ListenerSettings]) -> ListenerSettings:
    """The inter-broker listener."""
    return next(each for each in listeners if each.is_preferred)


def controllers_of(listeners: Iterable[ListenerSettings]) -> ListenerSettings:
    """The controller listener; usually the same as the inter-broker listener."""
    return next(each for each in listeners if each.is_to_controllers)


def _listener(
    settings: Settings,
    name: str,
    protocol: SecurityProtocol,
    address: tuple[str, int],
    advertised: tuple[str, int] | None,
    preferred: str,
) -> ListenerSettings:
    def get(setting: Setting[str]) -> str:
        return of_listener(settings, name, setting)

    is_for_controllers = name in settings[CONTROLLER_LISTENERS]
    to_controllers = name == (settings[CONTROLLER_LISTENERS] or (preferred,))[0]
    rules = principal_rules(get(PRINCIPAL_MAPPING_RULES))
    auth = ClientAuth(get(CLIENT_AUTH))
    if protocol.has_login and name_for(name, CLIENT_AUTH.name) not in settings.overrides:
        # Users authenticate with SASL: a certificate is requested only if configured for this very listener.
        auth = ClientAuth.NONE
    needs_peers = (name == preferred or to_controllers) and (_has_others(settings) or bool(get(TRUSTSTORE_LOCATION)))
    try:
        return ListenerSettings(
            name,
            protocol,
            *address,
            advertised,
            server_tls(get, auth) if protocol.is_encrypted else None,
            client_tls(get) if protocol.is_encrypted and needs_peers else None,
            rules,
            is_for_clients=not is_for_controllers,
            is_for_nodes=name == preferred or is_for_controllers,
            is_preferred=name == preferred,
            is_to_controllers=to_controllers,
        )
    except SettingError as fault:
        raise SettingError(f"listener {name}: {fault}") from None


def _has_others(settings: Settings) -> bool:
    """Whether this node is configured to connect to others. Others may join a single node later; it may then need
    settings that it lacks now.
    """
    return bool(settings.overrides.get("cluster.nodes") or settings.overrides.get("cluster.contacts"))


def _refuse_short_form(settings: Settings) -> None:
    for short in (LISTEN, LISTEN_PROTOCOL, ADVERTISED_LISTENER):
        if short.name in settings.overrides and settings[short] != short.default:
            raise SettingError(f"{short.name} and {LISTENERS.name} exclude each other: set only one of them")


def _addresses(
    setting: Setting[tuple[str, ...]], settings: Settings, *, is_advertised: bool
) -> dict[str, tuple[str, int]]:
    parsed: dict[str, tuple[str, int]] = {}
    for text in settings[setting]:
        name, separator, address = text.partition("://")
        if not separator or not _NAME.fullmatch(name):
            raise SettingError(f"{setting.name}: {text!r} must have the form NAME://host:port")
        host, port = host_and_port(f"0.0.0.0{address}" if address.startswith(":") else address)
        if is_advertised and (host in WILDCARDS or not port):
            raise SettingError(f"{setting.name}: clients cannot connect to {text!r}; advertise a host and a port")
        if name in parsed:
            raise SettingError(f"{setting.name}: two listeners are named {name}")
        parsed[name] = host, port
    return parsed


def _check_ports(addresses: Mapping[str, tuple[str, int]]) -> None:
    taken: dict[tuple[str, int], str] = {}
    for name, address in addresses.items():
        other = taken.setdefault(address, name)
        if other != name and address[1]:
            raise SettingError(f"listeners {other} and {name} have the same address")


def _protocols(settings: Settings, names: Iterable[str]) -> dict[str, SecurityProtocol]:
    mapped: dict[str, SecurityProtocol] = {each.value: each for each in SecurityProtocol}
    for text in settings[PROTOCOL_MAP]:
        name, colon, protocol = text.partition(":")
        if not colon or protocol not in _PROTOCOLS:
            raise SettingError(
                f"{PROTOCOL_MAP.name}: {text!r} must have the form NAME:PROTOCOL, with one of {', '.join(_PROTOCOLS)}"
            )
        mapped[name] = SecurityProtocol(protocol)
    for name in names:
        if name not in mapped:
            raise SettingError(f"{PROTOCOL_MAP.name} must map the listener {name} to a protocol")
    return {name: mapped[name] for name in names}


def _inter_broker_name(settings: Settings, protocols: Mapping[str, SecurityProtocol]) -> str:
    name, protocol = settings[INTER_BROKER_LISTENER], settings[INTER_BROKER_PROTOCOL]
    if name and protocol:
        raise SettingError(f"set {INTER_BROKER_LISTENER.name} or {INTER_BROKER_PROTOCOL.name}, not both")
    if name:
        if name not in protocols:
            raise SettingError(f"{INTER_BROKER_LISTENER.name}={name}: there is no such listener")
        return name
    candidates = [each for each in protocols if each not in settings[CONTROLLER_LISTENERS]] or list(protocols)
    if len(candidates) == 1 and not protocol:
        return candidates[0]
    protocol = protocol or SecurityProtocol.PLAINTEXT.value
    matches = [each for each in candidates if each == protocol] or [
        each for each in candidates if protocols[each].value == protocol
    ]
    if len(matches) != 1:
        raise SettingError(
            f"set {INTER_BROKER_LISTENER.name} to the listener through which nodes connect to each other: one of "
            f"{', '.join(candidates)}"
        )
    return matches[0]
