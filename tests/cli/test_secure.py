"""`millpond up --secure`: from a new folder to a node that knows who asks, with every client that people have."""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import shutil
import signal
import ssl
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from tests.cli.conftest import Command, Node

from support.patience import with_time

pytestmark = pytest.mark.boundary


class SecureNode(Node):
    def __init__(self, data: Path, *arguments: str) -> None:
        super().__init__(data, "--secure", *arguments)

    @property
    def security(self) -> Path:
        return self.data / "security"

    @property
    def client_file(self) -> Path:
        return self.security / "client.properties"

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit_text().splitlines()]

    def audit_text(self) -> str:
        return "".join(path.read_text() for path in sorted((self.data / "audit").glob("*.jsonl")))

    def settings(self) -> SimpleNamespace:
        """The snippet for Python, as the README takes it."""
        return SimpleNamespace(**runpy.run_path(str(self.security / "client.py")))


class Asker(Command):
    """Runs `millpond` by a file of client settings."""

    def __init__(self, client_file: Path) -> None:
        super().__init__()
        self.environment["MILLPOND_CLIENT_CONFIG"] = str(client_file)

    def well(self, *arguments: str, stdin_data: str = "") -> str:
        return self.succeeds(*arguments, stdin_data=stdin_data).out


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    node = SecureNode(
        tmp_path_factory.mktemp("secure") / "data",
        "--no-console",
        "--metrics=127.0.0.1:0",
        "--set=group.initial.rebalance.delay.ms=0",
    )
    yield node
    node.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def admin(secure: SecureNode) -> Asker:
    return Asker(secure.client_file)


@pytest.fixture(scope="module")
def goods(admin: Asker) -> str:
    """A topic; whichever tests of this file run here, and in which order."""
    admin.well("topic", "create", "goods")
    return "goods"


def user_file(secure: SecureNode, tmp_path: Path, name: str, password: str) -> Path:
    """The admin's file as another user would have it."""
    text = secure.client_file.read_text()
    text = re.sub(r'username="[^"]*" password="[^"]*"', f'username="{name}" password="{password}"', text)
    path = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}.properties"
    path.write_text(text)
    path.chmod(0o600)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# What it makes.


def test_the_password_is_shown_and_everything_is_private(secure: SecureNode) -> None:
    password = (secure.security / "admin.password").read_text().strip()
    assert secure.panel["password"] == f"{password}  (shown this once)"
    assert len(password) == 32
    open_to_all = [each for each in secure.data.rglob("*") if each.is_file() and mode(each) & 0o077]
    assert [each.name for each in open_to_all] == ["ca.pem"], "a certificate is no secret; all else is"
    assert all(not mode(each) & 0o077 for each in (secure.data, *secure.data.rglob("*")) if each.is_dir())


def test_what_the_readme_does_works(admin: Asker) -> None:
    admin.well("topic", "create", "purchases", "--partitions", "3")
    admin.well("produce", "purchases", stdin_data='{"purchase": 1}\n')
    assert admin.well("consume", "purchases", "--from", "beginning", "--until-end") == '{"purchase": 1}\n'
    assert "purchases" in admin.well("topic", "list")
    admin.well("status")
    admin.well("group", "list")
    assert "ready" in admin.well("node", "list")


def test_metrics_need_no_login_and_name_no_topics(secure: SecureNode, admin: Asker) -> None:
    import urllib.request

    admin.well("topic", "create", "unheard-of")
    page = urllib.request.urlopen(secure.panel["metrics"], timeout=10).read().decode()
    assert "millpond_" in page
    assert "unheard-of" not in page


@pytest.mark.smoke
def test_a_wrong_login_is_refused_without_detail(secure: SecureNode, tmp_path: Path) -> None:
    outcome = Command(secure.address)("topic", "list")
    assert outcome.code == 1
    wrong = Asker(user_file(secure, tmp_path, "admin", "guess"))("topic", "list")
    stranger = Asker(user_file(secure, tmp_path, "nobody", "guess"))("topic", "list")
    assert wrong.code == stranger.code == 1
    assert wrong.err.replace("admin", "nobody") == stranger.err, "who exists is not told"
    assert "guess" not in wrong.err


