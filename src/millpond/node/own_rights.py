"""Whether this node may do at the others what nodes do: better said at its start than guessed from their refusals."""

from __future__ import annotations

from millpond.base.principal import ANONYMOUS, USER, Principal
from millpond.base.settings import Settings
from millpond.broker.lives.identity import Misconfigured
from millpond.broker.security.authorizer import asks_for_rights
from millpond.config.listeners import INTER_BROKER_LISTENER, listeners_of, preferred_of
from millpond.config.login import INTER_BROKER_USERNAME
from millpond.config.node import CLUSTER_CONTACTS, cluster_nodes
from millpond.config.security import SUPER_USERS, super_users


def check_own_rights(settings: Settings) -> None:
    """Misconfigured where rights are asked for, and the nodes come as somebody who has none."""
    has_others = len(cluster_nodes(settings)) > 1 or bool(settings[CLUSTER_CONTACTS])
    if not has_others or not asks_for_rights(settings):
        return
    listener = preferred_of(listeners_of(settings))
    if listener.protocol.has_login:
        name = settings[INTER_BROKER_USERNAME]
        if name and Principal(USER, name) not in super_users(settings):
            raise Misconfigured(
                f"the other nodes would take this one for a client: it logs in as User:{name} "
                f"({INTER_BROKER_USERNAME.name}), who is not one of {SUPER_USERS.name}"
            )
    elif not listener.authenticates and ANONYMOUS not in super_users(settings):
        raise Misconfigured(
            f"rights are asked for, and the listener of the nodes, {listener.name}, asks nobody who comes: let them "
            f"come by one that does ({INTER_BROKER_LISTENER.name}), or, where nobody else reaches it, have "
            f"{ANONYMOUS} among {SUPER_USERS.name}"
        )
