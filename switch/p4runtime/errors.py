# SPDX-License-Identifier: Apache-2.0
"""Errors of the P4Runtime server: each has the canonical code that the client sees (spec 1.4, 10)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import grpc
from google.protobuf import any_pb2
from google.rpc import status_pb2
from p4.v1 import p4runtime_pb2

from wire.errors import P4ReduceError

ERROR_SPACE = "p4reduce-embedded"
"""`space` of every p4.v1.Error and StreamError: the target that gives the codes their detail."""

SUMMARY_LIMIT = 500
DETAILS_LIMIT = 7400
"""Bytes of details that fit the 8 KB of metadata which gRPC takes by default, with what else is in there."""
MESSAGE_LIMIT = 4000
"""Bytes of a message that goes without details: the same 8 KB hold it."""


class RpcError(P4ReduceError):
    """A request that cannot be served: `code` is canonical, the message names the object and the remedy."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def canonical(self) -> int:
        """The code as google.rpc.Code numbers it."""
        number: int = self.code.value[0]
        return number


# each takes the message
invalid = partial(RpcError, grpc.StatusCode.INVALID_ARGUMENT)
not_found = partial(RpcError, grpc.StatusCode.NOT_FOUND)
already_exists = partial(RpcError, grpc.StatusCode.ALREADY_EXISTS)
denied = partial(RpcError, grpc.StatusCode.PERMISSION_DENIED)
out_of_range = partial(RpcError, grpc.StatusCode.OUT_OF_RANGE)
exhausted = partial(RpcError, grpc.StatusCode.RESOURCE_EXHAUSTED)
unimplemented = partial(RpcError, grpc.StatusCode.UNIMPLEMENTED)
precondition = partial(RpcError, grpc.StatusCode.FAILED_PRECONDITION)


def batch_summary(results: Sequence[RpcError | None]) -> str:
    """Return one line about a partly failed Write: how much of it failed and what failed first."""
    failed = [(index, error) for index, error in enumerate(results) if error is not None]
    index, first = failed[0]
    return clip(
        f"Error(s) during Write: {len(failed)} of {len(results)} updates failed, "
        f"first update {index}: {first.code.name}: {first}",
        SUMMARY_LIMIT,
    )


def clip(message: str, limit: int) -> str:
    """Return a message, or its beginning, that takes at most `limit` bytes as grpc-message.

    There each byte of UTF-8 takes three that is not printable ASCII, and the percent sign.
    """
    size, cut = 0, 0
    for index, char in enumerate(message):
        size += 1 if " " <= char <= "~" and char != "%" else 3 * len(char.encode(errors="replace"))
        if size <= limit - 3:
            cut = index + 1
        if size > limit:
            message = message[:cut] + "..."
            break
    return message.encode(errors="replace").decode()


def abort(context: grpc.ServicerContext, error: RpcError) -> None:
    """End a call (gRPC raises) with an error whose message reaches the client however long it is."""
    context.abort(error.code, clip(str(error), MESSAGE_LIMIT))


def batch_status(results: Sequence[RpcError | None]) -> bytes | None:
    """Return the serialized google.rpc.Status of a partly failed Write: a p4.v1.Error for each update.

    It travels as trailing metadata `grpc-status-details-bin`, with gRPC code UNKNOWN (spec 1.4, 12.3).
    Clients refuse metadata beyond 8 KB unless told otherwise, and then see nothing of the answer: where the
    messages do not fit, the codes go alone (some 190 of them do), and where those do not, this is None: the
    summary is all that goes.
    """
    for with_messages in (True, False):
        whole = _status(results, with_messages=with_messages)
        if len(whole) <= DETAILS_LIMIT:
            return whole
    return None


def _status(results: Sequence[RpcError | None], *, with_messages: bool) -> bytes:
    status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message="Error(s) during Write")
    for result in results:
        error = p4runtime_pb2.Error()
        if result is not None:
            error.canonical_code = result.canonical
            if with_messages:
                error.message = str(result)
                error.space = ERROR_SPACE
        packed = any_pb2.Any()
        packed.Pack(error)
        status.details.append(packed)
    serialized: bytes = status.SerializeToString()
    return serialized