def test_a_client_refuses_another_authority(secure: SecureNode, tmp_path: Path) -> None:
    Command().succeeds("cert", "authority", "--folder", str(tmp_path / "theirs"))
    text = secure.client_file.read_text().replace(
        str(secure.security / "ca.pem"), str(tmp_path / "theirs" / "ca.pem")
    )
    path = tmp_path / "client.properties"
    path.write_text(text)
    path.chmod(0o600)
    Asker(path).fails("topic", "list", error="no TLS with")


# Users, ACLs, tokens by the commands.


def test_a_user_may_do_what_is_allowed_and_nothing_else(secure: SecureNode, admin: Asker, tmp_path: Path) -> None:
    admin.well("topic", "create", "shop.orders")
    admin.well("topic", "create", "payroll")
    made = json.loads(admin.well("user", "add", "alice", "--random", "--json"))
    alice = Asker(user_file(secure, tmp_path, "alice", made["password"]))
    assert json.loads(alice.well("topic", "list", "--json")) == [], "what she may not see does not exist"
    refused = alice("produce", "shop.orders", stdin_data="x\n")
    assert refused.code == 1
    added = admin.well("acl", "add", "--user", "alice", "--topic", "shop.", "--prefixed", "--producer", "--json")
    assert {each["operation"] for each in json.loads(added)} == {"write", "describe", "create"}
    alice.well("produce", "shop.orders", stdin_data="tea\n")
    assert alice("consume", "shop.orders", "--from", "beginning", "--until-end").code != 0
    admin.well("acl", "add", "--user", "alice", "--topic", "shop.orders", "--group", "*", "--consumer")
    assert alice.well("consume", "shop.orders", "--from", "beginning", "--until-end") == "tea\n"
    assert [each["name"] for each in json.loads(alice.well("topic", "list", "--json"))] == ["shop.orders"]
    assert alice("topic", "delete", "payroll", "--yes").err == alice(
        "topic", "delete", "pay-roll", "--yes"
    ).err.replace("pay-roll", "payroll"), "whether there is such a topic is not told"
    admin.well("acl", "add", "--user", "alice", "--topic", "shop.orders", "--operation", "write", "--deny")
    assert alice("produce", "shop.orders", stdin_data="x\n").code == 1
    listed = json.loads(admin.well("acl", "list", "--user", "alice", "--json"))
    assert {"permission": "deny", "operation": "write", "name": "shop.orders"}.items() <= next(
        each.items() for each in listed if each["permission"] == "deny"
    )
    changed = json.loads(
        admin.well(
            "acl", "change", "--user", "alice", "--topic", "shop.", "--prefixed", "-o", "write", "-y", "--json"
        )
    )
    assert (len(changed["added"]), len(changed["removed"])) == (0, 2)
    removed = json.loads(admin.well("acl", "remove", "--user", "alice", "--yes", "--json"))
    assert len(removed) == len(listed) - 2
    assert admin.well("acl", "list", "--user", "alice", "--json") == "[]\n"
    refused = alice("consume", "shop.orders", "--from", "beginning", "--until-end")
    assert refused.code != 0


def test_a_user_is_added_changed_and_removed(secure: SecureNode, admin: Asker, tmp_path: Path) -> None:
    assert "Added user bob" in admin.well("user", "add", "bob", stdin_data="first password\n")
    again = admin("user", "add", "bob", stdin_data="x\n")
    assert (again.code, "user bob exists already" in again.err) == (1, True)
    users = {each["user"]: each["mechanisms"] for each in json.loads(admin.well("user", "list", "--json"))}
    assert users["bob"] == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}
    assert "bob" in admin.well("user", "list")
    Asker(user_file(secure, tmp_path, "bob", "first password")).succeeds("topic", "list")
    admin.well("user", "change", "bob", stdin_data="second\n")
    assert Asker(user_file(secure, tmp_path, "bob", "first password"))("topic", "list").code == 1
    Asker(user_file(secure, tmp_path, "bob", "second")).succeeds("topic", "list")
    assert admin("user", "add", "eve", stdin_data="\n").code == 1, "an empty password is none"
    admin.well("user", "remove", "bob", "--yes")
    assert Asker(user_file(secure, tmp_path, "bob", "second"))("topic", "list").code == 1
    assert "There is no user bob" in admin("user", "remove", "bob", "--yes").err


# Everybody's clients.


