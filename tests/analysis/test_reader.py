"""`millpond.arrow`: what comes out of a topic, from where to where, and what it says when that cannot be."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millpond
from millpond import ClientError, TopicPartition
from millpond.admin.topics import delete_records, delete_topics
from millpond.analysis import parallel
from millpond.analysis.errors import RecordsGone
from millpond.cli.profile.file import Profile, Profiles, write_profiles
from millpond.columns import batches
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ConfigError, LoginFailed
from millpond.testing import Pond
from support.node import eventually

BASE = datetime(2026, 1, 31, 8, tzinfo=UTC)
RECORD = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


def fill(pond: Pond, topic: str, count: int = 10, **settings: Any) -> None:
    """Records 0, 1, … a second apart in partition 0."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": pond.bootstrap, **settings})
    for number in range(count):
        at_ms = int((BASE + timedelta(seconds=number)).timestamp() * 1000)
        producer.produce(topic, b"%d" % number, partition=0, timestamp=at_ms)
    assert producer.flush(30) == 0


def numbers(read: Any, topic: str, **more: Any) -> list[int]:
    return [int(each) for each in read(topic, columns=["value"], **more).read_all()["value"].to_pylist()]


def test_records_are_rows(pond: Pond, read: Any) -> None:
    topic = pond.new_topic(3)
    pond.produce(topic, ("k", "v"), (None, None), partition=2, headers={"a": b"1", "b": b""})
    pond.produce(topic, (b"\xff", ""), partition=0)
    table = read(topic).read_all()
    assert table.schema.names == RECORD
    rows = sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": b""}]
    assert [(row["partition"], row["offset"], row["key"], row["value"], row["headers"]) for row in rows] == [
        (0, 0, b"\xff", b"", None),
        (2, 0, b"k", b"v", headers),
        (2, 1, None, None, headers),
    ]
    assert {row["topic"] for row in rows} == {topic}
    assert all(abs(datetime.now(UTC) - row["timestamp"]) < timedelta(days=1) for row in rows)


def test_the_package_has_the_functions() -> None:
    from millpond import analysis

    assert millpond.arrow is analysis.arrow
    assert millpond.write_arrow is analysis.write_arrow


