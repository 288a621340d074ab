"""Where a node listens, from the short form and from Kafka's."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.settings import SettingError
from millpond.base.tls import ClientAuth
from millpond.config.listeners import ListenerSettings, SecurityProtocol, listeners_of, preferred_of
from millpond.config.node import node_settings
from millpond.config.tls import openssl_name

KEYS = {"ssl.keystore.location": "/n.pem", "ssl.truststore.location": "/ca.pem"}


def listeners(texts: dict[str, str]) -> dict[str, ListenerSettings]:
    return {each.name: each for each in listeners_of(node_settings(texts))}


def fault(texts: dict[str, str]) -> str:
    with pytest.raises(SettingError) as raised:
        node_settings(texts)
    return str(raised.value)


def test_a_node_that_is_told_nothing_listens_in_the_clear_on_the_loopback() -> None:
    (only,) = listeners({}).values()
    assert only == ListenerSettings("PLAINTEXT", SecurityProtocol.PLAINTEXT, "127.0.0.1", 9092)
    assert not only.authenticates


def test_the_short_form_names_address_protocol_and_what_is_told() -> None:
    texts = {"listen": "0.0.0.0:1", "listen.protocol": "SASL_SSL", "advertised.listener": "mill.example:2", **KEYS}
    (only,) = listeners(texts).values()
    assert (only.name, only.host, only.port, only.advertised) == ("SASL_SSL", "0.0.0.0", 1, ("mill.example", 2))
    assert only.protocol is SecurityProtocol.SASL_SSL
    assert only.authenticates
    assert only.tls is not None
    assert only.tls.files.certificate == "/n.pem"


def test_several_listeners_with_names_of_their_own() -> None:
    found = listeners(
        {
            "listeners": "INTERNAL://10.0.0.1:9094,PUBLIC://:9092,CONTROLLER://10.0.0.1:9093",
            "advertised.listeners": "PUBLIC://mill.example:443",
            "listener.security.protocol.map": "INTERNAL:SSL,PUBLIC:SASL_SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": "INTERNAL",
            "controller.listener.names": "CONTROLLER",
            "ssl.client.auth": "required",
            "listener.name.public.ssl.keystore.location": "/public.pem",
            **KEYS,
        }
    )
    assert list(found) == ["INTERNAL", "PUBLIC", "CONTROLLER"]
    internal, public, controller = found.values()
    assert public.advertised == ("mill.example", 443)
    assert public.host == "0.0.0.0"
    assert [each.is_for_nodes for each in found.values()] == [True, False, True]
    assert [each.is_for_clients for each in found.values()] == [True, True, False]
    assert preferred_of(found.values()) is internal
    assert internal.tls is not None
    assert internal.tls.client_auth is ClientAuth.REQUIRED
    assert internal.authenticates
    assert internal.peer_tls is not None
    assert internal.peer_tls.files == internal.tls.files
    assert public.tls is not None
    # Users log in by SASL there: a certificate of theirs is not asked for, unless said so of this listener.
    assert public.tls.client_auth is ClientAuth.NONE
    assert public.tls.files.certificate == "/public.pem"
    assert controller.authenticates


def test_a_login_may_ask_for_a_certificate_on_top_where_its_listener_says_so() -> None:
    texts = {"listen.protocol": "SASL_SSL", "listener.name.sasl_ssl.ssl.client.auth": "required", **KEYS}
    (only,) = listeners(texts).values()
    assert only.tls is not None
    assert only.tls.client_auth is ClientAuth.REQUIRED


def test_the_certificate_may_come_in_two_files() -> None:
    texts = {"listen.protocol": "SSL", "ssl.certificate.location": "/c.pem", "ssl.key.location": "/k.pem"}
    (only,) = listeners(texts).values()
    assert only.tls is not None
    assert (only.tls.files.certificate, only.tls.files.key) == ("/c.pem", "/k.pem")
    assert not only.authenticates


@pytest.mark.parametrize(("asked", "authenticates"), [("none", False), ("requested", True), ("required", True)])
def test_to_ask_for_a_certificate_is_to_ask_who_comes(asked: str, authenticates: bool) -> None:
    (only,) = listeners({"listen.protocol": "SSL", "ssl.client.auth": asked, **KEYS}).values()
    assert only.authenticates is authenticates


def test_no_password_is_shown() -> None:
    texts = {"listen.protocol": "SSL", **KEYS, "ssl.key.password": "sesame"}
    assert "sesame" not in repr(listeners(texts))


NAMED = {"listeners": "A://h:1,B://h:2", "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"}


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({"listeners": "PLAINTEXT://h"}, "host:port"),
        ({"listeners": "9092"}, "NAME://host:port"),
        ({"listeners": "X://h:1"}, "must map the listener X to a protocol"),
        ({"listeners": "X://h:1", "listener.security.protocol.map": "X:TLS"}, "NAME:PROTOCOL"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "two listeners"),
        ({"listeners": "PLAINTEXT://h:1,SSL://h:1", **KEYS}, "same address"),
        ({"listeners": "PLAINTEXT://h:1", "listen": "h:2"}, "exclude each other"),
        ({"listeners": "PLAINTEXT://h:1", "advertised.listeners": "SSL://h:1"}, "unknown listener SSL"),
        (
            {"listeners": "PLAINTEXT://h:1", "advertised.listeners": "PLAINTEXT://0.0.0.0:1"},
            "clients cannot connect to",
        ),
        ({"listen.protocol": "SSL"}, "needs a certificate"),
        ({"listen.protocol": "SSL", "ssl.keystore.location": "/a.jks"}, "PEM"),
        ({"listen.protocol": "SSL", "ssl.keystore.location": "/a", "ssl.client.auth": "required"}, "truststore"),
        ({"listen.protocol": "SSL", "ssl.key.location": "/k", "ssl.keystore.location": "/a"}, "ssl.certificate"),
        ({**NAMED}, "inter.broker.listener.name"),
        ({**NAMED, "inter.broker.listener.name": "C"}, "no such listener"),
        (
            {**NAMED, "inter.broker.listener.name": "A", "security.inter.broker.protocol": "PLAINTEXT"},
            "not both",
        ),
        ({"listener.name.x.num.partitions": "1"}, "unknown node setting"),
        ({"listener.name.x.ssl.client.auth": "perhaps"}, "must be one of"),
        ({"ssl.principal.mapping.rules": "RULE:(/$1/"}, "RULE"),
        ({"super.users": "alice"}, "not a principal"),
        (
            {"listen.protocol": "SSL", "ssl.keystore.location": "/a", "cluster.nodes": "1@h:1,2@h:2"},
            "ssl.truststore.location",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_with_its_reason(texts: dict[str, str], reason: str) -> None:
    assert reason in fault(texts)


def test_nodes_go_by_the_listener_of_their_protocol() -> None:
    texts = {"listeners": "PLAINTEXT://h:1,SSL://h:2", "security.inter.broker.protocol": "SSL", **KEYS}
    assert preferred_of(listeners(texts).values()).name == "SSL"
    del texts["security.inter.broker.protocol"]
    # As Kafka has it.
    assert preferred_of(listeners(texts).values()).name == "PLAINTEXT"


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_ciphers_by_the_names_of_java(java: str, openssl: str) -> None:
    import ssl

    assert openssl_name(java) == openssl
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(openssl)


def test_what_is_said_for_one_listener_counts_in_the_node_as_it_runs() -> None:
    from millpond.config.effective import NodeLayers

    texts: Any = {"listen.protocol": "SSL", "listener.name.ssl.ssl.keystore.location": "/x.pem"}
    (only,) = listeners_of(NodeLayers(node_settings(texts)).settings())
    assert only.tls is not None
    assert only.tls.files.certificate == "/x.pem"
