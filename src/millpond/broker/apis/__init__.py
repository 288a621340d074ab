"""One file per API key; listing this folder lists what the broker serves. `APIS` is the one table of them all."""

from __future__ import annotations

from millpond.broker.api import Api
from millpond.broker.apis import (
    k00_produce,
    k01_fetch,
    k02_list_offsets,
    k03_metadata,
    k10_find_coordinator,
    k18_api_versions,
    k19_create_topics,
    k20_delete_topics,
    k21_delete_records,
    k22_init_producer_id,
    k23_offset_for_leader_epoch,
    k32_describe_configs,
    k33_alter_configs,
    k35_describe_log_dirs,
    k37_create_partitions,
    k44_incremental_alter_configs,
    k55_describe_quorum,
    k60_describe_cluster,
    k74_list_config_resources,
    k75_describe_topic_partitions,
)

APIS: tuple[Api, ...] = (
    k00_produce.API,
    k01_fetch.API,
    k02_list_offsets.API,
    k03_metadata.API,
    k10_find_coordinator.API,
    k18_api_versions.API,
    k19_create_topics.API,
    k20_delete_topics.API,
    k21_delete_records.API,
    k22_init_producer_id.API,
    k23_offset_for_leader_epoch.API,
    k32_describe_configs.API,
    k33_alter_configs.API,
    k35_describe_log_dirs.API,
    k37_create_partitions.API,
    k44_incremental_alter_configs.API,
    k55_describe_quorum.API,
    k60_describe_cluster.API,
    k74_list_config_resources.API,
    k75_describe_topic_partitions.API,
)
