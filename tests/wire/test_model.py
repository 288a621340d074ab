from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import pytest

from millpond.base.errors import MalformedMessage
from millpond.wire import messages, runtime
from millpond.wire import messages as m


def test_values_behave() -> None:
    one = messages.FetchRequest(max_wait_ms=5)
    assert one == messages.FetchRequest(max_wait_ms=5)
    assert one != messages.FetchRequest(max_wait_ms=6)
    assert one != messages.HeartbeatRequest()
    assert (one.replica_id, one.session_epoch, one.max_bytes) == (-1, -1, 0x7FFFFFFF)
    assert "max_wait_ms=5" in repr(one)
    assert repr(messages.FetchRequest.ReplicaState()) == "FetchRequest.ReplicaState(replica_id=-1, replica_epoch=-1)"
    with pytest.raises(AttributeError):
        one.banana = 3  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        messages.FetchRequest(banana=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        hash(one)


@pytest.mark.parametrize(
    "secret",
    [
        messages.SaslAuthenticateRequest(auth_bytes=b"SECRET"),
        messages.SaslAuthenticateResponse(auth_bytes=b"SECRET"),
        messages.CreateDelegationTokenResponse(hmac=b"SECRET"),
        messages.RenewDelegationTokenRequest(hmac=b"SECRET"),
        messages.ExpireDelegationTokenRequest(hmac=b"SECRET"),
        messages.DescribeDelegationTokenResponse(
            tokens=[messages.DescribeDelegationTokenResponse.DescribedDelegationToken(hmac=b"SECRET")]
        ),
        messages.EnvelopeRequest(request_data=b"SECRET", client_host_address=b""),
        messages.EnvelopeResponse(response_data=b"SECRET"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_repr_of_a_message_contains_no_secret(secret: messages.Message) -> None:
    assert "SECRET" not in repr(secret)
    assert "(hidden)" in repr(secret)


def test_defaults_are_not_shared() -> None:
    one, other = messages.FetchRequest(), messages.FetchRequest()
    one.topics.append(messages.FetchRequest.FetchTopic())
    one.replica_state.replica_id = 7
    assert other.topics == []
    assert other.replica_state.replica_id == -1


def test_code_is_made_on_first_use_and_kept(all_types: Any) -> None:
    assert all_types._decoders == all_types._encoders == {}
    data = all_types().encode(1)
    all_types.decode(data, 1)
    assert list(all_types._decoders) == list(all_types._encoders) == [1]
    decoder = all_types._decoders[1]
    all_types.decode(data, 1)
    assert all_types._decoders[1] is decoder


def test_structures_are_attributes_of_their_message(all_types: Any) -> None:
    assert all_types.One.__qualname__ == "All.One"
    assert all_types().one == all_types.One(x=0)
    assert all_types().maybe is None


def test_errors_name_message_version_and_field(all_types: Any) -> None:
    with pytest.raises(MalformedMessage, match="All v0 a_bool to a_string: unpack_from requires"):
        all_types.decode(b"", 0)
    with pytest.raises(ValueError, match="All v0 strings: "):
        all_types(strings=[7]).encode(0)


def test_steps_end_after_many_bytes_as_well_as_after_many_items() -> None:
    names = [f"{number}" + "é" * 10_000 for number in range(300)]
    request = m.DescribeGroupsRequest(groups=names)
    data = request.encode(5)
    steps = request.encode_in_steps(5)
    written = finished(steps)
    parts = [bytes(part) for part in written.value]  # type: ignore[arg-type]
    assert b"".join(parts) == data
    assert max(map(len, parts)) < runtime.STEP_BYTES + 30_000, "no part of megabytes has to grow"
    assert written.count >= len(data) // (runtime.STEP_BYTES + 30_000)
    read = finished(m.DescribeGroupsRequest.decode_in_steps(data, 5, 0, 1_000))
    assert read.value == (request, len(data))
    assert read.count >= len(data) // (runtime.STEP_BYTES + 30_000)


def test_a_tagged_field_stays_in_one_part() -> None:
    kind = m.FetchResponse
    nodes = [kind.NodeEndpoint(node_id=number, host="h" * 30_000, port=1) for number in range(30)]
    response = kind(responses=[], node_endpoints=nodes)
    assert b"".join(map(bytes, finished(response.encode_in_steps(16)).value)) == response.encode(16)


class Finished(NamedTuple):
    value: Any
    count: int


def finished(steps: Generator[None, None, Any]) -> Finished:
    """What the steps return, and how often they yielded."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return Finished(end.value, count)
        count += 1
