"""Records whose deletion was acknowledged while a replica was away stay deleted when that replica leads."""

from __future__ import annotations

from unittest.mock import patch

from tests.sim.cluster.test_rescue import Rescue

from millpond.base.errors import ErrorCode
from millpond.broker.replication import fetchers
from millpond.wire import messages as m


def test_an_acknowledged_deletion_is_not_undone_by_a_replica_that_was_away() -> None:
    cluster = Rescue(texts={"leader.imbalance.check.interval.seconds": "1"})
    cluster.create_topics(2, pond=(3, 1, 2))
    for value in (b"a", b"b", b"c"):
        cluster.write(3, "pond", value)
    cluster.nodes[3].kill()
    cluster.wait(lambda: cluster.image.topics["pond"].partitions[0].leader == 1)
    kind = m.DeleteRecordsRequest
    topic = kind.DeleteRecordsTopic(
        name="pond", partitions=[kind.DeleteRecordsPartition(partition_index=0, offset=2)]
    )
    cluster.wait(lambda: cluster.leads(1, "pond"))
    answer = cluster.ask(1, kind(topics=[topic], timeout_ms=5_000), 2).topics[0].partitions[0]
    assert (ErrorCode(answer.error_code), answer.low_watermark) == (ErrorCode.NONE, 2)
    # Its disk is slow: where the log begins does not reach the checkpoint before it is killed again.
    with patch.object(fetchers._Fetcher, "_note_start", lambda *_: None):
        assert cluster.nodes[3].start()
        cluster.sim.run_until(lambda: 3 in cluster.image.topics["pond"].partitions[0].isr, within_ms=3_000)
        for node in cluster.nodes.values():
            node.kill()
    for node_id in (3, 2, 1):
        assert cluster.nodes[node_id].start()
    cluster.wait(lambda: cluster.controller_id != 0 and cluster.leads(3, "pond"), within_ms=60_000)
    cluster.sim.run_for(3_000)
    assert cluster.values(3, "pond") == [b"c"]