@pytest.mark.smoke
def test_librdkafka(secure: SecureNode) -> None:
    settings = secure.settings().SETTINGS
    producer = Producer({**settings, "log_level": 0})
    outcome: list[object] = []
    producer.produce("purchases", b"by librdkafka", on_delivery=lambda error, _: outcome.append(error))
    assert producer.flush(30) == 0
    assert outcome == [None]
    stranger = Producer({**settings, "sasl.password": "guess", "log_level": 0, "error_cb": lambda _: None})
    with pytest.raises(KafkaException):
        stranger.list_topics(timeout=3)


def test_kafka_python(secure: SecureNode) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    keywords = secure.settings().KEYWORDS
    producer = KafkaProducer(**keywords)
    producer.send("python", b"by kafka-python").get(30)
    producer.close()
    consumer = KafkaConsumer("python", **keywords, auto_offset_reset="earliest", consumer_timeout_ms=20_000)
    assert next(consumer).value == b"by kafka-python"
    consumer.close()


def test_aiokafka(secure: SecureNode) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    keywords = secure.settings().for_aiokafka()

    async def play() -> bytes:
        async with AIOKafkaProducer(**keywords) as producer:
            await producer.send_and_wait("asyncio", b"by aiokafka")
        async with AIOKafkaConsumer("asyncio", **keywords, auto_offset_reset="earliest") as consumer:
            return (await asyncio.wait_for(consumer.getone(), 30)).value

    assert asyncio.run(play()) == b"by aiokafka"


