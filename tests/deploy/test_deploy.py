"""What lies in deploy/: files that agree with each other, and the commands in them, run as they stand.

No image is built and no service manager runs. The commands of the container files and of the unit run here as plain
processes in a network of their own, with the addresses and ports of the files; only the paths of data and
configuration are others.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.patience import with_time

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd/millpond.service"
PROGRAMS = Path(sys.executable).parent
OWN_NETWORK = ("unshare", "--user", "--map-root-user", "--net")
SECONDS_MAX = 120
EXPOSURE_MAX = 20
"""Of 100, as `systemd-analyze security` counts what a service could still do; one without options has 96."""


def dockerfile() -> dict[str, list[str]]:
    """The last stage, each instruction with its arguments; those in JSON as a list of words."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    matches: dict[str, list[str]] = {}
    for line in text.rpartition("\nFROM ")[2].splitlines()[1:]:
        name, _, rest = line.partition(" ")
        if name == "HEALTHCHECK":
            rest = rest.partition("CMD ")[2]
        matches[name] = json.loads(rest) if rest.startswith("[") else rest.split()
    return matches


def compose(path: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / path).read_text())
    return content


def after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def needs_own_network() -> None:
    if not shutil.which("ip") or not shutil.which("unshare") or subprocess.run([*OWN_NETWORK, "true"]).returncode:
        pytest.skip("there can be no network of its own here (unshare, ip)")


