# SPDX-License-Identifier: Apache-2.0
"""The all-reduce engine on a host: quantize, stream, recover."""

from .engine import Engine, Stats
from .errors import (
    MismatchError,
    NonFiniteError,
    NotInJobError,
    StalledError,
    TransportError,
    UnsupportedError,
    WorkerError,
)
from .transport import Transport
from .worker import Worker

__all__ = [
    "Engine",
    "MismatchError",
    "NonFiniteError",
    "NotInJobError",
    "StalledError",
    "Stats",
    "Transport",
    "TransportError",
    "UnsupportedError",
    "Worker",
    "WorkerError",
]
