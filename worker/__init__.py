# SPDX-License-Identifier: Apache-2.0
"""The all-reduce engine on a host: quantize, stream, recover."""

from .engine import Engine
from .errors import (
    Absent,
    MismatchError,
    NonFiniteError,
    NotInJobError,
    ResumeError,
    StalledError,
    TransportError,
    UnsupportedError,
    WorkerError,
)
from .handle import Handle, Progress
from .join import join
from .session_errors import (
    BarrierTimeoutError,
    BeyondRankError,
    JobDrainingError,
    JobRemovedError,
    NoSuchJobError,
    RankTakenError,
    RendezvousTimeoutError,
    SessionEndedError,
    WorkerLostError,
    WrongHostError,
)
from .stats import Stats
from .transport import Transport
from .worker import Worker

__all__ = [
    "Absent",
    "BarrierTimeoutError",
    "BeyondRankError",
    "Engine",
    "Handle",
    "JobDrainingError",
    "JobRemovedError",
    "MismatchError",
    "NoSuchJobError",
    "NonFiniteError",
    "NotInJobError",
    "Progress",
    "RankTakenError",
    "RendezvousTimeoutError",
    "ResumeError",
    "SessionEndedError",
    "StalledError",
    "Stats",
    "Transport",
    "TransportError",
    "UnsupportedError",
    "Worker",
    "WorkerError",
    "WorkerLostError",
    "WrongHostError",
    "join",
]
