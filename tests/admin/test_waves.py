"""What a run of moves leaves behind when something ends it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from millpond.admin import waves
from millpond.admin.placement import PlannedMove
from millpond.base.errors import MalformedMessage
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.errors import Unreachable

BEFORE = {1: {"leader.replication.throttled.rate": "7"}}


FAULTS = (Unreachable("gone"), MalformedMessage("odd"), KeyError("bug"), KeyboardInterrupt())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_limit_is_taken_away_whatever_ended_the_run(monkeypatch: pytest.MonkeyPatch, fault: BaseException) -> None:
    cleared: list[tuple[Any, ...]] = []

    def clear(_: Cluster, *rest: Any) -> bool:
        cleared.append(rest)
        if len(cleared) > 1:
            # Where not even that is understood, it is still the first fault that is told.
            raise MalformedMessage("odd again")
        return True

    def go(_: object) -> None:
        raise fault

    monkeypatch.setattr(waves, "clear_throttle", clear)
    monkeypatch.setattr(waves, "set_throttle", lambda *_: BEFORE)
    monkeypatch.setattr(waves._Run, "go", go)
    move = PlannedMove(TopicPartition("a", 0), (1,), (2,))
    with pytest.raises(type(fault)) as raised:
        waves.run_moves(cast(Cluster, None), [move], stop=cast(waves.Stop, None), rate=1)
    assert raised.value is fault
    assert cleared == [((),), ((), BEFORE)]