def test_our_own_client_by_the_variable(secure: SecureNode, monkeypatch: pytest.MonkeyPatch) -> None:
    import millpond

    monkeypatch.setenv("MILLPOND_CLIENT_CONFIG", str(secure.client_file))
    monkeypatch.delenv("MILLPOND_BOOTSTRAP", raising=False)
    with millpond.Producer(create_topics=True) as producer:
        producer.send("own", b"by ourselves").result(30)
    with millpond.Consumer("readers", ["own"]) as consumer:
        assert next(iter(consumer)).value == b"by ourselves"


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not here")
def test_kcat(secure: SecureNode, goods: str) -> None:
    words = ["kcat", "-F", str(secure.security / "kcat.conf"), "-L"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert goods in done.stdout


@with_time
def test_kafkas_own_tools(secure: SecureNode, goods: str) -> None:
    from support.kafka_tools import kafka_tool

    def tool(name: str, *words: str) -> str:
        call = [*kafka_tool(name), "--bootstrap-server", secure.address, "--command-config", str(secure.client_file)]
        done = subprocess.run([*call, *words], capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert goods in tool("org.apache.kafka.tools.TopicCommand", "--list")
    acls = "org.apache.kafka.tools.AclCommand"
    tool(acls, "--add", "--allow-principal", "User:carol", "--operation", "Read", "--topic", goods)
    assert "User:carol" in tool(acls, "--list", "--topic", goods)
    tool(acls, "--remove", "--force", "--allow-principal", "User:carol", "--operation", "Read", "--topic", goods)
    config = "kafka.admin.ConfigCommand"
    users = ("--entity-type", "users", "--entity-name", "carol")
    tool(config, "--alter", "--add-config", "SCRAM-SHA-256=[password=secret1]", *users)
    assert "SCRAM-SHA-256" in tool(config, "--describe", *users)
    tool(config, "--alter", "--add-config", "producer_byte_rate=1024", *users)
    assert "producer_byte_rate=1024" in tool(config, "--describe", *users)
    tool(config, "--alter", "--delete-config", "producer_byte_rate", *users)
    tool(config, "--alter", "--delete-config", "SCRAM-SHA-256", *users)


# What is written down, and what never is.


def wait_for(condition: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.1)


def test_the_audit_log_records_logins_refusals_and_changes(secure: SecureNode, admin: Asker, tmp_path: Path) -> None:
    password = json.loads(admin.well("user", "add", "mallory", "--random", "--json"))["password"]
    mallory = Asker(user_file(secure, tmp_path, "mallory", password))
    Asker(user_file(secure, tmp_path, "mallory", "guess"))("topic", "list")
    admin.well("topic", "create", "audited")
    assert mallory("topic", "delete", "audited", "--yes").code == 1
    # The command looks first, and sees no such topic; others simply try.
    who = {**secure.settings().SETTINGS, "sasl.username": "mallory", "sasl.password": password, "log_level": 0}
    client = AdminClient(who)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        client.delete_topics(["audited"])["audited"].result(30)
    admin.well("topic", "delete", "audited", "--yes")

    def outcome(**facts: str) -> bool:
        return any(facts.items() <= each.items() for each in secure.audit())

    wait_for(lambda: outcome(event="login", principal="User:admin"))
    wait_for(lambda: outcome(event="login", principal="User:mallory", host="127.0.0.1", by="SCRAM-SHA-512"))
    wait_for(lambda: outcome(event="login_failed", claimed="mallory"))
    wait_for(lambda: outcome(event="refused", principal="User:mallory", resource="TOPIC", name="audited"))
    wait_for(lambda: outcome(event="changed", principal="User:admin", api="CreateTopics"))
    wait_for(lambda: outcome(event="changed", principal="User:admin", api="DeleteTopics"))
    wait_for(lambda: outcome(event="changed", principal="User:admin", api="AlterUserScramCredentials"))
    assert not outcome(event="changed", principal="User:mallory")
    text = secure.audit_text()
    assert password not in text
    assert (secure.security / "admin.password").read_text().strip() not in text


def test_no_secret_is_in_the_words_of_a_process(secure: SecureNode, admin: Asker) -> None:
    """Nor in what the node describes of itself."""
    secrets = [(secure.security / f"{name}.password").read_text().strip() for name in ("admin", "node")]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        assert not any(each.encode() in words for each in secrets)
    described = admin.well("config", "list", "node", "1", "--all", "--json")
    assert not any(each in described for each in secrets)
    refused = Command()("up", "--data", str(secure.data), "--set", "ssl.key.password=hunter2")
    assert refused.code == 2
    assert "ps" in refused.err
    assert "hunter2" not in refused.err


# Its next starts.


def test_it_stays_secure_without_the_option(start_node: Callable[..., Node], tmp_path: Path) -> None:
    first = SecureNode(tmp_path / "data", "--no-console")
    first.stop()
    again = start_node("--no-console", data=tmp_path / "data")
    assert "password" not in again.panel, "it is shown once"
    asker = Asker(tmp_path / "data" / "security" / "client.properties")
    asker.well("topic", "create", "still-here")
    assert Command(again.address)("topic", "list").code == 1
    # An admin who changes the password by these files does not lock them out.
    assert "Updated the password in" in asker("user", "change", "admin", stdin_data="another one\n").err
    asker.well("topic", "list")
    assert mode(tmp_path / "data" / "security" / "client.properties") == 0o600
    again.stop()
    # In another place, as after a restore.
    os.rename(tmp_path / "data", tmp_path / "moved")
    third = start_node("--no-console", data=tmp_path / "moved")
    moved = Asker(tmp_path / "moved" / "security" / "client.properties")
    assert "still-here" in moved.well("topic", "list")
    third.stop()


def test_a_secure_folder_that_lost_its_settings_does_not_come_up_open(
    start_node: Callable[..., Node], tmp_path: Path
) -> None:
    first = SecureNode(tmp_path / "data", "--no-console")
    client_file = first.client_file
    first.stop()
    (first.security / "node.properties").unlink()
    Command().fails(
        "up",
        "--data",
        str(tmp_path / "data"),
        "--listen",
        "127.0.0.1:0",
        "--no-console",
        error="node.properties is missing",
    )
    again = start_node("--no-console", "--secure", data=tmp_path / "data")
    Asker(client_file).well("topic", "create", "same-admin")
    again.stop()
    # All of it: neither open, nor with a new admin whom the metadata do not know.
    os.rename(first.security, tmp_path / "elsewhere")
    refused = Command()("up", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--no-console")
    assert (refused.code, "has required authentication so far" in refused.err) == (1, True), refused.err
    refused = Command()("up", "--secure", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--no-console")
    assert (refused.code, "put the folder security back" in refused.err) == (1, True), refused.err
    assert not first.security.exists()
    os.rename(tmp_path / "elsewhere", first.security)
    third = start_node("--no-console", data=tmp_path / "data")
    assert "same-admin" in Asker(client_file).well("topic", "list")
    third.stop()


def test_a_secure_node_comes_back_secure_from_its_backup(start_node: Callable[..., Node], tmp_path: Path) -> None:
    first = SecureNode(tmp_path / "data", "--no-console")
    admin = Asker(first.client_file)
    admin.well("topic", "create", "kept")
    password = json.loads(admin.well("user", "add", "alice", "--random", "--json"))["password"]
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    Command().succeeds("backup", "--data", str(first.data), str(backup))
    assert not any(mode(each) & 0o077 for each in (backup, *backup.rglob("*")))
    first.stop()
    Command().succeeds("restore", str(backup), "--data", str(restored))
    assert not any(mode(each) & 0o077 for each in (restored, *restored.rglob("*")))
    again = start_node("--no-console", data=restored)
    assert "kept" in Asker(restored / "security" / "client.properties").well("topic", "list")
    assert Command(again.address)("topic", "list").code == 1
    text = (restored / "security" / "client.properties").read_text()
    path = tmp_path / "alice.properties"
    path.write_text(re.sub(r'username="[^"]*" password="[^"]*"', f'username="alice" password="{password}"', text))
    path.chmod(0o600)
    Asker(path).well("topic", "list")
    again.stop()


def test_a_folder_of_an_older_version_is_upgraded_before_it_is_made_secure(
    start_node: Callable[..., Node], tmp_path: Path
) -> None:
    """With a lower metadata.version there can be no users: an admin who cannot log in could not raise it either."""
    data = tmp_path / "data"
    old = start_node("--no-console", data=data)
    millpond = Command(old.address)
    millpond.succeeds("cluster", "downgrade", "metadata.version=26", "--yes")
    busy = Command()("up", "--secure", "--data", str(data), "--listen", "127.0.0.1:0", "--no-console")
    assert (busy.code, "Another process uses" in busy.err) == (1, True), busy.err
    old.stop()
    before = sorted(str(each) for each in data.rglob("*"))
    Command().fails(
        "up",
        "--secure",
        "--data",
        str(data),
        "--listen",
        "127.0.0.1:0",
        "--no-console",
        error=("metadata.version 26", "millpond cluster upgrade"),
    )
    assert sorted(str(each) for each in data.rglob("*")) == before, "nothing was changed"
    again = start_node("--no-console", data=data)
    millpond = Command(again.address)
    millpond.succeeds("topic", "create", "open-to-all")
    millpond.succeeds("cluster", "upgrade", "--yes")
    again.stop()
    safe = SecureNode(data, "--no-console")
    assert "shown this once" in safe.panel["password"]
    assert "open-to-all" in Asker(safe.client_file).well("topic", "list")
    assert Command(safe.address)("topic", "list").code == 1
    safe.stop()


def test_a_failed_start_leaves_no_unseen_password(tmp_path: Path) -> None:
    import socket

    data = tmp_path / "above" / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = Command()("up", "--secure", "--data", str(data), "--listen", f"127.0.0.1:{port}", "--no-console")
    assert (outcome.code, "is taken" in outcome.err) == (1, True), outcome.err
    assert not data.parent.exists()
    words = ("up", "--secure", "--data", str(data), "--set", "listeners=A://127.0.0.1:0")
    outcome = Command()(*words)
    assert outcome.code == 2, outcome.err
    assert not data.parent.exists()


@pytest.mark.parametrize("setting", ["listeners=PLAINTEXT://127.0.0.1:0", "listen.protocol=PLAINTEXT"])
def test_a_node_that_is_to_be_secure_does_not_come_up_open(tmp_path: Path, setting: str) -> None:
    """By a file of settings from the time before, say: it would show an admin and a password, and ask nobody."""
    run = Command()
    file = tmp_path / "old.properties"
    file.write_text(f"{setting}\n")
    data = tmp_path / "data"
    done = run("up", "--secure", "--data", str(data), "--config", str(file), "--no-console")
    assert (done.code, "no listener needs a login" in done.err) == (1, True), (done.out, done.err)
    assert not data.exists(), "a folder with a password that nobody has seen"
    if not setting.startswith("listeners"):
        cluster = tmp_path / "cluster"
        done = run("cluster", "up", "--secure", "--data", str(cluster), "--listen", "127.0.0.1:0", "--set", setting)
        assert (done.code, "no listener needs a login" in done.err) == (1, True), (done.out, done.err)


def test_a_folder_that_others_can_write_to_is_not_made_secure(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)
    Command().fails(
        "up",
        "--secure",
        "--data",
        str(data),
        "--listen",
        "127.0.0.1:0",
        "--no-console",
        error="every user of this machine can write to it",
    )
    assert list(data.iterdir()) == []
    assert mode(data) == 0o777


def test_a_renewed_certificate_is_taken_without_a_restart(start_node: Callable[..., Node], tmp_path: Path) -> None:
    from cryptography import x509

    node = SecureNode(tmp_path / "data", "--no-console")
    try:
        host, port = node.address.rsplit(":", 1)

        def serial() -> int:
            pem = ssl.get_server_certificate((host, int(port)))
            return x509.load_pem_x509_certificate(pem.encode()).serial_number

        before = serial()
        folder = str(node.security)
        Command().succeeds("cert", "change", "millpond-node", "--folder", folder)
        wait_for(lambda: serial() != before, 30)
        Asker(node.client_file).well("topic", "list")
    finally:
        node.stop(signal.SIGKILL)


def test_the_console_of_a_secure_node_requires_the_password(tmp_path: Path) -> None:
    import urllib.request

    node = SecureNode(tmp_path / "data", "--console", "127.0.0.1:0")
    try:
        at = node.panel["console"]
        wait_for(lambda: _status(f"{at}/api/topics") != 0, 30)
        assert _status(f"{at}/api/topics") in (401, 403)
        assert urllib.request.urlopen(at, timeout=10).status == 200
    finally:
        node.stop(signal.SIGKILL)


def _status(address: str) -> int:
    import urllib.error
    import urllib.request

    try:
        return urllib.request.urlopen(address, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_a_token_is_created_renewed_and_ended(secure: SecureNode, admin: Asker, tmp_path: Path) -> None:
    made = json.loads(admin.well("token", "add", "--max-lifetime", "1h", "--json"))
    text = re.sub(
        r'username="[^"]*" password="[^"]*"',
        f'username="{made["id"]}" password="{made["password"]}" tokenauth="true"',
        secure.client_file.read_text(),
    )
    path = tmp_path / "token.properties"
    path.write_text(text)
    path.chmod(0o600)
    bearer = Asker(path)
    bearer.well("topic", "list")
    assert bearer("token", "add").code == 1, "a token makes no tokens"
    listed = admin.well("token", "list", "--json")
    assert [each["owner"] for each in json.loads(listed)] == ["User:admin"]
    assert made["password"] not in listed
    until_ms = json.loads(admin.well("token", "change", made["id"], "--renew", "30m", "--json"))["expires_ms"]
    assert until_ms < made["lasts_until_ms"]
    assert "Ended token" in admin.well("token", "remove", made["id"], "--yes")
    assert json.loads(admin.well("token", "list", "--json")) == []
    assert bearer("topic", "list").code == 1
    assert "There is no token" in admin("token", "remove", made["id"], "--yes").err


def test_a_removed_user_has_no_token_left(secure: SecureNode, admin: Asker, tmp_path: Path) -> None:
    password = json.loads(admin.well("user", "add", "trudy", "--random", "--json"))["password"]
    trudy = Asker(user_file(secure, tmp_path, "trudy", password))
    made = json.loads(trudy.well("token", "add", "--max-lifetime", "1h", "--json"))
    bearer_file = user_file(secure, tmp_path, made["id"], made["password"])
    bearer_file.write_text(bearer_file.read_text().replace('";', '" tokenauth="true";'))
    bearer = Asker(bearer_file)
    bearer.well("topic", "list")
    admin.well("user", "remove", "trudy", "--yes")
    assert bearer("topic", "list").code == 1
    assert json.loads(admin.well("token", "list", "--json")) == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("acl", "add", "--topic", "t", "-o", "read"), 2, "Name the user"),
        (("acl", "add", "--user", "u", "-o", "read"), 2, "Name a resource"),
        (("acl", "add", "--user", "u", "--topic", "t"), 2, "Name the operation"),
        (("acl", "add", "--user", "u", "--topic", "t", "--consumer"), 2, "name it with --group"),
        (("acl", "add", "--user", "u", "--group", "g", "--producer"), 2, "Name the topics"),
        (("acl", "add", "--user", "u", "--topic", "t", "--producer", "--deny"), 2, "cannot be combined"),
        (("acl", "add", "--principal", "u", "--topic", "t", "-o", "read"), 2, "give it as User:name"),
        (
            ("acl", "add", "--user", "u", "--topic", "t", "-o", "all", "--deny", "--host", "evil.example"),
            2,
            "IP address",
        ),
        (("acl", "change", "--user", "u", "--topic", "t", "-o", "all", "--host", "10.0.0.300"), 2, "IP address"),
        (("acl", "add", "--user", "*", "--topic", "pay*", "-o", "all", "--deny"), 2, "--prefixed"),
        (("acl", "add", "--user", "u", "--topic", "pay*", "--prefixed", "-o", "read"), 2, "has a * in its name"),
        (("acl", "add", "--user", "u", "--topic", "pay roll", "-o", "read"), 2, "may only have ASCII"),
        (
            (
                "acl",
                "remove",
            ),
            2,
            "Name a user",
        ),
        (("acl", "change", "--user", "u", "--topic", "t"), 2, "removes all"),
        (("user", "add", "u", "--random", "--password-file", "x"), 2, "leave out --password-file"),
        (("user", "add", "u", "--password-file", "/nowhere"), 1, "cannot be read"),
        (("user", "change", "admni"), 1, "did you mean admin?"),
        (("token", "change", "nothing"), 1, "There is no token nothing"),
        (("topic", "list", "--profile", "x", "--client-config", "y"), 2, "give one of them"),
    ],
)
def test_invalid_requests_are_refused(admin: Asker, words: tuple[str, ...], code: int, message: str) -> None:
    admin.fails(*words, code=code, error=message)


# Several nodes.


@pytest.mark.slow
def test_cores_of_a_secure_node(tmp_path: Path) -> None:
    node = SecureNode(tmp_path / "data", "--cores", "2", "--no-console")
    try:
        asker = Asker(node.client_file)
        asker.well("topic", "create", "spread", "--partitions", "4")
        asker.well("produce", "spread", stdin_data="".join(f"{number}\n" for number in range(100)))
        read = asker.well("consume", "spread", "--from", "beginning", "--until-end")
        assert sorted(map(int, read.split())) == list(range(100))
        assert len(json.loads(asker.well("node", "list", "--json"))) == 2
        assert Command(node.panel["listens on"].split(" ")[0])("topic", "list").code == 1
    finally:
        node.stop()
    words = b"".join(each.read_bytes() for each in Path("/proc").glob("[0-9]*/cmdline") if each.parent.exists())
    assert (node.security / "node.password").read_bytes().strip() not in words


BROUGHT = ("ca.pem", "node.password", "node.properties", "initial.users", "client.properties", "admin.password")


@pytest.mark.slow
def test_a_secure_cluster_and_one_more_node(tmp_path: Path) -> None:
    cluster = Command().start(
        "cluster", "up", "--secure", "--data", str(tmp_path / "cluster"), "--listen", "127.0.0.1:0",
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    joined = None
    try:
        assert cluster.stdout is not None
        panel: dict[str, str] = {}
        while "stop" not in panel:
            line = cluster.stdout.readline().decode()
            assert line, cluster.communicate()[1].decode()
            name, _, text = line.strip().partition("  ")
            panel[name] = text.strip()
        security = tmp_path / "cluster" / "security"
        asker = Asker(security / "client.properties")
        asker.well("topic", "create", "copied", "--partitions", "3", "--replicas", "3")
        asker.well("produce", "copied", stdin_data="tea\n")
        assert asker.well("consume", "copied", "--from", "beginning", "--until-end") == "tea\n"
        first = panel["bootstrap"].split(",")[0]
        assert Command(first)("topic", "list").code == 1
        # Whoever has the nodes' secrets joins; the address must be in the certificate.
        fourth = tmp_path / "fourth" / "security"
        fourth.mkdir(0o700, parents=True)
        fourth.parent.chmod(0o700)
        Command()("cert", "add", "node-4", "--host", "127.0.0.1", "--folder", str(security))
        for each in security.glob("*"):
            if each.name in BROUGHT:
                shutil.copy(each, fourth)
        shutil.copy(security / "node-4.pem", fourth / "millpond-node.pem")
        stranger = Command()("up", "--join", first, "--data", str(tmp_path / "stranger"), "--listen", "127.0.0.1:0")
        assert stranger.code == 1
        words = ("up", "--join", first, "--data", str(tmp_path / "fourth"), "--listen", "127.0.0.1:0")
        joined = Command().start(*words, "--no-console", "--metrics", "off")
        wait_for(lambda: sum(each["there"] for each in json.loads(asker.well("node", "list", "--json"))) == 4, 40)
    finally:
        for process in filter(None, (joined, cluster)):
            process.terminate()
            process.communicate(timeout=60)
