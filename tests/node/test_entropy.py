from __future__ import annotations

from millpond.node.entropy import SystemEntropy


def test_it_does_not_repeat_itself() -> None:
    entropy = SystemEntropy()
    assert len({entropy.uuid() for _ in range(100)}) == 100
    assert {entropy.below(3) for _ in range(200)} == {0, 1, 2}
