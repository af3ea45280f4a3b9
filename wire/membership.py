# SPDX-License-Identifier: Apache-2.0
"""What a worker must know of its job in one epoch (docs/protocol.md, Epochs)."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import asdict, dataclass, fields

from .constants import ELEMENT_CHOICES, JOBS, MAX_RANKS, is_job_port, job_port
from .errors import P4ReduceError

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


class MembershipError(P4ReduceError):
    """A membership record that no worker could work with; carries the field's name and value."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(f"membership field {field} = {value!r}: {reason}")
        self.field = field
        self.value = value


@dataclass(frozen=True)
class Membership:
    """One rank's place in a job, for one epoch; immutable, and never valid in another epoch.

    Raises MembershipError when a field is outside what the contract allows.
    """

    job: int
    """Job number, 0..255; its UDP port is 0xBE00 + job."""
    rank: int
    n: int
    """Number of ranks."""
    switch_ip: str
    """Address the contributions go to, and the results come from."""
    switch_mac: str
    own_ip: str
    own_mac: str
    own_port: int
    """UDP port that this worker bound for this epoch; outside the job ports."""
    window: int
    """W: the pool's slots, the same at all ranks, constant in an epoch."""
    lead: int
    """L: how many packets ahead of its values a chunk's exponent travels."""
    epoch: int
    elements: int
    """int32 values a packet, 64 or 256."""
    g0: int = 0
    """First chunk of the epoch, unwrapped (64 bits)."""
    t0: int = 0
    """All-reduces begun before the epoch."""

    def __post_init__(self) -> None:
        def check(field: str, ok: bool, reason: str) -> None:
            if not ok:
                raise MembershipError(field, getattr(self, field), reason)

        for f in fields(self):
            kind = str if f.type == "str" else int
            check(f.name, type(getattr(self, f.name)) is kind, f"must be {kind.__name__}")
        check("job", 0 <= self.job < JOBS, f"jobs are 0..{JOBS - 1}")
        check("n", 1 <= self.n <= MAX_RANKS, f"quantization leaves room for 1..{MAX_RANKS} ranks")
        check("rank", 0 <= self.rank < self.n, f"ranks of this job are 0..{self.n - 1}")
        check("own_port", 0 < self.own_port < 65536, "a UDP port is 1..65535")
        check("own_port", not is_job_port(self.own_port), "lies among the job ports; bind again")
        check("window", 1 <= self.window <= 1 << 15, "a slot has 15 bits on the wire")
        check("lead", 1 <= self.lead <= self.window, "the lead is 1..W")
        check("epoch", 0 < self.epoch < 1 << 32, "epochs are 32-bit and never 0")
        check("elements", self.elements in ELEMENT_CHOICES, f"packets carry one of {ELEMENT_CHOICES} values")
        check("g0", 0 <= self.g0 < 1 << 64, "chunk numbers have 64 bits")
        check("t0", self.t0 >= 0, "a count is not negative")
        for name in ("switch_ip", "own_ip"):
            try:
                ipaddress.IPv4Address(getattr(self, name))
            except ValueError:
                check(name, False, "is not an IPv4 address")
        for name in ("switch_mac", "own_mac"):
            mac_ok = _MAC.fullmatch(getattr(self, name)) is not None
            check(name, mac_ok, "is not a MAC address like 02:00:00:00:00:01, in lower case")

    @property
    def port(self) -> int:
        """UDP port of the job."""
        return job_port(self.job)

    def to_json(self) -> str:
        """Return the record as one JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Membership:
        """Read what `to_json` wrote; MembershipError names a missing, unknown or wrong field."""
        try:
            raw = json.loads(text)
        except ValueError as e:
            raise MembershipError("(whole record)", text[:80], f"is not JSON: {e}") from e
        if not isinstance(raw, dict):
            raise MembershipError("(whole record)", raw, "is not a JSON object")
        known = {f.name: f for f in fields(cls)}
        for name in raw.keys() - known.keys():
            raise MembershipError(name, raw[name], "is not a field of a membership")
        for name in known.keys() - raw.keys() - {"g0", "t0"}:
            raise MembershipError(name, None, "is missing")
        return cls(**raw)
