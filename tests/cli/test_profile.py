"""Profiles: which cluster is meant, and secrets that stay where they are."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from millpond.cli import command
from millpond.cli.access import Access
from millpond.cli.profile.file import Profile, Profiles, profiles_path, read_profiles, write_profiles

SECRET = "hunter2"
PROD = Profile("prod", "prod.example:9093", {"sasl.username": "me", "sasl.password": SECRET})
HERE = Profile("here", "127.0.0.1:7")


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("MILLPOND_BOOTSTRAP", "MILLPOND_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "millpond" / "profiles.toml"


def run(*arguments: str, stdin_data: str | None = None) -> Any:
    return CliRunner().invoke(command, arguments, input=stdin_data)


def selected_cluster(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, **variables: str
) -> tuple[str, dict[str, str], str | None]:
    """Address, settings and profile of the cluster that `topic list` would ask."""
    seen: list[Access] = []

    def look(access: Access) -> None:
        seen.append(access)
        raise SystemExit(0)

    with monkeypatch.context() as patched:
        patched.setattr(Access, "open", look)
        for name, value in variables.items():
            patched.setenv(name, value)
        result = run(*arguments)
    assert seen, result.output
    return seen[0].bootstrap, dict(seen[0].extras), seen[0].profile


def test_a_profile_is_added_used_and_removed(file: Path) -> None:
    made = run("profile", "add", "prod", "-b", PROD.bootstrap, "-X", "sasl.username=me", "--ask", "sasl.password",
               stdin_data=f"{SECRET}\n")  # fmt: skip
    assert made.output == f"Added profile prod in {file}.\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_profiles() == Profiles({"prod": PROD})
    assert "profile prod exists already" in run("profile", "add", "prod", "-b", "x:1").output
    assert run("profile", "add", "prod", "-b", PROD.bootstrap, "--replace", "--use").exit_code == 0
    assert read_profiles().in_use == "prod"
    assert run("profile", "use", "--none").exit_code == 0
    assert "did you mean prod?" in run("profile", "use", "prd").output
    assert run("profile", "use", "prod").output == "Profile prod is in use.\n"
    assert run("profile", "remove", "prod").output == "Removed profile prod; none is in use now.\n"
    assert read_profiles() == Profiles()


def test_secrets_are_not_shown() -> None:
    write_profiles(Profiles({"prod": PROD}, "prod"))
    for arguments in (("list",), ("show",), ("show", "prod"), ("list", "--json"), ("show", "--json")):
        shown = run("profile", *arguments)
        assert shown.exit_code == 0
        assert SECRET not in shown.output
        assert "prod.example" in shown.output
    assert json.loads(run("profile", "show", "--json").output)["settings"]["sasl.password"] == "(hidden)"


def test_options_profiles_and_variables_select_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    write_profiles(Profiles({"prod": PROD, "here": HERE}))
    prod = (PROD.bootstrap, dict(PROD.settings), "prod")
    ask = ("topic", "list")
    assert selected_cluster(monkeypatch, *ask) == ("127.0.0.1:9092", {}, None)
    assert selected_cluster(monkeypatch, "-p", "prod", *ask) == prod
    assert selected_cluster(monkeypatch, *ask, "--profile", "prod") == prod
    assert selected_cluster(monkeypatch, "-p", "here", *ask, "--profile", "prod") == prod
    assert selected_cluster(monkeypatch, *ask, MILLPOND_PROFILE="prod") == prod
    # Two variables: the one that names the address, and then no profile's secrets go there.
    assert selected_cluster(monkeypatch, *ask, MILLPOND_PROFILE="prod", MILLPOND_BOOTSTRAP="b:2") == ("b:2", {}, None)
    assert selected_cluster(monkeypatch, "-p", "prod", *ask, MILLPOND_BOOTSTRAP="b:2") == prod
    # Named together on the command line they are meant together.
    assert selected_cluster(monkeypatch, "-p", "prod", *ask, "-b", "c:3") == ("c:3", dict(PROD.settings), "prod")
    assert selected_cluster(monkeypatch, "-p", "prod", *ask, "-X", "sasl.username=you")[1]["sasl.username"] == "you"
    write_profiles(Profiles({"prod": PROD, "here": HERE}, "prod"))
    assert selected_cluster(monkeypatch, *ask) == prod
    assert selected_cluster(monkeypatch, *ask, "-b", "c:3") == ("c:3", {}, None)
    assert selected_cluster(monkeypatch, *ask, MILLPOND_PROFILE="here") == (HERE.bootstrap, {}, "here")


def test_what_cannot_be_is_refused(file: Path) -> None:
    for arguments, message in (
        (("add", "a b", "-b", "x:1"), "cannot be a profile's name"),
        (("add", "a", "-b", "x:y:z"), "of the form host:port"),
        (("add", "a", "-b", "a..b:1"), "the host name is invalid"),
        (("add", "a", "-b", f"{'a' * 64}.example:1"), "the host name is invalid"),
        (("add", "a", "-b", "x:1", "--ask", "sasl.password"), "Standard input ended before a line for sasl.password"),
        (("add", "a", "-b", "x:1", "-X", "sasl.password=\udcff"), "is not valid UTF-8"),
        (("add", "a", "-b", "x:1", "-X", "no.such.setting=1"), "No such configuration property"),
        (("show",), "There are no profiles yet"),
        (("use",), "Name a profile"),
    ):
        assert message in run("profile", *arguments).output
    assert not file.exists()
    assert "--profile: there is no profile prod." in run("-p", "prod", "topic", "list").output
    for arguments in (("-p", "", "topic", "list"), ("topic", "list", "--profile", "")):
        told = run(*arguments)
        assert (told.exit_code, "--profile is empty" in told.output) == (2, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("use = 'gone'", "use names the profile 'gone', which does not exist. Correct"),
        ("use = []", "use names the profile [], which does not exist."),
        ("[profiles.a]", "profile a has no bootstrap."),
        ("[profiles.a]\nbootstrap = 5", "profile a has no bootstrap."),
        ("[profiles]\na = 5", "profile a must be a table."),
        ("[profiles.a]\nbootstrap = 'a:1'\nsettings = { x = 5 }", "must be a table of strings."),
        ("[profiles.a]\nbootstrap = 'a:1'\npassword = 'hunter2'", "profile a has an unknown key 'password'"),
        ("[profile.a]\nbootstrap = 'a:1'", "the file has an unknown key 'profile'; did you mean profiles?"),
        ("=", "line 1"),
        ("profiles = 3", "profiles must be a table of profiles."),
        ("\x00", "line 1"),
        (f"x = {'[' * 5000}", "nested too deeply"),
        (f"x = {'9' * 5000}", "digits"),
    ],
)
def test_a_file_that_makes_no_sense_is_named_and_kept(file: Path, text: str, message: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    for arguments in (("list",), ("add", "b", "-b", "b:1")):
        told = run("profile", *arguments)
        assert told.exit_code == 1
        assert str(profiles_path()) in told.output
        assert message in told.output
        assert SECRET not in told.output
        assert file.read_text() == text


def test_readable_secrets_cause_a_warning(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_profiles(Profiles({"prod": PROD, "here": HERE}, "prod"))
    assert "chmod" not in run("profile", "list").output
    file.chmod(0o640)
    warning = f"Others may read the secrets in {file}: chmod 600 {file}\n"
    for arguments in (("profile", "list"), ("profile", "show"), ("-p", "prod", "topic", "list", "-b", "127.0.0.1:1")):
        assert warning in run(*arguments).stderr
    # One without secrets is nobody's business, and a list for programs stays one.
    assert "chmod" not in run("profile", "show", "here").output
    assert json.loads(run("profile", "list", "--json").stdout)[0]["name"] == "prod"
    # Written by the command it is one's own again.
    assert run("profile", "use", "here").exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles" / "profiles.toml"
    file.parent.mkdir()
    file.symlink_to(kept)
    write_profiles(Profiles({"here": HERE}))
    assert (file.is_symlink(), kept.is_file()) == (True, True)
    assert read_profiles() == Profiles({"here": HERE})


def test_without_a_home_folder_there_are_no_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert read_profiles() == Profiles()
    told = run("profile", "add", "a", "-b", "x:1")
    assert (told.exit_code, "set HOME or XDG_CONFIG_HOME" in told.output) == (1, True)


def test_a_file_that_cannot_be_read_is_not_taken_for_none(file: Path) -> None:
    file.mkdir(parents=True)
    told = run("topic", "list")
    assert told.exit_code == 1
    assert "cannot be read: is a directory. Fix that, or name the cluster with --bootstrap." in told.output


def test_any_text_comes_back_from_the_file(file: Path) -> None:
    strange = Profile("a.b-c", 'h"\\:1', {"sasl.password": 'q"\\\n\t\x7f\x01é☕', "x y": ""})
    write_profiles(Profiles({"a.b-c": strange}, "a.b-c"))
    assert read_profiles() == Profiles({"a.b-c": strange}, "a.b-c")
    assert tomllib.loads(file.read_text())["use"] == "a.b-c"
