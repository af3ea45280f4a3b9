# SPDX-License-Identifier: Apache-2.0
"""What the controller is asked for, and how it refuses: each refusal with the HTTP status that it becomes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from controller.errors import ControllerError
from wire.constants import MAX_RANKS
from wire.hints import command

NAME = r"[a-z0-9][a-z0-9_-]{0,30}"


def _named(name: str) -> str:
    if not re.fullmatch(NAME, name):
        words = "a name has 1 to 31 of a-z, 0-9, - and _, a letter or digit first"
        raise PydanticCustomError("name", words)
    return name


Name = Annotated[str, AfterValidator(_named), Field(description="1 to 31 of a-z, 0-9, - and _")]
Slots = Annotated[int, Field(ge=1, le=1 << 15, description="the job's window, W")]
Rate = Annotated[int, Field(ge=8_000, le=1_000_000_000_000, description="bits of frames a second")]
Hosts = Annotated[
    list[Annotated[str, Field(max_length=31)]],
    Field(min_length=1, max_length=MAX_RANKS, description="rank r runs on the r-th host"),
]
Switches = Annotated[
    list[Annotated[str, Field(max_length=31)]],
    Field(max_length=254, description="switches that may sum for it; none named: all"),
]
Chunk = Annotated[int, Field(ge=0, lt=1 << 64)]
Wait = Annotated[float, Field(ge=0, le=60, description="seconds")]
Port = Annotated[int, Field(ge=0, le=65535)]


class Request(BaseModel):
    """A body; unknown fields are refused, and nothing is taken for something else."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewJob(Request):
    """A job to add."""

    name: Name
    workers: Hosts
    slots: Slots | None = None
    lead: Slots | None = None
    rate_bps: Rate | None = None
    tenant: Name = "default"
    switches: Switches | None = None


class JobChange(Request):
    """What of a job changes; what is left out stays. A rate of null ends the limit."""

    slots: Slots | None = None
    rate_bps: Rate | None = None
    workers: Hosts | None = None


class Tenant(Request):
    """A tenant's quota; None for no limit."""

    quota: Annotated[int, Field(ge=0, le=1 << 15)] | None


class Join(Request):
    """A worker that wants a rank."""

    ip: Annotated[str, Field(max_length=15)]
    udp_port: Annotated[int, Field(ge=1, le=65535)]


class Sync(Request):
    """What a worker says of itself (controller.changes.Status), and how long it waits for an answer."""

    epoch: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    begun: Annotated[int, Field(ge=0)] = 0
    next_chunk: Chunk = 0
    first_missing: Chunk = 0
    stopped: Annotated[int, Field(ge=0)] = 0
    udp_port: Port = 0
    have: Annotated[
        list[Annotated[list[Chunk], Field(min_length=2, max_length=2)]], Field(max_length=1 << 15)
    ] = []
    fetched: bool = False
    failed: Annotated[int, Field(ge=0)] = 0
    left: Annotated[str, Field(max_length=500)] | None = None
    missing: Annotated[list[Chunk], Field(max_length=64)] = []
    wait: Wait = 0.0


class Barrier(Request):
    """A worker that has reached its number-th barrier."""

    number: Annotated[int, Field(ge=1)]
    wait: Wait = 0.0


class PortFaults(Request):
    """Faults of a switch port's packets in one direction, as shares 0..1."""

    port: Annotated[int, Field(ge=1, le=509)]
    direction: Annotated[str, Field(pattern="^(in|out)$")]
    drop: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    duplicate: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    corrupt: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 1


class RequestError(ControllerError):
    """A request that cannot be granted as it is; `about` is the job, rank or session that it names."""

    status = 422

    def __init__(self, about: str, message: str) -> None:
        super().__init__(message)
        self.about = about


class NoSuchJobError(RequestError):
    """No job of that name."""

    status = 404

    def __init__(self, name: str, have: Sequence[str]) -> None:
        there = f"; there is {', '.join(have)}" if have else ", nor any other"
        add = command(f"job add {name} --workers h1,h2")
        super().__init__(name, f"there is no job {name}{there}; add it with: {add}")


class NoSuchSwitchError(RequestError):
    """No switch of that name."""

    status = 404

    def __init__(self, name: str, have: Sequence[str]) -> None:
        super().__init__(name, f"there is no switch {name}; there is {', '.join(have)}")


class JobExistsError(RequestError):
    """The name is taken."""

    status = 409

    def __init__(self, name: str) -> None:
        super().__init__(
            name, f"job {name} is already there: remove it (p4reduce job rm {name}), or take another name"
        )


class NoSuchSessionError(RequestError):
    """A session that the controller does not know (any more)."""

    status = 404

    def __init__(self, sid: str) -> None:
        super().__init__(sid, "the controller knows no such session: join the job again")


class RankTakenError(RequestError):
    """A living worker holds the rank."""

    status = 409

    def __init__(self, job: str, rank: int, host: str, left: float) -> None:
        super().__init__(
            job,
            f"rank {rank} of job {job} is held by a worker on {host}: end that one, or join as another; "
            f"if it has died it counts as lost in {left:.0f} s: try again then",
        )


class QuotaError(RequestError):
    """More slots than a tenant may have."""

    status = 409

    def __init__(self, tenant: str, quota: int, used: int, wanted: int) -> None:
        super().__init__(
            tenant,
            f"tenant {tenant} may have {quota} slots and its other jobs have {used}: {wanted} are too many; "
            f"ask for at most {max(0, quota - used)}, or raise the quota (p4reduce job quota {tenant} SLOTS)",
        )


class NotReadyError(RequestError):
    """The controller, or a switch that is needed, cannot serve this now."""

    status = 503