def play(script: str, folder: Path) -> None:
    """A script of bash in a network of its own."""
    needs_own_network()
    process = subprocess.Popen(
        [*OWN_NETWORK, "bash", "-c", f"set -eu\nip link set lo up\n{script}"],
        cwd=folder,
        env={**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        result, _ = process.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        result, _ = process.communicate()
    assert process.returncode == 0, result


def test_the_image_runs_as_an_ordinary_user_and_stops_cleanly() -> None:
    image = dockerfile()
    assert image["USER"] == ["10001:10001"]
    assert image["STOPSIGNAL"] == ["SIGTERM"]
    assert image["VOLUME"] == [after(image["CMD"], "--data")] == image["WORKDIR"]
    assert image["EXPOSE"] == [after(image["CMD"], "--listen").rpartition(":")[2]]
    assert image["ENTRYPOINT"] == image["HEALTHCHECK"][:1] == ["millpond"]


def test_the_build_gets_all_that_it_copies() -> None:
    """Only what is named is sent to a build, so that nothing else of the folder ends up in it."""
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert names == sent
    assert all((ROOT / name).exists() for name in names)
    assert names >= set(re.findall(r'"(tools/\w+\.py)"', (ROOT / "setup.py").read_text())), "what a build runs"


def test_one_node_in_compose_agrees_with_the_image() -> None:
    image = dockerfile()
    content = compose("compose.yaml")
    (service,) = content["services"].values()
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    assert service["command"][: len(image["CMD"])] == image["CMD"]
    # There is no login: nobody outside this machine.
    assert service["ports"] == [f"127.0.0.1:9092:{image['EXPOSE'][0]}"]
    (volume,) = service["volumes"]
    assert volume == f"{next(iter(content['volumes']))}:{image['VOLUME'][0]}"


def test_nothing_says_that_there_is_no_login_yet() -> None:
    texts = [path.read_text() for path in DEPLOY.rglob("*") if path.is_file()]
    assert not [text for text in texts if "no login yet" in text]


def test_three_nodes_in_compose_agree_with_their_list() -> None:
    content = compose("cluster/compose.yaml")
    listed = tomllib.loads((DEPLOY / "cluster/nodes.toml").read_text())["nodes"]
    subnet = ipaddress.ip_network(content["networks"]["pond"]["ipam"]["config"][0]["subnet"])
    folders = set()
    for name, service in content["services"].items():
        number = after(service["command"], "--node")
        address = service["networks"]["pond"]["ipv4_address"]
        assert name == f"node-{number}"
        assert listed.pop(number) == f"{address}:9092" == after(service["healthcheck"]["test"], "--bootstrap")
        assert ipaddress.ip_address(address) in subnet
        assert (DEPLOY / "cluster" / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        nodes_file, data = service["volumes"]
        assert nodes_file == f"./nodes.toml:{after(service['command'], '--cluster')}:ro"
        folders.add(data.removesuffix(f":{after(service['command'], '--data')}"))
    assert not listed
    assert folders == set(content["volumes"])


@pytest.mark.parametrize("secure", [(), ("--secure",)])
def test_the_commands_of_the_image_run_and_end_in_order(tmp_path: Path, secure: tuple[str, ...]) -> None:
    image = dockerfile()
    words = [str(tmp_path / "data") if word == "/data" else word for word in image["ENTRYPOINT"] + image["CMD"]]
    words += secure
    health = shlex.join(image["HEALTHCHECK"])
    play(
        f"""{shlex.join(words)} & node=$!
        until {health}; do kill -0 $node; sleep 0.1; done
        kill -s {image["STOPSIGNAL"][0]} $node
        wait $node
        ! {health}""",
        tmp_path,
    )
    assert (tmp_path / "data/.kafka_cleanshutdown").exists()


@with_time
def test_the_commands_of_the_cluster_run_and_end_in_order(tmp_path: Path) -> None:
    services = compose("cluster/compose.yaml")["services"]
    shutil.copy(DEPLOY / "cluster/nodes.toml", tmp_path)
    lines, healths, files = [], [], {"/etc/millpond/nodes.toml": "nodes.toml"}
    for name, service in services.items():
        lines.append(f"ip address add {service['networks']['pond']['ipv4_address']}/32 dev lo")
        words = ["millpond", *({**files, "/data": name}.get(word, word) for word in service["command"])]
        lines.append(f'{shlex.join(words)} & nodes="${{nodes:-}} $!"')
        healths.append(shlex.join(service["healthcheck"]["test"][1:]))
    lines += [f"until {health}; do sleep 0.2; done" for health in healths]
    bootstrap = after(services["node-1"]["healthcheck"]["test"], "--bootstrap")
    play(
        "\n".join(lines)
        + f"""
        millpond topic create orders -b {bootstrap}
        seq 1000 | millpond produce orders -b {bootstrap}
        test "$(millpond consume orders --from beginning --until-end -b {bootstrap} | wc -l)" = 1000
        kill $nodes
        for node in $nodes; do wait $node; done""",
        tmp_path,
    )


def unit_settings() -> dict[str, str]:
    lines = (line.partition("=") for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#")
    return {name: value for name, _, value in lines}


def test_the_unit_tells_when_it_is_ready_and_when_it_ends(tmp_path: Path) -> None:
    needs_own_network()
    config = (DEPLOY / "systemd/node.conf").read_text().replace("/var/lib/millpond", str(tmp_path / "data"))
    (tmp_path / "node.conf").write_text(config)
    command = unit_settings()["ExecStart"].replace("/opt/millpond/bin", str(PROGRAMS))
    command = command.replace("/etc/millpond", str(tmp_path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        # A short path: the name of a socket has at most 107 bytes.
        manager.bind(path := os.path.relpath(tmp_path / "notify"))
        manager.settimeout(SECONDS_MAX)
        with subprocess.Popen(
            [*OWN_NETWORK, "sh", "-c", f"ip link set lo up && exec {command}"],
            env={**os.environ, "NOTIFY_SOCKET": os.path.abspath(path)},
            stdout=subprocess.DEVNULL,
        ) as node:
            try:
                assert manager.recv(1000) == b"READY=1"
                node.send_signal(signal.Signals[unit_settings()["KillSignal"]])
                assert manager.recv(1000) == b"STOPPING=1"
                assert node.wait(SECONDS_MAX) == 0
            finally:
                node.kill()
    assert (tmp_path / "data/.kafka_cleanshutdown").exists()


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd here (systemd-analyze)")
    unit = tmp_path / UNIT.name
    # It looks whether the program is there.
    unit.write_text(UNIT.read_text().replace("/opt/millpond/bin", str(PROGRAMS)))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    security = ["systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", str(unit)]
    done = subprocess.run(security, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
