"""DescribeUserScramCredentials (50), version 0: users, their mechanisms and iterations. Salts and keys are never
disclosed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import on_cluster
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.metadata.scram import DescribedUser, describe_users
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext

Result = m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


def handle(metadata: MetadataContext, call: Call, request: m.DescribeUserScramCredentialsRequest) -> Outcome:
    users = None if request.users is None else [each.name for each in request.users]
    return m.DescribeUserScramCredentialsResponse(
        error_code=ErrorCode.NONE, results=[_result(each) for each in describe_users(metadata.image.scram, users)]
    )


def _result(user: DescribedUser) -> Result:
    return Result(
        user=user.user,
        error_code=user.verdict.code,
        error_message=user.verdict.message,
        credential_infos=[
            m.DescribeUserScramCredentialsResponse.CredentialInfo(mechanism=mechanism, iterations=iterations)
            for mechanism, iterations in user.credentials
        ],
    )


API = Api(
    key=50,
    name="DescribeUserScramCredentials",
    versions=(0, 0),
    handle=handle,
    lists="users",
    pieces=(way("users", "results"),),
    rights=on_cluster(Operation.DESCRIBE),
)
