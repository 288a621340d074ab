import pytest

from millpond.base.ids import TOPIC_NAME_LENGTH_MAX, TopicPartition, topic_name_fault


@pytest.mark.parametrize("name", ["a", "orders", "Orders.v2_final-1", "x" * TOPIC_NAME_LENGTH_MAX, "...", "-", "0"])
def test_names_that_topics_can_have(name: str) -> None:
    assert topic_name_fault(name) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "empty"),
        (".", "'.'"),
        ("..", "'..'"),
        ("x" * (TOPIC_NAME_LENGTH_MAX + 1), "at most 249"),
        ("a/b", "ASCII letters"),
        ("a b", "ASCII letters"),
        ("größe", "ASCII letters"),
        ("a\n", "ASCII letters"),
        ("a\0", "ASCII letters"),
    ],
)
def test_names_that_they_cannot_have(name: str, said: str) -> None:
    fault = topic_name_fault(name)
    assert fault is not None
    assert said in fault


def test_a_partition_names_its_folder() -> None:
    assert TopicPartition("orders", 12).folder == "orders-12"
