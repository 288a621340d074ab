"""Error codes: texts, advice, and which are temporary."""

from __future__ import annotations

import pickle

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.remote.errors import PASSING, Answered, OffsetsGone, check


def test_an_error_code_is_explained_with_advice() -> None:
    fault = Answered("topic 'x'", ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no")
    assert str(fault).startswith("topic 'x': no (TOPIC_AUTHORIZATION_FAILED); this user may not use the topic")
    assert fault.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not fault.retriable


def test_an_unknown_code_is_a_number() -> None:
    assert str(Answered("it", 9999)) == "it: error 9999"


@pytest.mark.parametrize("code", sorted(PASSING))
def test_temporary_errors_are_retriable(code: int) -> None:
    assert Answered("it", code).retriable


def test_code_0_is_not_an_error() -> None:
    check(ErrorCode.NONE, "it")
    with pytest.raises(Answered):
        check(ErrorCode.INVALID_REQUEST, "it")


def test_offsets_gone_can_be_pickled() -> None:
    fault = pickle.loads(pickle.dumps(OffsetsGone(TopicPartition("t", 3), 5, 40, 100)))
    assert str(fault) == "t[3]: offset 5 was asked for, the log has 40 to 100"
    assert (fault.partition, fault.requested, fault.earliest, fault.latest) == (("t", 3), 5, 40, 100)
