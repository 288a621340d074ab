"""Ports for tests: no two of the same number among all that test at the same time."""

from __future__ import annotations

import os
import subprocess
import sys

from millpond.testing.ports import BLOCK, PORTS, Ports, bound, free_port

MANY = """
import random
from millpond.testing.ports import free_port
random.seed(1)
print(*(free_port() for _ in range(40)), flush=True)
input()
"""


def test_no_port_is_given_twice_before_the_others_were() -> None:
    ports = [free_port() for _ in range(BLOCK // 2)]
    assert len(set(ports)) == len(ports)
    assert set(ports) <= set(PORTS)


def test_a_taken_port_is_skipped() -> None:
    ports = Ports()
    first = ports.next_free()
    with bound(first + 1 if (first + 1) % BLOCK else first + 1 - BLOCK) as taken:
        taken.listen()
        assert ports.next_free() not in (first, taken.getsockname()[1])


def test_processes_with_the_same_dice_get_other_ports() -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", MANY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    result = [free_port() for _ in range(40)]
    for child in children:
        assert child.stdout is not None
        result += map(int, child.stdout.readline().split())
    for child in children:
        child.communicate("\n")
    assert len(set(result)) == 160


def test_a_forked_process_gets_other_ports() -> None:
    ports = Ports()
    ports.next_free()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, b"%d" % ports.next_free())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    forked = int(os.read(reader, 10))
    os.close(reader)
    os.close(writer)
    assert forked // BLOCK != ports.next_free() // BLOCK


def test_when_all_blocks_are_taken_there_are_still_ports() -> None:
    few = range(19_000, 19_000 + 2 * BLOCK)
    crowd = [Ports(few) for _ in range(3)]
    assert all(set(few) >= {each.next_free() for _ in range(BLOCK)} for each in crowd[:2])
    assert len({crowd[2].next_free() for _ in range(2 * BLOCK)}) == 2 * BLOCK
