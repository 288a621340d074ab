"""DeleteTopics (20), versions 1-6: remove topics and all that is in them.

1 throttle time · 4 flexible · 5 error messages · 6 topics by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.base.later import Later
from millpond.broker.links.to_controller import SHOWN_MS, forward_ms
from millpond.broker.serving.api import Api
from millpond.broker.serving.call import Call
from millpond.broker.serving.replies import Outcome
from millpond.metadata.decision import Verdict
from millpond.metadata.topics import DeletedTopic, TopicRef, decide_delete_topics
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services
    from millpond.metadata.image import Topic

BY_ID_FROM = 6


def handle(broker: Services, call: Call, request: m.DeleteTopicsRequest) -> Outcome:
    refs = _refs(call, request)
    decided = broker.controller.submit(lambda image: decide_delete_topics(image, broker.layers, refs))
    return decided.map(_answer).recover(Refused, lambda refused: _refuse_all(refs, refused))


def forward(broker: Services, call: Call, request: m.DeleteTopicsRequest) -> Later[m.DeleteTopicsResponse]:
    """The client is answered once this node does not know the topics any more, either."""
    ids = {ref: topic.id for ref in _refs(call, request) if (topic := _topic(broker, ref)) is not None}

    def once_gone(response: m.DeleteTopicsResponse) -> Later[m.DeleteTopicsResponse]:
        deleted = [each for each in response.responses if not each.error_code]
        gone = {ids.get(TopicRef(each.name), each.topic_id) for each in deleted}
        shown = broker.once_shown(lambda: gone.isdisjoint(broker.image.topics_by_id), SHOWN_MS)
        return shown.map(lambda _: response)

    return broker.to_controller.ask(request, call.version, forward_ms(request)).chain(once_gone)


def _topic(broker: Services, ref: TopicRef) -> Topic | None:
    return broker.image.topics_by_id.get(ref.topic_id) if ref.name is None else broker.image.topics.get(ref.name)


def _refs(call: Call, request: m.DeleteTopicsRequest) -> list[TopicRef]:
    if call.version >= BY_ID_FROM:
        return [TopicRef(topic.name, topic.topic_id) for topic in request.topics]
    return [TopicRef(name) for name in request.topic_names]


def _answer(deleted: tuple[DeletedTopic, ...]) -> m.DeleteTopicsResponse:
    return m.DeleteTopicsResponse(
        responses=[
            m.DeleteTopicsResponse.DeletableTopicResult(
                name=each.name,
                topic_id=each.topic_id,
                error_code=each.verdict.code,
                error_message=each.verdict.message,
            )
            for each in deleted
        ]
    )


def _refuse_all(refs: list[TopicRef], refused: Refused) -> m.DeleteTopicsResponse:
    return _answer(tuple(DeletedTopic(ref.name, ref.topic_id, Verdict.of(refused)) for ref in refs))


API = Api(
    key=20, name="DeleteTopics", versions=(1, 6), handle=handle, lists="topics", at_controller=True, forward=forward
)
