"""TLS and logins: accepted and refused clients, errors, and settings."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from millpond.client.errors import ClientError, ConfigError
from millpond.remote.cluster import Cluster
from millpond.remote.errors import LoginFailed
from millpond.remote.security import Security, librdkafka
from support.node import HOST, Node, free_port
from support.sasl_server import HASHES, PlainServer, ScramServer
from support.tls import Certificates
from support.tls_proxy import Door, server_context

USERS = {"alice": 'pond, "and" = mill', "böb": "geheim"}
LOGINS = {
    "PLAIN": lambda: PlainServer(USERS),
    "SCRAM-SHA-256": lambda: ScramServer("SCRAM-SHA-256", USERS),
    "SCRAM-SHA-512": lambda: ScramServer("SCRAM-SHA-512", USERS),
}
MakeDoor = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def behind_door(make_node: Callable[..., Node]) -> Iterator[MakeDoor]:
    """Starts a node behind a TLS and SASL proxy; its settings for clients."""
    doors: list[Door] = []

    def make(*given: object, **expected: object) -> dict[str, str]:
        port = free_port()
        node = make_node({"advertised.listener": f"{HOST}:{port}"})
        doors.append(Door(port, node.port, *given, **expected))  # type: ignore[arg-type]
        return {"bootstrap.servers": f"{HOST}:{port}", "default.api.timeout.ms": "4000"}

    yield make
    for each in doors:
        each.close()


def create_topic(settings: dict[str, str], name: str) -> int:
    """Create a topic by requesting its metadata; its number of partitions."""
    with Cluster(settings) as cluster:
        return len(cluster.topics([name], create=True)[name].partitions)


@pytest.mark.smoke
def test_every_login_works_and_a_wrong_password_is_refused(behind_door: MakeDoor, certificates: Certificates) -> None:
    settings = behind_door(server_context(certificates.server), LOGINS)
    settings |= {"security.protocol": "SASL_SSL", "ssl.ca.location": str(certificates.authority)}
    for mechanism in LOGINS:
        for user, password in USERS.items():
            who = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
            assert create_topic({**settings, **who}, "kept") == 1
        for user, password in (("alice", "pond"), ("nobody", "geheim"), ("böb", "")):
            who = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
            with pytest.raises(LoginFailed, match=f"refuses the user '{user}'.*check the user name"):
                create_topic({**settings, **who}, "kept")


def test_java_and_librdkafka_settings_are_equivalent(behind_door: MakeDoor, certificates: Certificates) -> None:
    settings = behind_door(server_context(certificates.server), LOGINS)
    java = {
        **settings,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            r'username="alice" password="pond, \"and\" = mill";'
        ),
    }
    assert create_topic(java, "shared") == 1
    theirs = {"bootstrap.servers": java["bootstrap.servers"], **librdkafka(java)}
    producer = Producer(theirs)
    producer.produce("shared", b"safe")
    assert producer.flush(60) == 0
    consumer = Consumer({**theirs, "group.id": "safe", "auto.offset.reset": "earliest"})
    consumer.subscribe(["shared"])
    message = consumer.poll(10)
    consumer.close()
    assert message is not None
    assert message.value() == b"safe"


def test_a_mechanism_that_is_not_offered_is_named_with_those_that_are(behind_door: MakeDoor) -> None:
    settings = behind_door(logins={"PLAIN": LOGINS["PLAIN"]})
    who = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "alice", "sasl.password": USERS["alice"]}
    assert create_topic({**settings, **who, "sasl.mechanism": "PLAIN"}, "kept") == 1
    with pytest.raises(LoginFailed, match=r"does not take sasl.mechanism=SCRAM-SHA-256; it offers: PLAIN"):
        create_topic({**settings, **who, "sasl.mechanism": "SCRAM-SHA-256"}, "kept")


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_broker_must_prove_that_it_knows_the_password(behind_door: MakeDoor, mechanism: str) -> None:
    settings = behind_door(logins={mechanism: lambda: ScramServer(mechanism, USERS, knows_passwords=False)})
    who = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    who |= {"sasl.username": "alice", "sasl.password": USERS["alice"]}
    with pytest.raises(LoginFailed, match="does not know the password itself"):
        create_topic({**settings, **who}, "kept")


def test_certificates_are_checked_on_both_sides(behind_door: MakeDoor, certificates: Certificates) -> None:
    settings = behind_door(server_context(certificates.server, certificates.authority))
    settings["security.protocol"] = "SSL"
    ours = {"ssl.certificate.location": str(certificates.client), "ssl.key.location": str(certificates.client)}
    trusted = {"ssl.ca.location": str(certificates.authority)}
    assert create_topic({**settings, **trusted, **ours}, "kept") == 1
    as_java_says = {
        "ssl.truststore.certificates": certificates.authority.read_text(),
        "ssl.keystore.location": str(certificates.client),
        "ssl.keystore.type": "PEM",
    }
    assert create_topic({**settings, **as_java_says}, "kept") == 1
    as_text = {"ssl.ca.pem": certificates.authority.read_text(), **_own_as_text(certificates.client)}
    assert create_topic({**settings, **as_text}, "kept") == 1
    with pytest.raises(LoginFailed, match=r"no TLS with .*ssl.ca.location"):
        create_topic({**settings, **ours, "ssl.ca.location": str(certificates.stranger)}, "kept")
    # A broker refuses a client without a certificate after the handshake, when the first request is sent.
    with pytest.raises(ClientError, match=r"the broker accepts our certificate \(ssl.certificate.location"):
        create_topic({**settings, **trusted, "default.api.timeout.ms": "500"}, "kept")


def _own_as_text(path: Path) -> dict[str, str]:
    text = path.read_text()
    end = text.index("-----BEGIN CERTIFICATE-----")
    return {"ssl.keystore.key": text[:end], "ssl.keystore.certificate.chain": text[end:]}


def test_a_certificate_of_another_host_is_refused_unless_checks_are_off(
    behind_door: MakeDoor, certificates: Certificates
) -> None:
    settings = behind_door(server_context(certificates.elsewhere))
    settings |= {"security.protocol": "SSL", "ssl.ca.location": str(certificates.authority)}
    with pytest.raises(LoginFailed, match="names this host"):
        create_topic(settings, "kept")
    assert create_topic({**settings, "ssl.endpoint.identification.algorithm": ""}, "kept") == 1
    unchecked = {"ssl.ca.location": str(certificates.stranger), "enable.ssl.certificate.verification": "false"}
    assert create_topic({**settings, **unchecked}, "kept") == 1


def test_one_side_speaks_tls_and_the_other_does_not(
    behind_door: MakeDoor, certificates: Certificates, make_node: Callable[..., Node]
) -> None:
    behind_tls = behind_door(server_context(certificates.server))
    with pytest.raises(ClientError, match=r"closed the connection before its first answer.*check security.protocol"):
        create_topic({**behind_tls, "default.api.timeout.ms": "3000"}, "kept")
    in_the_clear = {"bootstrap.servers": make_node().bootstrap, "security.protocol": "SSL"}
    with pytest.raises(ClientError, match="TLS"):
        create_topic({**in_the_clear, "ssl.ca.location": str(certificates.authority)}, "kept")


@pytest.mark.parametrize(
    ("settings", "error_text"),
    [
        ({"security.protocol": "TLS"}, "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism is missing; choose one of PLAIN"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}, "GSSAPI is not supported"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.username and sasl.password"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere.pem"}, "cannot be read"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/a/trust.jks"}, "only PEM"),
        ({"security.protocol": "SSL", "ssl.keystore.type": "PKCS12"}, "only PEM"),
    ],
)
def test_invalid_settings_are_reported_before_connecting(settings: dict[str, str], error_text: str) -> None:
    with pytest.raises(ConfigError, match=error_text):
        Security.from_settings(settings)


def test_no_password_is_shown() -> None:
    settings = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "plain"}
    security = Security.from_settings({**settings, "sasl.username": "alice", "sasl.password": "pond-secret"})
    assert security.login is not None
    assert security.login.username == "alice"
    assert "pond-secret" not in repr(security)


def test_librdkafka_gets_the_same_settings(certificates: Certificates) -> None:
    assert librdkafka({}) == {"security.protocol": "plaintext"}
    java = {
        "security.protocol": "SSL",
        "ssl.truststore.certificates": "authority",
        "ssl.keystore.location": "own.pem",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert librdkafka(java) == {
        "security.protocol": "ssl",
        "ssl.ca.pem": "authority",
        "ssl.certificate.location": "own.pem",
        "ssl.key.location": "own.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }
    own = {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}
    assert librdkafka(own)["enable.ssl.certificate.verification"] == "false"
    context = Security.from_settings(own).context
    assert context is not None
    assert context.verify_mode == ssl.CERT_NONE
