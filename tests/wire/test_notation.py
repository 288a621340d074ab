from __future__ import annotations

from pathlib import Path

import pytest

from millpond.wire import messages
from millpond.wire.header import NAMES, WITHOUT_SCHEMA
from millpond.wire.notation import SchemaError, Versions, parse

EXAMPLE = """
request FetchRequest  key 1  versions 4-18  flexible 12+   # comments may stand anywhere
    cluster_id        string?       12+   tag 0  = null  ignorable
    max_wait_ms       int32               = 0x10
    topics            []FetchTopic
        topic         string        4-12  ignorable
        partitions    []int32?7+
    leader            Leader        10+
    followers         []Leader      10+
    struct Leader
        node_id       int32               = -1

response FetchResponse  key 1  versions 4-18  flexible 12+
    fenced            bool                = true
    records           records?
    rest              records
"""


def test_the_example_of_the_head() -> None:
    request, response = parse(EXAMPLE)
    assert (request.kind, request.name, request.key) == ("request", "FetchRequest", 1)
    assert request.versions == Versions(4, 18)
    assert request.is_flexible(12)
    assert not request.is_flexible(11)
    assert [struct.name for struct in request.structs] == ["FetchTopic", "Leader"]

    cluster_id, max_wait_ms, topics, leader, followers = request.root.fields
    assert cluster_id.versions == Versions(12, 18)
    assert (cluster_id.tag, cluster_id.default, cluster_id.ignorable) == (0, None, True)
    assert cluster_id.is_nullable(12)
    assert (max_wait_ms.type, max_wait_ms.default, max_wait_ms.versions) == ("int32", 16, Versions(4, 18))
    assert topics.is_array
    assert topics.struct is not None
    topic, partitions = topics.struct.fields
    assert topic.versions == Versions(4, 12)
    assert partitions.nullable == Versions(7, 18)
    assert not partitions.is_nullable(6)
    assert leader.struct is followers.struct
    assert leader.struct is not None
    assert leader.struct.fields[0].default == -1

    fenced, records, rest = response.root.fields
    assert (fenced.default, records.default, rest.default) == (True, None, b"")


def test_fields_inherit_the_versions_of_what_holds_them() -> None:
    fields = "    outer  []Outer  2-4\n        inner  int8\n        late  int8  3+\n"
    (message,) = parse(f"data Some  versions 0-5\n{fields}")
    outer = message.root.fields[0].struct
    assert outer is not None
    assert [field.versions for field in outer.fields] == [Versions(2, 4), Versions(3, 4)]


def test_a_message_without_fields() -> None:
    (message,) = parse("record NoOpRecord  key 20  versions 0  flexible 0+\n")
    assert message.root.fields == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("    a  int8\n", "begins at the margin"),
        ("banana A  versions 0\n", "expected '<kind>"),
        ("data A\n", "expected '<kind>"),
        ("data A  versions 0  colour 3\n", "what is 'colour'"),
        ("data A  versions x\n", "no range of versions"),
        ("data A  versions 5-2\n", "outside"),
        ("data A  versions 0-3\n   a  int8\n", "indent by 4"),
        ("data A  versions 0-3\n    a\n", "expected 'name type"),
        ("data A  versions 0-3\n    a  int9\n", "what is the type 'int9'"),
        ("data A  versions 0-3\n    a  int8  2-9\n", "outside"),
        ("data A  versions 0-3\n    a  int8  sometimes\n", "what is 'sometimes'"),
        ("data A  versions 0-3\n    a  int8  = red\n", "no default of a int8"),
        ("data A  versions 0-3\n    a  int8  = null\n", "cannot be null"),
        ("data A  versions 0-3\n    a  bool  = maybe\n", "no default of a bool"),
        ("data A  versions 0-3\n    a  records?  tag 0\n", "cannot be tagged"),
        ("data A  versions 0-3\n    a  int8\n    a  int8\n", "has a twice"),
        ("data A  versions 0-3\n    a  int8\n        b  int8\n", "indented deeper"),
        ("data A  versions 0-3\n    a  B\n", "structure B is not declared"),
        ("data A  versions 0-3\n    a  B\n        b  B\n", "holds itself"),
        ("data A  versions 0-3\n    a  B\n    struct B C\n", "expected 'struct"),
    ],
)
def test_faults_are_named(text: str, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        parse(text)


def schema_files() -> list[Path]:
    return sorted(Path(messages.SCHEMAS).glob("**/*.schema"))


def test_every_file_is_named_after_what_it_holds() -> None:
    for path in schema_files():
        held = parse(path.read_text())
        stem = path.stem.replace("_", "")
        match [message.kind for message in held]:
            case ["request", "response"]:
                key, _, name = path.stem.partition("_")
                assert {f"k{message.key:02d}" for message in held} == {key}
                wanted = [name.replace("_", "") + kind for kind in ("request", "response")]
            case ["key", "value"]:
                wanted = [stem + kind for kind in ("key", "value")]
            case kinds:
                assert kinds in (["record"], ["data"]), path
                wanted = [stem]
        assert [message.name.lower() for message in held] == wanted, path


def test_requests_and_responses_have_the_same_versions() -> None:
    for path in schema_files():
        held = parse(path.read_text())
        if held[0].kind == "request":
            request, response = held
            assert request.versions == response.versions, path
            assert request.flexible_from == response.flexible_from, path


def test_the_protocol_is_complete() -> None:
    """Every key has a schema, or is known by name only: delegation tokens, envelopes, directories, streams."""
    keys = {parse(path.read_text())[0].key for path in Path(messages.SCHEMAS).glob("*.schema")}
    assert keys == set(NAMES)
    assert not keys & set(WITHOUT_SCHEMA)
    assert keys | set(WITHOUT_SCHEMA) == set(range(95))


def test_tags_only_where_versions_are_flexible() -> None:
    for path in schema_files():
        for message in parse(path.read_text()):
            for struct in (message.root, *message.structs):
                for field in struct.fields:
                    assert field.tag is None or message.is_flexible(field.versions.first), (path, field.name)
                tags = [field.tag for field in struct.fields if field.tag is not None]
                assert len(tags) == len(set(tags)), (path, struct.name)


def test_no_default_has_been_lost() -> None:
    """A field's default follows its type, so a wrong one would only show at run time."""
    kinds = {"bool": bool, "string": str, "bytes": bytes, "records": bytes, "float64": float}
    for path in schema_files():
        for message in parse(path.read_text()):
            for field in (field for struct in (message.root, *message.structs) for field in struct.fields):
                if field.is_array:
                    assert field.default in ([], None)
                elif field.struct is not None:
                    assert field.default is None
                else:
                    assert field.default is None or isinstance(field.default, kinds.get(field.type, int)), field


def test_one_message_of_a_file_can_be_read_alone() -> None:
    ask = "request AskRequest key 1 versions 0\n    name string\n"
    text = ask + "response AskResponse key 1 versions 0\n    depth int8\n"
    both = parse(text)
    assert [each.name for each in both] == ["AskRequest", "AskResponse"]
    (alone,) = parse(text, "AskResponse")
    assert alone[:5] == both[1][:5]
    assert [field.name for field in alone.root.fields] == ["depth"]
    assert parse(text, "Ask") == []
