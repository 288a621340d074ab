"""ACLs as clients see them: on one node and on three, with librdkafka and kafka-python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from millpond.testing import Pond, Ponds

SECONDS = 30.0
PASSWORD = "under-the-bridge"
EVERYTHING = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


class SecureCluster:
    """A broker or cluster with an admin; users are created on first use."""

    def __init__(self, pond: Pond | Ponds) -> None:
        self.pond = pond
        assert pond.security is not None
        self.admin_settings = pond.security.library_settings(pond.bootstrap)
        self.admin = AdminClient(self.admin_settings)
        self.topics = 0
        self.users: set[str] = set()

    def settings(self, user: str, **more: Any) -> dict[str, Any]:
        if user not in self.users:
            info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
            credential = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
            self.admin.alter_user_scram_credentials([credential])[user].result(SECONDS)
            self.users.add(user)
        login = {"sasl.username": user, "sasl.password": PASSWORD}
        return {**self.admin_settings, **login, **{key.replace("_", "."): value for key, value in more.items()}}

    def topic(self) -> str:
        self.topics += 1
        name = f"pond-{self.topics}"
        self.admin.create_topics([NewTopic(name, 1)])[name].result(SECONDS)
        return name

    def allow(
        self,
        user: str,
        operation: AclOperation,
        name: str,
        kind: ResourceType = ResourceType.TOPIC,
        pattern: ResourcePatternType = ResourcePatternType.LITERAL,
        permission: AclPermissionType = AclPermissionType.ALLOW,
    ) -> None:
        binding = AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)
        for made in self.admin.create_acls([binding]).values():
            made.result(SECONDS)

    def forbid_all(self) -> None:
        for gone in self.admin.delete_acls([EVERYTHING]).values():
            gone.result(SECONDS)


def written(settings: dict[str, Any], topic: str, value: str) -> KafkaError | None:
    reports: list[KafkaError | None] = []
    producer = Producer(settings)
    producer.produce(topic, value, on_delivery=lambda fault, _: reports.append(fault))
    producer.flush(SECONDS)
    return reports[0]


def first_read(settings: dict[str, Any], topic: str) -> str:
    """The first value, or the name of the error that comes instead."""
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        message = consumer.poll(SECONDS)
        assert message is not None, "neither a record nor an error"
        fault = message.error()
        return fault.name() if fault is not None else (message.value() or b"").decode()
    finally:
        consumer.close()


def refusal(asked: Callable[[], object]) -> str:
    with pytest.raises(KafkaException) as caught:
        asked()
    return str(caught.value.args[0].name())


@pytest.fixture(scope="module")
def secure() -> Iterator[SecureCluster]:
    with Pond(secure=True) as pond:
        yield SecureCluster(pond)


@pytest.fixture(autouse=True)
def nobody_may_anything(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "secure" in request.fixturenames:
        request.getfixturevalue("secure").forbid_all()


def test_a_user_without_rights_sees_and_does_nothing(secure: SecureCluster) -> None:
    topic = secure.topic()
    alice = secure.settings("alice")
    admin = AdminClient(alice)
    assert admin.list_topics(timeout=SECONDS).topics == {}
    seen = admin.list_topics(topic, timeout=SECONDS).topics[topic]
    unseen = admin.list_topics("no-such-topic", timeout=SECONDS).topics["no-such-topic"]
    assert seen.error.name() == unseen.error.name() == "TOPIC_AUTHORIZATION_FAILED"
    fault = written(alice, topic, "x")
    assert fault is not None
    assert fault.name() == "TOPIC_AUTHORIZATION_FAILED"
    reader = secure.settings("alice", group_id="crew", auto_offset_reset="earliest")
    assert first_read(reader, topic) in ("GROUP_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED")
    new = admin.create_topics([NewTopic("mine", 1)])["mine"]
    assert refusal(lambda: new.result(SECONDS)) == "TOPIC_AUTHORIZATION_FAILED"
    gone = admin.delete_topics([topic])[topic]
    assert refusal(lambda: gone.result(SECONDS)) == "TOPIC_AUTHORIZATION_FAILED"
    secure.allow("bob", AclOperation.READ, topic)
    assert admin.describe_acls(EVERYTHING).result(SECONDS) == [], "librdkafka keeps the refusal to itself"
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    (described,) = admin.describe_configs([resource]).values()
    assert refusal(lambda: described.result(SECONDS)) == "TOPIC_AUTHORIZATION_FAILED"


@pytest.mark.smoke
def test_rights_let_a_producer_and_a_consumer_work(secure: SecureCluster) -> None:
    topic = secure.topic()
    secure.allow("alice", AclOperation.WRITE, topic)
    secure.allow("bob", AclOperation.READ, "pond-", pattern=ResourcePatternType.PREFIXED)
    secure.allow("bob", AclOperation.READ, "crew", kind=ResourceType.GROUP)
    assert written(secure.settings("alice"), topic, "hello") is None
    assert written(secure.settings("alice", enable_idempotence=True), topic, "again") is None
    reader = secure.settings("bob", group_id="crew", auto_offset_reset="earliest")
    assert first_read(reader, topic) == "hello"
    fault = written(secure.settings("bob"), topic, "not mine")
    assert fault is not None
    assert fault.name() == "TOPIC_AUTHORIZATION_FAILED"
    secure.allow("bob", AclOperation.READ, topic, permission=AclPermissionType.DENY)
    assert first_read(reader | {"group.id": "crew"}, topic) == "TOPIC_AUTHORIZATION_FAILED"


def test_transactions_need_a_right_on_their_id(secure: SecureCluster) -> None:
    topic = secure.topic()
    secure.allow("alice", AclOperation.WRITE, topic)
    producer = Producer(secure.settings("alice", transactional_id="till"))
    assert refusal(lambda: producer.init_transactions(SECONDS)) == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    secure.allow("alice", AclOperation.WRITE, "till", kind=ResourceType.TRANSACTIONAL_ID)
    producer = Producer(secure.settings("alice", transactional_id="till"))
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, "counted")
    producer.commit_transaction(SECONDS)


def test_acls_are_made_found_and_removed_by_librdkafka(secure: SecureCluster) -> None:
    secure.allow("alice", AclOperation.READ, "a", pattern=ResourcePatternType.PREFIXED)
    secure.allow("alice", AclOperation.ALTER, "kafka-cluster", kind=ResourceType.BROKER)
    secure.allow("bob", AclOperation.ALL, "*", permission=AclPermissionType.DENY)
    everything = secure.admin.describe_acls(EVERYTHING).result(SECONDS)
    assert {(each.principal, each.operation.name, each.name) for each in everything} == {
        ("User:alice", "READ", "a"),
        ("User:alice", "ALTER", "kafka-cluster"),
        ("User:bob", "ALL", "*"),
    }
    of_bob = AclBindingFilter(
        ResourceType.TOPIC,
        "pond-1",
        ResourcePatternType.MATCH,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    (removed,) = secure.admin.delete_acls([of_bob]).values()
    assert [each.principal for each in removed.result(SECONDS)] == ["User:bob"]
    assert len(secure.admin.describe_acls(EVERYTHING).result(SECONDS)) == 2


def test_acls_are_made_found_and_removed_by_kafka_python(secure: SecureCluster) -> None:
    from kafka.admin import (
        ACL,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        KafkaAdminClient,
        ResourcePattern,
        ResourcePatternFilter,
    )
    from kafka.admin import ResourceType as Kind

    settings = secure.admin_settings
    admin = KafkaAdminClient(
        bootstrap_servers=secure.pond.bootstrap,
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username=settings["sasl.username"],
        sasl_plain_password=settings["sasl.password"],
        ssl_cafile=settings["ssl.ca.location"],
    )
    try:
        acl = ACL("User:carol", "*", ACLOperation.READ, ACLPermissionType.ALLOW, ResourcePattern(Kind.TOPIC, "pond"))
        made = admin.create_acls([acl])
        assert not made["failed"]
        credential = ACLFilter(
            "User:carol",
            None,
            ACLOperation.ANY,
            ACLPermissionType.ANY,
            ResourcePatternFilter(Kind.ANY, None, ACLResourcePatternType.ANY),
        )
        found, _ = admin.describe_acls(credential)
        assert [(each.principal, each.operation) for each in found] == [("User:carol", ACLOperation.READ)]
        admin.delete_acls([credential])
        found, _ = admin.describe_acls(credential)
        assert found == []
    finally:
        admin.close()


def test_rights_hold_on_every_node_of_a_cluster() -> None:
    """The node that receives a request authorizes it before forwarding it to the controller; ACLs reach all nodes."""
    with Ponds(3, secure=True) as ponds:
        secure = SecureCluster(ponds)
        topic = secure.topic()
        alice = secure.settings("alice")
        bob = secure.settings("bob", group_id="crew", auto_offset_reset="earliest")
        secure.allow("alice", AclOperation.WRITE, topic)
        secure.allow("bob", AclOperation.READ, topic)
        secure.allow("bob", AclOperation.READ, "crew", kind=ResourceType.GROUP)
        assert written(alice, topic, "hello") is None
        assert first_read(bob, topic) == "hello"
        for address in ponds.bootstrap.split(","):
            admin = AdminClient(alice | {"bootstrap.servers": address})
            new = admin.create_topics([NewTopic("mine", 1)])["mine"]
            assert refusal(lambda new=new: new.result(SECONDS)) == "TOPIC_AUTHORIZATION_FAILED"
            (made,) = admin.create_acls(
                [
                    AclBinding(
                        ResourceType.TOPIC,
                        "*",
                        ResourcePatternType.LITERAL,
                        "User:alice",
                        "*",
                        AclOperation.ALL,
                        AclPermissionType.ALLOW,
                    )
                ]
            ).values()
            assert refusal(lambda made=made: made.result(SECONDS)) == "CLUSTER_AUTHORIZATION_FAILED"
            assert set(admin.list_topics(timeout=SECONDS).topics) == {topic}
            known = AdminClient(secure.admin_settings | {"bootstrap.servers": address})
            assert len(known.describe_acls(EVERYTHING).result(SECONDS)) == 3
