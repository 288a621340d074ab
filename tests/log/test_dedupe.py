from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millpond.log.dedupe import ENTRY_BYTES, OffsetMap


@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 2**63 - 1))))
def test_it_knows_what_a_dictionary_knows(puts):
    latest, model = OffsetMap(1 << 20), {}
    for key, offset in puts:
        latest.put(key, offset)
        model[key] = offset
    assert len(latest) == len(model)
    assert {key: latest.latest(key) for key in model} == model
    assert latest.latest(b"never seen, and rather long") == -1


def test_its_memory_is_bounded():
    latest = OffsetMap(3 * ENTRY_BYTES)
    latest.put(b"a", 1)
    assert latest.has_room_for(2)
    assert not latest.has_room_for(3)
    assert OffsetMap(0).has_room_for(1), "at least one, or nothing would ever move"


def test_a_key_cannot_pass_for_the_digest_of_another():
    from hashlib import blake2b

    victim = b"some key that is longer than a digest"
    latest = OffsetMap(1 << 20)
    latest.put(victim, 1)
    latest.put(blake2b(victim, digest_size=16).digest(), 2)
    assert latest.latest(victim) == 1
