"""ShareFetch (78), versions 1-2: records for a member of a share group (KIP-932).

2 renewals, strict limit of records.
A request first acknowledges, then acquires records, waiting for some if there are none. The response comes once the
acknowledgements have been written. Epoch 0 opens a session, -1 ends it (see `shares.sessions`). A partition whose
state is being loaded has no error and no records: the client asks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done
from millpond.broker.fetch.consumer_fetch import AT_ONCE_MAX
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.share_requests.share_call import RIGHTS, ShareCall, by_topic, keys_of
from millpond.broker.shares.acknowledgements import Codes, acknowledged_in
from millpond.broker.shares.acquisition import AcquireMode
from millpond.broker.shares.fetch import Served, ShareFetch
from millpond.broker.shares.sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSession
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.shares.sessions import PartitionKey

ITEMS_MAX: Final = 30_000
"""A member may acknowledge record by record."""


def handle(
    node: NodeContext, metadata: MetadataContext, data: DataContext, call: Call, request: m.ShareFetchRequest
) -> Outcome:
    share_call = ShareCall(node, metadata, data, call, request)
    try:
        share_call.check()
        _check_renewal(share_call, request)
        if not 0 <= request.share_acquire_mode <= max(AcquireMode):
            raise Refused(ErrorCode.INVALID_REQUEST, f"unknown acquire mode {request.share_acquire_mode}")
        session = _session(data, share_call, request)
    except Refused as refusal:
        return m.ShareFetchResponse(
            error_code=refusal.code,
            error_message=str(refusal) or None,
            acquisition_lock_timeout_ms=share_call.lock_duration_ms,
        )
    wanted = acknowledged_in(request.topics)
    acknowledged = share_call.acknowledge(session, wanted) if wanted else done(Codes())

    def go_on(codes: Codes) -> Later[m.ShareFetchResponse]:
        responder = _Responder(share_call, session, codes)
        if request.share_session_epoch == FINAL_EPOCH:
            data.shares().sessions.end(session, were_delivered=False)
            return done(responder.response({}, {}, ErrorCode.NONE))
        if share_call.is_renewal:
            # Acquiring takes time, in which the renewed locks would run on.
            return done(responder.response({}, {}, ErrorCode.NONE))
        # Of a failed acknowledgement the member should know at once.
        may_wait = not any(codes.values())
        fetch = ShareFetch(data.fetch_source, call, request, session, responder, may_wait=may_wait)
        return fetch.begin()

    return acknowledged.chain(go_on)


def _check_renewal(share_call: ShareCall, request: m.ShareFetchRequest) -> None:
    if not share_call.is_renewal:
        return
    fetches = request.max_bytes or request.min_bytes or request.max_records or request.max_wait_ms
    if fetches or not all(each.acknowledgement_batches for topic in request.topics for each in topic.partitions):
        raise Refused(ErrorCode.INVALID_REQUEST, "a request that renews acknowledgements cannot fetch")


def _session(data: DataContext, share_call: ShareCall, request: m.ShareFetchRequest) -> ShareSession:
    """The session of this request, updated by it. Refused if there is none."""
    sessions = data.shares().sessions
    if request.share_session_epoch != INITIAL_EPOCH:
        session = share_call.session()
        if request.share_session_epoch != FINAL_EPOCH:
            forgotten = [
                (topic.topic_id, each) for topic in request.forgotten_topics_data for each in topic.partitions
            ]
            sessions.update(session, keys_of(request.topics), forgotten)
            session.advance()
        return session
    if any(each.acknowledgement_batches for topic in request.topics for each in topic.partitions):
        raise Refused(ErrorCode.INVALID_REQUEST, "the first request of a share session cannot acknowledge")
    group = data.shares().group(request.group_id or "")
    try:
        return sessions.open(
            group, request.member_id or "", share_call.call.connection, share_call.owner, keys_of(request.topics)
        )
    finally:
        group.forget_if_unused()


class _Responder:
    """See `fetch.Responder`."""

    __slots__ = ("_codes", "_session", "_share_call")

    def __init__(self, share_call: ShareCall, session: ShareSession, codes: Codes) -> None:
        self._share_call = share_call
        self._session = session
        self._codes = codes

    def may_read(self, key: PartitionKey, partition: Partition | None) -> bool:
        return self._share_call.may_read(key, partition)

    def response(
        self, served: Mapping[PartitionKey, Served], failed: Mapping[PartitionKey, ErrorCode], error: ErrorCode
    ) -> m.ShareFetchResponse:
        share_call, codes, partitions = self._share_call, self._codes, self._session.partitions
        new = () if self._session.has_ended else [key for key, is_new in partitions.items() if is_new]
        for key in new:
            partitions[key] = False
        included = {**dict.fromkeys(codes), **dict.fromkeys(served), **dict.fromkeys(failed), **dict.fromkeys(new)}
        return m.ShareFetchResponse(
            error_code=error,
            acquisition_lock_timeout_ms=share_call.lock_duration_ms,
            responses=by_topic(
                m.ShareFetchResponse.ShareFetchableTopicResponse,
                {key: self._partition(key, served.get(key), failed.get(key, ErrorCode.NONE)) for key in included},
            ),
            node_endpoints=share_call.node_endpoints(m.ShareFetchResponse.NodeEndpoint),
        )

    def _partition(
        self, key: PartitionKey, served: Served | None, code: ErrorCode
    ) -> m.ShareFetchResponse.PartitionData:
        acknowledge_code = self._codes.get(key, ErrorCode.NONE)
        return m.ShareFetchResponse.PartitionData(
            partition_index=key[1],
            error_code=code,
            acknowledge_error_code=acknowledge_code,
            current_leader=self._share_call.leader_hint(
                m.ShareFetchResponse.LeaderIdAndEpoch, key, code or acknowledge_code
            ),
            records=b"" if served is None else [*served.records],
            acquired_records=[]
            if served is None
            else [
                m.ShareFetchResponse.AcquiredRecords(first_offset=first, last_offset=last, delivery_count=deliveries)
                for first, last, deliveries in served.acquired
            ],
        )


def _has_many_partitions(response: m.ShareFetchResponse) -> bool:
    return (
        sum(1 + len(each.acquired_records) for topic in response.responses for each in topic.partitions) > AT_ONCE_MAX
    )


API = Api(
    key=78,
    name="ShareFetch",
    versions=(1, 2),
    handle=handle,
    lists="topics",
    waits=True,
    is_large=_has_many_partitions,
    has_ranges=True,
    whole_max=ITEMS_MAX,
    rights=RIGHTS,
)
