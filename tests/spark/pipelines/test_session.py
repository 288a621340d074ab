"""Requirements are checked before Spark is started; errors are one line with a command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.spark.pipelines import session as s
from millpond.spark.pipelines.session import SessionError, check_python, default_settings, find_java, make_session


def test_unsupported_packages_are_a_session_error() -> None:
    with pytest.raises(SessionError, match=r"pyspark 4\.1\.9 is too old"):
        check_python({"pyspark": "4.1.9"}.get)


MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """A fake Java that only reports its version."""

    def made(name: str, says: str = "", release: str | None = None) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        program = home / "bin" / "java"
        program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
        program.chmod(0o755)
        if release is not None:
            (home / "release").write_text(release)
        return home

    return made


def test_java_home_overrides_the_path(make_java: MakeJava) -> None:
    old = make_java("old", 'openjdk version "11.0.2" 2019-01-15')
    new = make_java("new", release='IMPLEMENTOR="Debian"\nJAVA_VERSION="21.0.1"\n')
    result = find_java({"JAVA_HOME": str(new), "PATH": str(old / "bin")})
    assert (result.version, result.path) == (21, str(new / "bin/java"))
    assert find_java({"PATH": f"/nowhere:{new / 'bin'}"}).version == 21


def test_without_a_release_file_java_reports_its_version(make_java: MakeJava) -> None:
    assert find_java({"PATH": str(make_java("a", 'openjdk version "17.0.15" 2025-04-15') / "bin")}).version == 17


def test_an_old_java_is_refused(make_java: MakeJava) -> None:
    for name, says, version in (("eleven", 'java version "11.0.2"', 11), ("eight", 'java version "1.8.0_292"', 8)):
        home = make_java(name, says)
        with pytest.raises(
            SessionError, match=rf"Java 17 or newer, and {home}/bin/java is Java {version}: .*install"
        ):
            find_java({"JAVA_HOME": str(home), "PATH": ""})


def test_a_missing_java_is_refused(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s.platform, "system", lambda: "Linux")
    with pytest.raises(SessionError, match=r"none was found: .*apt-get install openjdk-17-jre-headless$"):
        find_java({"PATH": ""})
    monkeypatch.setattr(s.platform, "system", lambda: "Darwin")
    with pytest.raises(SessionError, match=r"none was found: brew install openjdk@17$"):
        # macOS has a stub of that name that only reports that there is no Java.
        find_java({"PATH": str(make_java("stub", "No Java runtime present") / "bin")})


def test_a_java_home_without_java_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match=f"JAVA_HOME is {tmp_path}, but there is no bin/java in it"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def test_make_session_checks_before_it_starts_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SessionError, match="there is no bin/java in it"):
        make_session("a", folder=tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_a_local_master_uses_loopback_only() -> None:
    settings = default_settings("local[3]")
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.ui.enabled"] == "false"
    assert int(default_settings("local[*]")["spark.sql.shuffle.partitions"]) >= 1


def test_a_remote_master_keeps_its_own_settings() -> None:
    for master in ("spark://10.0.0.5:7077", "yarn", "k8s://https://cluster"):
        assert not {"spark.driver.host", "spark.sql.shuffle.partitions"} & default_settings(master).keys()


def test_a_large_log_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s, "LOG_BYTES_MAX", 10)
    for text in (b"the first run\n", b"the second\n"):
        with s.open_log(tmp_path) as log:
            log.write(text)
    assert s.log_file(tmp_path).read_bytes() == b"the second\n"
    assert (tmp_path / "spark.log.1").read_bytes() == b"the first run\n"


def test_java_options_of_the_user_are_kept(tmp_path: Path) -> None:
    settings = {"spark.driver.extraJavaOptions": "-Xss4m"}
    s._log_to_stderr(settings, tmp_path, "ERROR")
    assert settings["spark.driver.extraJavaOptions"].startswith("-Xss4m -Dlog4j2.configurationFile=file:///")
    assert "rootLogger.level = error" in (tmp_path / "log4j2.properties").read_text()
