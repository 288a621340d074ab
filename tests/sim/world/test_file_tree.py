"""Which part of a journal a power cut may keep."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from millpond.sim.world.file_tree import Blob, Tree

NAMES = "abc"
STEP = st.tuples(
    st.sampled_from(["create", "rename", "remove", "sync"]), st.sampled_from(NAMES), st.sampled_from(NAMES)
)


@given(steps=st.lists(STEP, max_size=15), seed=st.integers(0, 1000))
def test_no_file_is_ever_under_two_names_and_synced_names_hold(steps: list[tuple[str, str, str]], seed: int) -> None:
    tree = Tree()
    root = tree.root
    synced: dict[str, Blob] = {}
    touched: set[str] = set()
    for kind, one, other in steps:
        if kind == "create" and one not in root.live:
            tree.change((root, one, Blob()))
            touched.add(one)
        elif kind == "rename" and one in root.live and one != other:
            tree.change((root, one, None), (root, other, root.live[one]))
            touched |= {one, other}
        elif kind == "remove" and one in root.live:
            tree.change((root, one, None))
            touched.add(one)
        elif kind == "sync":
            tree.sync(root)
            synced, touched = dict(root.live), set()
    tree.lose_power(Random(seed))
    blobs = list(root.live.values())
    assert all(blob is not other for index, blob in enumerate(blobs) for other in blobs[index + 1 :])
    for name in NAMES:
        if name not in touched:
            assert root.live.get(name) is synced.get(name)


@given(writes=st.lists(st.tuples(st.integers(0, 30), st.binary(max_size=10)), max_size=8), synced=st.integers(0, 8))
def test_a_blob_reads_as_written_and_keeps_what_was_synced(writes: list[tuple[int, bytes]], synced: int) -> None:
    blob = Blob()
    model = bytearray()
    for index, (position, data) in enumerate(writes):
        if index == synced:
            blob.sync()
            assert blob.durable == model
        blob.write(position, data)
        model.extend(bytes(max(position - len(model), 0)))
        model[position : position + len(data)] = data
        assert blob.live == model
    blob.sync()
    blob.lose_power(Random(1))
    assert blob.live == model
