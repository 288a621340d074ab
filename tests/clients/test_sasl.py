"""Widely used clients with each mechanism: they log in, write and read; with a wrong password none does."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import rsa
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition as PythonPartition

from millpond.metadata.initial_users import credential_of, written
from millpond.metadata.scram import Mechanism
from support.jars import class_path
from support.java_programs import compiled, run_java
from support.kafka_tools import kafka_tool
from support.node import Node

PASSWORD = "open, sesame = ü"
KEY = rsa.generate_private_key(65537, 2048)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def signed(user: str = "admin", seconds: int = 300, key: Any = KEY) -> str:
    claims = {"sub": user, "aud": "mill", "iss": "https://issuer", "exp": int(time.time()) + seconds}
    return jwt.encode(claims, key, "RS256", headers={"kid": "k"})


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    root = tmp_path_factory.mktemp("sasl")
    users = [credential_of(user, PASSWORD, b"salt" * 8, each) for user in ("admin", "bob") for each in Mechanism]
    (root / "users").write_text(written(users))
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
    (root / "keys.json").write_text(json.dumps({"keys": [{**public, "kid": "k"}]}))
    settings = {
        "listen.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")),
        "super.users": "User:admin",
        "initial.users.file": str(root / "users"),
        "sasl.oauthbearer.jwks.endpoint.url": (root / "keys.json").as_uri(),
        "sasl.oauthbearer.expected.audience": "mill",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.super.users.enable": "true",
    }
    node = Node(root / "node", settings)
    node.start()
    node.wait_for_word("the cluster has its first users")
    admin = AdminClient(librdkafka(node, "SCRAM-SHA-512"))
    for future in admin.create_topics([NewTopic("pond", 1)]).values():
        future.result(20)
    yield node
    node.terminate()
    assert PASSWORD not in node.journal()
    assert "Traceback" not in node.journal()


def librdkafka(node: Node, mechanism: str, password: str = PASSWORD, user: str = "admin") -> dict[str, Any]:
    settings = {
        "bootstrap.servers": node.bootstrap,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": mechanism,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
    }
    if mechanism == "OAUTHBEARER":
        return {**settings, "oauth_cb": lambda _: (password, time.time() + 300)}
    return {**settings, "sasl.username": user, "sasl.password": password}


def by_librdkafka(node: Node, mechanism: str, secret: str, text: str) -> str:
    refused: list[KafkaError] = []
    settings = librdkafka(node, mechanism, secret) | {"error_cb": refused.append}
    producer = Producer(settings | {"message.timeout.ms": 5_000})
    delivered: list[Any] = []
    producer.produce("pond", text, on_delivery=lambda error, message: delivered.append((error, message)))
    until = time.monotonic() + 10
    while not delivered and time.monotonic() < until:
        producer.poll(0.05)
        if any(each.code() == KafkaError._AUTHENTICATION for each in refused):
            raise PermissionError(str(refused[0]))
    error, message = delivered[0]
    assert error is None, error
    consumer = Consumer(librdkafka(node, mechanism, secret) | {"group.id": "g"})
    consumer.assign([TopicPartition("pond", 0, message.offset())])
    found = consumer.poll(10)
    consumer.close()
    assert found is not None
    return found.value().decode()


def python_settings(node: Node, mechanism: str, secret: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": node.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "admin",
        "sasl_plain_password": secret,
    }


def by_kafka_python(node: Node, mechanism: str, secret: str, text: str) -> str:
    settings = python_settings(node, mechanism, secret)
    if mechanism == "OAUTHBEARER":
        from kafka.net.sasl.oauth import AbstractTokenProvider

        class Provider(AbstractTokenProvider):
            def token(self) -> str:
                return secret

        settings["sasl_oauth_token_provider"] = Provider()
    try:
        producer = KafkaProducer(**settings, max_block_ms=5_000, bootstrap_timeout_ms=5_000)
        sent = producer.send("pond", text.encode()).get(10)
        producer.close()
        consumer = KafkaConsumer(**settings)
        partition = PythonPartition("pond", 0)
        consumer.assign([partition])
        consumer.seek(partition, sent.offset)
        message = next(iter(consumer)).value.decode()
        consumer.close()
    except Exception as fault:
        raise PermissionError(repr(fault)) from fault
    return str(message)


def by_aiokafka(node: Node, mechanism: str, secret: str, text: str) -> str:
    async def play() -> str:
        settings = python_settings(node, mechanism, secret)
        if mechanism == "OAUTHBEARER":
            from aiokafka.abc import AbstractTokenProvider

            class Provider(AbstractTokenProvider):
                async def token(self) -> str:
                    return secret

            settings["sasl_oauth_token_provider"] = Provider()
        producer = AIOKafkaProducer(**settings)
        try:
            await producer.start()
        except Exception as fault:
            await producer.stop()
            raise PermissionError(repr(fault)) from fault
        sent = await producer.send_and_wait("pond", text.encode())
        await producer.stop()
        from aiokafka import TopicPartition as AioPartition

        consumer = AIOKafkaConsumer(**settings)
        await consumer.start()
        partition = AioPartition("pond", 0)
        consumer.assign([partition])
        consumer.seek(partition, sent.offset)
        message = (await consumer.getone()).value.decode()
        await consumer.stop()
        return str(message)

    return asyncio.run(play())


Client = Callable[[Node, str, str, str], str]
CLIENTS: dict[str, Client] = {
    "librdkafka": by_librdkafka,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
}


@pytest.mark.smoke
@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
@pytest.mark.parametrize("client", CLIENTS)
def test_who_logs_in_writes_and_reads(node: Node, client: str, mechanism: str) -> None:
    secret = signed() if mechanism == "OAUTHBEARER" else PASSWORD
    text = f"{client} {mechanism}"
    assert CLIENTS[client](node, mechanism, secret, text) == text


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_wrong_password_is_refused(node: Node, client: str, mechanism: str) -> None:
    with pytest.raises(PermissionError):
        CLIENTS[client](node, mechanism, "wrong", "never")


def test_a_token_that_is_forged_or_old_is_refused(node: Node) -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    for token in (signed(key=stranger), signed(seconds=-60), signed("admin")[:-6] + "AAAAAA"):
        with pytest.raises(PermissionError):
            by_librdkafka(node, "OAUTHBEARER", token, "never")


def test_missing_signing_keys_delay_no_other_login(tmp_path: Path) -> None:
    """The provider of the signing keys accepts connections and never answers."""
    (tmp_path / "users").write_text(written([credential_of("admin", PASSWORD, b"salt" * 8, Mechanism(2))]))
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        settings = {
            "listen.protocol": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
            "super.users": "User:admin",
            "initial.users.file": str(tmp_path / "users"),
            "sasl.oauthbearer.jwks.endpoint.url": f"http://127.0.0.1:{silent.getsockname()[1]}/keys",
            "sasl.oauthbearer.unrestricted": "true",
        }
        node = Node(tmp_path / "node", settings)
        node.start()
        node.wait_for_word("the cluster has its first users")
        bearers = [AdminClient(librdkafka(node, "OAUTHBEARER", signed()) | {"log_level": 0}) for _ in range(8)]
        for each in bearers:
            each.poll(0.1)
        silent.settimeout(20)
        fetching = silent.accept()[0]
        began = time.monotonic()
        admin = AdminClient(librdkafka(node, "PLAIN"))
        assert admin.list_topics(timeout=20).topics == {}
        assert time.monotonic() - began < 4, "it would be ten seconds behind those who wait for keys"
        node.wait_for_word("the keys of signed tokens cannot be had")
        fetching.close()
        node.terminate()


def test_users_are_made_and_removed_with_librdkafka(node: Node) -> None:
    admin = AdminClient(librdkafka(node, "SCRAM-SHA-256"))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("carol", info, b"hers")])
    made["carol"].result(20)
    carol = AdminClient(librdkafka(node, "SCRAM-SHA-256", "hers", "carol"))
    assert carol.list_topics(timeout=20).topics == {}, "she may see nothing"
    told = admin.describe_user_scram_credentials(["carol"])["carol"].result(20)
    assert [(each.mechanism, each.iterations) for each in told.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 4096)
    ]
    gone = admin.alter_user_scram_credentials([UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_256)])
    gone["carol"].result(20)
    errors: list[KafkaError] = []
    again = AdminClient(librdkafka(node, "SCRAM-SHA-256", "hers", "carol") | {"error_cb": errors.append})
    with pytest.raises(KafkaException):
        again.list_topics(timeout=2)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_librdkafka_loses_nothing_when_its_time_is_over(node: Node, mechanism: str) -> None:
    admin = AdminClient(librdkafka(node, "SCRAM-SHA-512"))
    _set_for_all(admin, "connections.max.reauth.ms", "1000")
    try:
        producer = Producer(librdkafka(node, mechanism))
        failed: list[Any] = []
        until = time.monotonic() + 4
        while time.monotonic() < until:
            producer.produce("pond", "again", on_delivery=lambda error, _: failed.append(error) if error else None)
            producer.poll(0.02)
        assert producer.flush(10) == 0
    finally:
        _set_for_all(AdminClient(librdkafka(node, "SCRAM-SHA-512")), "connections.max.reauth.ms", "0")
    assert failed == []


# Java.


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(tmp_path_factory.mktemp("classes"))


def java_file(folder: Path, node: Node, mechanism: str, **fields: str) -> Path:
    module = {
        "PLAIN": "plain.PlainLoginModule",
        "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule",
    }.get(mechanism, "scram.ScramLoginModule")
    words = "".join(f' {name}="{value}"' for name, value in fields.items())
    lines = {
        "bootstrap.servers": node.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"org.apache.kafka.common.security.{module} required{words};",
    }
    if mechanism == "OAUTHBEARER":
        (folder / "token").write_text(signed())
        lines["sasl.oauthbearer.token.endpoint.url"] = (folder / "token").as_uri()
        lines["sasl.login.callback.handler.class"] = (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        )
    path = folder / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="latin-1")
    return path


USER = {"username": "admin", "password": PASSWORD.replace("ü", "\\u00fc")}


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_java_client_logs_in(node: Node, classes: str, tmp_path: Path, mechanism: str) -> None:
    settings = java_file(tmp_path, node, mechanism, **USER)
    assert run_java(classes, "LoggedIn", str(settings), "pond", "1", "0") == ["round 0"]


@pytest.mark.slow
def test_the_java_client_logs_in_again_while_it_works(node: Node, classes: str, tmp_path: Path) -> None:
    admin = AdminClient(librdkafka(node, "SCRAM-SHA-512"))
    change = partial(_set_for_all, admin, "connections.max.reauth.ms")
    change("1500")
    try:
        settings = java_file(tmp_path, node, "SCRAM-SHA-512", **USER)
        rounds = run_java(classes, "LoggedIn", str(settings), "pond", "12", "500")
    finally:
        change("0")
    assert rounds == [f"round {number}" for number in range(12)]
    assert "client is not authenticated" not in node.journal(), "it comes again before its time is over"


@pytest.mark.slow
def test_the_java_client_makes_a_token_and_logs_in_with_it(node: Node, classes: str, tmp_path: Path) -> None:
    settings = java_file(tmp_path, node, "SCRAM-SHA-512", **USER)
    token_id, proof, seen = run_java(classes, "LoggedIn", str(settings), "token")
    assert seen == "seen 1"
    by_token = java_file(tmp_path, node, "SCRAM-SHA-256", username=token_id, password=proof, tokenauth="true")
    assert run_java(classes, "LoggedIn", str(by_token), "pond", "1", "0") == ["round 0"]


@pytest.mark.slow
def test_the_java_client_logs_in_by_a_signed_token(
    node: Node, classes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = java_file(tmp_path, node, "OAUTHBEARER")
    url = (tmp_path / "token").as_uri()
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"
    monkeypatch.setenv("JDK_JAVA_OPTIONS", f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {allowed}")
    with_json = os.pathsep.join([classes, class_path("broker")])
    assert run_java(with_json, "LoggedIn", str(settings), "pond", "1", "0") == ["round 0"]


@pytest.mark.slow
def test_kafkas_own_tool_makes_users(node: Node, tmp_path: Path) -> None:
    import subprocess

    settings = java_file(tmp_path, node, "SCRAM-SHA-512", **USER)
    tool = kafka_tool("kafka.admin.ConfigCommand")
    base = [*tool, "--bootstrap-server", node.bootstrap, "--command-config", str(settings), "--entity-type", "users"]

    def run(*words: str) -> str:
        done = subprocess.run([*base, *words], capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("--entity-name", "dave", "--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=his]")
    output = run("--describe", "--entity-name", "dave")
    assert "SCRAM-SHA-512=iterations=8192" in output
    assert AdminClient(librdkafka(node, "SCRAM-SHA-512", "his", "dave")).list_topics(timeout=20).topics == {}
    run("--entity-name", "dave", "--alter", "--delete-config", "SCRAM-SHA-512")


def _set_for_all(admin: AdminClient, name: str, value: str) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(20)