def test_bounds(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    fill(pond, topic)
    assert numbers(read, topic, start=3, end=6) == [3, 4, 5]
    assert numbers(read, topic, start=-2) == [8, 9]
    assert numbers(read, topic, last=3) == [7, 8, 9]
    assert numbers(read, topic, last=3, end=5) == [2, 3, 4]
    assert numbers(read, topic, end=-8) == [0, 1]
    assert numbers(read, topic, start={0: 8}, end={0: 9}) == [8]
    assert numbers(read, topic, start={}) == list(range(10))
    assert numbers(read, topic, start=BASE + timedelta(seconds=4), end=BASE + timedelta(seconds=6)) == [4, 5]
    assert numbers(read, topic, start=BASE + timedelta(milliseconds=3001), end="2026-01-31T08:00:05Z") == [4]
    assert numbers(read, topic, start=timedelta(days=365_00)) == list(range(10))
    assert numbers(read, topic, start=timedelta()) == []
    assert numbers(read, topic, start="beginning", end="end") == list(range(10))


def test_bounds_outside_the_log_are_moved_into_it(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    fill(pond, topic)
    with Cluster({"bootstrap.servers": pond.bootstrap}) as cluster:
        delete_records(cluster, {TopicPartition(topic, 0): 4})
    assert numbers(read, topic, start=0, end=1_000) == [4, 5, 6, 7, 8, 9]
    assert numbers(read, topic, start=500) == []
    assert numbers(read, topic, start=7, end=5) == []


def test_several_topics_and_partitions_keep_the_order_within_each(
    pond: Pond, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROWS_PER_BATCH", 20)
    topics = [pond.new_topic(3), pond.new_topic(2)]
    for topic, count in zip(topics, (3, 2), strict=True):
        for partition in range(count):
            pond.produce(topic, *(f"{partition}-{number}" for number in range(100)), partition=partition)
    seen = []
    table = read(topics, threads=3, progress=seen.append).read_all()
    assert table.num_rows == 500
    for topic, count in zip(topics, (3, 2), strict=True):
        for partition in range(count):
            values = [
                row["value"].decode()
                for row in table.to_pylist()
                if (row["topic"], row["partition"]) == (topic, partition)
            ]
            assert values == [f"{partition}-{number}" for number in range(100)]
    assert (seen[-1].rows, seen[-1].offsets_read, seen[-1].offsets_total) == (500, 500, 500)
    assert [each.offsets_read for each in seen] == sorted(each.offsets_read for each in seen)
    one = read(topics[0], partitions=[1]).read_all()
    assert set(one["partition"].to_pylist()) == {1}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records(pond: Pond, read: Any, codec: str) -> None:
    topic = pond.new_topic()
    fill(pond, topic, 500, **{"compression.type": codec, "linger.ms": 5})
    assert numbers(read, topic) == list(range(500))


def test_aborted_records_are_not_shown_and_open_ones_end_the_read(pond: Pond, read: Any) -> None:
    from confluent_kafka import Producer

    topic = pond.new_topic()
    producer = Producer({"bootstrap.servers": pond.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for number, end in enumerate(
        [producer.commit_transaction, producer.abort_transaction, producer.commit_transaction]
    ):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.flush(30)
        end(30)
    producer.begin_transaction()
    producer.produce(topic, b"3", partition=0)
    producer.flush(30)
    assert numbers(read, topic) == [0, 2]
    assert numbers(read, topic, isolation="read_uncommitted") == [0, 1, 2, 3]
    seen: list[Any] = []
    read(topic, progress=seen.append).read_all()
    assert seen[-1].offsets_read == seen[-1].offsets_total == 6, "markers and aborted records count"
    producer.abort_transaction(30)


def test_a_compacted_topic_has_the_records_that_are_left(pond: Pond, read: Any) -> None:
    topic = pond.new_topic(
        cleanup_policy="compact", segment_bytes=16384, min_cleanable_dirty_ratio="0.01", delete_retention_ms=0
    )
    entries = [(f"k{number % 5}", f"{number:0200}") for number in range(1000)]
    for first in range(0, len(entries), 50):
        # A batch is smaller than a segment.
        pond.produce(topic, *entries[first : first + 50])

    def table() -> Any:
        return read(topic).read_all()

    assert eventually(lambda: table().num_rows < 500)
    result = table()
    latest = dict(zip(result["key"].to_pylist(), result["value"].to_pylist(), strict=True))
    assert latest == {key.encode(): value.encode() for key, value in entries[-5:]}
    offsets = result["offset"].to_pylist()
    assert offsets == sorted(set(offsets))
    assert read(topic, start=990).read_all()["offset"].to_pylist() == list(range(990, 1000))


def test_records_written_later_are_not_read(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    fill(pond, topic)
    reader = read(topic, columns=["value"])
    fill(pond, topic)
    assert reader.read_all().num_rows == 10


def test_records_deleted_during_the_read(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    fill(pond, topic)
    reader = read(topic, start=2)
    with Cluster({"bootstrap.servers": pond.bootstrap}) as cluster:
        delete_records(cluster, {TopicPartition(topic, 0): 5})
    with pytest.raises(RecordsGone, match=rf"{topic}\[0\]: the records from offset 2 on were deleted .* starts at 5"):
        reader.read_all()


def test_a_topic_deleted_or_created_again_during_the_read(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    fill(pond, topic)
    gone, other = read(topic), read(topic)
    with Cluster({"bootstrap.servers": pond.bootstrap}) as cluster:
        delete_topics(cluster, [topic])
    with pytest.raises(RecordsGone, match=f"'{topic}' was deleted while it was read"):
        gone.read_all()
    pond.create_topic(topic)
    fill(pond, topic)
    with pytest.raises(RecordsGone, match="was deleted and created again while it was read"):
        other.read_all()


def test_a_reader_that_is_closed_ends_its_threads(pond: Pond, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "ROWS_PER_BATCH", 1)
    topic = pond.new_topic()
    for _ in range(40):
        pond.produce(topic, "v", "w")
    made = []
    make = batches.BatchMaker.make

    def counted(self: Any, columns: Any) -> Any:
        made.append(1)
        return make(self, columns)

    monkeypatch.setattr(batches.BatchMaker, "make", counted)
    reader = read(topic, threads=1)
    next(reader)
    # One is taken, one waits for room, and so many are in between.
    assert eventually(lambda: len(made) >= parallel.BATCHES_WAITING_MAX // 2)
    time.sleep(0.3)
    assert len(made) <= parallel.BATCHES_WAITING_MAX + 2
    del reader
    assert eventually(lambda: not any(each.name.startswith("millpond-read") for each in threading.enumerate()))


def test_what_the_progress_raises_ends_the_read(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    fill(pond, topic)

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(topic, progress=stop).read_all()


def test_pandas_takes_it(pond: Pond, read: Any) -> None:
    pytest.importorskip("pandas")
    topic = pond.new_topic()
    pond.produce(topic, '{"amount": 2.5}', '{"amount": 4}')
    frame = read(topic, value="json").read_pandas()
    assert frame["amount"].sum() == 6.5


def test_a_wrong_password(make_millpond: Any) -> None:
    secure = make_millpond(secure=True)
    login = {**secure.login_settings(), "sasl.password": "wrong"}
    login.pop("bootstrap.servers", None)
    known = {name: value for name, value in login.items() if name.startswith(("sasl.", "ssl.", "security."))}
    with pytest.raises(LoginFailed, match=r"refuses the user 'admin'.*check the user name and the password"):
        millpond.arrow("orders", bootstrap=secure.bootstrap, settings=known)


def test_the_login_of_a_client_config(make_millpond: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    secure = make_millpond(secure=True)
    topic = secure.new_topic()
    secure.produce(topic, "v")
    login = {**secure.login_settings(), "bootstrap.servers": secure.bootstrap}
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in login.items()))
    assert millpond.arrow(topic, client_config=str(file)).read_all().num_rows == 1
    monkeypatch.setenv("MILLPOND_CLIENT_CONFIG", str(file))
    assert millpond.write_arrow(topic, [{"a": 1}]) == 1
    assert millpond.arrow(topic).read_all().num_rows == 2


def test_the_login_of_a_profile(make_millpond: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    secure = make_millpond(secure=True)
    topic = secure.new_topic()
    secure.produce(topic, "v")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("MILLPOND_BOOTSTRAP", "127.0.0.1:1")
    login = {**secure.login_settings()}
    login.pop("bootstrap.servers")
    write_profiles(Profiles({"prod": Profile("prod", secure.bootstrap, login)}))
    assert millpond.arrow(topic, profile="prod").read_all().num_rows == 1
    with pytest.raises(ConfigError, match=r"profile: there is no profile prd; did you mean prod\?"):
        millpond.arrow(topic, profile="prd")
    with pytest.raises(ConfigError, match="give one of them"):
        millpond.arrow(topic, profile="prod", client_config="client.properties")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"start": "soon"}, r"start='soon': give an offset, -N"),
        ({"end": True}, "end=True: give an offset"),
        ({"last": 5, "start": 1}, "excludes start"),
        ({"start": {7: 1}}, "start names the partition 7, which is not read"),
        ({"partitions": [0, 4]}, "has no partition 4: it has 0 to 0"),
        ({"columns": ["ofset"]}, r"no column 'ofset'; did you mean offset\?"),
        ({"columns": []}, "columns is a list of one or more names"),
        ({"value": "jsonn"}, r"value='jsonn' is none of bytes, text, json, avro, nor a schema"),
        ({"value": "avro"}, "needs schema="),
        ({"value": "bytes", "schema": "a long"}, "does not go with this schema"),
        ({"bad": "skip"}, "bad='skip' is none of fail, null"),
        ({"isolation": "dirty"}, "isolation='dirty' is none of"),
        ({"threads": 0}, "threads=0 is not 1 to"),
        ({"settings": {"group.id": "x"}}, "there is no setting group.id here"),
    ],
)
def test_arguments_that_cannot_be(pond: Pond, read: Any, given: dict[str, Any], message: str) -> None:
    topic = pond.new_topic()
    fill(pond, topic)
    with pytest.raises(ClientError, match=message):
        read(topic, **given)


def test_an_unknown_topic(pond: Pond, read: Any) -> None:
    pond.create_topic("customers-of-ours")
    with pytest.raises(ClientError, match="There is no topic customers-of-our; did you mean customers-of-ours"):
        read("customers-of-our")
    with pytest.raises(ConfigError, match="name a topic"):
        read([])
