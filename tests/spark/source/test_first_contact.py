"""The first connection of a reader."""

from __future__ import annotations

import time

import pytest

from millpond.remote.errors import ClusterError
from millpond.spark.options import read_options
from millpond.spark.source import first_contact
from support.node import Node, free_port


def test_a_reachable_cluster_is_connected(node: Node) -> None:
    with first_contact.connect(read_options({"kafka.bootstrap.servers": node.bootstrap}, "read")) as cluster:
        assert cluster.topics([]) == {}


def test_an_unreachable_cluster_is_reported_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_contact, "FIRST_CONTACT_SECONDS", 0.3)
    address = f"127.0.0.1:{free_port()}"
    began = time.monotonic()
    with pytest.raises(ClusterError, match=f"reach the cluster at {address}"):
        first_contact.connect(read_options({"kafka.bootstrap.servers": address}, "read"))
    assert time.monotonic() - began < 9, "by itself it would wait for ten seconds"
