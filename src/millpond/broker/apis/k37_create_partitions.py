"""CreatePartitions (37), versions 0-3: add partitions to topics; existing records stay where they are.

2 flexible · 3 quota errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done
from millpond.base.rights import AclResource, Operation
from millpond.broker.administration.topic_creation import once_placeable
from millpond.broker.authorization.partition_mutations import Mutations, if_possible
from millpond.broker.authorization.required_rights import NOT_AUTHORISED, on_each
from millpond.broker.forwarding.change_relay import catch_up, caught_up
from millpond.broker.forwarding.envelope import ask_for_client
from millpond.broker.peers.controller_channel import SHOWN_MS, Attempts
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.metadata.decision import Verdict
from millpond.metadata.topics import GrownTopic, MorePartitions, decide_create_partitions
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext, SecurityContext


def handle(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    call: Call,
    request: m.CreatePartitionsRequest,
) -> Outcome:
    wanted = [_wanted(topic) for topic in request.topics]

    def decide() -> Later[tuple[GrownTopic, ...]]:
        return metadata.controller.submit(
            lambda image: decide_create_partitions(
                image, node.layers, wanted, node.entropy, validate_only=request.validate_only
            )
        )

    decided = (
        decide() if call.is_from_node else once_placeable(metadata, request.timeout_ms).chain(lambda _: decide())
    )

    def answer(grown: tuple[GrownTopic, ...]) -> m.CreatePartitionsResponse:
        for each in grown:
            security.limits.note_refused(each.verdict.limit_met)
        return _answer(grown)

    return decided.map(answer).recover(
        Refused, lambda refused: _answer(tuple(GrownTopic(topic.name, Verdict.of(refused)) for topic in wanted))
    )


def forward(
    metadata: MetadataContext, call: Call, request: m.CreatePartitionsRequest
) -> Later[m.CreatePartitionsResponse]:
    """Responds once this node's image has the partitions, too."""
    counts = {topic.name: topic.count for topic in request.topics}

    def once_grown(response: m.CreatePartitionsResponse) -> Later[m.CreatePartitionsResponse]:
        grown = [each.name for each in response.results if not each.error_code and not request.validate_only]

        def is_shown() -> bool:
            topics = metadata.image.topics
            return all(name not in topics or len(topics[name].partitions) >= counts[name] for name in grown)

        return metadata.once_shown(is_shown, SHOWN_MS).map(lambda _: response)

    def ask(_: None) -> Later[m.CreatePartitionsResponse]:
        topics = metadata.image.topics
        smaller = [name for name, count in counts.items() if name in topics and len(topics[name].partitions) < count]
        attempts = Attempts()

        def complete(response: m.CreatePartitionsResponse) -> Later[m.CreatePartitionsResponse]:
            if not attempts.is_repeated:
                return done(response)
            return caught_up(metadata).map(lambda _: _own_first_attempt(metadata, counts, smaller, response))

        return ask_for_client(metadata, call, request, attempts=attempts).chain(complete)

    # A topic that already has as many partitions when the request arrives is refused.
    ready = once_placeable(metadata, request.timeout_ms).chain(lambda _: catch_up(metadata))
    return ready.chain(ask).chain(once_grown)


def _own_first_attempt(
    metadata: MetadataContext, counts: dict[str, int], smaller: list[str], response: m.CreatePartitionsResponse
) -> m.CreatePartitionsResponse:
    """The response to a repeated attempt. A topic that had fewer partitions when the request arrived, and now has as
    many as requested, got them from an attempt whose response was lost."""
    for each in response.results:
        topic = metadata.image.topics.get(each.name)
        is_grown = topic is not None and each.name in smaller and len(topic.partitions) == counts[each.name]
        if each.error_code == ErrorCode.INVALID_PARTITIONS and is_grown:
            each.error_code, each.error_message = ErrorCode.NONE, None
    return response


def _wanted(topic: m.CreatePartitionsRequest.CreatePartitionsTopic) -> MorePartitions:
    if topic.assignments is None:
        return MorePartitions(topic.name, topic.count)
    return MorePartitions(topic.name, topic.count, tuple(tuple(each.broker_ids) for each in topic.assignments))


def _answer(grown: tuple[GrownTopic, ...]) -> m.CreatePartitionsResponse:
    return m.CreatePartitionsResponse(
        results=[
            m.CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=each.name, error_code=each.verdict.code, error_message=each.verdict.message
            )
            for each in grown
        ]
    )


def _added_partitions(
    node: NodeContext, metadata: MetadataContext, topic: m.CreatePartitionsRequest.CreatePartitionsTopic
) -> int:
    known = metadata.image.topics.get(topic.name)
    return (
        0 if known is None else if_possible(node, metadata, topic.count, max(topic.count - len(known.partitions), 0))
    )


def _beyond_quota(
    topic: m.CreatePartitionsRequest.CreatePartitionsTopic, code: ErrorCode, text: str
) -> m.CreatePartitionsResponse.CreatePartitionsTopicResult:
    return m.CreatePartitionsResponse.CreatePartitionsTopicResult(
        name=topic.name, error_code=code, error_message=text
    )


MUTATIONS = Mutations(
    strict_from=3,
    lists=("topics",),
    count=_added_partitions,
    refuse=_beyond_quota,
    into="results",
)

RIGHTS = on_each(
    Operation.ALTER,
    AclResource.TOPIC,
    of="topics",
    named=lambda topic: topic.name,
    refuse=lambda topic, code: m.CreatePartitionsResponse.CreatePartitionsTopicResult(
        name=topic.name, error_code=code, error_message=NOT_AUTHORISED
    ),
    into="results",
)

API = Api(
    key=37,
    name="CreatePartitions",
    versions=(0, 3),
    handle=handle,
    lists="topics",
    at_controller=True,
    forward=forward,
    mutations=MUTATIONS,
    pieces=(way("topics", "results"),),
    rights=RIGHTS,
)
