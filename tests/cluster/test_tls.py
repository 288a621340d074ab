"""Three nodes and their clients authenticate with certificates; strangers get no access."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.testing import Ponds
from millpond.wire import messages as m
from millpond.wire import model
from support.raw import Raw
from support.tls import Certificates
from support.tls_clients import CLIENTS, Librdkafka, TlsClient

VALUES = [b"%d" % number for number in range(20)]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def ponds(certificates: Certificates) -> Iterator[Ponds]:
    settings = {
        "listen.protocol": "SSL",
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+),.*$/$1/,DEFAULT",
        "super.users": "User:node;User:alice",
        **certificates.server_settings(),
    }
    with Ponds(3, settings=settings) as made:
        yield made


@pytest.mark.parametrize("kind", CLIENTS)
def test_clients_with_certificates(ponds: Ponds, certificates: Certificates, kind: type[TlsClient]) -> None:
    client = kind(certificates.authority, certificates.named("alice"))
    assert client.write_and_read(ponds.bootstrap, f"cluster-{kind.__name__}", VALUES) == VALUES


@pytest.mark.smoke
def test_the_cluster_survives_the_loss_of_a_node_and_takes_it_back(ponds: Ponds, certificates: Certificates) -> None:
    client = Librdkafka(certificates.authority, certificates.named("alice"))
    assert client.write_and_read(ponds.bootstrap, "before", VALUES) == VALUES
    ponds[2].kill()
    assert client.write_and_read(ponds.bootstrap, "while-it-is-away", VALUES) == VALUES
    ponds.start()
    assert client.write_and_read(ponds.bootstrap, "after", VALUES) == VALUES


# Strangers.


def raw(ponds: Ponds, certificates: Certificates, own: Path | None, client_id: str) -> Raw:
    context = ssl.create_default_context(cafile=str(certificates.authority))
    if own is not None:
        context.load_cert_chain(str(own))
    host, port = ponds.bootstrap.split(",")[0].rsplit(":", 1)
    return Raw(int(port), host, context=context, client_id=client_id)


def codes_in(response: Any) -> set[int]:
    """Every error code anywhere in the response."""
    if isinstance(response, list):
        return set().union(*map(codes_in, response)) if response else set()
    if not isinstance(response, model.Struct):
        return set()
    result = set().union(*(codes_in(getattr(response, name)) for name in response._names))
    return result | {getattr(response, "error_code", 0)} - {0}


QUORUM = "__cluster_metadata"
ID = UUID(int=7)


def as_a_node() -> list[tuple[m.Message, int]]:
    """The requests that only nodes send to each other, as node 2 would send them."""
    vote = m.VoteRequest
    begin, end = m.BeginQuorumEpochRequest, m.EndQuorumEpochRequest
    fetch, snapshot, alter = m.FetchRequest, m.FetchSnapshotRequest, m.AlterPartitionRequest
    partition = vote.PartitionData(
        replica_epoch=1_000_000, replica_id=2, last_offset_epoch=1_000, last_offset=1 << 40
    )
    marked = m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="before", partition_indexes=[0])
    marker = m.WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=1, transaction_result=True, topics=[marked], coordinator_epoch=1_000
    )
    return [
        (vote(topics=[vote.TopicData(topic_name=QUORUM, partitions=[partition])]), 0),
        (
            begin(
                topics=[
                    begin.TopicData(
                        topic_name=QUORUM, partitions=[begin.PartitionData(leader_id=2, leader_epoch=1_000_000)]
                    )
                ]
            ),
            0,
        ),
        (
            end(
                topics=[
                    end.TopicData(
                        topic_name=QUORUM, partitions=[end.PartitionData(leader_id=1, leader_epoch=1_000_000)]
                    )
                ]
            ),
            0,
        ),
        (
            fetch(
                replica_state=fetch.ReplicaState(replica_id=2, replica_epoch=1),
                max_bytes=1_000_000,
                topics=[
                    fetch.FetchTopic(
                        topic_id=UUID(int=1),
                        partitions=[fetch.FetchPartition(partition=0, partition_max_bytes=1_000_000)],
                    )
                ],
            ),
            15,
        ),
        (snapshot(replica_id=2, max_bytes=1_000, topics=[]), 0),
        (
            m.BrokerRegistrationRequest(
                broker_id=77,
                incarnation_id=ID,
                listeners=[m.BrokerRegistrationRequest.Listener(name="SSL", host="10.6.6.6", port=6)],
            ),
            0,
        ),
        (m.BrokerHeartbeatRequest(broker_id=2, broker_epoch=1, want_shut_down=True), 0),
        (alter(broker_id=2, broker_epoch=1, topics=[]), 2),
        (m.AllocateProducerIdsRequest(broker_id=2, broker_epoch=1), 0),
        (m.WriteTxnMarkersRequest(markers=[marker]), 1),
    ]


def test_a_client_that_calls_itself_a_node_is_none(ponds: Ponds, certificates: Certificates) -> None:
    """A valid certificate, but not a node's: nothing is done, whatever the client calls itself."""
    with raw(ponds, certificates, certificates.named("bob"), "millpond-node-2") as bob:
        for request, version in as_a_node():
            codes = codes_in(bob.call(request, version))
            assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED in codes, (type(request).__name__, codes)
    with raw(ponds, certificates, certificates.named("alice"), "admin") as alice:
        reply = alice.call(m.DescribeClusterRequest(), 0)
        assert sorted(each.broker_id for each in reply.brokers) == [1, 2, 3]


def test_nodes_are_asked_for_nothing_without_a_certificate(ponds: Ponds, certificates: Certificates) -> None:
    with pytest.raises(OSError), raw(ponds, certificates, None, "millpond-node-2") as nobody:
        nobody.call(m.ApiVersionsRequest(), 0)
