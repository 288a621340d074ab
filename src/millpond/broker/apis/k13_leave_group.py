"""LeaveGroup (13), versions 0-5: members leave at once instead of timing out.

1 throttle time · 3 several members, static ones too · 4 flexible · 5 a reason.
"""

from __future__ import annotations

from millpond.broker.coordinator_calls.group_calls import handle_for_group
from millpond.broker.coordinator_calls.group_rights import READ_GROUP
from millpond.broker.serving.api import Api

API = Api(key=13, name="LeaveGroup", versions=(0, 5), handle=handle_for_group, rights=READ_GROUP)
