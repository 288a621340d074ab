"""The principal of a connection, from its listener and its client certificate."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.principal import ANONYMOUS, Principal
from millpond.base.rights import AclResource, Operation
from millpond.broker.connections.connections import UnknownCertificate

FILES = {"ssl.keystore.location": "/n.pem", "ssl.truststore.location": "/ca.pem"}
SEVERAL = {
    "listeners": "CLEAR://node:9092,NODES://node:9093,USERS://node:9094",
    "listen": "127.0.0.1:9092",
    "listener.security.protocol.map": "CLEAR:PLAINTEXT,NODES:SSL,USERS:SSL",
    "inter.broker.listener.name": "NODES",
    "ssl.client.auth": "required",
    "ssl.principal.mapping.rules": "RULE:^CN=([^,]+),OU=mill$/$1/",
    "super.users": "User:node;User:admin",
    **FILES,
}


def arrive(server: Any, make_link: Any, listener: str, certificate: str | None = None) -> Any:
    """A peer connects to this listener; returns its connection once it has presented its certificate."""
    link = make_link()
    link.listener = listener
    link.is_encrypted = listener != "CLEAR"
    connection = server.broker.connections.accept(link)
    link.certificate_name = certificate
    if link.on_secured is not None:
        link.on_secured()
    return connection


@pytest.fixture
def several(make_server: Any) -> Any:
    return make_server(SEVERAL)


def test_a_certificate_makes_a_user(several: Any, make_link: Any) -> None:
    connection = arrive(several, make_link, "USERS", "CN=alice,OU=mill")
    assert connection.principal == Principal("User", "alice")
    assert not connection.may_be_node


def test_a_certificate_without_a_matching_rule_is_refused(several: Any, make_link: Any) -> None:
    with pytest.raises(UnknownCertificate, match="CN=eve,OU=elsewhere"):
        arrive(several, make_link, "USERS", "CN=eve,OU=elsewhere")


@pytest.mark.parametrize(
    ("listener", "certificate", "may"),
    [
        ("NODES", "CN=node,OU=mill", True),
        ("NODES", "CN=alice,OU=mill", False),
        # As in Kafka: nodes that move from one listener to another use both for a while.
        ("USERS", "CN=node,OU=mill", True),
        ("CLEAR", None, False),
    ],
)
def test_a_node_is_who_shows_to_be_a_super_user(
    several: Any, make_link: Any, listener: str, certificate: str | None, may: bool
) -> None:
    assert arrive(several, make_link, listener, certificate).may_be_node is may


def test_plaintext_connections_are_anonymous(several: Any, make_link: Any) -> None:
    assert arrive(several, make_link, "CLEAR").principal == ANONYMOUS


def test_each_client_is_told_the_addresses_of_its_own_listener(several: Any, make_link: Any) -> None:
    reports = {}
    for listener, certificate in (("CLEAR", None), ("NODES", "CN=node,OU=mill"), ("USERS", "CN=a,OU=mill")):
        connection = arrive(several, make_link, listener, certificate)
        reports[listener] = [port for _, _, port, _ in several.broker.contexts.node.addresses_for(connection)]
    assert reports == {"CLEAR": [9092], "NODES": [9093], "USERS": [9094]}
    (me,) = several.broker.image.brokers.values()
    # The inter-broker listener comes first: other nodes connect to the first one.
    assert [(each.name, each.security_protocol) for each in me.end_points] == [
        ("NODES", 1),
        ("CLEAR", 0),
        ("USERS", 1),
    ]


@pytest.mark.parametrize(
    ("certificate", "may"), [(None, False), ("CN=alice,OU=mill", False), ("CN=node,OU=mill", True)]
)
def test_where_a_certificate_is_only_asked_for_nodes_show_theirs(
    make_server: Any, make_link: Any, certificate: str | None, may: bool
) -> None:
    server = make_server({**SEVERAL, "ssl.client.auth": "requested"})
    assert arrive(server, make_link, "NODES", certificate).may_be_node is may


@pytest.mark.parametrize("asked", ["requested", "required"])
def test_where_a_certificate_is_asked_for_rights_are_too(make_server: Any, make_link: Any, asked: str) -> None:
    """A client without a certificate is anonymous and may do nothing: what no ACL allows is denied."""
    server = make_server(
        {**FILES, "listen.protocol": "SSL", "ssl.client.auth": asked, "super.users": "User:CN=admin"}
    )
    assert server.broker.access.is_on
    nobody = arrive(server, make_link, "SSL")
    assert nobody.principal == ANONYMOUS
    assert not server.broker.access.may(ANONYMOUS, "h", Operation.CREATE, AclResource.TOPIC, "t")
    admin = arrive(server, make_link, "SSL", "CN=admin")
    assert server.broker.access.may(admin.principal, "h", Operation.CREATE, AclResource.TOPIC, "t")


def test_a_listener_that_asks_for_no_certificate_asks_for_no_rights(make_server: Any) -> None:
    assert not make_server({**FILES, "listen.protocol": "SSL"}).broker.access.is_on


def test_who_begins_handshakes_and_leaves_them_takes_no_place_of_those_who_come_in(
    make_server: Any, make_link: Any
) -> None:
    """On a listener without a login too: unfinished handshakes are limited like unauthenticated connections."""
    server = make_server({**SEVERAL, "login.max.connections": "5"})
    idle = []
    for _ in range(20):
        link = make_link()
        link.listener, link.is_encrypted = "USERS", True
        link.handler = server.broker.connections.accept(link)
        idle.append(link)
    assert sum("abort" in link.events for link in idle) == 15
    alice = arrive(server, make_link, "USERS", "CN=alice,OU=mill")
    assert alice.principal == Principal("User", "alice")
    assert not alice.must_log_in
    assert alice not in server.broker.connections.newcomers.late(1 << 60)
