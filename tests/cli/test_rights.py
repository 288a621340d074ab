"""What each command needs, as docs/security.md tells it: with just these rights it works."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from tests.cli.conftest import Finished
from tests.cli.test_secure import Asker, SecureNode, user_file

from millpond.admin.acls import Acl, AclFilter, add_acls, remove_acls
from millpond.base.rights import CLUSTER_NAME, AclResource, Operation, PatternType
from millpond.remote.cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("### What each command needs")[2].partition("###")[0]
RIGHT = re.compile(
    r"((?:`[a-z-]+`(?:, | and )?)+) on (the|each) (topic|group|cluster|transactional id)(?: `([^`]+)`)?"
)
RESOURCES = {
    "topic": AclResource.TOPIC,
    "group": AclResource.GROUP,
    "cluster": AclResource.CLUSTER,
    "transactional id": AclResource.TRANSACTIONAL_ID,
}


def documented() -> dict[str, list[tuple[Operation, AclResource, bool, str]]]:
    """The rights of each command, whether each thing of a kind is meant, and its name where the page has one."""
    rights_by_command = {}
    for line in TABLE.splitlines():
        cells = [each.strip() for each in line.strip("|").split("|")]
        if line.startswith("| `"):
            rights = [
                (Operation[word.upper().replace("-", "_")], RESOURCES[resource], article == "each", name)
                for words, article, resource, name in RIGHT.findall(cells[1])
                for word in re.findall(r"`([a-z-]+)`", words)
            ]
            rights_by_command |= dict.fromkeys(re.findall(r"`([^`]+)`", cells[0]), rights)
    return rights_by_command


DOCUMENTED = documented()
USER = "clerk"
TOPIC, LETTERS, GROUP, SHARED, TRANSACTION = "pond", "pond.dlq", "crew", "mailers", "tx"


class Case(NamedTuple):
    """A command with its words, and what must be in what it prints."""

    words: tuple[str, ...]
    shown: str = ""
    stdin_data: str = ""
    topic: str = TOPIC
    others: tuple[str, ...] = ()
    """Which "each topic" means, if not the same."""
    code: int = 0
    group: str = GROUP


CASES: dict[str, Case] = {
    "topic list": Case(("topic", "list"), TOPIC),
    "topic describe": Case(("topic", "describe", TOPIC), TOPIC),
    "topic create": Case(("topic", "create", "lake"), "lake", topic="lake"),
    "topic alter --set": Case(("topic", "alter", TOPIC, "--set", "retention.ms=1234567"), "Changed"),
    "topic alter --partitions": Case(("topic", "alter", "delta", "--partitions", "3"), "Changed", topic="delta"),
    "topic replicas": Case(("topic", "replicas", TOPIC, "--factor", "1", "--yes")),
    "produce": Case(("produce", TOPIC), stdin_data="tea\n"),
    "consume": Case(("consume", TOPIC, "--until-end"), "coffee"),
    "group list": Case(("group", "list"), GROUP),
    "group describe": Case(("group", "describe", GROUP), TOPIC),
    "group reset": Case(("group", "reset", GROUP, "--topic", TOPIC, "--to-earliest", "--yes")),
    "group history": Case(("group", "history", GROUP), topic="__group_history"),
    "queue list": Case(("queue", "list"), SHARED, group=SHARED),
    "queue describe": Case(("queue", "describe", TOPIC), SHARED, group=SHARED),
    "queue peek": Case(("queue", "peek", TOPIC), "coffee", group=SHARED),
    "queue send": Case(("queue", "send", TOPIC, "cake"), "1 record"),
    "queue receive": Case(("queue", "receive", TOPIC, "-g", SHARED, "--wait", "30s"), "coffee", group=SHARED),
    "queue purge": Case(("queue", "purge", TOPIC, "--yes"), "Purged", group=SHARED),
    "dlq list": Case(("dlq", "list"), LETTERS, topic=LETTERS),
    "dlq show": Case(("dlq", "show", LETTERS), "ValueError", topic=LETTERS),
    "dlq stats": Case(("dlq", "stats", LETTERS), "ValueError", topic=LETTERS),
    "dlq redrive": Case(("dlq", "redrive", LETTERS, "--all"), "Redrove 1 record", topic=LETTERS, others=(TOPIC,)),
    "dlq purge": Case(("dlq", "purge", LETTERS, "--all", "--yes"), "Deleted", topic=LETTERS),
    "txn list": Case(("txn", "list"), TRANSACTION),
    "txn describe": Case(("txn", "describe", TRANSACTION), TOPIC),
    "txn hanging": Case(("txn", "hanging", "--topic", TOPIC)),
    "txn abort": Case(("txn", "abort", "--id", TRANSACTION)),
    "config list": Case(("config", "list", "topic", TOPIC), "max.message.bytes"),
    "config get": Case(("config", "get", "topic", TOPIC, "retention.ms")),
    "config set": Case(("config", "set", "topic", TOPIC, "retention.ms=7654321")),
    "config unset": Case(("config", "unset", "topic", TOPIC, "retention.ms")),
    "status": Case(("status",), "All is well", others=(TOPIC, GROUP, SHARED)),
    "node list": Case(("node", "list"), "ready"),
    "cluster status": Case(("cluster", "status")),
    "user list": Case(("user", "list"), "admin"),
    "user add": Case(("user", "add", "newcomer"), "newcomer", stdin_data="a password\n"),
    "acl list": Case(("acl", "list"), USER),
    "acl add": Case(("acl", "add", "--user", "bob", "--topic", TOPIC, "-o", "read"), "Added"),
    "acl remove": Case(("acl", "remove", "--user", "bob", "--yes")),
    "quota list": Case(("quota", "list")),
    "quota add": Case(("quota", "add", "--user", "bob", "--produce", "1MB/s")),
    "quota remove": Case(("quota", "remove", "--user", "carol", "--yes")),
    "group delete": Case(("group", "delete", GROUP, "--yes"), "Deleted"),
    "topic delete": Case(("topic", "delete", TOPIC, "--yes"), topic=TOPIC),
}
"""In this order: what deletes comes last."""

ELSEWHERE = {
    "topic move": "needs a second node; see `topic replicas`",
    "cluster balance": "the same",
    "node drain": "the same",
    "trace": "reads as `consume` does",
    "top": "asks what `status` asks, on a screen",
    "user change": "",
    "user remove": "",
    "acl change": "",
    "quota change": "",
    "queue redrive": "does what `dlq redrive` does, once it knows the group's setting",
    "work": "tests/client has workers; its rights are those of a consumer and a producer",
}


def test_the_table_names_every_command_of_the_cases() -> None:
    assert CASES.keys() <= DOCUMENTED.keys()
    assert DOCUMENTED.keys() <= CASES.keys() | ELSEWHERE.keys(), "run it, or say why not"
    assert all(DOCUMENTED.values()), "a right that cannot be read"


class Office:
    """A secure node with something in it, its admin, and a clerk who has what he is given."""

    def __init__(self, node: SecureNode, folder: Path) -> None:
        self.node = node
        self.admin = Asker(node.client_file)
        made = json.loads(self.admin.well("user", "add", USER, "--random", "--json"))
        self.clerk = Asker(user_file(node, folder, USER, made["password"]))
        self.settings: dict[str, Any] = {**node.settings().SETTINGS, "log_level": 0}
        self._fill()

    def _fill(self) -> None:
        for name in (TOPIC, LETTERS, "delta"):
            self.admin.well("topic", "create", name)
        self.admin.well("config", "set", "topic", TOPIC, "max.message.bytes=1000000")
        self.admin.well("quota", "add", "--user", "carol", "--produce", "1MB/s")
        producer = Producer(self.settings)
        producer.produce(TOPIC, b"coffee")
        headers = {
            "dlq.topic": TOPIC,
            "dlq.partition": "0",
            "dlq.offset": "0",
            "dlq.error.type": "builtins.ValueError",
        }
        producer.produce(LETTERS, b"letter", headers=list(headers.items()))
        assert producer.flush(30) == 0
        consumer = Consumer({**self.settings, "group.id": GROUP, "auto.offset.reset": "earliest"})
        consumer.subscribe([TOPIC])
        assert consumer.poll(30) is not None
        consumer.commit(asynchronous=False)
        consumer.close()
        self._read_as_shared()
        self.open_transaction()

    def _read_as_shared(self) -> None:
        """A share group that has read the topic and given everything back."""
        self.admin.well("config", "set", "group", SHARED, "share.auto.offset.reset=earliest")
        shown = self.admin.well("queue", "receive", TOPIC, "-g", SHARED, "--release", "--wait", "30s")
        assert "coffee" in shown

    def open_transaction(self) -> None:
        self.opened = Producer({**self.settings, "transactional.id": TRANSACTION, "transaction.timeout.ms": 600_000})
        self.opened.init_transactions(30)
        self.opened.begin_transaction()
        self.opened.produce(TOPIC, b"open")
        self.opened.flush(30)

    def grant(self, command: str, case: Case) -> None:
        own = {
            AclResource.TOPIC: [case.topic],
            AclResource.GROUP: [case.group],
            AclResource.CLUSTER: [CLUSTER_NAME],
            AclResource.TRANSACTIONAL_ID: [TRANSACTION],
        }
        acls = [
            Acl(f"User:{USER}", resource, each.replace("TOPIC", case.topic), PatternType.LITERAL, operation)
            for operation, resource, is_each, name in DOCUMENTED[command]
            for each in ([name] if name else case.others if is_each and case.others else own[resource])
        ]
        with Cluster(self.settings) as cluster:
            remove_acls(cluster, [AclFilter(principal=f"User:{USER}")])
            add_acls(cluster, acls)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    quick = "--set=group.initial.rebalance.delay.ms=0"
    node = SecureNode(tmp_path_factory.mktemp("office") / "data", "--no-console", quick)
    try:
        yield Office(node, tmp_path_factory.mktemp("clerk"))
    finally:
        node.stop(signal.SIGKILL)


@pytest.mark.parametrize("command", CASES)
def test_a_command_works_with_the_rights_that_the_page_names(office: Office, command: str) -> None:
    case = CASES[command]
    office.grant(command, case)
    done: Finished = office.clerk(*case.words, stdin_data=case.stdin_data)
    assert done.code == case.code, (case.words, done.out, done.err, refusals(office))
    assert case.shown in done.out + done.err, (case.words, done.out, done.err)


def refusals(office: Office) -> list[str]:
    """What the clerk was refused, for whoever reads why a test failed."""
    time.sleep(1)
    rights_by_command = [
        each for each in office.node.audit() if each["event"] == "refused" and each["principal"] == f"User:{USER}"
    ]
    return [f"{each['operation']} {each['resource']} {each['name']}" for each in rights_by_command[-5:]]


def test_a_user_without_rights_changes_and_learns_nothing(office: Office) -> None:
    with Cluster(office.settings) as cluster:
        remove_acls(cluster, [AclFilter(principal=f"User:{USER}")])
    learned = []
    for name in ("topic describe", "produce", "group describe", "acl add", "user add", "config set"):
        done = office.clerk(*CASES[name].words, stdin_data=CASES[name].stdin_data)
        if done.code == 0:
            learned.append((name, done.out))
    assert not learned
