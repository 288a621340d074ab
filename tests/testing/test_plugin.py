"""The plugin as a user's project sees it."""

from __future__ import annotations

import subprocess
import sys

import confluent_kafka.admin  # noqa: F401
import pytest

import millpond.testing.pond  # noqa: F401

# What is imported here need not be imported anew by every run of pytest within pytest.

pytest_plugins = ["pytester"]


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    # Plugins of this project's own tests are of no concern to a user's.
    others = [
        f"-pno:{name}" for name in ("hypothesispytest", "xdist", "xdist.looponfail", "cacheprovider", "timeout")
    ]
    return pytester.runpytest_inprocess(*others, *arguments)


def test_a_users_tests_get_brokers_fresh_and_shared(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_fresh_one(millpond):
            millpond.create_topic("orders")
            millpond.produce("orders", "1")

        def test_fresh_two(millpond):
            assert "orders" not in millpond.admin.list_topics(timeout=60).topics

        @pytest.fixture(scope="module")
        def seen():
            return set()

        @pytest.mark.parametrize("number", [1, 2])
        def test_shared(millpond_shared, seen, number):
            topic = millpond_shared.new_topic()
            millpond_shared.produce(topic, str(number))
            assert [m.value for m in millpond_shared.consume(topic)] == [str(number).encode()]
            assert topic not in seen
            seen.add(topic)
            seen.add(millpond_shared.bootstrap)
            assert len(seen) == number + 1

        @pytest.mark.millpond(mode="process", settings={"num.partitions": 2})
        def test_marked(millpond):
            assert millpond.mode == "process"
            millpond.produce("by-itself", "x")
            assert len(millpond.admin.list_topics(timeout=60).topics["by-itself"].partitions) == 2
        """
    )
    run(pytester, "--strict-markers").assert_outcomes(passed=5)


def test_the_mode_comes_from_the_ini_file_and_the_command_line(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmillpond_mode = process\n")
    pytester.makepyfile("def test_mode(millpond, pytestconfig):\n    assert millpond.mode == 'thread'\n")
    run(pytester).assert_outcomes(failed=1)
    run(pytester, "--millpond-mode=thread").assert_outcomes(passed=1)


def test_an_invalid_mode_is_refused_in_a_sentence(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmillpond_mode = container\n")
    pytester.makepyfile("def test_mode(millpond):\n    pass\n")
    done = run(pytester)
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*millpond_mode is 'container'; it can be thread or process.*"])


def test_a_failing_test_shows_what_its_broker_reported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import socket

        def test_it(millpond):
            host, port = millpond.bootstrap.split(":")
            with socket.create_connection((host, int(port)), 5) as link:
                link.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
                link.recv(1)
            assert False
        """
    )
    done = run(pytester)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*millpond 127.0.0.1:*", "*protocol error*"])


def test_a_project_that_does_not_use_it_pays_nothing() -> None:
    code = (
        "import sys, pytest, asyncio\nbefore = set(sys.modules)\nimport millpond.testing.plugin\n"
        "print(sorted(set(sys.modules) - before))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert eval(result) == ["millpond", "millpond.testing", "millpond.testing.plugin"]
