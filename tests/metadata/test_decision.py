from millpond.base.errors import ErrorCode, Refused
from millpond.metadata.decision import OK, Verdict


def test_a_verdict_tells_a_refusal_onwards() -> None:
    verdict = Verdict.of(Refused(ErrorCode.INVALID_PARTITIONS, "too many"))
    assert verdict == Verdict(ErrorCode.INVALID_PARTITIONS, "too many")
    assert not verdict.ok
    assert Verdict.of(Refused(ErrorCode.NOT_CONTROLLER)).message is None


def test_all_is_well() -> None:
    assert OK.ok
    assert Verdict(ErrorCode.NONE, None) == OK


def test_a_refusal_that_repeats_a_long_name_is_cut() -> None:
    verdict = Verdict.of(Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {'x' * 32_000}-1"))
    assert verdict.message == f"there is no {'x' * 488}"
