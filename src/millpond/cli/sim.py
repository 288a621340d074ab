"""`millpond sim`: the simulator in the terminal: lessons by name, and any run by its link."""

from __future__ import annotations

import shutil
import textwrap
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from millpond.base.names import nearest
from millpond.cli.errors import Failed
from millpond.cli.terminal import print_json, print_list

if TYPE_CHECKING:
    from millpond.sim.simulator.event_log import Line
    from millpond.sim.simulator.lessons.lesson import Lesson
    from millpond.sim.simulator.recording import CampaignSeed, Recording
    from millpond.sim.simulator.simulation import Simulation

SECONDS_MAX: Final = 120
"""Limit of real time for one run."""
WHO_SIGNS: Final = 11


def _lesson_named(_ctx: click.Context, _param: click.Parameter, name: str) -> Lesson:
    from millpond.sim.simulator.lessons.catalogue import LESSONS

    if name not in LESSONS:
        raise click.UsageError(
            f"There is no lesson {name!r}{nearest(name, LESSONS)} See them with: millpond sim list"
        )
    return LESSONS[name]


@click.group("sim")
def command() -> None:
    """Watch the real engine work, and fail, in a simulated world.

    A run is a seed and a list of actions, so it is the same every time, and has a link that replays it. The console
    shows it with pictures on its page /simulator.

    \b
    Examples:
      millpond sim list
      millpond sim run acks-1
      millpond sim replay 1.eNqLNtQx…
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As one JSON list.")
def list_lessons(as_json: bool) -> None:
    """List the lessons: prepared runs, each with a question.

    \b
    Example:
      millpond sim list
    """
    from millpond.sim.simulator.lessons.catalogue import LESSONS
    from millpond.sim.simulator.recording import encode

    listed = [
        {"name": each.name, "title": each.title, "claims": list(each.claims), "link": encode(each.tape)}
        for each in LESSONS.values()
    ]
    rows = [(each.name, each.title) for each in LESSONS.values()]
    print_list(listed, ("LESSON", "WHAT IT SHOWS"), rows, as_json=as_json, otherwise="There are none.", words=2)


@command.command("run")
@click.argument("lesson", metavar="LESSON", callback=_lesson_named)
@click.option("--json", "as_json", is_flag=True, help="The events and the final state as one JSON object.")
def run_lesson(lesson: Lesson, as_json: bool) -> None:
    """Play a lesson: the events, a question, then the answer. On a terminal it waits at the question.

    \b
    Example:
      millpond sim run unclean-election
    """
    from millpond.sim.simulator.recording import encode

    tape = lesson.tape
    if as_json:
        print_json({"lesson": lesson.name, **_outcome(_play(tape), encode(tape))})
        return
    click.echo(f"{lesson.title}\n")
    _say(lesson.about)
    click.echo()
    simulation = _play(tape, lesson.question_ms)
    shown = _tell(simulation.story.lines)
    click.echo()
    _say(f"Question: {lesson.question}")
    click.pause("Think about it, then press a key …")
    click.echo()
    _go_to(simulation, tape.end_ms)
    _tell(simulation.story.from_line(shown))
    click.echo()
    _say(f"Answer: {lesson.answer}")
    click.echo()
    _end(simulation, encode(tape))


@command.command("replay")
@click.argument("link", metavar="LINK")
@click.option("--json", "as_json", is_flag=True, help="The events and the final state as one JSON object.")
def replay(link: str, as_json: bool) -> None:
    """Replay a link of the simulator, or the whole address of its page.

    A failing seed of a campaign has a link, too: campaign.SCENARIO.SEED.

    \b
    Examples:
      millpond sim replay 1.eNqLNtQx…
      millpond sim replay campaign.moves.17
    """
    from millpond.sim.simulator.recording import BadLink, CampaignSeed, decode, encode

    try:
        recording = decode(link)
        if isinstance(recording, CampaignSeed):
            _replay_campaign(recording, as_json)
            return
    except BadLink as wrong:
        raise Failed(str(wrong)) from None
    simulation = _play(recording)
    if as_json:
        print_json(_outcome(simulation, encode(recording)))
        return
    _tell(simulation.story.lines)
    click.echo()
    _end(simulation, encode(recording))


def _replay_campaign(seed: CampaignSeed, as_json: bool) -> None:
    from millpond.sim.simulator.campaigns import play_campaign

    played = play_campaign(seed)
    if as_json:
        print_json(played.shape())
        return
    _tell(played.lines)
    click.echo()
    for finding in played.findings:
        _say(f"Found: {finding}")
    if not played.findings:
        click.echo("Nothing was found.")


def _play(tape: Recording, to_ms: int | None = None) -> Simulation:
    from millpond.sim.simulator.simulation import Simulation, TooMuch

    deadline = time.monotonic() + SECONDS_MAX
    try:
        simulation = Simulation(tape, lambda: time.monotonic() > deadline)
        simulation.run_to(tape.end_ms if to_ms is None else to_ms)
    except TooMuch as wrong:
        raise Failed(str(wrong)) from None
    return simulation


def _go_to(simulation: Simulation, at_ms: int) -> None:
    from millpond.sim.simulator.simulation import TooMuch

    try:
        simulation.run_to(at_ms)
    except TooMuch as wrong:
        raise Failed(str(wrong)) from None


def _outcome(simulation: Simulation, link: str) -> dict[str, Any]:
    from millpond.sim.simulator.snapshot import Observer

    return {"link": link, "digest": simulation.digest(), **Observer(simulation).look()}


# Output


def _width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


def _say(text: str) -> None:
    for line in text.splitlines() or [""]:
        click.echo(textwrap.fill(line, _width(), break_long_words=False))


def _tell(lines: Iterable[Line]) -> int:
    """Prints the events with their times in seconds; returns the number of lines."""
    count = 0
    for line in lines:
        count += 1
        head = f"{line.at_ms / 1000:>8.3f}  {line.who:<{WHO_SIGNS}} "
        click.echo(
            textwrap.fill(
                line.text, _width(), initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
            )
        )
    return count


def _end(simulation: Simulation, link: str) -> None:
    from millpond.sim.simulator.snapshot import Observer

    verdict = Observer(simulation).verdict()
    rows: list[tuple[str, str]] = [("acknowledged", str(verdict["acknowledged"]))]
    for name, text in (
        ("lost", "acknowledged, then lost"),
        ("deleted", "deleted by retention"),
        ("compacted", "gone by compaction"),
        ("twice_in_log", "in the log twice"),
    ):
        if verdict[name]["count"]:
            rows.append((text, _names(verdict[name])))
    for group, facts in verdict["groups"].items():
        rows.append((f"group {group}", f"{facts['records']} records handled"))
        for name, text in (
            ("twice", "  handled twice"),
            ("passed_over", "  passed over"),
            ("dead_letters", "  dead letters"),
            ("failing", "  failing"),
        ):
            if facts[name]["count"]:
                rows.append((text, _names(facts[name])))
        if facts["recognised"]:
            rows.append(("  recognised", f"{facts['recognised']} repeats, without an effect"))
        if facts["outside_twice"]:
            rows.append(("  outside", f"{facts['outside_twice']} external effects happened twice"))
    for topic, facts in verdict["outputs"].items():
        twice = f", {facts['twice']['count']} twice" if facts["twice"]["count"] else ", each once"
        rows.append((f"output {topic}", f"{facts['sources']} records shown{twice}"))
    wide = max(len(name) for name, _ in rows)
    for name, text in rows:
        head = f"{name:<{wide}}  "
        click.echo(textwrap.fill(text, _width(), initial_indent=head, subsequent_indent=" " * len(head)))
    click.echo(f"{'the same again':<{wide}}  millpond sim replay {link}")


def _names(items: dict[str, Any]) -> str:
    more = items["count"] - len(items["names"])
    return f"{items['count']}: {', '.join(items['names'])}{f' and {more} more' if more else ''}"
