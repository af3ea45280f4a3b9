# SPDX-License-Identifier: Apache-2.0
"""Memberships of a capture: who was whom in each epoch, kept beside the captures that they explain."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from wire.constants import ELEMENT_CHOICES, JOBS, MAX_WORKERS

from .errors import MembersError
from .names import MEMBERSHIPS

FILE = MEMBERSHIPS
VERSION = 1


@dataclass(frozen=True)
class SwitchPlace:
    """A switch of the job's tree."""

    name: str
    ip: str
    parent: str | None = None
    """The switch that it sends its partials to; None for the root."""


@dataclass(frozen=True)
class Member:
    """Who contributes at a switch: a worker, or a leaf switch with its partials."""

    rank: int
    """-1 for a leaf."""
    host: str
    """A leaf's name."""
    ip: str
    udp_port: int
    bit: int
    """Its worker bit at `switch`."""
    switch: str
    """The switch that it contributes to."""
    link: str
    """The link between the two, as h1-s1; "" where unknown."""
    up_mbit: float | None = None
    """What the link is shaped to towards the switch, 10^6 bit/s of frames; None is not at all, or unknown."""
    down_mbit: float | None = None


@dataclass(frozen=True)
class Epoch:
    """One epoch of a job."""

    job: int
    job_name: str
    epoch: int
    window: int
    """W."""
    lead: int
    """L."""
    elements: int
    n: int
    """Ranks."""
    g0: int
    """Its first chunk, unwrapped."""
    t0: int
    """All-reduces begun before it."""
    switches: tuple[SwitchPlace, ...]
    members: tuple[Member, ...]
    began: int
    """ns since the Unix epoch, before the first worker was told of it."""
    ended: int | None = None
    """When it was over: its workers had stopped, or the job was gone. None while it lasts."""
    duplicates: bool = False
    """Whether a fault table duplicated packets meanwhile: then a contribution may have several results."""


def load(paths: Sequence[Path]) -> list[Epoch]:
    """Return the epochs told of beside these captures (files or folders), oldest first; [] where none are.

    Raises MembersError, also where two of them tell different things of one epoch.
    """
    folders = {path if path.is_dir() else path.parent for path in paths}
    found: dict[tuple[int, int], Epoch] = {}
    for file in sorted(folder / FILE for folder in folders):
        if file.exists():
            for epoch in read(file):
                key = (epoch.epoch, epoch.job)
                known = found.get(key, epoch)
                if _places(known) != _places(epoch):
                    raise MembersError(
                        file,
                        f"epoch {epoch.epoch} of job {epoch.job} has other members than in another folder",
                        "these are two networks: read each by itself",
                    )
                # Of two recordings the later one knows more.
                found[key] = replace(
                    epoch,
                    ended=epoch.ended or known.ended,
                    duplicates=epoch.duplicates or known.duplicates,
                )
    return [found[key] for key in sorted(found)]


def _places(epoch: Epoch) -> list[tuple[str, int, str, str]]:
    """Return what stays as it is for all of an epoch."""
    return sorted((each.ip, each.udp_port, each.switch, each.link) for each in epoch.members)


def read(file: Path) -> list[Epoch]:
    """Return the epochs in a file. Raises MembersError."""
    try:
        told = json.loads(file.read_text())
    except OSError as error:
        raise MembersError(file, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise MembersError(file, f"is not JSON ({error})") from error
    if not isinstance(told, dict) or not isinstance(told.get("epochs"), list):
        raise MembersError(file, "has no list of epochs")
    if told.get("version") != VERSION:
        raise MembersError(file, f"has version {told.get('version')!r}, where {VERSION} is understood")
    return [epoch_of(each, file) for each in told["epochs"]]


def write(file: Path, epochs: Sequence[Epoch]) -> None:
    """Put epochs in a file, in one step."""
    draft = file.with_name(f".{file.name}")
    draft.write_text(json.dumps({"version": VERSION, "epochs": [asdict(each) for each in epochs]}, indent=1))
    draft.replace(file)


def epoch_of(told: Any, file: Path) -> Epoch:
    """Return an epoch from JSON; MembersError says what is missing or cannot be."""
    tree = _fields(told, Epoch, file)
    for name, kind in (("switches", SwitchPlace), ("members", Member)):
        if not isinstance(tree[name], list | tuple):
            raise MembersError(file, f"{name} is no list")
        tree[name] = tuple(kind(**_fields(each, kind, file)) for each in tree[name])
    epoch = Epoch(**tree)
    names = {place.name: place.parent for place in epoch.switches}
    leaves = {member.host for member in epoch.members if member.rank < 0}
    seats = {(member.switch, member.bit) for member in epoch.members}
    for what, ok in (
        ("job", 0 <= epoch.job < JOBS),
        ("epoch", 0 < epoch.epoch < 1 << 32),
        ("window", 1 <= epoch.window <= 1 << 15),
        ("elements", epoch.elements in ELEMENT_CHOICES),
        ("g0", 0 <= epoch.g0 < 1 << 64),
        ("members", all(0 <= member.bit < MAX_WORKERS for member in epoch.members)),
        ("members", all(0 < member.udp_port < 1 << 16 for member in epoch.members)),
        ("members", {member.switch for member in epoch.members} | leaves <= names.keys()),
        ("members", len(seats) == len(epoch.members)),
        ("switches", len(names) == len(epoch.switches) and set(names.values()) - {None} <= names.keys()),
        ("began", 0 <= epoch.began < 1 << 63),
        ("ended", epoch.ended is None or 0 <= epoch.ended < 1 << 63),
    ):
        if not ok:
            raise MembersError(file, f"epoch {epoch.epoch} of job {epoch.job_name}: {what} cannot be so")
    return epoch


_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "int | None": (int, type(None)),
    "str | None": (str, type(None)),
    "float | None": (float, int, type(None)),
}
"""What a field of JSON may be; all others are lists."""


def _fields(told: Any, kind: Any, file: Path) -> dict[str, Any]:
    """Return the fields of a dataclass, their types checked."""
    what = kind.__name__
    if not isinstance(told, dict):
        raise MembersError(file, f"{told!r} is no {what}")
    known = {field.name: field for field in fields(kind)}
    for name in told.keys() - known.keys():
        raise MembersError(file, f"{name} is no field of {what}")
    for name, field in known.items():
        if name not in told:
            if field.default is MISSING:
                raise MembersError(file, f"{what} without {name}")
            continue
        types = _TYPES.get(str(field.type), (list, tuple))
        if not isinstance(told[name], types) or (isinstance(told[name], bool) and bool not in types):
            raise MembersError(file, f"{what}: {name} is {told[name]!r}")
        if name == "ip":
            try:
                ipaddress.IPv4Address(told[name])
            except ValueError:
                raise MembersError(file, f"{what}: {told[name]!r} is no IPv4 address") from None
    return dict(told)
