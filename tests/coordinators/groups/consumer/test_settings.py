from __future__ import annotations

import pytest

from millpond.coordinators.groups.consumer.assignors import ASSIGNORS
from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [
        ("bidirectional", True, True),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("disabled", False, False),
    ],
)
def test_policies(policy: str, upgrades: bool, downgrades: bool) -> None:
    settings = ConsumerGroupSettings(migration_policy=policy)
    assert (settings.upgrades, settings.downgrades) == (upgrades, downgrades)


def test_all_assignors_are_offered_by_default() -> None:
    assert set(ConsumerGroupSettings().assignors) == set(ASSIGNORS)
