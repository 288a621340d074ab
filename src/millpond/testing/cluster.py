"""`Ponds`: a cluster for a test, with one process per node and faults on demand.

Every connection passes a proxy: one for the clients of each node, and one for each ordered pair of nodes. So any
link can be cut, in one direction or both, while the others keep working.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millpond.testing.clients import ANSWER_SECONDS, Clients, dotted
from millpond.testing.loop_thread import LoopThread
from millpond.testing.pond import DEFAULTS, JOURNAL_LINES_MAX, Secure, secure_folder_of, secure_texts
from millpond.testing.ports import HOST, free_port
from millpond.testing.process_node import ProcessNode
from millpond.testing.proxy import Proxy

if TYPE_CHECKING:
    from millpond.remote.cluster import Cluster, PartitionInfo

LOOK_SECONDS: Final = 0.05
HEAL_SECONDS: Final = 30.0


class PondNode:
    """One node of a cluster."""

    def __init__(self, node_id: int, texts: Mapping[str, str], port: int, proxies: Iterable[Proxy]) -> None:
        self.node_id = node_id
        self.journal: list[str] = []
        """Its log lines, across restarts."""
        self.folder = Path(texts["data.folder"])
        self._port = port
        self._proxies = tuple(proxies)
        self._process = ProcessNode(texts, self._report)

    def __repr__(self) -> str:
        return f"<PondNode {self.node_id}, {'running' if self.is_running else 'not running'}>"

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    @property
    def pid(self) -> int:
        return self._process.pid

    def run_version(self, source: Path | None) -> None:
        """Run the package in this folder from the next start on; None for the installed one."""
        self._process.source = source

    def launch(self) -> None:
        """Start without waiting: it is ready when a majority of the nodes runs."""
        if not self.is_running:
            self._process.launch()
            for proxy in self._proxies:
                proxy.open(self._port)

    def wait_until_ready(self) -> None:
        self._process.wait_until_ready()

    def start(self) -> PondNode:
        """Start it if it is not running; returns when it serves."""
        if not self.is_running:
            self.launch()
            self.wait_until_ready()
        return self

    def stop(self) -> None:
        """Shut down cleanly: it hands over its leaderships."""
        self._process.stop()
        self._shut()

    def kill(self) -> None:
        """End it like SIGKILL: connections break and new ones are refused until `start` or `restart`."""
        self._process.kill()
        self._shut()

    def restart(self) -> PondNode:
        """Restart it on the same data and address, after a clean shutdown if it is running."""
        self.stop()
        return self.start()

    def pause(self) -> ExitStack:
        """Freeze it like SIGSTOP until `resume` or the end of the `with` block."""
        self._process.pause()
        stack = ExitStack()
        stack.callback(self.resume)
        return stack

    def resume(self) -> None:
        self._process.resume()

    def _shut(self) -> None:
        for proxy in self._proxies:
            proxy.shut()

    def _report(self, event: str, **facts: object) -> None:
        if len(self.journal) < JOURNAL_LINES_MAX:
            self.journal.append("  ".join([event, *(f"{name}={value}" for name, value in facts.items())]))


class Ponds(Clients):
    """A real cluster on the loopback, its nodes numbered from 1: `ponds[2].kill()`. Also a context manager.

    Without a `folder` it uses a temporary one. Names of settings may be written with underscores. `racks` has one
    rack per node. A `secure` cluster is one of `millpond cluster up --secure`.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        settings: Mapping[str, object] | None = None,
        folder: Path | str | None = None,
        racks: Sequence[str] = (),
        secure: Secure = False,
    ) -> None:
        super().__init__()
        self._own_folder = None if folder is not None else tempfile.mkdtemp(prefix="millponds-")
        self.folder = Path(folder if folder is not None else self._own_folder or "")
        self.security = secure_folder_of(self.folder) if secure else None
        self.by_certificate = secure == "certificates"
        self._thread = LoopThread("millpond-proxies")
        numbers = range(1, nodes + 1)
        self._for_clients = {number: Proxy(self._thread) for number in numbers}
        self._links = {(a, b): Proxy(self._thread) for a in numbers for b in numbers if a != b}
        """The proxies by (from, to): connections that the first node opens."""
        self._nodes = {}
        for number in numbers:
            port = free_port()
            addresses = {b: self._links[number, b] if b != number else self._for_clients[b] for b in numbers}
            texts = {
                **DEFAULTS,
                # Several, so that not all groups have the same coordinator.
                "offsets.topic.num.partitions": str(nodes),
                "transaction.state.log.num.partitions": str(nodes),
                **secure_texts(self.security, by_certificate=self.by_certificate),
                **dotted(settings or {}),
                **({"broker.rack": racks[number - 1]} if racks else {}),
                "node.id": str(number),
                "cluster.nodes": ",".join(f"{b}@{link.bootstrap}" for b, link in addresses.items()),
                "data.folder": str(self.folder / f"node-{number}"),
                "listen": f"{HOST}:{port}",
                "advertised.listener": self._for_clients[number].bootstrap,
            }
            proxies = [self._for_clients[number], *(link for (_, b), link in self._links.items() if b == number)]
            self._nodes[number] = PondNode(number, texts, port, proxies)

    def __enter__(self) -> Ponds:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, node_id: int) -> PondNode:
        return self._nodes[node_id]

    def __iter__(self) -> Iterator[PondNode]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        return f"<Ponds {self.bootstrap}>"

    # Lifecycle.

    @property
    def bootstrap(self) -> str:
        return ",".join(proxy.bootstrap for proxy in self._for_clients.values())

    def producer_settings(self) -> dict[str, Any]:
        """Idempotent: a record resent because a leader died or moved is written once.

        The library's first record waits half a second for that, which a broker alone need not pay.
        """
        return {"enable.idempotence": True}

    def start(self) -> Ponds:
        """Start all nodes that are not running; returns when they serve."""
        started = [node for node in self if not node.is_running]
        for node in started:
            node.launch()
        for node in started:
            node.wait_until_ready()
        self.forget_clients()
        if self.security is not None:
            self.wait_for_login()
        return self

    def kill_all(self) -> None:
        """All at once, so that no node notices the loss of another."""
        for node in self:
            if node.is_running:
                os.kill(node.pid, signal.SIGKILL)
        for node in self:
            node.kill()

    def close(self) -> None:
        """End it for good."""
        self.forget_clients()
        self.kill_all()
        for proxy in (*self._for_clients.values(), *self._links.values()):
            proxy.close()
        self._thread.stop()
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    # Faults.

    def cut(
        self, some: int | Iterable[int], others: int | Iterable[int] | None = None, *, one_way: bool = False
    ) -> None:
        """Nothing passes between these nodes and the others, until `heal`. Without `others`, these are all the rest.

        `one_way`: nothing goes from `some` to `others`, and the other direction still works. Clients reach them all.
        """
        ones = _numbers_of(some)
        rest = _numbers_of(others) if others is not None else self._nodes.keys() - ones
        for a in ones:
            for b in rest - ones:
                self._links[a, b].cut(to_node=True, to_client=not one_way)
                self._links[b, a].cut(to_client=True, to_node=not one_way)

    def reject(self, some: int | Iterable[int], others: int | Iterable[int] | None = None) -> None:
        """As `cut`, but connections between these nodes and the others are reset, and new ones refused."""
        ones = _numbers_of(some)
        rest = _numbers_of(others) if others is not None else self._nodes.keys() - ones
        for a in ones:
            for b in rest - ones:
                self._links[a, b].reject()
                self._links[b, a].reject()

    def cut_clients(self, some: int | Iterable[int]) -> None:
        """Cut these nodes off from clients until `heal`."""
        for number in _numbers_of(some):
            self._for_clients[number].cut(to_node=True, to_client=True)

    def heal(self) -> None:
        """Undo every cut."""
        for proxy in (*self._for_clients.values(), *self._links.values()):
            proxy.heal()

    # Leadership.

    @property
    def controller(self) -> int:
        """The active controller; -1 while there is none."""
        from millpond.wire import messages as m

        with self._cluster() as cluster:
            request = m.MetadataRequest(topics=[], allow_auto_topic_creation=False)
            return cluster.any().ask(request, m.MetadataResponse).controller_id

    def partitions(self, topic: str, *, seen_by: int | None = None) -> Mapping[int, PartitionInfo]:
        """The partitions: leader, leader epoch, replicas, and those in sync; as one node sees them, or any."""
        deadline = time.monotonic() + ANSWER_SECONDS
        with self._cluster(seen_by) as cluster:
            # Other nodes learn of a new topic slightly later.
            while topic not in (infos := cluster.topics([topic])) and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)
            return infos[topic].partitions

    def leader(self, topic: str, partition: int = 0, *, seen_by: int | None = None) -> PondNode:
        """The leader of a partition; waits until there is one."""
        deadline = time.monotonic() + HEAL_SECONDS
        while time.monotonic() < deadline:
            number = self.partitions(topic, seen_by=seen_by)[partition].leader
            if number in self._nodes:
                return self._nodes[number]
            time.sleep(LOOK_SECONDS)
        raise TimeoutError(f"{topic}-{partition} has no leader")

    def wait_until_in_sync(self, topic: str, seconds: float = HEAL_SECONDS) -> None:
        """Wait until every replica of the topic is in the ISR."""
        from millpond.remote.errors import ClusterError

        deadline = time.monotonic() + seconds
        state: object = None
        while time.monotonic() < deadline:
            try:
                partitions = self.partitions(topic)
            except ClusterError as fault:
                state = fault
            else:
                state = {index: each.in_sync for index, each in partitions.items()}
                if all(len(each.in_sync) == len(each.replicas) for each in partitions.values()):
                    return
            time.sleep(LOOK_SECONDS)
        raise TimeoutError(f"not every replica of {topic} is in sync: {state}")

    def _cluster(self, seen_by: int | None = None) -> Cluster:
        from millpond.remote.cluster import Cluster

        answer_ms = str(round(ANSWER_SECONDS * 1000))
        live = [
            self._for_clients[node.node_id].bootstrap
            for node in self
            if node.is_running and seen_by in (None, node.node_id)
        ]
        return Cluster(
            {
                **self.login_settings(),
                "bootstrap.servers": ",".join(live) or self.bootstrap,
                "request.timeout.ms": "2000",
                "default.api.timeout.ms": answer_ms,
            }
        )


def ponds(
    nodes: int = 3,
    *,
    settings: Mapping[str, object] | None = None,
    folder: Path | str | None = None,
    racks: Sequence[str] = (),
    secure: Secure = False,
) -> Ponds:
    """A cluster for a test: `with ponds(nodes=3) as cluster: …`."""
    return Ponds(nodes, settings=settings, folder=folder, racks=racks, secure=secure)


def _numbers_of(nodes: int | Iterable[int]) -> set[int]:
    return {nodes} if isinstance(nodes, int) else set(nodes)
