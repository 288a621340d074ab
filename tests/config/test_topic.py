import pytest

from millpond.base.settings import Kind, SettingError
from millpond.config.topic import CLEANUP_POLICY, TOPIC

DEFAULTS_THAT_TOOLS_KNOW = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def test_names_and_defaults_are_those_that_tools_know() -> None:
    shown = {setting.name: setting.show(setting.default) for setting in TOPIC}
    assert shown.pop("flush.ack") == "auto"
    assert shown == DEFAULTS_THAT_TOOLS_KNOW


def test_every_setting_says_in_a_sentence_what_it_does() -> None:
    for setting in TOPIC:
        assert setting.doc.endswith("."), setting.name
        assert setting.live, setting.name


def test_settings_stand_in_the_order_of_their_names() -> None:
    names = [setting.name for setting in TOPIC]
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", "compact,forget"),
        ("compression.type", "none"),
        ("flush.ack", "sometimes"),
        ("max.message.bytes", str(1 << 31)),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.insync.replicas", "0"),
        ("message.timestamp.type", "createtime"),
        ("retention.ms", "-2"),
        ("segment.bytes", "16383"),
        ("segment.ms", "0"),
    ],
)
def test_bounds(name: str, text: str) -> None:
    with pytest.raises(SettingError):
        TOPIC.get(name).parse(text)


def test_a_policy_can_be_both() -> None:
    assert CLEANUP_POLICY.kind is Kind.LIST
    assert CLEANUP_POLICY.parse("compact,delete") == ("compact", "delete")
