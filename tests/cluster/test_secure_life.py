"""A secure cluster of three as `millpond cluster up --secure` creates it: certificates are replaced and nodes die
under load."""

from __future__ import annotations

import os
import shutil
import ssl
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millpond.node.authority import Authority
from millpond.node.secure_folder import NODE_USER
from millpond.testing import Ponds
from support.steady_writer import SteadyWriter, read_topic

TOPIC, PARTITIONS = "orders", 3


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def certificate_at(address: str) -> str:
    """The certificate that a node presents."""
    host, port = address.rsplit(":", 1)
    return ssl.get_server_certificate((host, int(port)))


@pytest.mark.slow
def test_certificates_change_and_the_controller_dies_while_it_is_written_to() -> None:
    with Ponds(3, secure=True) as ponds:
        assert ponds.security is not None
        folder = ponds.security.path
        settings = {**ponds.login_settings(), "bootstrap.servers": ponds.bootstrap}
        addresses = ponds.bootstrap.split(",")
        admin = AdminClient(settings)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})])[TOPIC].result(60)
        writer = SteadyWriter(settings, TOPIC, PARTITIONS, "n")
        before = {certificate_at(each) for each in addresses}
        assert len(before) == 1

        # All nodes load a new certificate without a restart: for incoming connections and for those to other nodes.
        Authority.load(folder).issue(NODE_USER, "node", ["127.0.0.1", "localhost"], replace=True)
        time.sleep(1.1)
        wait_for(lambda: {certificate_at(each) for each in addresses}.isdisjoint(before))
        renewed = {certificate_at(each) for each in addresses}
        for node in ponds:
            wait_for(lambda node=node: any("certificates reloaded" in line for line in node.journal))

        # An unusable certificate is ignored, and the previous one stays in use.
        good = folder / "good"
        shutil.copy(folder / f"{NODE_USER}.pem", good)
        (folder / f"{NODE_USER}.pem").write_text("nonsense")
        time.sleep(1.1)
        assert {certificate_at(each) for each in addresses} == renewed
        for node in ponds:
            wait_for(lambda node=node: any("cannot be used" in line for line in node.journal))

        # A node needs a valid one to start.
        os.replace(good, folder / f"{NODE_USER}.pem")
        controller = ponds[ponds.controller]
        controller.kill()
        wait_for(lambda: ponds.controller not in (-1, controller.node_id))
        time.sleep(1.0)
        controller.start()
        ponds.wait_until_in_sync(TOPIC)
        writer.end()

        assert not writer.faults
        assert len(writer.acknowledged) > 500
        records = read_topic(settings, TOPIC, PARTITIONS, len(writer.acknowledged))
        assert sorted(records) == sorted(writer.acknowledged), "all of it, and nothing twice"
