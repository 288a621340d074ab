"""The kinds of hostile clients: any client of a node without authentication, strangers at a node with it, users with
no, few or all permissions. And what they must leave unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millpond.base.principal import Principal
from millpond.broker.apis import APIS
from millpond.wire.header import NAMES

SERVED = tuple(api.key for api in APIS)
UNSERVED = tuple(key for key in NAMES if key not in SERVED)
OF_NODES = (27, 52, 53, 54, 56, 57, 59, 62, 63, 64, 67, 70, 80, 81, 82)
"""Requests between nodes, and requests that change the cluster itself."""

OF_CLIENTS = tuple(key for key in SERVED if key not in OF_NODES)
OF_LOGIN = (17, 36)

ROOT = Principal("User", "root")
"""May do everything, and only looks after the node."""

ADMIN = Principal("User", "admin")
"""May do everything as well, and does."""

LODGER, PASSWORD = "bob", "secret"
"""A user with a password and no permissions."""

SMALL = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "max.partitions": "300",
    "max.partitions.per.topic": "40",
}
"""A small world covers the same requests in far less time."""

GUARDED = {
    "listen.protocol": "SASL_PLAINTEXT",
    "super.users": f"{ROOT};{ADMIN}",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
}


@dataclass(frozen=True, slots=True)
class Scene:
    name: str
    keys: tuple[int, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    principal: Principal | None = None
    """The authenticated user; None for the listener's default."""
    asks_who: bool = False
    """Whether the node requires authentication."""
    changes_nothing: bool = False
    """Whether everything that they may do leaves the node unchanged."""
    knows_canary: bool = False
    """Whether they may name the topic that must stay unchanged."""
    spares_canary: bool = True


OPEN = Scene("anybody, as a client", OF_CLIENTS)
OPEN_TO_NODES = Scene("anybody, as a node too", (*SERVED, *UNSERVED), spares_canary=False)
STRANGER = Scene(
    "before login",
    (*SERVED, *UNSERVED, *OF_LOGIN * 20),
    GUARDED,
    asks_who=True,
    changes_nothing=True,
    knows_canary=True,
)
GUEST = Scene(
    "logged in, without rights",
    (*SERVED, *UNSERVED),
    GUARDED,
    Principal("User", "guest"),
    asks_who=True,
    changes_nothing=True,
    knows_canary=True,
)
USER = Scene(
    "logged in, with rights to some",
    (*SERVED, *UNSERVED),
    GUARDED,
    Principal("User", "alice"),
    asks_who=True,
    knows_canary=True,
)

MASTER = Scene(
    "logged in, with all rights",
    (*SERVED, *UNSERVED),
    GUARDED,
    ADMIN,
    asks_who=True,
    spares_canary=False,
)

SCENES = (OPEN, OPEN_TO_NODES, STRANGER, GUEST, USER, MASTER)
