# SPDX-License-Identifier: Apache-2.0
"""The all-reduce engine on a host: quantize, stream, recover."""

from .engine import Engine
from .errors import (
    MismatchError,
    NonFiniteError,
    NotInJobError,
    ResumeError,
    StalledError,
    TransportError,
    UnsupportedError,
    WorkerError,
)
from .stats import Stats
from .transport import Transport
from .worker import Worker

__all__ = [
    "Engine",
    "MismatchError",
    "NonFiniteError",
    "NotInJobError",
    "ResumeError",
    "StalledError",
    "Stats",
    "Transport",
    "TransportError",
    "UnsupportedError",
    "Worker",
    "WorkerError",
]
