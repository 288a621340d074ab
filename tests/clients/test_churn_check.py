"""The checker of churned groups finds each kind of error, and nothing in a correct run."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from support import churn_worker
from support.churn_check import findings, read_diary

GOOD = {
    "a": """
        assign 100 1 0 1
        read 150 1 0 0 9
        read 160 1 1 0 4
        committing 170 1 0:10 1:5
        committed 180 0
        revoke 200 1 0 1
        assign 300 2 0
        read 310 2 0 10 19
        committing 320 2 0:20
        committed 330 0
        closing 400
    """,
    "b": """
        assign 290 2 1
        read 300 2 1 5 9
        committing 310 2 1:10
        committed 320 0
        closing 400
    """,
}
ENDS = {0: 20, 1: 10}


@pytest.fixture
def judged(tmp_path):
    def judge(stories, ends=ENDS, stops=None, **options):
        diaries = []
        for name, story in stories.items():
            path = tmp_path / f"{name}.txt"
            path.write_text("\n".join(line.strip() for line in story.strip().splitlines()))
            diaries.append(read_diary(path, 1000, (stops or {}).get(name, ())))
        return findings(diaries, ends, **options)

    return judge


def changed(name, *pairs):
    story = GOOD[name]
    for old, new in pairs:
        assert old in story
        story = story.replace(old, new)
    return {**GOOD, name: story}


def test_nothing_is_found_where_nothing_is_wrong(judged):
    assert judged(GOOD) == []


def test_a_record_that_was_never_read(judged):
    (found,) = judged(GOOD, {0: 21, 1: 10})
    assert found == "partition 0: 1 of 21 were never read, the first is 20"


def test_two_readers_in_one_generation(judged):
    found = judged({**GOOD, "c": "assign 290 2 0\nread 300 2 0 10 19"})
    assert "partition 0 was read by ['a', 'c'] in generation 2" in found


def test_a_generation_that_a_crash_undid_counts_once_it_is_assigned(judged):
    stories = {**GOOD, "c": "assign 50 0 0\nread 60 2 0 0 1\nlost 70 -1 0"}
    assert judged(stories, generations_recur=True) == []
    assert judged(stories) == ["partition 0 was read by ['a', 'c'] in generation 2"]
    stories["c"] = "assign 50 2 0\nread 60 2 0 0 1\nlost 70 -1 0"
    assert judged(stories, generations_recur=True) == judged(stories)


def test_two_holders_at_one_time(judged):
    found = judged(changed("b", ("assign 290 2 1", "assign 190 2 1")))
    assert found[0].startswith("partition 1 was held by a (until revoke) and by b at the same time")
    assert judged(changed("b", ("assign 290 2 1", "assign 201 2 1"))) == []


@pytest.mark.parametrize("end", ["lost 350 -1 0", ""])
def test_a_worker_that_stood_still_or_was_fenced_held_nothing_since(judged, end):
    story = f"assign 250 2 1\n{end}".strip()
    stories = {**GOOD, "c": story}
    assert judged(stories, stops={"c": [280]}) == []
    assert judged(stories) != []
    assert judged({**GOOD, "c": "assign 250 2 1\nlost 350 -1 1"}) == []


@pytest.mark.parametrize("first", [4, 6])
def test_a_start_elsewhere_than_committed(judged, first):
    found = judged(changed("b", ("read 300 2 1 5 9", f"read 300 2 1 {first} 9")))
    assert f"b in partition 1 began at {first}, but committed was from 5 to 5" in found


@pytest.mark.parametrize("first", [0, 5])
def test_a_commit_without_an_answer_may_count_or_not(judged, first):
    stories = {
        "a": "assign 100 1 1\nread 150 1 1 0 4\ncommitting 170 1 1:5",
        "b": f"assign 290 2 1\nread 300 2 1 {first} 9",
    }
    assert judged(stories, {1: 10}, stops={"a": [180]}) == []
    stories["a"] += "\ncommitted 175 0"
    assert (judged(stories, {1: 10}, stops={"a": [180]}) == []) is (first == 5)


def test_a_gap(judged):
    found = judged(changed("a", ("read 310 2 0 10 19", "read 310 2 0 10 12\nread 312 2 0 14 19")))
    assert "a in partition 0 read 14 after 12" in found
    assert "partition 0: 1 of 20 were never read, the first is 13" in found


def test_a_committed_offset_that_falls(judged):
    found = judged(changed("b", ("committing 310 2 1:10", "committing 310 2 1:3")))
    assert found == ["partition 1: 3 was committed by b after 5 had been"]


def test_going_back_is_wrong_unless_the_library_itself_did_it(judged, tmp_path):
    story = changed("a", ("read 310 2 0 10 19", "read 310 2 0 10 19\n        read 312 2 0 0 19"))
    assert judged(story) == ["a in partition 0 read 0 after 19"]
    late = "Topic churn [{}]: timed offset query for offset BEGINNING (leader epoch -1) in state {}\n"
    (tmp_path / "a.err").write_text(late.format(1, "active") + late.format(0, "offset-query"))
    assert judged(story) == ["a in partition 0 read 0 after 19"]
    (tmp_path / "a.err").write_text(late.format(0, "active"))
    assert judged(story) == []


def test_reading_again_is_wrong_unless_the_library_paused_there(judged, tmp_path):
    story = changed("a", ("read 310 2 0 10 19", "read 310 2 0 10 15\n        read 312 2 0 15 19"))
    assert judged(story) == ["a in partition 0 read 15 after 15"]
    pause = "Pause churn [{}]: at offset {} (leader epoch 0) (state active, v3)\n"
    (tmp_path / "a.err").write_text(pause.format(1, 15) + pause.format(0, 14))
    assert judged(story) == ["a in partition 0 read 15 after 15"]
    (tmp_path / "a.err").write_text(pause.format(0, 15))
    assert judged(story) == []


class Refusing:
    """A consumer whose commits are refused a given number of times, as in the middle of a rebalance."""

    def __init__(self, _settings):
        self.refusals = 1

    def subscribe(self, _topics, **_callbacks): ...

    def commit(self, offsets, asynchronous):
        assert not asynchronous
        if self.refusals:
            self.refusals -= 1
            raise KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION))
        return offsets


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_worker_commits_again_what_was_refused_unless_it_has_lost_it(tmp_path, monkeypatch, is_lost):
    monkeypatch.setattr(churn_worker, "Consumer", Refusing)
    monkeypatch.setattr(churn_worker, "generation_of", lambda _: 1)
    path = tmp_path / "a.txt"
    worker = churn_worker.Worker("nowhere", "g", "t", "cooperative-sticky", 1000, str(path))
    worker.note(0, 7)
    worker.commit()
    if is_lost:
        worker.on_lost(worker.consumer, [TopicPartition("t", 0)])
    worker.commit()
    worker.commit()
    commits = [(each.offset, each.is_done) for each in read_diary(path, ended_us=0).commits]
    assert commits == ([(8, False)] if is_lost else [(8, False), (8, True)])
