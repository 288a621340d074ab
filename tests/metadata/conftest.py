"""A small cluster to decide on."""

from collections.abc import Callable
from uuid import UUID

import pytest

from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.metadata.decision import Decision
from millpond.metadata.image import Image
from millpond.metadata.records import BrokerEndpoint, Record, RegisterBrokerRecord


class CountingEntropy:
    """Draws 1, 2, 3, … for ids and always 0 for numbers."""

    def __init__(self) -> None:
        self.drawn = 0

    def uuid(self) -> UUID:
        self.drawn += 1
        return UUID(int=self.drawn)

    def below(self, bound: int) -> int:
        assert bound > 0
        return 0


@pytest.fixture
def entropy() -> CountingEntropy:
    return CountingEntropy()


@pytest.fixture
def broker() -> Callable[..., RegisterBrokerRecord]:
    def build(broker_id: int, rack: str | None = None, fenced: bool = False) -> RegisterBrokerRecord:
        end_points = (BrokerEndpoint("PLAINTEXT", "localhost", 9092 + broker_id),)
        return RegisterBrokerRecord(broker_id, UUID(int=1000 + broker_id), 0, end_points, rack, fenced)

    return build


@pytest.fixture
def image(broker: Callable[..., RegisterBrokerRecord]) -> Image:
    """Broker 1 is up, and nothing else is there."""
    image = Image()
    image.replay(broker(1))
    return image


@pytest.fixture
def layers() -> NodeLayers:
    return NodeLayers(node_settings({}))


@pytest.fixture
def apply() -> Callable[[Image, Decision[object]], tuple[Record, ...]]:
    """Commit a decision: replay its records, and give them back."""

    def replay_all(image: Image, decision: Decision[object]) -> tuple[Record, ...]:
        for record in decision.records:
            image.replay(record)
        return decision.records

    return replay_all
