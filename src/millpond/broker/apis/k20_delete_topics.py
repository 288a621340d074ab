"""DeleteTopics (20), versions 1-6: remove topics and all that is in them.

1 throttle time · 4 flexible · 5 error messages · 6 topics by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.broker.api import Api
from millpond.broker.call import Call
from millpond.broker.replies import Outcome
from millpond.metadata.decision import Verdict
from millpond.metadata.topics import DeletedTopic, TopicRef, decide_delete_topics
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services


def handle(broker: Services, call: Call, request: m.DeleteTopicsRequest) -> Outcome:
    if call.version >= 6:
        refs = [TopicRef(topic.name, topic.topic_id) for topic in request.topics]
    else:
        refs = [TopicRef(name) for name in request.topic_names]
    decided = broker.controller.submit(lambda image: decide_delete_topics(image, broker.layers, refs))
    return decided.map(_answer).recover(Refused, lambda refused: _refuse_all(refs, refused))


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


API = Api(key=20, name="DeleteTopics", versions=(1, 6), handle=handle, lists="topics", at_controller=True)
