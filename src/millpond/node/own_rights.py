"""Whether this node may do at the others what nodes do: better said at its start than guessed from their refusals."""

from __future__ import annotations

from millpond.base.principal import ANONYMOUS, USER, Principal
from millpond.base.settings import Settings
from millpond.broker.data_folder.identity import Misconfigured
from millpond.broker.security.authorizer import asks_for_rights
from millpond.config.listeners import CONTROLLER_LISTENERS, INTER_BROKER_LISTENER, listeners_of
from millpond.config.login import INTER_BROKER_USERNAME
from millpond.config.node import CLUSTER_CONTACTS, cluster_nodes
from millpond.config.security import SUPER_USERS, super_users


def check_own_rights(settings: Settings) -> None:
    """Misconfigured where rights are asked for, and the nodes come as somebody who has none."""
    has_others = len(cluster_nodes(settings)) > 1 or bool(settings[CLUSTER_CONTACTS])
    if not has_others or not asks_for_rights(settings):
        return
    for listener in listeners_of(settings):
        if not listener.is_preferred and not listener.is_to_controllers:
            continue
        if listener.protocol.has_login:
            name = settings[INTER_BROKER_USERNAME]
            if name and Principal(USER, name) not in super_users(settings):
                raise Misconfigured(
                    f"the other nodes would take this one for a client: it logs in as User:{name} "
                    f"({INTER_BROKER_USERNAME.name}), who is not one of {SUPER_USERS.name}"
                )
        elif not listener.authenticates and ANONYMOUS not in super_users(settings):
            named_by = INTER_BROKER_LISTENER if listener.is_preferred else CONTROLLER_LISTENERS
            raise Misconfigured(
                f"rights are asked for, and the listener of the nodes, {listener.name}, asks nobody who comes: let "
                f"them come by one that does ({named_by.name}), or, where nobody else reaches it, have {ANONYMOUS} "
                f"among {SUPER_USERS.name}"
            )
