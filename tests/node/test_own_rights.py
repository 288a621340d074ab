"""A node of a cluster that the others would refuse does not start, and says why."""

from __future__ import annotations

import pytest

from millpond.broker.data_folder.identity import Misconfigured
from millpond.config.node import node_settings
from millpond.config.security import STANDARD_AUTHORIZER
from millpond.node.own_rights import check_own_rights

CLUSTER = {"cluster.nodes": "1@127.0.0.1:9001,2@127.0.0.1:9002,3@127.0.0.1:9003", "listen": "127.0.0.1:9001"}
LOGIN = {"listen.protocol": "SASL_PLAINTEXT", "inter.broker.sasl.username": "miller"}


@pytest.mark.parametrize(
    "texts",
    [
        {},
        CLUSTER,
        {"authorizer.class.name": STANDARD_AUTHORIZER},
        CLUSTER | {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"},
        CLUSTER | LOGIN | {"super.users": "User:admin;User:miller"},
    ],
)
def test_nodes_that_the_others_know_start(texts: dict[str, str]) -> None:
    check_own_rights(node_settings(texts))


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (
            {"authorizer.class.name": STANDARD_AUTHORIZER},
            "the listener of the nodes, PLAINTEXT, requires no authentication",
        ),
        (LOGIN | {"super.users": "User:admin"}, "it logs in as User:miller"),
    ],
)
def test_a_node_that_they_would_refuse_says_why(texts: dict[str, str], reason: str) -> None:
    with pytest.raises(Misconfigured, match=reason):
        check_own_rights(node_settings(CLUSTER | texts))
