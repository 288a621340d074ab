from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import MalformedMessage
from millpond.base.ports import File, FileRange
from millpond.wire import messages

ROOT = Path(__file__).resolve().parents[2]
ALL = messages.names()


def test_classes_are_built_once_and_know_what_they_are() -> None:
    assert messages.FetchRequest is messages.FetchRequest
    assert messages.FetchRequest.API_KEY == 1
    assert messages.FetchRequest.KIND == "request"
    assert messages.FetchRequest.VERSIONS == (4, 18)
    assert messages.FetchRequest.FLEXIBLE_FROM == 12
    assert messages.SaslHandshakeRequest.FLEXIBLE_FROM is None
    assert messages.TopicRecord.API_KEY == 2
    assert messages.OffsetCommitKey.API_KEY is None
    assert messages.FetchResponse.PartitionData.__qualname__ == "FetchResponse.PartitionData"
    assert messages.request_class(3) is messages.MetadataRequest
    assert messages.response_class(3) is messages.MetadataResponse


def test_what_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="no message 'BananaRequest'"):
        messages.BananaRequest  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError):
        messages.Fetchrequest  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(KeyError):
        messages.request_class(999)
    with pytest.raises(MalformedMessage, match="no version 19"):
        messages.FetchRequest.decode(b"", 19)
    with pytest.raises(ValueError, match="no version 3"):
        messages.FetchRequest().encode(3)


@pytest.mark.parametrize("name", ALL)
def test_every_version_comes_back(name: str, random_messages: Any) -> None:
    cls = getattr(messages, name)
    for version in range(cls.VERSIONS[0], cls.VERSIONS[1] + 1):
        for value in (cls(), random_messages(f"round {name} {version}").message(cls, version)):
            data = value.encode(version)
            assert cls.decode(data, version) == (value, len(data)), version
            assert b"".join(value.encode_parts(version)) == data


@given(
    topic=st.text(max_size=200),
    id_=st.uuids(),
    records=st.lists(st.none() | st.binary(max_size=300), max_size=5),
    leader=st.integers(-(1 << 31), (1 << 31) - 1),
    version=st.integers(4, 18),
)
def test_fetch_responses_come_back(
    topic: str, id_: UUID, records: list[bytes | None], leader: int, version: int
) -> None:
    cls = messages.FetchResponse
    partitions = [cls.PartitionData(partition_index=index, records=each) for index, each in enumerate(records)]
    for partition in partitions if version >= 12 else []:
        partition.current_leader = cls.LeaderIdAndEpoch(leader_id=leader)
    kept = {"topic": topic} if version < 13 else {"topic_id": id_}
    value = cls(responses=[cls.FetchableTopicResponse(**cast(Any, kept), partitions=partitions)])
    data = value.encode(version)
    assert cls.decode(memoryview(b"header" + data), version, 6) == (value, len(data) + 6)


def test_a_fetch_reply_carries_file_ranges() -> None:
    cls = messages.FetchResponse
    ranges = [FileRange(cast(File, None), 0, 1000), FileRange(cast(File, None), 5000, 500)]
    partitions = [cls.PartitionData(records=list(ranges)), cls.PartitionData(records=ranges[1])]
    value = cls(responses=[cls.FetchableTopicResponse(topic="t", partitions=partitions)])
    parts = value.encode_parts(11)
    assert [part for part in parts if isinstance(part, FileRange)] == [ranges[0], ranges[1], ranges[1]]

    filled = cls(
        responses=[
            cls.FetchableTopicResponse(
                topic="t",
                partitions=[cls.PartitionData(records=bytes(1500)), cls.PartitionData(records=bytes(500))],
            )
        ]
    )
    shown = b"".join(bytes(part.length) if isinstance(part, FileRange) else part for part in parts)
    assert shown == filled.encode(11)
    with pytest.raises(ValueError, match="encoded in parts"):
        value.encode(11)


@pytest.mark.parametrize(
    ("value", "version", "data"),
    [
        # Records of the metadata and coordinator logs, which no oracle knows, by hand.
        (
            lambda: messages.TopicRecord(name="t", topic_id=UUID(int=1)),
            0,
            b"\2t" + bytes(15) + b"\1\0",
        ),
        (
            lambda: messages.PartitionChangeRecord(partition_id=3, topic_id=UUID(int=1), isr=[1, 2], leader=2),
            0,
            b"\0\0\0\3" + bytes(15) + b"\1" + b"\2" + b"\0\x09\3\0\0\0\1\0\0\0\2" + b"\1\4\0\0\0\2",
        ),
        (
            lambda: messages.FeatureLevelRecord(name="metadata.version", feature_level=20),
            0,
            b"\x11metadata.version\0\x14\0",
        ),
        (
            lambda: messages.OffsetCommitKey(group="g", topic="t", partition=5),
            1,
            b"\0\1g\0\1t\0\0\0\5",
        ),
        (
            lambda: messages.OffsetCommitValue(offset=9, leader_epoch=4, metadata="m", commit_timestamp=8),
            3,
            b"\0\0\0\0\0\0\0\x09\0\0\0\4\0\1m\0\0\0\0\0\0\0\x08",
        ),
        (
            lambda: messages.TransactionLogKey(transactional_id="x"),
            0,
            b"\0\1x",
        ),
        (
            lambda: messages.EndTxnMarker(coordinator_epoch=6),
            0,
            b"\0\0\0\6",
        ),
        (lambda: messages.NoOpRecord(), 0, b"\0"),
    ],
)
def test_bytes_by_hand(value: Any, version: int, data: bytes) -> None:
    made = value()
    assert made.encode(version) == data
    assert type(made).decode(data, version) == (made, len(data))


def test_nothing_is_parsed_at_import() -> None:
    code = (
        "from millpond.wire import messages, notation\n"
        "assert not messages._paths\n"
        "assert not [name for name in vars(messages) if name.endswith('Request')]\n"
        "messages.ProduceRequest\n"
        "assert not messages.ProduceRequest._decoders\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_stub_declares_every_message_with_its_fields() -> None:
    declared = ast.parse(runpy.run_path(str(ROOT / "tools" / "wire_stub.py"))["stub"]())
    classes = {node.name: node for node in declared.body if isinstance(node, ast.ClassDef)}
    assert sorted(classes) == messages.names()
    fields = [node for node in classes["FetchRequest"].body if isinstance(node, ast.AnnAssign)]
    assert {ast.unparse(node) for node in fields} >= {
        "cluster_id: str | None",
        "topics: list[FetchRequest.FetchTopic]",
        "API_KEY: ClassVar[int]",
    }


def test_once_loaded_no_file_is_needed_to_understand_a_message(monkeypatch):
    messages.load()
    monkeypatch.setattr(messages, "_text_of", lambda path: pytest.fail(f"{path} was opened"))
    monkeypatch.delitem(vars(messages), "AlterPartitionRequest", raising=False)
    assert messages.AlterPartitionRequest.API_KEY == 56
