"""A startup check that the other nodes will authorize this one: clearer than their refusals."""

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
    """Misconfigured if authorization is on and the nodes' user is not a super user."""
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
                f"authorization is on, but the listener of the nodes, {listener.name}, requires no authentication: "
                f"choose one that does ({named_by.name}), or, if no one else can reach it, add {ANONYMOUS} to "
                f"{SUPER_USERS.name}"
            )
