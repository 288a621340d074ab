"""Our table of refusals, compared with Apache Kafka: it refuses the same requests with the same codes.

Only refusals are tested: they change nothing, so one broker serves all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.rights import PatternType, Permission
from millpond.config.security import STANDARD_AUTHORIZER
from millpond.wire import messages as m
from support.kafka_broker import PASSWORD, USER, KafkaBroker
from support.node import eventually
from support.patience import with_time
from support.raw import Closed, Raw
from support.rights_cases import CASES, Case, Right, Scene, build, code_of, codes_in

pytestmark = [with_time, pytest.mark.timeout(900)]

OTHERWISE = frozenset(
    {
        "CreateDelegationToken-v3",
        "DescribeDelegationToken-v3",
        "Fetch-v17-of the metadata",
    }
)
"""Kafka has no tokens unless they are configured. Only its controllers serve its metadata, and they answer as we do;
to its brokers the metadata topic is like any other."""


class KafkaSetup:
    """The resources of the cases, on Kafka. A plaintext connection is a super user; alice logs in."""

    def __init__(self, kafka: KafkaBroker) -> None:
        self._kafka = kafka
        self.admin = Raw(kafka.ports["CLEAR"])
        self.alice = self._login()
        self.admin.create_topic("pond")
        self.admin.create_topic("weir")
        for kind, key in ((0, "crew"), (1, "tx")):
            self.settled(10, 4, {"key_type": kind, "coordinator_keys": [key]})
        committed = {"partition_index": 0, "committed_offset": 0}
        topics = [{"name": "pond", "partitions": [committed]}]
        self.settled(8, 8, {"group_id": "crew", "generation_id_or_member_epoch": -1, "topics": topics})
        session = self.settled(22, 4, {"transactional_id": "tx", "transaction_timeout_ms": 60_000})
        self.scene = Scene(self.admin.topic_id("pond"), session.producer_id, session.producer_epoch)
        served = self.alice.call(m.ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
        self.served = {each.api_key: range(each.min_version, each.max_version + 1) for each in served.api_keys}

    def join_team(self) -> None:
        """The member does nothing else, and does not stay for long."""
        joins = {
            "group_id": "team",
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": ["pond"],
            "topic_partitions": [],
        }
        self.settled(68, 1, joins)

    def _login(self) -> Raw:
        raw = Raw(self._kafka.ports["LOGIN"], timeout_seconds=5)
        raw.call(m.SaslHandshakeRequest(mechanism="PLAIN"), 1)
        proof = f"\0{USER}\0{PASSWORD}".encode()
        assert not raw.call(m.SaslAuthenticateRequest(auth_bytes=proof), 2).error_code
        return raw

    def settled(self, key: int, version: int, values: dict[str, Any]) -> Any:
        replies: list[Any] = []

        def is_well() -> bool:
            replies.append(self.admin.call(build(m.request_class(key), values), version))
            return not any(codes_in(replies[-1]))

        assert eventually(is_well), replies[-1]
        return replies[-1]

    def only(self, *rights: Right) -> None:
        """Set exactly these ACLs, and wait until alice's connection sees them."""
        every = {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": f"User:{USER}",
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
        self.settled(31, 3, {"filters": [every]})
        creations = [
            {
                "resource_type": resource,
                "resource_name": name,
                "resource_pattern_type": PatternType.LITERAL,
                "principal": f"User:{USER}",
                "host": "*",
                "operation": operation,
                "permission_type": Permission.ALLOW,
            }
            for operation, resource, name in rights
        ]
        if creations:
            self.settled(30, 3, {"creations": creations})

    def codes(self, case: Case) -> set[int] | None:
        """The codes in alice's response; None if there is no response."""
        request = build(case.request, case.values(self.scene))
        try:
            reply = self.alice.call(request, case.version)
        except (Closed, TimeoutError):
            self.alice = self._login()
            return None
        if case.refused is not None:
            return set() if case.refused(reply) else {0}
        return {code for code in codes_in(reply) if code}


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSetup]:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"), settings)
    try:
        yield KafkaSetup(broker.start())
    finally:
        broker.terminate()


def expected(case: Case, right: Right) -> set[int]:
    return set() if case.refused is not None else {int(code_of(case, right))}


def told_in_the_end(setup: KafkaSetup, case: Case, want: set[int]) -> set[int] | None:
    """Kafka's brokers learn of ACLs a moment after they are created."""
    for _ in range(10):
        told = setup.codes(case)
        if told == want:
            break
        time.sleep(0.1)
    return told


def test_kafka_refuses_the_same_with_the_same_codes(setup: KafkaSetup) -> None:
    """A single test, because the broker starts slowly."""
    differing = []
    walked = 0
    for case in CASES:
        is_served = case.version in setup.served.get(case.key, ())
        if not case.rights or case.is_for_nodes or not is_served or case.id in OTHERWISE:
            continue
        asked = [(case.rights[0], ())]
        asked += [(right, tuple(each for each in case.rights if each is not right)) for right in case.rights]
        for right, others in asked if len(case.rights) > 1 else asked[:1]:
            setup.only(*others)
            if "team" in str(case.values(setup.scene)):
                setup.join_team()
            want = expected(case, right)
            told = told_in_the_end(setup, case, want)
            if told != want:
                differing.append(f"{case.id} without {right[0].name} {right[1].name}: {told}, not {want}")
            walked += 1
    assert not differing, "\n".join(differing)
    assert walked > 80


def test_kafka_too_keeps_its_own_topics_to_itself(setup: KafkaSetup) -> None:
    """Regardless of permissions: here a super user sends the requests."""
    scene = setup.scene
    for own in ("__consumer_offsets", "__transaction_state"):
        adds = {
            "v3_and_below_transactional_id": "tx",
            "v3_and_below_producer_id": scene.producer_id,
            "v3_and_below_producer_epoch": scene.producer_epoch,
            "v3_and_below_topics": [{"name": own, "partitions": [0]}],
        }
        refused = setup.admin.call(build(m.AddPartitionsToTxnRequest, adds), 3)
        (result,) = refused.results_by_topic_v3_and_below
        assert [each.partition_error_code for each in result.results_by_partition] == [29]
        data = [{"index": 0, "records": memoryview(bytearray(scene.batch()))}]
        writes = {"acks": 1, "timeout_ms": 1000, "topic_data": [{"name": own, "partition_data": data}]}
        reply = setup.admin.call(build(m.ProduceRequest, writes), 9)
        assert {code for code in codes_in(reply) if code} == {int(ErrorCode.INVALID_TOPIC_EXCEPTION)}
