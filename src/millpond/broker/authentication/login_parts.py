"""Builds the parts of authentication from a node's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from millpond.base.principal import USER, Principal
from millpond.broker.authentication.logins import Doorkeeper, Logins, Witness
from millpond.broker.data_folder.identity import Misconfigured
from millpond.broker.peers.node_login import NodeLogin
from millpond.broker.requests.call import NODE_CLIENT_ID
from millpond.broker.security.directory import NodeUser, Users
from millpond.broker.security.mechanisms import OAUTHBEARER, PLAIN, TokenChecker
from millpond.broker.security.signed_tokens import OauthUnavailable, checker_of
from millpond.broker.security.token_proofs import TokenProofs
from millpond.config.listeners import ListenerSettings
from millpond.config.login import (
    DELEGATION_TOKEN_SECRET_KEY,
    INTER_BROKER_PASSWORD,
    INTER_BROKER_PASSWORD_FILE,
    INTER_BROKER_USERNAME,
    SASL_ENABLED_MECHANISMS,
    SASL_MECHANISM_INTER_BROKER,
)
from millpond.config.node import CLUSTER_CONTACTS, NODE_ID, cluster_nodes, is_loopback
from millpond.config.security import SUPER_USERS, of_listener, super_users
from millpond.metadata.scram import MECHANISMS

if TYPE_CHECKING:
    from millpond.base.ports import Disk, Entropy, World
    from millpond.base.settings import Settings
    from millpond.broker.loop.journal import Journal
    from millpond.metadata.image import Image

SECRET_BITS: Final = 256


def node_user_of(settings: Settings, disk: Disk) -> NodeUser | None:
    """The user that nodes log in to each other as; None if unset. Misconfigured when the password is missing."""
    name = settings[INTER_BROKER_USERNAME]
    if not name:
        return None
    password, path = settings[INTER_BROKER_PASSWORD], settings[INTER_BROKER_PASSWORD_FILE]
    if path:
        try:
            password = disk.read(path).decode().strip()
        except (OSError, UnicodeDecodeError) as fault:
            raise Misconfigured(f"{INTER_BROKER_PASSWORD_FILE.name}={path} cannot be read: {fault}") from None
    if not password:
        raise Misconfigured(
            f"{INTER_BROKER_USERNAME.name} is set, and its password is not: put it into a file and name that with "
            f"{INTER_BROKER_PASSWORD_FILE.name}"
        )
    return NodeUser(name, password, MECHANISMS[settings[SASL_MECHANISM_INTER_BROKER]])


def node_login_of(
    settings: Settings, listener: ListenerSettings, user: NodeUser | None, entropy: Entropy
) -> NodeLogin | None:
    """This node's login to the same listener of other nodes; None when that needs no login or there are no others."""
    if not listener.protocol.has_login:
        return None
    if user is None:
        if cluster_nodes(settings) or settings[CLUSTER_CONTACTS]:
            raise Misconfigured(
                f"the listener of the nodes, {listener.name}, has a login: say by which user with "
                f"{INTER_BROKER_USERNAME.name} and {INTER_BROKER_PASSWORD_FILE.name}, the same on every node, and "
                f"name it in {SUPER_USERS.name}"
            )
        return None
    if Principal(USER, user.name) not in super_users(settings):
        raise Misconfigured(
            f"{INTER_BROKER_USERNAME.name}={user.name} has to be one of {SUPER_USERS.name}: add User:{user.name}"
        )
    client_id = f"{NODE_CLIENT_ID}{settings[NODE_ID]}"
    return NodeLogin(user, client_id, lambda: f"{entropy.below(1 << 160):040x}")


def in_the_clear(settings: Settings, listeners: Iterable[ListenerSettings]) -> list[str]:
    """Listeners that carry passwords or signed tokens over the network unencrypted."""
    return [
        each.name
        for each in listeners
        if each.protocol.has_login
        and not each.protocol.is_encrypted
        and not is_loopback(each.host)
        and {PLAIN, OAUTHBEARER} & set(of_listener(settings, each.name, SASL_ENABLED_MECHANISMS))
    ]


def token_proofs_of(settings: Settings, image: Image) -> TokenProofs:
    told = settings[DELEGATION_TOKEN_SECRET_KEY].encode()
    return TokenProofs(lambda: told or image.scram.secret)


def make_logins(
    world: World,
    settings: Callable[[], Settings],
    image: Image,
    listeners: Iterable[ListenerSettings],
    connections: Doorkeeper,
    proofs: TokenProofs,
    node_user: NodeUser | None,
    witness: Witness,
    journal: Journal,
) -> Logins:
    """Misconfigured when a listener enables a mechanism that is unavailable."""

    def directory(listener: ListenerSettings) -> Users:
        own_secret = world.entropy.below(1 << SECRET_BITS).to_bytes(SECRET_BITS // 8)
        # The node user is known on every listener: while nodes migrate between listeners, some use the old one.
        return Users(image, proofs, world.clock.wall_ms, own_secret, node_user)

    def checker(listener: ListenerSettings) -> TokenChecker | None:
        if OAUTHBEARER not in of_listener(settings(), listener.name, SASL_ENABLED_MECHANISMS):
            return None
        try:
            return checker_of(settings(), listener.name, world, journal)
        except OauthUnavailable as fault:
            raise Misconfigured(f"listener {listener.name}: {fault}") from None

    return Logins(
        clock=world.clock,
        workers=world.login_workers,
        entropy=world.entropy,
        settings=settings,
        listeners=listeners,
        directory=directory,
        checker=checker,
        connections=connections,
        witness=witness,
        node=None if node_user is None else Principal(USER, node_user.name),
    )
