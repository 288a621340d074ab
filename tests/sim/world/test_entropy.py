from __future__ import annotations

from millpond.sim.world.entropy import SeededEntropy


def test_the_seed_decides() -> None:
    one, same, other = SeededEntropy(1), SeededEntropy(1), SeededEntropy(2)
    ids = [one.uuid() for _ in range(50)]
    assert ids == [same.uuid() for _ in range(50)]
    assert len(set(ids)) == 50
    assert ids[0] != other.uuid()
    assert ids[0].version == 4
    assert {one.below(3) for _ in range(100)} == {0, 1, 2}
