"""`millpond sim`: lessons and links in the terminal."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from millpond.sim.simulator.actions import CreateTopic, Produce
from millpond.sim.simulator.lessons.catalogue import LESSONS
from millpond.sim.simulator.recording import encode, recording_of

pytestmark = pytest.mark.boundary

SIM = (sys.executable, "-c", "import sys; from millpond.cli import main; sys.exit(main(['sim', *sys.argv[1:]]))")
SHORT = encode(recording_of((CreateTopic(partitions=1), 300, Produce(count=3, value="tea "), 200)))


def sim(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SIM, *words], capture_output=True, text=True, timeout=120, env={"COLUMNS": "80"})


def test_the_list_has_every_lesson() -> None:
    result = sim("list")
    assert result.returncode == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == list(LESSONS)
    listed = json.loads(sim("list", "--json").stdout)
    assert {each["name"] for each in listed} == set(LESSONS)


def test_a_lesson_tells_its_story_its_question_and_its_answer() -> None:
    result = sim("run", "keys")
    assert result.returncode == 0, result.stderr
    question, answer = result.stdout.index("Question:"), result.stdout.index("Answer:")
    assert result.stdout.index("topic orders exists") < question < result.stdout.rindex("produce 12") < answer
    assert f"millpond sim replay {encode(LESSONS['keys'].tape)}" in result.stdout
    assert max(map(len, result.stdout[:answer].splitlines())) <= 80


def test_a_link_is_replayed_exactly() -> None:
    one = sim("replay", SHORT, "--json")
    other = sim("replay", f"http://127.0.0.1:8080/simulator?tape={SHORT}", "--json")
    assert one.returncode == 0, one.stderr
    assert one.stdout == other.stdout
    run = json.loads(one.stdout)
    assert run["link"] == SHORT
    assert run["verdict"]["acknowledged"] == 3
    assert len(run["digest"]) == 64


@pytest.mark.parametrize(
    ("words", "sentence", "code"),
    [
        (("replay", "nonsense"), "not a link of the simulator", 1),
        (("replay", SHORT[:-8]), "damaged", 1),
        (("replay", "campaign.nonsense.1"), "there are faults", 1),
        (("run", "key"), "did you mean keys?", 2),
    ],
)
def test_what_cannot_be_played_is_refused_with_a_sentence(words: tuple[str, ...], sentence: str, code: int) -> None:
    refused = sim(*words)
    assert refused.returncode == code
    assert sentence in refused.stderr
    assert "Traceback" not in refused.stderr
