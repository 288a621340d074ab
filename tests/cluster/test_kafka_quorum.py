"""Kafka's own tool describes the metadata quorum, and adds and removes a voter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.testing import Ponds, ponds
from support.kafka_tools import kafka_tool, run_tool
from support.patience import with_time

pytestmark = with_time

TOOL = "org.apache.kafka.tools.MetadataQuorumCommand"


@pytest.fixture(scope="module")
def tool() -> list[str]:
    return kafka_tool(TOOL)


@pytest.fixture(scope="module")
def cluster(tool: list[str]) -> Iterator[Ponds]:
    # Only the tool adds voters.
    with ponds(nodes=3, settings={"controller.quorum.voters.max": 1}) as made:
        yield made


def voters(tool: list[str], cluster: Ponds) -> dict[int, str]:
    """The directory id of each voter."""
    lines = run_tool(tool, cluster, "describe", "--replication").splitlines()[1:]
    cells = [line.split() for line in lines if line.strip()]
    return {int(each[0]): each[1] for each in cells if each[-1] in ("Leader", "Follower")}


def test_a_vote_is_taken_away_and_given_back(tool: list[str], cluster: Ponds, tmp_path: Path) -> None:
    status = run_tool(tool, cluster, "describe", "--status")
    assert "CurrentVoters" in status
    votes = voters(tool, cluster)
    assert votes.keys() == {1, 2, 3}
    assert len(set(votes.values())) == 3, "each has its own directory"
    run_tool(tool, cluster, "remove-controller", "--controller-id", "3", "--controller-directory-id", votes[3])
    assert voters(tool, cluster).keys() == {1, 2}
    config = tmp_path / "controller.properties"
    config.write_text(
        "process.roles=controller\nnode.id=3\ncontroller.listener.names=PLAINTEXT\n"
        f"listeners=PLAINTEXT://127.0.0.1:9\nadvertised.listeners=PLAINTEXT://127.0.0.1:9\n"
        f"log.dirs={cluster[3].folder}\ncontroller.quorum.bootstrap.servers={cluster.bootstrap}\n"
    )
    run_tool(tool, cluster, "--command-config", str(config), "add-controller")
    assert voters(tool, cluster) == votes
