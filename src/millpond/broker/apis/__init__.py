"""One file per API key; listing this folder lists what the broker serves. `APIS` is the one table of them all."""

from __future__ import annotations

from millpond.broker.api import Api
from millpond.broker.apis import (
    k00_produce,
    k01_fetch,
    k02_list_offsets,
    k03_metadata,
    k18_api_versions,
    k21_delete_records,
    k22_init_producer_id,
    k23_offset_for_leader_epoch,
)

APIS: tuple[Api, ...] = (
    k00_produce.API,
    k01_fetch.API,
    k02_list_offsets.API,
    k03_metadata.API,
    k18_api_versions.API,
    k21_delete_records.API,
    k22_init_producer_id.API,
    k23_offset_for_leader_epoch.API,
)
