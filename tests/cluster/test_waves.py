"""A plan of moves on a real cluster: within its rate, stopped halfway, killed, and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from millpond.admin.moves import moves_under_way, read_placement
from millpond.admin.placement import PlannedMove, plan_move
from millpond.admin.throttle import LISTS, RATES, clear_throttle
from millpond.admin.waves import Progress, run_moves
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.testing import Ponds, ponds
from millpond.wire import messages as m

SIZE = 400_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Ponds]:
    with ponds(nodes=3) as made:
        yield made


@pytest.fixture
def remote(cluster: Ponds) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": cluster.bootstrap}) as opened:
        yield opened


class Wish:
    """Requests a stop when its condition holds."""

    def __init__(self, condition: Callable[[], bool] = lambda: False) -> None:
        self._condition = condition

    @property
    def is_requested(self) -> bool:
        return self._condition()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def limits(remote: Cluster, topic: str) -> set[str]:
    """The replication throttles in effect."""
    kind = m.DescribeConfigsRequest
    found = set()
    for resource, name in ((2, topic), *((4, str(node)) for node in remote.addresses())):
        broker = remote.broker(int(name)) if resource == 4 else remote.any()
        wanted = kind.DescribeConfigsResource(resource_type=resource, resource_name=name, configuration_keys=None)
        (result,) = broker.ask(kind(resources=[wanted]), m.DescribeConfigsResponse).results
        found |= {each.name for each in result.configs if "throttled" in each.name and each.config_source in (1, 2)}
    return found


def filled(cluster: Ponds, remote: Cluster, topic: str, partitions: int) -> list[PlannedMove]:
    """A topic on node 1 alone, and the plan to move it to node 2."""
    cluster.create_topic(topic, partitions, replicas=1)
    done = run_moves(remote, plan_move(read_placement(remote), topic, (), (1,)), stop=Wish())
    assert done.is_done
    for index in range(partitions):
        cluster.produce(topic, *(os.urandom(SIZE // 10) for _ in range(10)), partition=index)
    moves = plan_move(read_placement(remote), topic, (), (2,))
    assert [move.size_bytes > SIZE for move in moves] == [True] * partitions
    return moves


def test_a_plan_goes_in_waves_within_its_rate_and_leaves_no_limit(cluster: Ponds, remote: Cluster) -> None:
    moves = filled(cluster, remote, "paced", 4)
    reports: list[Progress] = []
    seen: set[str] = set()

    def tell(progress: Progress) -> None:
        reports.append(progress)
        if progress.under_way:
            seen.update(limits(remote, "paced"))

    began = time.monotonic()
    outcome = run_moves(remote, moves, stop=Wish(), tell=tell, rate=SIZE, at_once=2)
    assert (outcome.is_done, outcome.is_limited) == (True, False)
    # Of two moves in progress, either may finish first.
    assert sorted(move.partition for move in outcome.moved) == [move.partition for move in moves]
    assert time.monotonic() - began > 2, "four times what may go in a second"
    assert max(len(each.under_way) for each in reports) == 2
    assert (reports[-1].moved, reports[-1].copied_bytes) == (4, reports[-1].bytes_to_copy)
    assert seen == {*LISTS, *RATES}
    assert limits(remote, "paced") == set()
    # The first replica leads, not the previous leader.
    assert {each.leader for each in remote.topics(["paced"])["paced"].partitions.values()} == {2}


def test_another_command_does_not_end_the_throttle(cluster: Ponds, remote: Cluster) -> None:
    moves = filled(cluster, remote, "shared", 3)
    unlimited: list[TopicPartition] = []

    def tell(progress: Progress) -> None:
        # Every command that moves partitions starts with this.
        clear_throttle(remote)
        kind = m.DescribeConfigsRequest
        resource = kind.DescribeConfigsResource(
            resource_type=2, resource_name="shared", configuration_keys=[LISTS[1]]
        )
        (result,) = remote.any().ask(kind(resources=[resource]), m.DescribeConfigsResponse).results
        named = (result.configs[0].value or "").split(",")
        still = moves_under_way(remote)
        unlimited.extend(each for each in progress.under_way if each in still and f"{each.partition}:2" not in named)

    assert run_moves(remote, moves, stop=Wish(), tell=tell, rate=SIZE, at_once=1).is_done
    assert unlimited == []
    assert limits(remote, "shared") == set()


def test_who_stops_it_gets_back_what_is_under_way_and_can_go_on(cluster: Ponds, remote: Cluster) -> None:
    moves = filled(cluster, remote, "stopped", 4)
    reports: list[Progress] = []
    wish = Wish(lambda: bool(reports) and reports[-1].moved >= 1 and bool(reports[-1].under_way))
    outcome = run_moves(remote, moves, stop=wish, tell=reports.append, rate=SIZE // 2, at_once=1)
    assert (len(outcome.moved), len(outcome.called_off), len(outcome.waiting)) == (1, 1, 2)
    assert moves_under_way(remote) == {}
    assert limits(remote, "stopped") == set()
    rest = plan_move(read_placement(remote), "stopped", (), (2,))
    assert {each.partition for each in rest} == {each.partition for each in (*outcome.called_off, *outcome.waiting)}
    assert run_moves(remote, rest, stop=Wish()).is_done


def test_what_is_refused_stops_nothing_else(cluster: Ponds, remote: Cluster) -> None:
    (move,) = filled(cluster, remote, "asked", 1)
    nowhere = PlannedMove(TopicPartition("nowhere", 0), (1,), (2,))
    outcome = run_moves(remote, [nowhere, move], stop=Wish(), rate=10 * SIZE)
    assert (outcome.moved, [each for each, _ in outcome.refused]) == ([move], [nowhere])
    assert limits(remote, "asked") == set()


def millpond(*words: str) -> list[str]:
    return [sys.executable, "-c", "import sys; from millpond.cli import main; sys.exit(main())", "topic", *words]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_command_is_stopped_or_killed_and_the_next_one_clears_up(
    cluster: Ponds, remote: Cluster, number: signal.Signals
) -> None:
    topic = f"command-{number.value}"
    filled(cluster, remote, topic, 2)
    words = ("move", topic, "--to", "2", "--rate", f"{SIZE // 16}B/s", "--yes", "-b", cluster.bootstrap)
    with subprocess.Popen(millpond(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 30
        while not moves_under_way(remote):
            assert time.monotonic() < deadline, process.communicate()
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert "2 partitions to move" in out
    assert "or more at 25 KB/s a node." in out
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert "2 partitions cancelled, unchanged" in err
        assert limits(remote, topic) == set()
    else:
        assert moves_under_way(remote)
        assert limits(remote, topic) == {*LISTS, *RATES}
        assert not clear_throttle(remote), "the moves go on at their rate"
        assert limits(remote, topic) == {*LISTS, *RATES}
    done = subprocess.run(
        millpond("move", topic, "--to", "2", "--yes", "--json", "-b", cluster.bootstrap),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - deadline < 25, "the second command has no rate"
    assert sorted(json.loads(done.stdout)["moved"]) == [f"{topic}-0", f"{topic}-1"]
    assert limits(remote, topic) == set()
