"""A node whose certificate the others would not take for a node's says so at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.broker.data_folder.identity import Misconfigured
from millpond.config.node import node_settings
from millpond.node.own_certificate import check_own_certificate
from support.tls import Certificates

CLUSTER = {
    "listen.protocol": "SSL",
    "ssl.client.auth": "required",
    "ssl.principal.mapping.rules": "RULE:^CN=([^,]+),.*$/$1/",
    "cluster.nodes": "1@10.0.0.1:1,2@10.0.0.2:1",
    "super.users": "User:node",
}


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_the_certificate_of_a_super_user_will_do(certificates: Certificates) -> None:
    check_own_certificate(node_settings(CLUSTER | certificates.server_settings("node")))


@pytest.mark.parametrize(
    ("user", "changes", "reason"),
    [
        ("stranger", {}, "User:stranger, who is not one of super.users"),
        ("node", {"ssl.principal.mapping.rules": "RULE:^OU=x$/y/"}, "no rule of ssl.principal.mapping.rules"),
        ("node", {"ssl.principal.mapping.rules": "DEFAULT"}, "User:CN=node,"),
    ],
)
def test_another_will_not(certificates: Certificates, user: str, changes: dict[str, str], reason: str) -> None:
    with pytest.raises(Misconfigured, match=reason):
        check_own_certificate(node_settings({**CLUSTER, **certificates.server_settings(user), **changes}))


@pytest.mark.parametrize("changes", [{"cluster.nodes": ""}, {"ssl.client.auth": "none"}])
def test_it_matters_only_where_nodes_know_each_other_by_it(
    certificates: Certificates, changes: dict[str, str]
) -> None:
    check_own_certificate(node_settings({**CLUSTER, **certificates.server_settings("stranger"), **changes}))
