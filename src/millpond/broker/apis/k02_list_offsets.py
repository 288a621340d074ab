"""ListOffsets (2), versions 1-11: the offset for a timestamp, or at the start or end of a partition.

1 one offset per partition · 2 isolation level · 4 leader epoch · 6 flexible · 7 the largest timestamp · 8 the
earliest local offset · 9 the latest tiered offset · 10 timeout · 11 the earliest offset not yet uploaded.
There is no tiered storage: the local start is the start, and nothing is tiered.

A new leader that does not know the high watermark yet answers OFFSET_NOT_AVAILABLE for the end. Replicas, and as in
Kafka the debugging replica id (-2), see the log end offset. A look-up by time may have to read files and unpack a
batch: a worker does that for all partitions of the request, within a budget, and stops if the client disconnects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done
from millpond.base.named_tuple import NamedTuple
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import on_each
from millpond.broker.replication.partitions import Partition
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.log.lookup import LookupBudget, TimedOffset, TimeLookup
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, NodeContext

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
READ_COMMITTED = 1
Topic = m.ListOffsetsResponse.ListOffsetsTopicResponse
_Result = m.ListOffsetsResponse.ListOffsetsPartitionResponse
CONSUMER = -1
LEADER_EPOCH_FROM, NOT_AVAILABLE_FROM = 4, 5
LOOKUPS_AGAIN_MAX = 5
"""How often a look-up is repeated because compaction replaced the files under it."""

NOTHING = TimedOffset(-1, -1, -1)


class _Search(NamedTuple):
    """A partition whose records must be read, and the response to fill in."""

    partition: Partition
    timestamp: int | None
    end_offset: int
    lookup: TimeLookup
    result: _Result


def handle(node: NodeContext, data: DataContext, call: Call, request: m.ListOffsetsRequest) -> Outcome:
    committed_only = request.isolation_level == READ_COMMITTED
    by_replica = request.replica_id != CONSUMER
    searches: list[_Search] = []
    budget = _budget(node, call, request)
    named_twice = _named_twice(request)

    def list_one(topic: str, wanted: m.ListOffsetsRequest.ListOffsetsPartition) -> _Result:
        if (topic, wanted.partition_index) in named_twice:
            # A worker would read the same file again for each duplicate; Kafka refuses them, too.
            return _empty(wanted, ErrorCode.INVALID_REQUEST)
        return _list_one(data, topic, wanted, committed_only, by_replica, searches, budget)

    response = m.ListOffsetsResponse(
        topics=[
            Topic(name=topic.name, partitions=[list_one(topic.name, wanted) for wanted in topic.partitions])
            for topic in request.topics
        ]
    )

    def answer() -> m.ListOffsetsResponse:
        for topic in response.topics if call.version < NOT_AVAILABLE_FROM else ():
            for result in topic.partitions:
                if call.version < LEADER_EPOCH_FROM:
                    result.leader_epoch = -1
                if result.error_code == ErrorCode.OFFSET_NOT_AVAILABLE:
                    # Older clients do not know OFFSET_NOT_AVAILABLE; this code makes them retry, too.
                    result.error_code = ErrorCode.LEADER_NOT_AVAILABLE
        return response

    if not searches or not call.is_wanted:
        return answer()
    host = "" if call.is_own else call.client_host
    return _run(data, host, searches, budget, LOOKUPS_AGAIN_MAX).map(lambda _: answer())


def _budget(node: NodeContext, call: Call, request: m.ListOffsetsRequest) -> LookupBudget:
    lookups = sum(len(topic.partitions) for topic in request.topics)
    if call.lookup_budget is None:
        call.lookup_budget = LookupBudget(lookups, lambda: call.is_wanted and not node.is_stopping)
    else:
        call.lookup_budget.add(lookups)
    return call.lookup_budget


def _named_twice(request: m.ListOffsetsRequest) -> Container[tuple[str, int]]:
    names = [(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
    if len(names) == len(set(names)):
        return ()
    return {name for name, times in Counter(names).items() if times > 1}


def _empty(wanted: m.ListOffsetsRequest.ListOffsetsPartition, code: ErrorCode) -> _Result:
    return _Result(partition_index=wanted.partition_index, error_code=code, timestamp=-1, offset=-1, leader_epoch=-1)


def _list_one(
    data: DataContext,
    topic: str,
    wanted: m.ListOffsetsRequest.ListOffsetsPartition,
    committed_only: bool,
    by_replica: bool,
    searches: list[_Search],
    budget: LookupBudget,
) -> _Result:
    result = _empty(wanted, ErrorCode.NONE)
    partition = data.partitions.get(topic, wanted.partition_index)
    if partition is None:
        result.error_code = data.absence(topic, wanted.partition_index)
        return result
    log = partition.log
    try:
        partition.check_leader_epoch(wanted.current_leader_epoch)
        partition.check_leads()
        end = log.end_offset if by_replica else _visible_end(partition, wanted.timestamp, committed_only)
        match wanted.timestamp:
            case -1:
                _fill(result, TimedOffset(-1, end, partition.leader_epoch))
            case -2 | -4:
                _fill(result, TimedOffset(-1, log.start_offset, log.epochs.of(log.start_offset)))
            case -5 | -6:
                pass
            case asked:
                timestamp = None if asked == MAX_TIMESTAMP else asked
                lookup = log.time_lookup(timestamp, end, budget)
                searches.append(_Search(partition, timestamp, end, lookup, result))
    except Refused as refusal:
        result.error_code = refusal.code
    return result


def _visible_end(partition: Partition, timestamp: int, committed_only: bool) -> int:
    """The end of what consumers may read."""
    if timestamp in (LATEST, MAX_TIMESTAMP) or timestamp >= 0:
        partition.check_settled()
    return partition.last_stable_offset if committed_only else partition.committed_offset


def _run(data: DataContext, host: str, searches: list[_Search], budget: LookupBudget, tries: int) -> Later[None]:
    """Looks up on a worker; repeats the partitions whose files were replaced meanwhile."""

    def look() -> None:
        for search in searches:
            search.lookup.run()

    def looked(_: None) -> Later[None]:
        again = [renewed for search in searches if (renewed := _finish(search, budget, tries > 0)) is not None]
        return _run(data, host, again, budget, tries - 1) if again else done(None)

    return data.unpacking.run(host, look).chain(looked)


def _finish(search: _Search, budget: LookupBudget, may_repeat: bool) -> _Search | None:
    log = search.partition.log
    try:
        if may_repeat and search.lookup.is_stale(log.segments):
            return search._replace(lookup=log.time_lookup(search.timestamp, search.end_offset, budget))
        match = search.lookup.finish()
    except Refused as refusal:
        search.result.error_code = refusal.code
        return None
    if match is not None and match.offset < search.end_offset:
        _fill(search.result, match)
    return None


def _fill(result: _Result, match: TimedOffset) -> None:
    result.timestamp, result.offset, result.leader_epoch = match


def _refuse_topic(topic: m.ListOffsetsRequest.ListOffsetsTopic, code: ErrorCode) -> Topic:
    return Topic(
        name=topic.name,
        partitions=[_empty(each, code) for each in topic.partitions],
    )


RIGHTS = on_each(
    Operation.DESCRIBE,
    AclResource.TOPIC,
    of="topics",
    named=lambda topic: topic.name,
    refuse=_refuse_topic,
    into="topics",
)

API = Api(
    key=2,
    name="ListOffsets",
    versions=(1, 11),
    handle=handle,
    lists="topics",
    pieces=(way("topics.partitions", "topics.partitions", one_by_one=True),),
    rights=RIGHTS,
)
