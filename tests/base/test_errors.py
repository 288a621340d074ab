from millpond.base.errors import ErrorCode, MalformedMessage, Refused, RemoteError


def test_codes_are_those_of_the_protocol() -> None:
    assert ErrorCode.UNKNOWN_SERVER_ERROR == -1
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == 3
    assert ErrorCode.TOPIC_ALREADY_EXISTS == 36
    assert ErrorCode.KAFKA_STORAGE_ERROR == 56
    assert ErrorCode.UNKNOWN_TOPIC_ID == 100


def test_each_code_has_one_name() -> None:
    assert len(ErrorCode.__members__) == len(set(ErrorCode))


def test_a_refusal_says_why() -> None:
    refused = Refused(ErrorCode.INVALID_CONFIG, "retention.ms=x: must be a whole number")
    assert (refused.code, refused.message) == (ErrorCode.INVALID_CONFIG, str(refused))


def test_a_refusal_without_words_is_shown_by_its_code_but_sends_no_message() -> None:
    refused = Refused(ErrorCode.NOT_CONTROLLER)
    assert (str(refused), refused.message) == ("NOT_CONTROLLER", None)


def test_a_malformed_message_is_the_peers_fault() -> None:
    assert issubclass(MalformedMessage, RemoteError)
    assert not issubclass(Refused, RemoteError)
