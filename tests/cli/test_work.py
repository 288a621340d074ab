"""Workers of a module, in processes that are started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.node import eventually

PROGRAM = """
import os
from pathlib import Path
from millpond import Message, worker

@worker("{topic}", group="{topic}-g")
def charge(message: Message) -> None:
    if message.value == b"die" and not Path("died").exists():
        Path("died").touch()
        os._exit(3)
    with open("seen", "a") as file:
        file.write(f"{{message.text()}} {tag}\\n")

plain = 5
"""


def seen(folder: Path) -> list[str]:
    return (folder / "seen").read_text().splitlines() if (folder / "seen").exists() else []


@pytest.fixture
def run(millpond: Any, quick: Any, topic: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    (tmp_path / "billing.py").write_text(PROGRAM.format(topic=topic, tag="old"))
    processes = []

    def start(*arguments: str) -> Any:
        processes.append(millpond.start("work", *arguments, cwd=tmp_path))
        return processes[-1]

    yield start
    for each in processes:
        if each.poll() is None:
            each.kill()
        each.communicate()


@pytest.mark.smoke
def test_a_killed_process_is_restarted_and_a_stop_ends_all(run: Any, quick: Any, topic: str, tmp_path: Path) -> None:
    process = run("billing:charge", "--every", "0.5")
    quick.send(topic, "1", "die", "2")
    assert eventually(lambda: {"1 old", "die old", "2 old"} <= set(seen(tmp_path)))
    time.sleep(2)  # A line of figures, with what the second life has done.
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    lines = out.decode().splitlines()
    assert process.returncode == 0, err
    assert f"charge ({topic}-g): 1 process" in lines[0]
    assert any("exited with code 3; restarting" in line for line in lines)
    assert any("done  lag 0" in line for line in lines), lines
    assert lines[-1].startswith("Stopped after ")


def test_there_is_no_lag_before_the_group_has_partitions(run: Any, millpond: Any, topic: str, tmp_path: Path) -> None:
    later = f"{topic}-later"
    (tmp_path / "billing.py").write_text(PROGRAM.format(topic=later, tag="late"))
    process = run("billing", "--every", "0.2")
    figures = (line for line in process.stdout if b"done  " in line and b"lag unknown" not in line)
    assert next(figures).endswith(b"waiting for partitions\n")
    millpond("topic", "create", later)
    assert next(line for line in figures if b"waiting" not in line).endswith(b"lag 0\n")


def test_idle_processes_are_reported(run: Any, topic: str) -> None:
    process = run("billing", "--processes", "3")
    for line in process.stdout:
        if b"will be idle" in line:
            break
    assert line.decode().endswith(
        "charge: 1 partition for 3 processes, so 2 processes will be idle; `millpond topic alter` adds partitions\n"
    )


def test_a_module_that_runs_its_worker_on_import_is_refused(millpond: Any, tmp_path: Path) -> None:
    (tmp_path / "eager.py").write_text(PROGRAM.format(topic="orders", tag="old") + "\ncharge.run()\n")
    result = millpond("work", "eager", cwd=tmp_path)
    assert (result.code, result.out) == (1, "")
    assert 'eager: importing the module runs charge: put `charge.run()` under `if __name__ == "__main__":`.' in (
        " ".join(result.err.split())
    )


def test_a_changed_file_restarts_the_processes(run: Any, quick: Any, topic: str, tmp_path: Path) -> None:
    run("billing", "--reload", "--processes", "2")
    quick.send(topic, "1")
    assert eventually(lambda: seen(tmp_path) == ["1 old"])
    (tmp_path / "billing.py").write_text(PROGRAM.format(topic=topic, tag="new"))
    os.utime(tmp_path / "billing.py", (time.time() + 5, time.time() + 5))
    time.sleep(1.5)
    quick.send(topic, "2")
    assert eventually(lambda: seen(tmp_path)[1:] == ["2 new"])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("biling", "There is no module biling here"),
        ("billing:chrge", "There is no chrge in billing; did you mean charge?"),
        ("billing:plain", "billing:plain is not a worker"),
        ("json", "json has no worker"),
    ],
)
def test_a_name_that_is_not_a_worker_is_refused(run: Any, spec: str, message: str) -> None:
    process = run(spec)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert message in err.decode()
    assert "Traceback" not in err.decode()


QUEUE_PROGRAM = """
from millpond import Message, worker

@worker("{topic}", group="{topic}-g", mode="queue", concurrency=4)
def charge(message: Message) -> None:
    with open("seen", "a") as file:
        file.write(f"{{message.text()}} done\\n")
"""


def test_processes_share_the_partition_of_a_queue(run: Any, quick: Any, topic: str, tmp_path: Path) -> None:
    (tmp_path / "billing.py").write_text(QUEUE_PROGRAM.format(topic=topic))
    process = run("billing:charge", "--processes", "2", "--every", "0.5")
    quick.send(topic, *map(str, range(20)))
    assert eventually(lambda: {f"{n} done" for n in range(20)} == set(seen(tmp_path)))
    time.sleep(1)  # A line of figures.
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    lines = out.decode().splitlines()
    assert process.returncode == 0, err
    assert not any("idle" in line for line in lines), "a queue needs no partition for each process"
    assert any("20 done" in line for line in lines), lines
    assert len(seen(tmp_path)) == 20
