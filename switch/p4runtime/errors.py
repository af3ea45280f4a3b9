# SPDX-License-Identifier: Apache-2.0
"""Errors of the P4Runtime server: each has the canonical code that the client sees (spec 1.4, 10)."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from google.protobuf import any_pb2
from google.rpc import status_pb2
from p4.v1 import p4runtime_pb2

from wire.errors import P4ReduceError

ERROR_SPACE = "p4reduce-embedded"
"""`space` of every p4.v1.Error and StreamError: the target that gives the codes their detail."""


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


def invalid(message: str) -> RpcError:
    """Return an INVALID_ARGUMENT error."""
    return RpcError(grpc.StatusCode.INVALID_ARGUMENT, message)


def not_found(message: str) -> RpcError:
    """Return a NOT_FOUND error."""
    return RpcError(grpc.StatusCode.NOT_FOUND, message)


def already_exists(message: str) -> RpcError:
    """Return an ALREADY_EXISTS error."""
    return RpcError(grpc.StatusCode.ALREADY_EXISTS, message)


def denied(message: str) -> RpcError:
    """Return a PERMISSION_DENIED error."""
    return RpcError(grpc.StatusCode.PERMISSION_DENIED, message)


def out_of_range(message: str) -> RpcError:
    """Return an OUT_OF_RANGE error."""
    return RpcError(grpc.StatusCode.OUT_OF_RANGE, message)


def exhausted(message: str) -> RpcError:
    """Return a RESOURCE_EXHAUSTED error."""
    return RpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, message)


def unimplemented(message: str) -> RpcError:
    """Return an UNIMPLEMENTED error."""
    return RpcError(grpc.StatusCode.UNIMPLEMENTED, message)


def precondition(message: str) -> RpcError:
    """Return a FAILED_PRECONDITION error."""
    return RpcError(grpc.StatusCode.FAILED_PRECONDITION, message)


def batch_status(results: Sequence[RpcError | None]) -> bytes:
    """Return the serialized google.rpc.Status of a partly failed Write: a p4.v1.Error for each update.

    It travels as trailing metadata `grpc-status-details-bin`, with gRPC code UNKNOWN (spec 1.4, 12.3).
    """
    status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message="Error(s) during Write")
    for result in results:
        error = p4runtime_pb2.Error()
        if result is not None:
            error.canonical_code = result.canonical
            error.message = str(result)
            error.space = ERROR_SPACE
        packed = any_pb2.Any()
        packed.Pack(error)
        status.details.append(packed)
    serialized: bytes = status.SerializeToString()
    return serialized
