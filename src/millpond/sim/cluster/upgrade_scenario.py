"""A cluster whose nodes are upgraded one after the other under faults.

An older node knows only the earlier feature levels and their records. An administrator keeps requesting the newest
level, which may become final only when every registered node supports it; until then no node may write what an older
one cannot read. Now and then a node is downgraded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from millpond.base.errors import ErrorCode
from millpond.metadata.features import (
    FEATURES,
    METADATA_VERSION,
    SUPPORTED,
    Supported,
    metadata_version,
    supported_by,
    unsupported,
)
from millpond.sim.cluster.checkers import NOT_HEALED
from millpond.sim.cluster.plan import FAULTS, WORK_MS, Plan, TopicPlan, make_plan
from millpond.sim.cluster.scenario import Scenario
from millpond.wire import messages as m

UNREADABLE: Final = "a node cannot read what the others write before the level is final"
TOO_HIGH: Final = "a level is final that a registered node does not support"

OLDER: Final[Supported] = {feature.name: feature.first for feature in FEATURES.values()}
NEWEST: Final = SUPPORTED[METADATA_VERSION].newest
PAUSES_MS: Final = (100, 600)
BACK_SHARE: Final = 0.3


def make_upgrade_plan(seed: int | str, kinds: Sequence[str] = FAULTS) -> Plan:
    """Like any other plan, with enough partitions for several to change together."""
    plan = make_plan(f"upgrade {seed}", kinds, 3)
    many = TopicPlan("many", 8, 3)
    return replace(plan, topics=(*plan.topics, many))


class UpgradeScenario(Scenario):
    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        super().__init__(seed, plan or make_upgrade_plan(seed))
        for node in self.cluster.nodes.values():
            node.supported = OLDER
        self.refused = 0
        """How often the level was not raised because a node was older."""
        self._dice = Random(f"upgrade {seed}")
        self._operator = self._client("operator")
        self._lines_read = dict.fromkeys(self.cluster.nodes, 0)

    @property
    def is_raised(self) -> bool:
        """Whether any node's metadata has the new level."""
        nodes = [node for node in self.cluster.nodes.values() if node.is_up]
        return any(metadata_version(node.broker.image) == NEWEST for node in nodes)

    def _start_clients(self) -> None:
        super()._start_clients()
        dice, clock = self._dice, self.sim.clock
        order = list(self.cluster.nodes)
        dice.shuffle(order)
        for number, node_id in enumerate(order):
            at_ms = dice.randint(0, WORK_MS // 5) + number * WORK_MS // 5
            clock.call_later(at_ms, lambda node_id=node_id: self._run(node_id, SUPPORTED))  # type: ignore[misc]
            if dice.random() < BACK_SHARE:
                later_ms = at_ms + dice.randint(500, 2_000)
                clock.call_later(later_ms, lambda node_id=node_id: self._go_back(node_id))  # type: ignore[misc]
        self._ask()

    def _go_back(self, node_id: int) -> None:
        if not self.is_raised:
            self._run(node_id, OLDER)
            self.sim.clock.call_later(1_000, lambda: self._run(node_id, SUPPORTED))

    def _run(self, node_id: int, supported: Supported) -> None:
        """Stop the node and have the supervisor start another version."""
        node = self.cluster.nodes[node_id]
        if node.supported is supported:
            return
        self.cluster.note(f"node {node_id} gets metadata.version {supported[METADATA_VERSION]}")
        node.supported = supported
        if not node.is_up:
            return
        if self.cluster.is_paused(node_id) or node.is_stopping or self._dice.random() < 0.3:
            self.cluster.kill(node_id)
        else:
            self.cluster.stop(node_id)

    def _ask(self) -> None:
        """Request the newest level until it is final."""
        update = m.UpdateFeaturesRequest.FeatureUpdateKey(
            feature=METADATA_VERSION, max_version_level=NEWEST, upgrade_type=1
        )

        def heard(reply: m.UpdateFeaturesResponse | None) -> None:
            code = ErrorCode.REQUEST_TIMED_OUT if reply is None else ErrorCode(reply.error_code)
            self.refused += code is ErrorCode.INVALID_UPDATE_VERSION
            self.cluster.note(f"the newest level: {code.name}")

        self._operator.send(m.UpdateFeaturesRequest(feature_updates=[update], timeout_ms=1_000), 2, heard)
        if not self.is_raised:
            self.sim.clock.call_later(self._dice.randint(*PAUSES_MS), self._ask)

    def _look(self) -> None:
        super()._look()
        for finding in self._findings():
            if finding not in self.history.violations:
                self._blame(finding)
        if self._is_settling:
            self._is_healed = self._is_healed and next(self._not_healed(), None) is None

    def _findings(self) -> Iterator[str]:
        for node_id, node in self.cluster.nodes.items():
            lines = node.journal_lines[self._lines_read[node_id] :]
            self._lines_read[node_id] = len(node.journal_lines)
            if any("unknown to this version" in line or "an incompatible version" in line for line in lines):
                if not self.is_raised:
                    yield f"{UNREADABLE}: node {node_id}"
                # Its supervisor sees why it ended.
                node.supported = SUPPORTED
            if not node.is_up:
                continue
            image = node.broker.image
            for broker in image.brokers.values():
                lacks = unsupported(image.features, supported_by(broker.features))
                if lacks is not None:
                    yield f"{TOO_HIGH}: node {broker.id} is registered, and the cluster is at {lacks}"

    def _not_healed(self) -> Iterator[str]:
        for node_id, node in self.cluster.nodes.items():
            if not node.is_up or metadata_version(node.broker.image) != NEWEST:
                yield f"{NOT_HEALED}: node {node_id} does not have the new level"
