"""A startup check that the other nodes will accept this one's certificate: clearer than their refusals."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Final

from millpond.base.principal import USER, Principal
from millpond.base.settings import Settings
from millpond.base.tls import ClientAuth
from millpond.broker.data_folder.identity import Misconfigured
from millpond.config.listeners import ListenerSettings, listeners_of
from millpond.config.node import CLUSTER_CONTACTS, cluster_nodes
from millpond.config.security import SUPER_USERS, super_users
from millpond.config.tls import PRINCIPAL_MAPPING_RULES
from millpond.node.distinguished_name import subject_of

_FIRST: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def check_own_certificate(settings: Settings) -> None:
    """Misconfigured if nodes authenticate by certificates and this node's certificate is not a super user's."""
    if len(cluster_nodes(settings)) < 2 and not settings[CLUSTER_CONTACTS]:
        return
    for listener in listeners_of(settings):
        if listener.is_preferred or listener.is_to_controllers:
            _check(settings, listener)


def _check(settings: Settings, listener: ListenerSettings) -> None:
    tls = listener.tls
    if tls is None or tls.client_auth is ClientAuth.NONE or listener.protocol.has_login:
        return
    path = tls.files.certificate
    try:
        found = _FIRST.search(Path(path).read_text(encoding="utf-8", errors="replace"))
        name = subject_of(ssl.PEM_cert_to_DER_cert(found[0])) if found else None
    except (OSError, ValueError):
        name = None
    if name is None:
        # The listener needs it too, and reports what is wrong.
        return
    user = listener.rules.user_of(name)
    if user is None:
        raise Misconfigured(f"no rule of {PRINCIPAL_MAPPING_RULES.name} matches the name in {path}, {name}")
    if Principal(USER, user) not in super_users(settings):
        raise Misconfigured(
            f"the other nodes would take this one for a client: {path} is of User:{user}, who is not one of "
            f"{SUPER_USERS.name}"
        )
