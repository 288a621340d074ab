"""The end of AlterConfigs and IncrementalAlterConfigs: commit the changes, and answer for each resource."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.base.later import Later, done
from millpond.broker.requests.replies import Outcome
from millpond.metadata.configs import ResourceVerdict, Verdicts, first_slice
from millpond.metadata.decision import Decision, Verdict
from millpond.metadata.image import Image, Resource
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext


def commit_changes(
    metadata: MetadataContext,
    resources: Sequence[Resource],
    decide: Callable[[Image], Decision[Verdicts]],
    response: type[m.AlterConfigsResponse] | type[m.IncrementalAlterConfigsResponse],
    settled: Verdicts = (),
) -> Outcome:
    """`settled` are the results that need no commit."""

    def answer(verdicts: Verdicts) -> m.AlterConfigsResponse | m.IncrementalAlterConfigsResponse:
        results = [
            response.AlterConfigsResourceResponse(
                resource_type=each.resource.type,
                resource_name=each.resource.name,
                error_code=each.verdict.code,
                error_message=each.verdict.message,
            )
            for each in (*settled, *verdicts)
        ]
        return response(responses=results)  # type: ignore[arg-type]

    def commit() -> Later[Verdicts]:
        decided = metadata.controller.submit(lambda image: first_slice(decide(image)))
        return decided.chain(lambda verdicts: commit() if verdicts is None else done(verdicts))

    return (
        commit()
        .map(answer)
        .recover(
            Refused,
            lambda refused: answer(tuple(ResourceVerdict(each, Verdict.of(refused)) for each in resources)),
        )
    )
